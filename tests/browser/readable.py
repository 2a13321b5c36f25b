"""What a reader would see in a page: texts that are cut, that lie on each other, or that begin in small letters."""

from __future__ import annotations

from simulator.testing.looking import begins_well
from tests.browser.chromium import Opened

# Pictures along time that are drawn.
ALONG_TIME = "[...document.querySelectorAll('#timeline canvas, #pipeline canvas, #memory canvas, #links canvas')]"
# Texts beyond the edges of the window. A caption of a table may not be cut, other texts in a box that scrolls may.
_BEYOND = """
  [...document.querySelectorAll("h1, h2, h3, p, caption, label, button, summary, .legend span, td, th")]
    .filter(one => one.offsetParent && !one.closest(".hidden") && one.textContent.trim())
    .filter(one => one.matches("caption") || !one.closest(".scroll"))
    .filter(one => {
      const texts = document.createRange();
      texts.selectNodeContents(one);
      const box = texts.getBoundingClientRect();
      return box.left < 0 || box.right > innerWidth;
    }).map(one => one.textContent)
"""
# Texts of a drawing that are not within the drawing.
_CUT_IN_SVG = """
  [...document.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().width).flatMap(svg => {
    const edges = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter(text => {
      const box = text.getBoundingClientRect();
      return box.left < edges.left - 1 || box.right > edges.right + 1
        || box.top < edges.top - 1 || box.bottom > edges.bottom + 1;
    }).map(text => text.textContent);
  })
"""
# Texts of each picture along time that leave the picture at the left, the right, the top or the bottom.
_CUT_IN_CANVAS = f"""
  {ALONG_TIME}.flatMap(canvas => canvas.texts.filter(([, left, right, middle]) =>
    left < 0 || right > canvas.clientWidth || middle < 5 || middle > canvas.clientHeight - 5).map(([text]) => text))
"""
# Pairs of texts on each other, of a drawing and of a picture along time. Letters are 10 pixels high at most, and boxes
# of letters are a little larger than their ink.
_OVERLAPPING = f"""
  [...[...document.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().width).map(svg =>
     [...svg.querySelectorAll("text")].filter(text => text.textContent).map(text => {{
       const box = text.getBoundingClientRect();
       return [text.textContent, box.left, box.right, (box.top + box.bottom) / 2];
     }})), ...{ALONG_TIME}.map(canvas => canvas.texts)]
   .flatMap(texts => texts.flatMap(([text, left, right, middle], i) => texts.slice(i + 1)
     .filter(([, from, to, at]) => Math.min(right, to) - Math.max(left, from) > 1 && Math.abs(at - middle) < 10)
     .map(([other]) => [text, other])))
"""
# Sentences, titles and captions, without the name of a run's folder.
_TITLES = """
  [...document.querySelectorAll("h1, h2, h3, caption, summary, p")]
    .filter(one => one.offsetParent && !one.closest(".hidden, #holders tbody") && one.innerText.trim())
    .map(one => one.innerText.trim())
"""


def open_all(one: Opened) -> None:
    """Open every panel, and draw the pictures in the panels."""
    one.value("document.querySelectorAll('details').forEach(panel => { panel.open = true; })")
    one.value("state.view?.tell()")


def cut(one: Opened) -> list[str]:
    """Return the texts that are cut by the window, by their drawing or by their picture along time.

    A page must be opened with the script `DRAWN_TEXTS`.
    """
    return [text for script in (_BEYOND, _CUT_IN_SVG, _CUT_IN_CANVAS) for text in one.value(script)]


def overlapping(one: Opened) -> list[list[str]]:
    """Return the pairs of texts in one drawing, or in one picture along time, that lie on each other."""
    return list(one.value(_OVERLAPPING))


def small_starts(one: Opened) -> list[str]:
    """Return the titles, captions and sentences that begin with a small letter."""
    return [text for text in one.value(_TITLES) if not begins_well(text)]
