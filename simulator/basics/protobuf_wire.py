"""Reads and writes protobuf's wire format: varints, fields, and streams of messages with their lengths.

The module knows no schema. Reading never goes beyond the given bytes, and a varint has at most 10 bytes.

References
----------
.. [1] protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_LONGEST_VARINT: Final = 10
_FIXED: Final = {FIXED64: ("<Q", 8), FIXED32: ("<I", 4)}

# A number for varints and fixed fields, as it stands in the file without sign; bytes for the rest.
Value = int | bytes


class WireError(ValueError):
    """Error: bytes are no protobuf message; the message says why."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    r"""Return the varint that begins at byte `at`, and the place behind it.

    >>> varint(b"\x96\x01", 0)
    (150, 2)
    """
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(data):
            raise WireError("ends in the middle of a number")
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise WireError("has a number of more than 10 bytes")


def fields(message: bytes) -> Iterator[tuple[int, int, Value]]:
    """Yield the number, wire type and value of each field of a message.

    >>> list(fields(bytes.fromhex("089601")))
    [(1, 0, 150)]
    """
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        number, wire = key >> 3, key & 7
        if not number:
            raise WireError("has a field with the number 0")
        if wire == VARINT:
            value, at = varint(message, at)
            yield number, wire, value
        elif wire == BYTES:
            text, at = _delimited(message, at)
            yield number, wire, text
        elif wire in _FIXED:
            form, size = _FIXED[wire]
            if at + size > len(message):
                raise WireError("ends in the middle of a number")
            yield number, wire, struct.unpack_from(form, message, at)[0]
            at += size
        else:
            raise WireError(f"has a field of wire type {wire}, which is not supported")


def messages(data: bytes) -> Iterator[bytes]:
    r"""Yield the messages of a stream in which a varint with the length precedes each message.

    >>> list(messages(b"\x02ab\x00\x01c"))
    [b'ab', b'', b'c']
    """
    at = 0
    while at < len(data):
        message, at = _delimited(data, at)
        yield message


def _delimited(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes behind a varint with their length, and the place behind them."""
    size, at = varint(data, at)
    if size > len(data) - at:
        raise WireError(f"ends in the middle: {size} bytes are announced, and {len(data) - at} are left")
    return data[at : at + size], at + size


def packed(value: Value) -> list[int]:
    """Return the varints of a repeated field's entry: of packed numbers, or the single number."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        numbers.append(number)
    return numbers


def signed(value: int) -> int:
    """Return a varint's value as an int32 or int64, whose negative numbers are written with 64 bits.

    >>> signed(5), signed(2**64 - 1)
    (5, -1)
    """
    return value - 2**64 if value >= 2**63 else value


def zigzag(value: int) -> int:
    """Return a varint's value as a sint32 or sint64.

    >>> [zigzag(value) for value in (0, 1, 2, 3)]
    [0, -1, 1, -2]
    """
    return (value >> 1) ^ -(value & 1)


def written_varint(value: int) -> bytes:
    r"""Return a number, 0 to 2^64 - 1, as a varint.

    >>> written_varint(150)
    b'\x96\x01'
    """
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def written_field(number: int, value: float | str | bytes) -> bytes:
    """Return a field: a varint for a whole number, 64 bits for a float, bytes with their length for the rest.

    >>> written_field(1, 150).hex(), written_field(2, "ab").hex()
    ('089601', '12026162')
    """
    if isinstance(value, float):
        return written_varint(number << 3 | FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return written_varint(number << 3 | VARINT) + written_varint(value)
    content = value.encode() if isinstance(value, str) else value
    return written_varint(number << 3 | BYTES) + written_varint(len(content)) + content


def written_packed(number: int, values: Iterable[int]) -> bytes:
    """Return a field of packed varints; nothing without values.

    >>> written_packed(4, [3, 270]).hex(), written_packed(4, [])
    ('2203038e02', b'')
    """
    content = b"".join(map(written_varint, values))
    return written_field(number, content) if content else b""


def written_message(content: bytes) -> bytes:
    r"""Return a message of a stream: its length and its content.

    >>> written_message(b"abc")
    b'\x03abc'
    """
    return written_varint(len(content)) + content
