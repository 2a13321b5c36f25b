"""How do formulas get into pages without a script? As MathML, drawn by the browser itself.

Docutils converts LaTeX to MathML; this module registers the conversion as a renderer in Sphinx. A formula unknown to
docutils gives a warning, and a build with warnings as errors fails.
"""

from __future__ import annotations

from html import escape
from typing import Any, NoReturn

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_LOG = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", (_in_line, None), (_on_a_line_of_its_own, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _in_line(translator: Any, node: nodes.Element) -> NoReturn:
    translator.body.append(_mathml(node, display=False))
    # Sphinx expects this exception from a renderer that has written its node.
    raise nodes.SkipNode


def _on_a_line_of_its_own(translator: Any, node: nodes.Element) -> NoReturn:
    translator.body.append(f'<div class="math">{_mathml(node, display=True)}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, display: bool) -> str:
    try:
        return str(tex2mathml(node.astext(), as_block=display))
    except MathError as error:
        _LOG.warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{escape(node.astext())}</code>"
