"""Mappings that may be written as a word: `sharding: zero3` for `sharding: {strategy: zero3}`.

The word is replaced by its mapping during reading. The module knows no key's name.
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
    """Pydantic annotation for a mapping that may be written as a word, such as zero3 for {strategy: zero3}.

    Attributes
    ----------
    words : mapping of word to mapping
        Mapping for each word.
    others : mapping of word to str
        Words used elsewhere, each with advice.
    """

    words: Mapping[str, Mapping[str, Any]]
    others: Mapping[str, str]

    def expanded(self, value: Any) -> Any:
        """Return the mapping that a word stands for; return a mapping unchanged."""
        # `Spec`: a default, or a value set from Python, is a validated record already.
        if isinstance(value, dict | Spec):
            return value
        if not isinstance(value, str):
            names = ", ".join(self.words)
            raise ValueError(f"got {reading.shown(value)}; must be a mapping, or one of {names}")
        read = reading.choice(tuple(self.words), dict(self.others)).reader
        return dict(self.words[str(read(value))])

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a pydantic schema expanding a word to its mapping and validating the mapping."""
        # Before the mapping's own check, which would refuse a word.
        return core_schema.no_info_before_validator_function(self.expanded, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema of both forms, the word and the mapping."""
        return {"anyOf": [{"enum": list(self.words)}, handler(schema)]}
