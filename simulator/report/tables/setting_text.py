"""How is a setting's value written in tables and legends?

Rule: the kind of a mapping (its `strategy`, `rule` or `what`) stands first, without its key; of yes and no only the key
is written, with "not" before it for no.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_KINDS: Final = ("strategy", "rule", "what")


def setting_text(value: Any) -> str:
    """Write a value as people would.

    Examples
    --------
    >>> setting_text({"strategy": "parameter_server", "asynchronous": True, "servers": 2})
    'parameter_server (asynchronous, servers 2)'
    >>> setting_text([]), setting_text({3: 0.5}), setting_text({"prefetch": 0, "reshard_after_forward": False})
    ('none', '3 0.5', 'prefetch 0, not reshard after forward')
    """
    if isinstance(value, Mapping):
        kind = next((setting_text(value[key]) for key in _KINDS if key in value), "")
        rest = ", ".join(entry_text(str(key), value[key]) for key in value if key not in _KINDS)
        return f"{kind} ({rest})" if kind and rest else kind or rest or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def entry_text(key: str, value: Any) -> str:
    """Write a key and its value."""
    name = key.replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {setting_text(value)}"
