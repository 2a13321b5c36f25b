"""Mappings that may be written as one word: `sharding: zero3` for `sharding: {strategy: zero3}`.

Rule: a word stands for a mapping, and is that mapping from here on; nothing here knows a key's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from simulator.scenario import reading
from simulator.scenario.field_types import Spec


@dataclass(frozen=True, slots=True)
class Short:
    """Attach to a mapping that may be written as one word.

    Attributes
    ----------
    words : mapping of word to mapping
        What each stands for.
    others : mapping of word to str
        Words that people write, and what to write instead.
    """

    words: Mapping[str, Mapping[str, str]]
    others: Mapping[str, str]

    def expanded(self, value: Any) -> Any:
        """The mapping that a word stands for; a mapping stays."""
        if isinstance(value, dict | Spec):
            return value
        if not isinstance(value, str):
            names = ", ".join(self.words)
            raise ValueError(f"got {reading.shown(value)}; must be a mapping, or one of {names}")
        read = reading.choice(tuple(self.words), dict(self.others)).reader
        return dict(self.words[str(read(value))])

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Expand first, then read the mapping."""
        return core_schema.no_info_before_validator_function(self.expanded, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe both forms."""
        return {"anyOf": [{"enum": list(self.words)}, handler(schema)]}
