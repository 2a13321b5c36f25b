"""Types of fields that several mappings of a scenario file share: the strict mapping itself, counts, ranks.

Rule: nothing here knows a key's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from simulator.basics import counts, dtypes
from simulator.scenario import reading


class Spec(BaseModel):
    """A mapping of a scenario file: one field for each key, and no other keys."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with other values in some fields; the values are not checked."""
        return self.model_copy(update=changes)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


T = TypeVar("T")
# A list of the file, kept as a tuple.
Listed = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Attach to a field that may be left out, but holds a mapping where it is written: null is none.

    Attributes
    ----------
    spec : type
        The mapping's.
    """

    spec: type[Spec]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let the mapping alone decide."""
        return handler.generate_schema(self.spec)


# A million ranks is ten times the largest machine in operation; a larger number is rather a typing error.
_MOST_RANKS: Final = 1_000_000
Rank = Annotated[int, reading.whole(0, _MOST_RANKS - 1)]
Count = Annotated[int, reading.whole(1, _MOST_RANKS)]
# Ranks, steps and micro-batches, of which there may be thousands.
LargeCount = Annotated[int, reading.count(1, _MOST_RANKS, counts.THINGS)]


def stored_dtypes() -> tuple[str, ...]:
    """Names of the dtypes that memory and wires can hold."""
    return tuple(d.name for d in dtypes.DTYPES.values() if not d.compute_only)
