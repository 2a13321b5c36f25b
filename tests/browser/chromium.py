"""A headless Chromium of the system's, driven by Playwright: what a page asked for, said and shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interrupting import PATIENCE_S, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "no Chromium here; install the system's package `chromium`"
# Keeps the texts of each canvas since the canvas was last cleared, as [text, left, right, middle] in pixels.
DRAWN_TEXTS = """
  const { fillText, clearRect } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.clearRect = function (x, y, width, height) {
    if (width >= this.canvas.clientWidth) this.canvas.texts = [];
    clearRect.call(this, x, y, width, height);
  };
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const width = this.measureText(text).width;
    const left = x - ({ center: width / 2, right: width }[this.textAlign] || 0);
    this.canvas.texts.push([text, left, left + width, y]);
    fillText.call(this, text, x, y);
  };
"""
# Its own background traffic is no part of the page.
_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic", "--enable-precise-memory-info",
]  # fmt: skip


@dataclass(slots=True)
class Opened:
    """A page that was opened.

    Attributes
    ----------
    page : playwright.sync_api.Page
    requests, said : list of str
        URLs that it asked for; console lines and errors.
    """

    page: Any
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def value(self, script: str) -> Any:
        """What a JavaScript expression is in the page."""
        return self.page.evaluate(script)

    def text(self, selector: str) -> str:
        """The text of an element, with plain spaces."""
        return str(self.page.inner_text(selector)).replace("\u00a0", " ")

    def drawn(self) -> None:
        """Wait until the point that was picked is drawn."""
        self.until("state.drawn === state.point")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true; Playwright's own waiting needs what the page's policy forbids."""
        until(lambda: self.value(condition), 0.02, condition)


@contextmanager
def browser() -> Iterator[Any]:
    """The browser, closed afterwards."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS, timeout=1e3 * PATIENCE_S)
        try:
            yield running
        finally:
            running.close()


@contextmanager
def opened(
    running: Any, file: Path, *, width: int = 1400, height: int = 900, script: str = "", **options: Any
) -> Iterator[Opened]:
    """A file in a window of this size, listened to from the beginning; `script` runs before the page's scripts."""
    context = running.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(1e3 * PATIENCE_S)
    context.add_init_script(script)
    one = Opened(context.new_page())
    one.page.on("request", lambda request: one.requests.append(request.url))
    one.page.on("console", lambda line: one.said.append(f"{line.type}: {line.text}"))
    one.page.on("pageerror", lambda error: one.said.append(f"error: {error}"))
    one.page.on("dialog", lambda dialog: (one.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    try:
        one.page.goto(file.as_uri())
        yield one
    finally:
        context.close()
