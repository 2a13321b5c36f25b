"""Reads single keys of a Hugging Face config.json: sizes, switches, lists, with every fault recorded.

A null key counts as missing, as in Hugging Face's code.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from simulator.basics.document import Document, Fault, Key

# No published model comes near; these limits keep a typing error from filling the memory.
_LARGEST: Final = 10**8
MOST_LAYERS: Final = 10**4


@dataclass(slots=True)
class ConfigKeys:
    """Reads keys of a config.json and records every fault; a faulty size reads as 1, to find every fault in a single
    run.
    """

    document: Document
    seq_len: int | None  # sequence length of the training
    below: Key = ()  # key of the mapping that is read; empty for the whole file
    faults: list[Fault] = field(default_factory=list)  # faults so far
    used: set[str] = field(default_factory=set)  # keys that were read and have a value

    def within(self, key: str) -> ConfigKeys:
        """Return a reader of the mapping at a key, which records faults in the same list; the reader itself if the key
        is missing.
        """
        value = self.get((key,))
        if value is not None and not isinstance(value, Mapping):
            self.fault((key,), f"got {value!r}; must be a mapping (key: value)")
        return self if value is None else replace(self, below=(*self.below, key))

    def get(self, key: Key) -> Any:
        """Return the value at a nested key of the config.json, or None."""
        data = self.document.data
        for step in (*self.below, *key):
            data = data.get(step) if isinstance(data, Mapping) else None
        if data is not None and key:
            self.used.add(".".join(map(str, key)))
        return data

    def fault(self, key: Key, message: str) -> None:
        """Record a fault: a message about a key of the config.json."""
        self.faults.append(self.document.fault((*self.below, *key), message))

    def size(self, *key: str, default: int | None = None, most: int = _LARGEST, least: int = 1) -> int:
        """Return a key's whole number within limits, or its default; otherwise record a fault and return 1."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            self.fault(key, f"is missing; {self._hint(key)}")
        # In Python True is an int.
        elif isinstance(value, bool) or not isinstance(value, int):
            self.fault(key, f"got {value!r}; must be a whole number")
        elif not least <= value <= most:
            self.fault(key, f"got {value}; must be from {least} to {most}")
        else:
            return value
        return 1

    def layers(self, *names: str) -> int:
        """Return the number of layers, from the first of some keys that is given."""
        return self.size(self.first(*names), most=MOST_LAYERS)

    def first(self, *names: str) -> str:
        """Return the first of some keys with the same meaning that is given; the first key if none is."""
        return next((name for name in names if self.get((name,)) is not None), names[0])

    def flag(self, *key: str, default: bool) -> bool:
        """Return a key's boolean, or its default if the key is missing; record a fault for other values."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(key, f"got {value!r}; must be true or false")
            return default
        return value

    def has_number(self, key: str, *, default: bool) -> bool:
        """Return True if the key has a number, False if it is null, its default if it is missing."""
        value = self.get((key,))
        if value is None:
            holder = self.get(()) or {}
            return default and not (isinstance(holder, Mapping) and key in holder)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault((key,), f"got {value!r}; must be a number, or null")
        return True

    def list_of(self, key: str) -> tuple[Any, ...]:
        """Return a key's list, or an empty list if the key is missing; record a fault for another value."""
        value = self.get((key,))
        if not isinstance(value, list | tuple | None):
            self.fault((key,), f"got {value!r}; must be a list")
            return ()
        return tuple(value or ())

    def must_be(self, key: str, allowed: Any, reason: str) -> None:
        """Record a fault if a key has a value other than the only modelled one."""
        value = self.get((key,))
        if value is not None and value != allowed:
            written = str(allowed).lower() if isinstance(allowed, bool) else allowed
            self.fault((key,), f"got {value!r}; must be {written}; {reason}")

    def divides(self, key: Key, part: int, total_name: str, total: int, advice: str = "") -> None:
        """Record a fault at a key if its size `part` does not divide the size `total` of the key `total_name`."""
        # A faulty size reads as 1; the failed division would be reported as a second fault.
        if not self.faults and total % part:
            self.fault(key, f"got {part}; must divide {total_name} {total}{advice}")

    def _hint(self, key: Key) -> str:
        """Return a hint for a missing key of the config.json: a similar key in the file, if any."""
        names = [str(name) for name, value in self.document.data.items() if value is not None]
        close = difflib.get_close_matches(str(key[-1]), names, n=1, cutoff=0.7)
        return f"is it meant by {close[0]!r}?" if close else "give it"
