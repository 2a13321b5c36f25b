"""Reads plain data from a pickle without unpickling: nothing of the file is imported, called or built but containers.

A pickle is a program for a small stack machine. Its instructions are decoded one by one, and only those that make
numbers, texts, lists, tuples and mappings are carried out. Every other instruction, such as the ones that import names
and call functions, ends the reading with an error.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, Final

from simulator.basics.errors import ScenarioError, one_line

# Most instructions of a file, and most values that it may store for later: a dump of 2,000 entries has about 200,000.
_MOST: Final = 5_000_000
_MOST_MEMO: Final = 2_000_000
_MARK: Final = object()
_CONSTANTS: Final[dict[str, Callable[[], Any]]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
# Instructions whose argument is the value.
_VALUES: Final = frozenset({
    "INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES",
})  # fmt: skip
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS: Final = ("PUT", "BINPUT", "LONG_BINPUT")
_GETS: Final = ("GET", "BINGET", "LONG_BINGET")
_IDLE: Final = ("PROTO", "FRAME")


class _FaultError(Exception):
    """Error: the pickle has more than plain data, or is damaged."""


def plain_data(content: bytes, source: str) -> Any:
    """Return the plain data of a pickle; `source` names the file in faults.

    Raises
    ------
    ScenarioError
        The file is no pickle, or has an instruction that makes more than plain containers.

    Examples
    --------
    >>> plain_data(bytes.fromhex("80024b072e"), "dump")
    7
    """
    machine, place = _Machine(), 0
    try:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(content)):
            place = position or 0
            if count > _MOST:
                raise _FaultError(f"has more than {_MOST:,} instructions")
            machine.step(opcode.name, argument)
        return machine.result()
    except _FaultError as fault:
        raise ScenarioError(one_line(f"{source}: byte {place}: {fault}")) from fault
    # pickletools raises ValueError for most damage, and lets a few others out.
    except (ValueError, IndexError, OverflowError, struct.error, AssertionError, MemoryError) as error:
        raise ScenarioError(one_line(f"{source}: byte {place}: not a pickle: {error}")) from error


class _Machine:
    """The stack and the memo of the pickle's program."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Any:
        """Return the value that is left at the end."""
        if len(self._stack) != 1 or self._stack[0] is _MARK:
            raise _FaultError(f"ends with {len(self._stack)} values in place of one")
        return self._stack[0]

    def step(self, name: str, argument: Any) -> None:
        """Carry out an instruction."""
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _PUTS or name == "MEMOIZE":
            self._put(len(self._memo) if name == "MEMOIZE" else argument)
        elif name in _GETS:
            if argument not in self._memo:
                raise _FaultError(f"takes value {argument}, which was not stored")
            stack.append(self._memo[argument])
        elif name in ("APPEND", "APPENDS"):
            values = self._pop(1) if name == "APPEND" else self._marked()
            self._top(list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = self._pop(2) if name == "SETITEM" else self._marked()
            self._top(dict).update(_pairs(values))
        elif name in _TUPLES:
            stack.append(tuple(self._pop(_TUPLES[name])))
        elif name in ("TUPLE", "LIST", "DICT"):
            values = self._marked()
            stack.append(dict(_pairs(values)) if name == "DICT" else tuple(values) if name == "TUPLE" else values)
        elif name not in (*_IDLE, "STOP"):
            raise _FaultError(f"has the instruction {name}, which may run code; only plain containers are read")

    def _put(self, number: int) -> None:
        if not self._stack or self._stack[-1] is _MARK:
            raise _FaultError("stores a value that is not there")
        if len(self._memo) >= _MOST_MEMO:
            raise _FaultError(f"stores more than {_MOST_MEMO:,} values")
        self._memo[number] = self._stack[-1]

    def _top(self, kind: type) -> Any:
        """Return the container on top of the stack."""
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise _FaultError(f"adds to something that is no {kind.__name__}")
        return self._stack[-1]

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count or any(value is _MARK for value in self._stack[-count:]):
            raise _FaultError("takes a value that is not there")
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def _marked(self) -> list[Any]:
        """Remove and return the values behind the last mark."""
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                values = self._stack[place + 1 :]
                del self._stack[place:]
                return values
        raise _FaultError("closes a container that is not open")


def _pairs(values: list[Any]) -> list[tuple[Any, Any]]:
    """Return keys with their values; keys are texts and numbers."""
    if len(values) % 2:
        raise _FaultError("has a key without a value")
    keys = values[::2]
    if not all(key is None or isinstance(key, str | int | float) for key in keys):
        raise _FaultError("has a key that is neither text nor number")
    return list(zip(keys, values[1::2], strict=True))
