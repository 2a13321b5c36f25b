"""The dialect of YAML that is read and written: scalars as version 1.2 has them.

Rule: `on`, `off`, `yes` and `no` are words, 1e9 is a number, 12:30:45 and dates are text. Nothing here knows a file.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml


class Loader(yaml.SafeLoader):
    """A SafeLoader that resolves plain scalars as YAML 1.2's core schema does."""

    yaml_implicit_resolvers: Final = {}  # type: ignore[misc]


class Dumper(yaml.SafeDumper):
    """A SafeDumper that quotes what Loader would not read back as text, and never writes aliases."""

    yaml_implicit_resolvers: Final = Loader.yaml_implicit_resolvers  # type: ignore[misc]

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.2.2, section 10.3.2 "Tag Resolution" of the core schema, without octal, hexadecimal, infinity and not-a-number:
# no scenario needs them, and as text they are refused where a number is wanted.
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("int", r"[-+]?[0-9]+", [*"-+0123456789"]),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def dump(data: Any, *, one_line: bool = False) -> str:
    """Write plain data as YAML text that is read back as the same data.

    Parameters
    ----------
    data : Any
        dict, list, str, int, float, bool, None.
    one_line : bool
        All in brackets and braces, without a line's end.

    Examples
    --------
    >>> dump({"name": "1e9", "sizes": ["1 MiB", "on"]})
    "name: '1e9'\\nsizes: [1 MiB, on]\\n"
    """
    width, flow = (float("inf"), True) if one_line else (110, None)
    text = yaml.dump(data, Dumper=Dumper, sort_keys=False, default_flow_style=flow, allow_unicode=True, width=width)
    return str(text).removesuffix("...\n").strip() if one_line else str(text)
