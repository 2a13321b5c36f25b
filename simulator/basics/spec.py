"""Field types shared by several mappings in a scenario file: the strict mapping itself, short forms, counts, ranks.

The module knows no key's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from simulator.basics import counts, dtypes, reading


class Spec(BaseModel):
    """Base class of mappings in a scenario file: a field for each key, and no other keys."""

    # Strict: pydantic would otherwise read "8" as 8.
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with changed fields, whose values are not checked; raise TypeError for an unknown field."""
        if strange := changes.keys() - type(self).model_fields.keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(strange))}")
        return self.model_copy(update=changes)


class Frozen(dict[str, Any]):
    """A mapping as the value of a key of a frozen record: it has a hash, and its items never change."""

    def __hash__(self) -> int:  # type: ignore[override]
        """Return a hash of the items."""
        return hash(frozenset(self.items()))


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


@dataclass(frozen=True, slots=True)
class Late:
    """Pydantic annotation for an optional mapping whose type is imported when the key is read; null is refused."""

    spec: Callable[[], type[Spec]]  # returns the type of the mapping

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the pydantic schema of a mapping that its type validates."""
        return core_schema.no_info_plain_validator_function(lambda written: self.spec().model_validate(written))


def servers_among(servers: int | Literal["all"], workers: int) -> int:
    """Return the number of parameter servers beside a number of workers.

    >>> servers_among("all", 8), servers_among(2, 8)
    (8, 2)
    """
    return workers if servers == "all" else servers


# Ten times as many ranks as in the largest machine in operation; a larger number is probably a typing error.
_MOST_RANKS: Final = 1_000_000
Rank = Annotated[int, reading.whole(0, _MOST_RANKS - 1)]
_COUNT: Final = reading.whole(1, _MOST_RANKS)
Count = Annotated[int, _COUNT]
# A number of parameter servers; `all`: a server per worker.
Servers = Annotated[int | Literal["all"], reading.whole_or("all", 1, _MOST_RANKS)]
# Ranks, steps and micro-batches, with counts in the thousands; may be written "8k".
LargeCount = Annotated[int, reading.count(1, _MOST_RANKS, counts.THINGS)]


@dataclass(frozen=True, slots=True)
class RanksOr:
    """Pydantic annotation for a list of ranks, or a mapping with a single count, such as {gpus_per_node: 64}."""

    key: str  # key of the count

    def counted(self, value: Mapping[str, Any]) -> Frozen:
        """Return the mapping with the count; raise ValueError for other mappings."""
        if set(value) != {self.key}:
            raise ValueError(f"got a mapping; must be a list such as [0, 2, 1, 3], or {{{self.key}: 64}}")
        return Frozen({self.key: _COUNT.reader(value[self.key])})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a pydantic schema that validates everything except mappings as a list."""
        return core_schema.no_info_wrap_validator_function(
            lambda value, listed: self.counted(value) if isinstance(value, dict) else listed(value),
            handler.generate_schema(Listed[Rank]),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema of both forms."""
        short = {"type": "object", "properties": {self.key: _COUNT.schema()}, "required": [self.key]}
        return {"anyOf": [handler(schema), short | {"additionalProperties": False}]}


def stored_dtypes() -> tuple[str, ...]:
    """Return the names of dtypes that exist in memory and on wires, i.e. not only in matmuls."""
    return tuple(d.name for d in dtypes.DTYPES.values() if not d.compute_only)


@dataclass(frozen=True, slots=True)
class Short:
    """Pydantic annotation for a mapping that may be written as a word, such as zero3 for {strategy: zero3}."""

    words: Mapping[str, Mapping[str, Any]]  # mapping for each word
    others: Mapping[str, str]  # words used elsewhere, each with advice
    # Key of the mapping that names a part, such as strategy; a file's path stands for this key alone. Empty if no key
    # names a part.
    part: str = ""

    def expanded(self, value: Any) -> Any:
        """Return the mapping that a word stands for; return a mapping unchanged."""
        # `Spec`: a default, or a value set from Python, is a validated record already.
        if isinstance(value, dict | Spec):
            return value
        if not isinstance(value, str):
            names = ", ".join(self.words)
            path = ", or the path of a file that ends in .py" if self.part else ""
            raise ValueError(f"got {reading.shown(value)}; must be a mapping, or one of {names}{path}")
        word = str(self._reader.reader(value))
        return dict(self.words[word]) if word in self.words else {self.part: word}

    def known(self, value: Any) -> dict[str, Any] | None:
        """Return the mapping that a value stands for in short; None if it is no short form."""
        try:
            return dict(self.expanded(value)) if isinstance(value, str) else None
        except ValueError:
            return None

    @property
    def _reader(self) -> reading.ValueReader:
        read = reading.choice(tuple(self.words), dict(self.others))
        return reading.part(read) if self.part else read

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a pydantic schema expanding a word to its mapping and validating the mapping."""
        # Before the mapping's own check, which would refuse a word.
        return core_schema.no_info_before_validator_function(self.expanded, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema of both forms, the word and the mapping."""
        word = self._reader.schema()
        return {"anyOf": [*word.get("anyOf", [word]), handler(schema)]}
