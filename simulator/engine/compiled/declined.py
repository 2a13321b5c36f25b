"""Why the compiled engine does not answer: an exception that says what it cannot prove."""

from __future__ import annotations


class DeclinedError(Exception):
    """This program is for the events engine; the message says why."""
