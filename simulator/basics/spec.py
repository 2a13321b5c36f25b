"""Field types shared by several mappings in a scenario file: the strict mapping itself, counts, ranks.

The module knows no key's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from simulator.basics import counts, dtypes, reading


class Spec(BaseModel):
    """Base class of mappings in a scenario file: a field for each key, and no other keys."""

    # Strict: pydantic would otherwise read "8" as 8.
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with changed fields; the values are not checked."""
        return self.model_copy(update=changes)


# Tuples, because frozen records must not hold lists.
def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


T = TypeVar("T")
# A list in the file, stored as a tuple.
Listed = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]


@dataclass(frozen=True, slots=True)
class Omittable:
    """Pydantic annotation for an optional mapping: the key may be omitted, and null is refused."""

    spec: type[Spec]  # type of the mapping

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the pydantic schema of the mapping itself, which refuses None."""
        return handler.generate_schema(self.spec)


def servers_among(servers: int | Literal["all"], workers: int) -> int:
    """Return the number of parameter servers beside a number of workers."""
    return workers if servers == "all" else servers


# Ten times as many ranks as in the largest machine in operation; a larger number is probably a typing error.
_MOST_RANKS: Final = 1_000_000
Rank = Annotated[int, reading.whole(0, _MOST_RANKS - 1)]
Count = Annotated[int, reading.whole(1, _MOST_RANKS)]
# A number of parameter servers: `all` stands for as many as workers.
Servers = Annotated[int | Literal["all"], reading.whole_or("all", 1, _MOST_RANKS)]
# Ranks, steps and micro-batches, with counts in the thousands; may be written "8k".
LargeCount = Annotated[int, reading.count(1, _MOST_RANKS, counts.THINGS)]


def stored_dtypes() -> tuple[str, ...]:
    """Return the names of dtypes that exist in memory and on wires, i.e. not only in matmuls."""
    return tuple(d.name for d in dtypes.DTYPES.values() if not d.compute_only)
