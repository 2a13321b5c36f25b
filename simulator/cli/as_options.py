"""Lines about a scenario's keys as lines about a command's options.

Rule: a command that asks what a file asks lets the file's rules judge, and translates what they say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping


def as_options(message: str, options: Mapping[str, str]) -> str:
    """The message with the options that set its keys; `options` has them by dotted key.

    Examples
    --------
    >>> as_options("<dict>: cluster.gpu: got 'x'", {"cluster.gpu": "--gpu"})
    "--gpu: got 'x'"
    """
    lines = [line.removeprefix("<dict>: ") for line in message.splitlines()]
    for dotted, option in options.items():
        lines = [re.sub(rf"^{re.escape(dotted)}(?=[:.])", option, line) for line in lines]
    return "\n".join(lines)
