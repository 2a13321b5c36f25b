"""Mappings that may be written as a word: `sharding: zero3` for `sharding: {strategy: zero3}`.

The word is replaced by its mapping during reading. The module knows no key's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from simulator.basics import reading
from simulator.basics.spec import Spec


@dataclass(frozen=True, slots=True)
class Short:
    """Pydantic annotation for a mapping that may be written as a word, such as zero3 for {strategy: zero3}.

    Attributes
    ----------
    words : mapping of word to mapping
        Mapping for each word.
    others : mapping of word to str
        Words used elsewhere, each with advice.
    part : str
        Key of the mapping that names a part, such as strategy; a file's path stands for this key alone. Empty if no
        key names a part.
    """

    words: Mapping[str, Mapping[str, Any]]
    others: Mapping[str, str]
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
