"""How YAML is read and written: PyYAML with the scalars of YAML 1.2.

Rule: `on`, `off`, `yes` and `no` are words, 1e9 is a number, 12:30:45 and dates are text. Nothing here knows a file.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

# No file that people write holds so many keys and values. Aliases may repeat a part of the file again and again, and
# ten lines stand for a billion values.
MOST_VALUES: Final = 100_000


class Loader(yaml.SafeLoader):
    """A SafeLoader that resolves plain scalars as YAML 1.2's core schema does, and gives up on endless text."""

    yaml_implicit_resolvers: Final = {}  # type: ignore[misc]

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._composed = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Count what is composed: it is slow, and 16 MiB of text would take minutes and gigabytes."""
        self._composed += 1
        if self._composed > 2 * MOST_VALUES:  # a key counts, and its value
            raise yaml.YAMLError(f"more than {MOST_VALUES} values, in line {self.line + 1}")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


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
