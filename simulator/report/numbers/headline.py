"""How does a report show itself? In a line, and in a notebook's table."""

from __future__ import annotations

from html import escape


class HasHeadline:
    """A record with a headline: names and texts for the most important figures."""

    __slots__ = ()

    @property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """Names and texts of the figures."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return the headline as a line, without the reason."""
        told = ", ".join(f"{name} {text}" for name, text in self.headline if name != "because")
        return f"<{type(self).__name__}: {told}>"

    def _repr_html_(self) -> str:
        """Return the headline as a table for notebooks."""
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in self.headline)
        return f"<table><tbody>{rows}</tbody></table>"
