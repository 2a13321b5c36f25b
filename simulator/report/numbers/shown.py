"""How does a report show itself, in a line and in a notebook?"""

from __future__ import annotations

from html import escape


class Shown:
    """A record that has a headline: names and texts of what is looked at first."""

    __slots__ = ()

    @property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """Names and texts."""
        raise NotImplementedError

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {text}" for name, text in self.headline if name != "because")
        return f"<{type(self).__name__}: {told}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in self.headline)
        return f"<table><tbody>{rows}</tbody></table>"
