"""How is a page enclosed: a document with style, scripts and data, and without any request to a server?

The page's content security policy forbids every request, and every script except the page's scripts, named by hash.
Scenario text is escaped in HTML; in JSON, no text can end a tag.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from simulator.basics.edition import VERSION


def document(title: str, parts: Sequence[str], data: Mapping[str, Any] | None = None) -> str:
    """Return a page in HTML.

    Parameters
    ----------
    title : str
        Title of the document, as plain text.
    parts : sequence of str
        Escaped HTML.
    data : mapping, optional
        Plain data for the scripts; without data, the page has no scripts.
    """
    scripts, style = "" if data is None else _scripts(), asset("page.css")
    allowed = f"script-src '{_hash(scripts)}'; " if scripts else ""
    policy = (
        f"default-src 'none'; {allowed}style-src '{_hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    # Without scripts the page still shows its answer and tables; scripts only add pictures.
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="generator" content="simulator {VERSION}">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style></head><body><main>",
        *parts,
        "</main>",
    ]
    if data is not None:
        lines += [
            '<div id="tip" role="tooltip"></div>',
            f'<script type="application/json" id="data">{_json(data)}</script>',
            f"<script>{scripts}</script>",
        ]
    lines.append("</body></html>")
    return "\n".join(lines) + "\n"


def asset(name: str) -> str:
    """Return the text of the file with this name in the page's assets/ folder."""
    return (files("simulator.results.page") / "assets" / name).read_text(encoding="utf-8")


def _scripts() -> str:
    """Return the page's JavaScript files, joined in the order of their names."""
    folder = files("simulator.results.page") / "assets"
    # The scripts share one element, because the policy contains a hash per script element.
    return "\n".join(asset(name) for name in sorted(path.name for path in folder.iterdir()) if name.endswith(".js"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: Mapping[str, Any]) -> str:
    """Return data in JSON form, without any character that begins or ends a tag."""
    # Escaped as \u003c and so on, the JSON keeps its meaning, while HTML sees no "<".
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
