"""Which keys determine a scenario's report: `answer`, `baseline`, `budget`, and what may each hold?

Same form as records.py. A finding's name is short for a mapping: `change` for `{finding: change}`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from simulator.records import measures
from simulator.scenario import reading
from simulator.scenario.field_types import Listed, Spec

# Findings about a scenario's points; each is a module in simulator/findings/kinds.
FINDINGS: Final = MappingProxyType(
    {
        "change": "how each setting differs from the baseline",
        "best": "which setting is best under which condition, by how much, and where the lead changes",
        "effect": "how much what is swept, or one compared key, changes each setting",
        "threshold": "from which value of `along` on a setting is worse than the baseline, or no longer so",
        "value": "what each setting reaches",
        "fit": "which settings fit into memory, and up to which value of `along`",
        "learned": "what real trainings learned, and what their checks saw",
    }
)
# Findings that compare with a baseline, and findings that search along an axis.
AGAINST: Final = ("change", "best", "threshold")
ALONG: Final = ("threshold", "fit", "effect")
# Upper bound for money, power and tokens; larger numbers are typing errors.
_MOST: Final = 1e18


class FindingSpec(Spec):
    """An entry in `answer`."""

    finding: Annotated[str, reading.choice(tuple(FINDINGS))] = Field(description="What is told.")
    of: Listed[Annotated[str, reading.choice(measures.names())]] = Field(
        default=(), description="Which measures of a report it speaks of; its usual ones if left out."
    )
    along: str | None = Field(default=None, description="The key that a threshold is looked for along.")
    between: Listed[Any] | None = Field(
        default=None, description="First and last value of `along`, where it is not swept."
    )
    margin: Annotated[float, reading.number(positive=False, most=10.0)] = Field(
        default=0.05, description="By which share a setting must be worse to count as worse; 0.05 is 5 %."
    )


class FindingEntry:
    """Annotation for an entry that may be a finding's name: `change` for `{finding: change}`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Expand a name first, then validate the mapping."""
        # Before pydantic's own check, which accepts mappings only.
        return core_schema.no_info_before_validator_function(
            lambda value: {"finding": value} if isinstance(value, str) else value, handler(source)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """Describe both forms."""
        return {"anyOf": [{"enum": list(FINDINGS)}, handler(schema)]}


class BudgetSpec(Spec):
    """Length and prices of a whole training."""

    tokens: Annotated[float, reading.number(positive=True, most=_MOST)] | None = Field(
        default=None, description="Tokens to train on; or else `steps`."
    )
    steps: Annotated[float, reading.number(positive=True, most=_MOST)] | None = Field(
        default=None, description="Optimizer steps to take; or else `tokens`."
    )
    price: Annotated[float, reading.number(positive=True, most=_MOST)] | None = Field(
        default=None, description="Of a GPU hour, in any currency."
    )
    watts: Annotated[float, reading.number(positive=True, most=1e6)] | None = Field(
        default=None, description="Power of a GPU with its share of host, network and cooling."
    )
