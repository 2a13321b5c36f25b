"""What surrounds the parts of a page: a document with style, scripts and data, that asks nobody for anything?

Rule: the page's policy forbids every request and every script but its own, by their hashes. Whatever a scenario says
enters as text: escaped where Python writes HTML, and as JSON in which no tag can end.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import simulator


def document(title: str, parts: Sequence[str], data: Mapping[str, Any]) -> str:
    """Write a page.

    Parameters
    ----------
    title : str
    parts : sequence of str
        HTML, safe as it is.
    data : mapping
        Plain data that the scripts read.
    """
    scripts, style = _scripts(), asset("page.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(scripts)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="generator" content="simulator {simulator.__version__}">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style></head><body><main>",
        *parts,
        '</main><div id="tip" role="tooltip"></div>',
        f'<script type="application/json" id="data">{_json(data)}</script>',
        f"<script>{scripts}</script></body></html>",
    ]
    return "\n".join(lines) + "\n"


def asset(name: str) -> str:
    """A file of the page, as text."""
    return (files("simulator.results.page") / "assets" / name).read_text(encoding="utf-8")


def _scripts() -> str:
    """The page's scripts, in the order of their names."""
    folder = files("simulator.results.page") / "assets"
    return "\n".join(asset(name) for name in sorted(one.name for one in folder.iterdir()) if name.endswith(".js"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: Mapping[str, Any]) -> str:
    """JSON that ends no tag and begins none."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
