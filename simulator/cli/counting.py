"""How does an option take a number of tokens that is written as people do: `--seq-len 8k`?"""

from __future__ import annotations

import typer

from simulator.basics.counts import TOKENS, parse_count


def as_tokens(text: str | int) -> int:
    """The number of tokens; typer's own error, which names the option, where the text is none."""
    try:
        return text if isinstance(text, int) else parse_count(text, TOKENS)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
