"""Reads the elements of an XML file without trusting the content.

The parser is expat, without a document type, and therefore without entities and references to other files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from xml.parsers import expat

from simulator.basics.errors import ScenarioError, one_line

_LONGEST_NUMBER: Final = 9
# Limits of `read_tree`.
_MOST_ELEMENTS: Final = 50_000
_DEEPEST: Final = 40
_VISIBLE: Final = re.compile(r"\S").search
_BEGIN: Final = re.compile(r"<([A-Za-z_][\w.-]{0,99})").match


class XmlFaultError(Exception):
    """A fault of an XML file, at a line."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        super().__init__(message)


@dataclass(slots=True, eq=False)
class Element:
    """An element of an XML file: its attributes, its line from 1, and what was found inside."""

    name: str
    attributes: Mapping[str, str]
    line: int
    children: list[Any] = field(default_factory=list)

    def whole(self, attribute: str, least: int, most: int | None = None) -> int:
        """Return an attribute's whole number; XmlFaultError if it is missing, no number, or outside its bounds."""
        written = self.attributes.get(attribute, "")
        digits = written.removeprefix("-")
        # Few digits, because Python's own reader accepts spaces, underscores and thousands of digits.
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER):
            text = f"got {written[:40]!r}; must be a whole number" if attribute in self.attributes else "is missing"
            raise XmlFaultError(self.line, f"{self.name}: {attribute}: {text}")
        value = int(written)
        if value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"{least} .. {most}"
            raise XmlFaultError(self.line, f"{self.name}: {attribute}: got {value}; must be {bounds}")
        return value


def read_elements(
    content: bytes, source: str, begin: Callable[[Element], None], end: Callable[[], None], second: str
) -> None:
    """Call `begin` with each element that begins, and `end` when it ends.

    Parameters
    ----------
    content : bytes
        The file's content.
    source : str
        Name of the file in faults.
    begin, end : functions
        Receivers; they may raise XmlFaultError.
    second : str
        What a second outermost element means, in words.

    Raises
    ------
    ScenarioError
        The file is no XML, has a document type, or a receiver found a fault; one line.
    """
    parser = expat.ParserCreate()

    def refuse_document_type(*_: object) -> None:
        raise XmlFaultError(parser.CurrentLineNumber, "has a document type, which is refused; remove <!DOCTYPE ...>")

    parser.StartDoctypeDeclHandler = refuse_document_type
    parser.StartElementHandler = lambda name, attributes: begin(Element(name, attributes, parser.CurrentLineNumber))
    parser.EndElementHandler = lambda _: end()
    try:
        parser.Parse(content, True)
    except XmlFaultError as fault:
        raise ScenarioError(one_line(f"{source}:{fault.line}: {fault}")) from fault
    except expat.ExpatError as error:
        text = expat.errors.messages[error.code]
        if error.code == expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]:
            text = second
        raise ScenarioError(f"{source}:{error.lineno}: not valid XML: {text}") from error
    except (LookupError, ValueError) as error:
        # An unknown encoding in the XML declaration.
        raise ScenarioError(one_line(f"{source}:1: not valid XML: {error}")) from error


def read_tree(content: bytes, source: str) -> Element:
    """Return the outermost element of an XML file, with the elements inside as `children`.

    Raises
    ------
    ScenarioError
        As for `read_elements`; more than 50,000 elements, or more than 40 levels.

    Examples
    --------
    >>> [child.name for child in read_tree(b"<algo><gpu/><gpu/></algo>", "ring.xml").children]
    ['gpu', 'gpu']
    """
    opened: list[Element] = []
    outermost: list[Element] = []
    count = 0

    def begin(element: Element) -> None:
        nonlocal count
        count += 1
        if count > _MOST_ELEMENTS:
            raise XmlFaultError(element.line, f"has more than {_MOST_ELEMENTS} elements")
        if len(opened) >= _DEEPEST:
            raise XmlFaultError(element.line, f"is nested too deeply; at most {_DEEPEST} levels")
        (opened[-1].children if opened else outermost).append(element)
        opened.append(element)

    read_elements(content, source, begin, lambda: opened.__delitem__(-1), "a second outermost element begins here")
    return outermost[0]


def outermost_name(text: str) -> str | None:
    """Return the name of a text's outermost XML element; None if the text is no XML.

    >>> outermost_name('<?xml version="1.0"?> <!-- a --> <system version="1"/>'), outermost_name("a: 1")
    ('system', None)
    """
    at = 0
    while True:
        visible = _VISIBLE(text, at)
        at = len(text) if visible is None else visible.start()
        closing = "-->" if text.startswith("<!--", at) else "?>" if text.startswith("<?", at) else None
        if closing is None:
            break
        end = text.find(closing, at + 2)
        if end < 0:
            return None
        at = end + len(closing)
    match = _BEGIN(text, at)
    return None if match is None else match[1]
