"""Damages a text: cuts, other bytes, pieces that programs stumble over, other numbers."""

from __future__ import annotations

import random

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
