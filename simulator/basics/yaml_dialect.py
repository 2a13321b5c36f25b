"""How is YAML read and written: by PyYAML with the scalars of YAML 1.2?

`on`, `off`, `yes` and `no` are words, 1e9 is a number, 12:30:45 and dates are text. The module knows no files.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

# Files written by people have fewer keys and values. Aliases can repeat a part of the file again and again: ten lines
# may stand for a billion values.
MOST_VALUES: Final = 100_000


class Loader(yaml.SafeLoader):
    """YAML reader: a PyYAML SafeLoader by YAML 1.2's rules for plain scalars; it gives up on endless text."""

    yaml_implicit_resolvers: Final = {}  # type: ignore[misc]

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._composed = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next YAML node; YAMLError if a text has so many that reading would take minutes and gigabytes."""
        self._composed += 1
        # Both a key and its value count.
        if self._composed > 2 * MOST_VALUES:
            raise yaml.YAMLError(f"more than {MOST_VALUES} values, in line {self.line + 1}")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


class Dumper(yaml.SafeDumper):
    """YAML writer: a PyYAML SafeDumper without aliases; it quotes every text that Loader would read differently."""

    yaml_implicit_resolvers: Final = Loader.yaml_implicit_resolvers  # type: ignore[misc]

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.2.2, section 10.3.2 "Tag Resolution" of the core schema, without octal, hexadecimal, infinity and not-a-number:
# scenarios need none, and such words are refused if a number is expected.
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("int", r"[-+]?[0-9]+", [*"-+0123456789"]),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def dump(data: Any, *, one_line: bool = False) -> str:
    """Return plain data as YAML text; reading the text gives the same data.

    Parameters
    ----------
    data : Any
        dict, list, str, int, float, bool, None.
    one_line : bool
        Whether to write everything in brackets and braces, without a line end.

    Examples
    --------
    >>> dump({"name": "1e9", "sizes": ["1 MiB", "on"]})
    "name: '1e9'\\nsizes: [1 MiB, on]\\n"
    """
    # Without a width limit, PyYAML would break a single line.
    width, flow = (float("inf"), True) if one_line else (110, None)
    text = yaml.dump(data, Dumper=Dumper, sort_keys=False, default_flow_style=flow, allow_unicode=True, width=width)
    return str(text).removesuffix("...\n").strip() if one_line else str(text)
