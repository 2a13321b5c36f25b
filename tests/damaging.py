"""Damages a text: cuts, other bytes, pieces that programs stumble over, other numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

PIECES = (
    b"\x00", b"\xff\xfe", b"9" * 500, b"[" * 300, b"{" * 300, b"(" * 300, b"'", b'"', b"\\", b"\r", b"\t", b"\n", b"#",
    b"&a *a", b"!!python/object:os.system x", b"<<EOF", b"$", b"${", b"$(", b"`", b"${X:-", b"=(", b"))", b";;", b"&&",
    b"--", b"-1", b"1e999", b"nan", b"inf", b"null", b"true", b"0", b"1e15", b"999999999999", b"\xe2\x80\xa8",
    b"a" * 3000,
    b"auto", b"none", b"if ", b"fi\n", b"def f(", b"lambda: ", b"not " * 500, b"]]", b"]", b"}", b",", b": ", b"- ",
)  # fmt: skip
NUMBERS = (b"0", b"-1", b"3", b"7", b"1000000", b"999999999999999", b"1" * 400, b"1e400", b"0.5", b"true", b"[]", b"{}")


def damaged(text: bytes, chance: random.Random) -> bytes:
    """A text that is cut, or has other bytes, pieces or numbers."""
    kind = chance.randrange(5)
    at = chance.randrange(len(text))
    if kind == 0:
        return text[:at]
    if kind == 1:
        return bytes(chance.randrange(256) if chance.random() < 0.02 else byte for byte in text)
    if kind == 2:
        return text[:at] + chance.choice(PIECES) + text[at:]
    if kind == 3:
        end = min(len(text), at + chance.randrange(1, 40))
        return text[:at] + text[end:]
    # Every number may become another one: divisions and products of sizes must hold.
    out, inside = b"", False
    for byte in text:
        digit = 48 <= byte <= 57
        if digit and not inside and chance.random() < 0.2:
            out, inside = out + chance.choice(NUMBERS), True
        elif not digit or not inside:
            out, inside = out + bytes([byte]), False
    return out


def flipped(text: bytes, chance: random.Random) -> bytes:
    """A text in which one to eight bits are flipped."""
    out = bytearray(text)
    for _ in range(chance.randint(1, 8)):
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    return bytes(out)


def nested(text: bytes, chance: random.Random) -> bytes:
    """A text with a piece that opens a bracket, a mapping, a list or an element many times."""
    at, depth = chance.randrange(len(text) + 1), chance.choice((41, 1_000, 100_000))
    opened, inner, closed = chance.choice(
        [(b"[", b"", b"]"), (b'{"a":', b"1", b"}"), (b"(", b"", b")"), (b"<a>", b"", b"</a>"), (b"- ", b"1", b""),
         (b"not ", b"1", b""), (b"$(", b"", b")"), (b"\x0a\xff\xff\x03", b"", b""), (b"]", b"", b""), (b"}", b"", b"")]
    )  # fmt: skip
    return text[:at] + opened * depth + inner + closed * (depth if chance.random() < 0.5 else 0) + text[at:]


def with_other_numbers(text: bytes, chance: random.Random) -> bytes:
    """A text in which one to three numbers are huge, negative, or no numbers."""
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?", text))
    for match in sorted(chance.sample(found, min(len(found), chance.randint(1, 3))), key=lambda one: -one.start()):
        text = text[: match.start()] + chance.choice(HUGE) + text[match.end() :]
    return text


def with_other_lines(text: bytes, chance: random.Random) -> bytes:
    """A text in which lines, or elements between angle brackets or commas, are repeated, missing or swapped."""
    mark = chance.choice([mark for mark in (b"\n", b"<", b",") if mark in text] or [b""])
    lines = text.split(mark) if mark else [text]
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(lines))
        kind = chance.randrange(4)
        if kind == 0:
            lines.insert(at, lines[at])
        elif kind == 1 and len(lines) > 1:
            del lines[at]
        elif kind == 2:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines[at:at] = [lines[at]] * chance.choice((10, 300))
    return mark.join(lines)


def with_a_bomb(text: bytes, chance: random.Random) -> bytes:
    """A text with entities of XML, or aliases of YAML, each of which stands for ten of another."""
    if chance.random() < 0.5:
        entities = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(12))
        bomb = f'<!DOCTYPE algo [<!ENTITY e0 "x"><!ENTITY file SYSTEM "file:///etc/passwd">{entities}]>'.encode()
        use = chance.choice((b"&e12;", b"&file;"))
        mark = chance.choice((b">", b'="'))
        return bomb + text.replace(mark, mark + use, 2)
    aliases = b"".join(b"a%d: &a%d [%s]\n" % (i + 1, i + 1, b",".join([b"*a%d" % i] * 10)) for i in range(12))
    bomb = b"a0: &a0 [x]\n" + aliases
    return bomb + text if chance.random() < 0.5 else text + b"\n" + bomb


def in_another_encoding(text: bytes, chance: random.Random) -> bytes:
    """A text in UTF-16, UTF-32, UTF-7 or with a part in another encoding, or with a mark of the byte order."""
    letters = text.decode("latin1")
    kind = chance.randrange(4)
    if kind == 0:
        return letters.encode(chance.choice(("utf-16", "utf-16-be", "utf-32", "utf-7", "cp037")))
    if kind == 1:
        return chance.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf\xef\xbb\xbf")) + text
    at = chance.randrange(len(text) + 1)
    if kind == 2:
        return text[:at] + letters[at:].encode("utf-16-le")
    return (
        text[:at]
        + chance.choice(("µ→", "\u202e", "\ufeff", "\x85", "𝟜")).encode(
            chance.choice(("utf-8", "utf-16-le", "utf-32-be"))
        )
        + text[at:]
    )


HUGE = (
    b"NaN", b"Infinity", b"-Infinity", b".nan", b".inf", b"1e308", b"1e-320", b"9" * 5000, b"-" + b"9" * 40, b"-1",
    b"0", b"1" * 18, b"4294967296", b"2147483647", b"18446744073709551616", b"0x7fffffffffffffff", b"1_000", b"1e15",
    b"1010",
)  # fmt: skip
# Each kind of damage by its name.
DAMAGES: Mapping[str, Callable[[bytes, random.Random], bytes]] = MappingProxyType(
    {
        "cut, other pieces": damaged,
        "bits flipped": flipped,
        "nested": nested,
        "other numbers": with_other_numbers,
        "other lines": with_other_lines,
        "bomb": with_a_bomb,
        "other encoding": in_another_encoding,
    }
)
