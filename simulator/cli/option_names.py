"""Translates error lines about a scenario's keys into lines about a command's options.

Commands with the same inputs as a scenario file use the file's rules, and translate the messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from simulator.basics.errors import ScenarioError


@contextmanager
def told_as_options(options: Mapping[str, str]) -> Iterator[None]:
    """Let the errors of a block name command-line options in place of keys; `options` maps dotted keys to options."""
    try:
        yield
    except ScenarioError as error:
        error.args = (as_options(str(error), options),)
        raise


def as_options(message: str, options: Mapping[str, str]) -> str:
    """Return an error message with command-line options in place of keys; `options` maps dotted keys to options.

    >>> as_options("<dict>: cluster.gpu: got 'x'", {"cluster.gpu": "--gpu"})
    "--gpu: got 'x'"
    """
    lines = [line.removeprefix("<dict>: ") for line in message.splitlines()]
    for dotted, option in options.items():
        # Only at the line's start, and only a whole key: "cluster.gpu" must not match "cluster.gpus".
        lines = [re.sub(rf"^{re.escape(dotted)}(?=[:.])", option, line) for line in lines]
    return "\n".join(lines)
