"""Reads topology files that use the former word "box" for node.

Keys and places are renamed before any check: no other module knows the former words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simulator.basics.document import Document, Key

# Former word -> present word, for each part of a topology file.
_BUILDER: Final = {"boxes": "nodes"}
_OPTIONS: Final = {"boxes": "nodes", "boxes_per_leaf": "nodes_per_leaf"}
_MEASURED: Final = {"one_box": "one_node", "boxes": "nodes"}


def in_todays_words(document: Document) -> Document:
    """Return a topology file with its former words replaced."""
    if not isinstance(document.data, Mapping):
        return document
    data = {name: _renamed((name,), value) for name, value in document.data.items()}
    if isinstance(data.get("builder"), str):
        data["builder"] = _BUILDER.get(data["builder"], data["builder"])
    keys = {_today(key): place for key, place in document.keys.items()}
    # Places are renamed too: otherwise faults in renamed keys would lose their lines and columns.
    values = {_today(key): place for key, place in document.values.items()}
    return replace(document, data=data, keys=keys, values=values)


def _renamed(key: Key, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {_today((*key, name))[-1]: _renamed((*key, name), inner) for name, inner in value.items()}


def _today(key: Key) -> Key:
    """Return a key's path in present words."""
    # The word to replace is the 2nd step in options.boxes, and the 3rd step in collectives.all_reduce.one_box.
    for place, words in ((1, _OPTIONS if key[:1] == ("options",) else {}), (2, _of_measured(key))):
        if len(key) > place and key[place] in words:
            key = (*key[:place], words[str(key[place])], *key[place + 1 :])
    return key


def _of_measured(key: Key) -> Mapping[str, str]:
    return _MEASURED if key[:1] == ("collectives",) else {}
