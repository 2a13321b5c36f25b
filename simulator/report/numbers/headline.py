"""How do a report and an answer show themselves? In a line, and in a notebook's table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class HasHeadline:
    """Base class of reports with a headline: a (name, text) pair for each of the most important figures."""

    __slots__ = ()

    @property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """(name, text) pair of each important figure, such as ("time", "3 ms")."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return the report's headline figures on one line, without the entry "because"."""
        figures = ", ".join(f"{name} {text}" for name, text in self.headline if name != "because")
        return f"<{type(self).__name__}: {figures}>"

    def _repr_html_(self) -> str:
        """Return the report's headline figures as an HTML table, as Jupyter notebooks display an object."""
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in self.headline)
        return f"<table><tbody>{rows}</tbody></table>"


class HasSentences:
    """Base class of answers in sentences beside a table."""

    __slots__ = ()

    @property
    def sentences(self) -> Sequence[str]:
        """The answer in sentences, the most important first."""
        raise NotImplementedError

    def shown(self) -> tuple[str, str]:
        """Return what was asked, and the table as HTML."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return the answer's first sentence on one line."""
        return f"<{type(self).__name__}: {self.sentences[0]}>"

    def _repr_html_(self) -> str:
        """Return question, answer and table in HTML, as Jupyter notebooks display an object."""
        asked, table = self.shown()
        # A user's texts may contain "<": escape them.
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.sentences)
        return f"<p><b>{escape(asked)}</b></p>{lines}{table}"
