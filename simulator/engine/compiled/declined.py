"""Why the compiled engine gives no answer: an exception that says what it cannot prove."""

from __future__ import annotations


class DeclinedError(Exception):
    """The events engine must play this program; the message says why.

    Attributes
    ----------
    link : int or None
        The link on which flows contend, where that is the reason: a cluster's links come first, then each rank's HBM.
    """

    def __init__(self, why: str, link: int | None = None) -> None:
        super().__init__(why)
        self.link = link
