"""Is every link in the built pages valid, and is nothing loaded from another machine?

python -m tools.site.built_links build/site/html
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

# Attributes with the name of another file, and elements whose file a browser loads by itself.
_ATTRIBUTES: Final = ("href", "src", "data", "poster")
_LOADING: Final = {"script", "link", "img", "iframe", "source", "object", "video", "audio", "embed"}


class _Page(HTMLParser):
    """A page's anchors, and links as (element, address)."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the links and anchors in an element."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in _ATTRIBUTES:
                self.links.append((tag, value))


def faults(root: Path) -> list[str]:
    """Return the broken links under a folder, and files that pages load from another machine.

    Parameters
    ----------
    root : Path
        Folder with built HTML.

    Returns
    -------
    list of str
        A line for each fault: page, address, fault.
    """
    # A page is the target of many links, and is parsed once.
    page = cache(_read)
    # The theme's templates lie among its scripts, and are not pages.
    pages = (path for path in sorted(root.rglob("*.html")) if "_static" not in path.relative_to(root).parts)
    return [
        f"{path.relative_to(root)}: {address}: {fault}"
        for path in pages
        for tag, address in dict.fromkeys(page(path).links)
        for fault in _faults_of(path, tag, address, page)
    ]


def _faults_of(path: Path, tag: str, address: str, page: Callable[[Path], _Page]) -> Iterator[str]:
    parts = urlsplit(address)
    # Ordinary links to other sites are allowed, and not checked.
    if parts.scheme in ("http", "https") or parts.netloc:
        if tag in _LOADING:
            yield f"<{tag}> loads it from another machine"
        return
    # Schemes such as mailto: and data: name no file.
    if parts.scheme:
        return
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    # Servers show a folder's index.html.
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        yield "there is no such file"
    # Anchors exist in pages only; other files are loaded as a whole.
    elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in page(target).anchors:
        yield "there is no such anchor"


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


if __name__ == "__main__":
    found = faults(Path(sys.argv[1]))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
