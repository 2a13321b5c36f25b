"""Types of fields that several mappings of a scenario file share: the strict mapping itself, counts, ranks.

Rule: nothing here knows a key's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from simulator.basics import counts, dtypes
from simulator.scenario import reading


class Shape(BaseModel):
    """A mapping that has these keys and no others."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Attach to a field that may be left out, but holds a mapping where it is written: null is none.

    Attributes
    ----------
    shape : type
        Of the mapping.
    """

    shape: type[Shape]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let the shape alone decide."""
        return handler.generate_schema(self.shape)


# A million ranks is ten times the largest machine in operation; a larger number is rather a typing error.
_MOST_RANKS: Final = 1_000_000
Rank = Annotated[int, reading.whole(0, _MOST_RANKS - 1)]
Count = Annotated[int, reading.whole(1, _MOST_RANKS)]
# Ranks, steps and micro-batches, of which there may be thousands.
LargeCount = Annotated[int, reading.count(1, _MOST_RANKS, counts.THINGS)]


def stored_dtypes() -> tuple[str, ...]:
    """Names of the dtypes that memory and wires can hold."""
    return tuple(d.name for d in dtypes.DTYPES.values() if not d.compute_only)
