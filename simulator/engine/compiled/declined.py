"""Why the compiled engine does not answer: an exception that says what it cannot prove."""

from __future__ import annotations


class DeclinedError(Exception):
    """This program is for the events engine; the message says why.

    Attributes
    ----------
    link : int or None
        The fabric's link on which flows met, where that is why: a cluster's links, then each rank's HBM.
    """

    def __init__(self, why: str, link: int | None = None) -> None:
        super().__init__(why)
        self.link = link
