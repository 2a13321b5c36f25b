"""Streams of communication, and for which dimension of parallelism what is on them is sent.

Rule: names alone. Groups whose collectives do not wait for those of others have a stream of their own.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from simulator.step.process_groups import Scope

DATA: Final = "communication"
# The dimension of copies to and from the host, which take no network.
HOST_COPIES: Final = "host"
_OF_SCOPE: Final[dict[Scope, str]] = {
    "replicate": "communication replicate",
    "tensor": "communication tensor",
    "context": "communication context",
    "context ring": "communication context",
    "experts": "communication experts",
    "expert tensor": "communication expert tensor",
}
_DIMENSIONS: Final = {
    _OF_SCOPE["tensor"]: "tp",
    _OF_SCOPE["context"]: "cp",
    _OF_SCOPE["experts"]: "ep",
    _OF_SCOPE["expert tensor"]: "tp",
}


def stream_of(scope: Scope) -> str:
    """The stream of collectives of a scope."""
    return _OF_SCOPE.get(scope, DATA)


@cache
def dimension_of(stream: str) -> str:
    """tp, cp, ep, pp, dp, or the host for copies.

    Examples
    --------
    >>> [dimension_of(name) for name in ("communication", "communication tensor", "gradients to stage 2")]
    ['dp', 'tp', 'pp']
    """
    if " to stage " in stream:
        return "pp"
    if stream.startswith("copy "):
        return HOST_COPIES
    return _DIMENSIONS.get(stream, "dp")


__all__ = ["HOST_COPIES", "dimension_of", "stream_of"]
