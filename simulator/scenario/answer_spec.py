"""Which keys determine a scenario's report: `answer`, `baseline`, `budget`, and what may each hold?

Same form as records.py. A finding's name is short for a mapping: `change` for `{finding: change}`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from simulator.basics import reading
from simulator.basics.spec import Listed, Spec
from simulator.records import measures

# Findings about a scenario's points; each is a module in simulator/findings/kinds.
FINDINGS: Final = MappingProxyType(
    {
        "change": "difference of each setting from the baseline",
        "best": "best setting under each condition, its lead, and the crossovers",
        "effect": "effect of the swept keys, or of a compared key, on each setting",
        "threshold": "value of `along` above which a setting is worse than the baseline, or no longer worse",
        "value": "results of each setting",
        "fit": "settings that fit into memory, and the largest fitting value of `along`",
        "learned": "results of real trainings, and findings of their checks",
    }
)
# Findings that compare with a baseline, and findings that search along an axis.
AGAINST: Final = ("change", "best", "threshold")
ALONG: Final = ("threshold", "fit", "effect")
# Upper bound for money, power and tokens; larger numbers are typing errors.
_MOST: Final = 1e18


_NAME: Final = reading.part(reading.choice(tuple(FINDINGS)))


class FindingSpec(Spec):
    """A finding to report: kind, measures and axis (an entry in `answer`)."""

    finding: Annotated[str, _NAME] = Field(description="Kind of finding: a name, or the path of an own finding.")
    of: Listed[Annotated[str, reading.choice(measures.names())]] = Field(
        default=(), description="Measures of the report to describe; the finding's usual measures if omitted."
    )
    along: str | None = Field(default=None, description="Key along which a threshold is searched.")
    above: Annotated[float, reading.number(positive=True, most=_MOST)] | None = Field(
        default=None,
        description=(
            "threshold: value of the measure to search for, instead of a comparison with the baseline, in the units of "
            "the report: 0.5 for a share, seconds, bytes, tokens/s."
        ),
    )
    between: Listed[Any] | None = Field(
        default=None, description="First and last value of `along`, if this key is not swept."
    )
    margin: Annotated[float, reading.number(positive=False, most=10.0)] = Field(
        default=0.05, description="Smallest relative difference that counts as worse; 0.05 is 5 %."
    )


class FindingEntry:
    """Pydantic annotation for an entry of `answer` that may be a finding's name: `change` for `{finding: change}`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a pydantic schema expanding a finding's name to a mapping and validating the mapping."""
        # Before pydantic's own check, which accepts mappings only.
        return core_schema.no_info_before_validator_function(
            lambda value: {"finding": value} if isinstance(value, str) else value, handler(source)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """Return the JSON schema of both forms, the name and the mapping."""
        return {"anyOf": [*_NAME.schema()["anyOf"], handler(schema)]}


class BudgetSpec(Spec):
    """Length and prices of a whole training."""

    tokens: Annotated[float, reading.number(positive=True, most=_MOST)] | None = Field(
        default=None, description="Number of tokens to train on; alternative to `steps`."
    )
    steps: Annotated[float, reading.number(positive=True, most=_MOST)] | None = Field(
        default=None, description="Number of optimizer steps; alternative to `tokens`."
    )
    price: Annotated[float, reading.number(positive=True, most=_MOST)] | None = Field(
        default=None, description="Price per GPU hour, in any currency."
    )
    watts: Annotated[float, reading.number(positive=True, most=1e6)] | None = Field(
        default=None, description="Power per GPU [W], including its share of host, network and cooling."
    )
