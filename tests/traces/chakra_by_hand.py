"""Writes Chakra execution traces from their definition, et_def.proto, and not by the package's own writer.

A node is a dict: id, name, type, after (data dependencies), us (duration), and attributes by name. Whole numbers are
int64, or int32 with the name in `INT32`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

METADATA, LOAD, STORE, COMP, SEND, RECV, COLL = range(1, 8)
ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER, _, BARRIER = range(10)
INT32 = ("comm_src", "comm_dst", "comm_tag")
Nodes = Sequence[Mapping[str, Any]]


def varint(value: int) -> bytes:
    value %= 2**64
    low, rest = value & 127, value >> 7
    return bytes([low]) if not rest else bytes([low | 128]) + varint(rest)


def number(field: int, value: int) -> bytes:
    return varint(field * 8) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field * 8 + 2) + varint(len(value)) + value


def attribute(name: str, value: Any) -> bytes:
    if isinstance(value, bool):
        content = number(27, int(value))
    elif isinstance(value, str):
        content = text(29, value.encode())
    elif isinstance(value, float):
        content = varint(3 * 8 + 1) + struct.pack("<d", value)
    elif isinstance(value, list):
        content = text(28, text(1, bytes(map(int, value))))
    else:
        content = number(7 if name in INT32 else 9, value)
    return text(1, name.encode()) + content


def node(one: Mapping[str, Any]) -> bytes:
    plain = ("id", "name", "type", "after", "control", "us", "start")
    parts = [number(1, one["id"])] if one.get("id") else []
    parts += [text(2, str(one.get("name", "n")).encode()), number(3, one["type"])]
    # Control dependencies are written unpacked, data dependencies packed: both are valid.
    parts += [number(4, other) for other in one.get("control", ())]
    parts += [text(5, b"".join(map(varint, one["after"])))] if one.get("after") else []
    parts += [number(field, one[key]) for field, key in ((6, "start"), (7, "us")) if one.get(key)]
    parts += [text(10, attribute(name, value)) for name, value in one.items() if name not in plain]
    return b"".join(parts)


def trace(nodes: Nodes, metadata: bytes = text(1, b"0.0.4")) -> bytes:
    return b"".join(varint(len(message)) + message for message in (metadata, *map(node, nodes)))


def write(folder: Path, ranks: Sequence[Nodes], name: str = "own") -> str:
    """Write a file for each rank; return the prefix."""
    for rank, nodes in enumerate(ranks):
        (folder / f"{name}.{rank}.et").write_bytes(trace(nodes))
    return str(folder / name)
