"""On which stream is a collective issued, and to which dimension of parallelism does a stream belong?

Process groups whose collectives do not wait for each other have separate streams.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from simulator.step.process_groups import Scope

DATA: Final = "communication"
# Dimension of copies to and from the host, which use no network.
HOST_COPIES: Final = "host"
_OF_SCOPE: Final[dict[Scope, str]] = {
    "replicate": "communication replicate",
    "tensor": "communication tensor",
    "context": "communication context",
    "context ring": "communication context",
    "experts": "communication experts",
    "experts node": "communication experts",
    # A network card and NVLink carry tokens to experts at the same time.
    "experts rail": "communication experts rail",
    "expert tensor": "communication expert tensor",
}
_DIMENSIONS: Final = {
    _OF_SCOPE["tensor"]: "tp",
    _OF_SCOPE["context"]: "cp",
    _OF_SCOPE["experts"]: "ep",
    _OF_SCOPE["experts rail"]: "ep",
    _OF_SCOPE["expert tensor"]: "tp",
}


def stream_of(scope: Scope) -> str:
    """Return the name of the stream for collectives in a scope (kind of process group)."""
    return _OF_SCOPE.get(scope, DATA)


@cache
def dimension_of(stream: str) -> str:
    """Return the kind of parallelism to which a communication stream belongs: tp, cp, ep, pp, dp, or host for copies.

    >>> [dimension_of(name) for name in ("communication", "communication tensor", "gradients to stage 2")]
    ['dp', 'tp', 'pp']
    """
    # Sends have a stream for each pipeline boundary and direction.
    if " to stage " in stream:
        return "pp"
    if stream.startswith("copy "):
        return HOST_COPIES
    return _DIMENSIONS.get(stream, "dp")


__all__ = ["HOST_COPIES", "dimension_of", "stream_of"]
