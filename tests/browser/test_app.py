"""`simulator app` in a real browser: answers follow changes, tabs do not mix, and nobody else gets in."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from simulator.cli.commands.app import door
from simulator.planner.what_if import WhatIf, answered
from tests.browser.chromium import CHROMIUM, MISSING, browser
from tests.interrupting import PATIENCE_S

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

# Size, left, right and beginning of each text, also within the widgets' own trees.
_TEXTS = """() => {
  const walk = root => [...root.querySelectorAll("*")].flatMap(
    one => [one, ...(one.shadowRoot ? walk(one.shadowRoot) : [])]);
  const has = one => [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  return walk(document).filter(one => one.offsetParent && has(one)).map(one => {
    const box = one.getBoundingClientRect(), size = parseFloat(getComputedStyle(one).fontSize);
    return [size, box.left, box.right, one.textContent.trim().slice(0, 40)];
  });
}"""
# What WhatIf() says first.
FIRST = "The job reaches"


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and the address that it printed."""
    command = [sys.executable, "-m", "simulator", "app", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as (_, at):
        yield at


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as started:
        yield started


@contextmanager
def tab(running: Any, address: str, width: int = 1400) -> Iterator[Any]:
    context = running.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(1e3 * PATIENCE_S)
    page = context.new_page()
    outside: list[str] = []
    page.on("request", lambda request: outside.append(request.url) if "//127.0.0.1" not in request.url else None)
    page.goto(address)
    try:
        yield page
        assert [url for url in outside if not url.startswith(("data:", "blob:"))] == []
    finally:
        context.close()


def first(page: Any) -> str:
    return str(page.inner_text(".first"))


def test_the_answer_and_the_scenario_follow_a_change_by_keyboard(running: Any, address: str) -> None:
    with tab(running, address) as page:
        page.wait_for_selector(f"text={FIRST}")
        before = first(page)
        page.get_by_label("Model").focus()
        # Over the GPU to the number of GPUs.
        for _ in range(2):
            page.keyboard.press("Tab")
        page.keyboard.press("Control+A")
        page.keyboard.type("16")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=world_size: 16")
        assert first(page) != before
        # A list by keyboard, too: the second method is lora.
        page.get_by_label("Method").focus()
        page.keyboard.press("ArrowDown")
        page.wait_for_selector("text=lora: {rank: 16")


def test_what_does_not_fit_and_what_contradicts_is_said(running: Any, address: str) -> None:
    with tab(running, address) as page:
        page.wait_for_selector(f"text={FIRST}")
        page.get_by_label("Model").select_option("llama3_70b")
        page.wait_for_selector("text=does not fit in 79.6 GiB")
        page.get_by_label("Tensor parallel").select_option("16")
        assert "tp may be 1, 2, 4, 8" in page.wait_for_selector("[role=alert]").inner_text()
        page.get_by_label("Tensor parallel").select_option("8")
        page.wait_for_selector("text=parallelism: {tp: 8}")


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_nothing_is_cut_and_letters_are_legible(running: Any, address: str, width: int) -> None:
    with tab(running, address, width) as page:
        page.wait_for_selector(f"text={FIRST}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.evaluate(_TEXTS)
        assert len(sizes) > 25
        assert [text for size, _, _, text in sizes if size < 11] == []
        assert [text for _, left, right, text in sizes if left < -0.5 or right > width + 0.5] == []


def test_two_tabs_do_not_mix(running: Any, address: str) -> None:
    with tab(running, address) as one, tab(running, address) as other:
        for page in (one, other):
            page.wait_for_selector(f"text={FIRST}")
        one.get_by_label("Number of GPUs").fill("32")
        one.keyboard.press("Enter")
        one.wait_for_selector("text=world_size: 32")
        assert "world_size: 8" in other.inner_text("pre")


def test_the_whole_page_opens_with_the_same_answer(running: Any, address: str) -> None:
    with tab(running, address) as page:
        page.wait_for_selector(f"text={FIRST}")
        said = first(page)
        with page.context.expect_page() as opening:
            page.get_by_text("Open as page").click()
        whole = opening.value
        whole.wait_for_selector("h1")
        assert said.removesuffix(".") in whole.inner_text("body").replace("\u00a0", " ")


def test_a_server_that_ended_is_told_in_the_page(running: Any) -> None:
    with served() as (server, at), tab(running, at) as page:
        page.wait_for_selector(f"text={FIRST}")
        server.kill()
        page.wait_for_selector("text=The server has ended")


def test_nobody_gets_in_without_the_token_and_no_file_is_read(running: Any, address: str) -> None:
    base, _, token = address.partition("?token=")
    with tab(running, f"{base}?token=wrong") as page:
        page.wait_for_selector("text=no valid token")
        assert page.get_by_label("Model").count() == 0
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{base}page?token=wrong&model=gpt2")
    for wrong in ("model=/etc/passwd", "network=../secret.yaml", "gpus=5000", "seq_len=x"):
        with pytest.raises(HTTPError, match="400") as refusal:
            urlopen(f"{base}page?token={token}&{wrong}")
        assert "Traceback" not in refusal.value.read().decode()


def test_the_browser_is_started_without_the_token_in_its_command(running: Any, address: str) -> None:
    """Whoever lists processes reads commands; the file that the browser opens is its user's alone."""
    with door(address) as file:
        assert address.partition("=")[2] not in str(file)
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        page = running.new_page()
        page.goto(file.as_uri())
        page.wait_for_url(address)
        page.close()
    assert not file.exists()


def test_texts_of_the_answer_are_escaped() -> None:
    # Names come from the catalog, and messages of errors repeat what was given.
    assert "<script>" not in answered(WhatIf(gpus=7, tp=2))
