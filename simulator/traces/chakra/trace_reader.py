"""Reads Chakra execution traces, a file PREFIX.R.et or PREFIX.R.json for each rank R, within fixed limits.

A file is a stream of protobuf messages: GlobalMetadata, then a Node each. Attributes may have any integer type; numbers
without a field are 0. In JSON form, a file has a list `workload_graph` of nodes, as Chakra's feeder reads it, or the
same messages one behind the other, as chakra_jsonizer writes them.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.basics.errors import ScenarioError, few, one_line
from simulator.basics.input_files import MOST_DATA, parse_json, read_bytes
from simulator.basics.protobuf_wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Value,
    WireError,
    fields,
    messages,
    packed,
    signed,
    zigzag,
)
from simulator.basics.units import format_bytes
from simulator.records import chakra
from simulator.records.chakra import NodeType

# Most ranks, nodes of all ranks, dependencies of all ranks, and attributes of a node.
_MOST_RANKS: Final = 4096
_MOST_NODES: Final = 1_000_000
_MOST_DEPENDENCIES: Final = 10_000_000
_MOST_ATTRIBUTES: Final = 1000
# Longest name, and longest text of an attribute, that is kept [characters].
_LONGEST: Final = 200
# Longest time of a node: ten days [us]. Largest message: a pebibyte [B].
_LONGEST_MICROS: Final = 864_000_000_000
_MOST_SHOWN: Final = 8
# Least factor on the time of transfers, and the largest is its inverse.
_LEAST_FACTOR: Final = 0.01
_GRAPH: Final = "workload_graph"
# Between two messages of chakra_jsonizer, which indents what is inside of them.
_BETWEEN: Final = re.compile(r"(?m)^(\{?)\}\s*\{")
_WHOLE: Final = re.compile(r"-?[0-9]{1,20}")
# COMP_NODE, COMM_SEND_NODE, ...
_JSON_TYPES: Final = {f"{'COMM_' * (kind > NodeType.COMP)}{kind.name}_NODE": kind for kind in NodeType}
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"

AttributeValue = int | float | str | tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """A node of a rank's trace."""

    id: int  # unique in the rank's trace
    name: str
    type: NodeType
    after: tuple[int, ...]  # nodes that must end first, control and data dependencies
    duration: int  # measured time [us]
    attributes: Mapping[str, AttributeValue]

    def number(self, name: str) -> int | None:
        """Return an attribute's whole number; None if there is none.

        >>> node = ChakraNode(1, "mm", NodeType.COMP, (), 5, {"num_ops": 8, "stream": "7"})
        >>> node.number("num_ops"), node.number("stream"), node.number("tid")
        (8, None, None)
        """
        value = self.attributes.get(name)
        return value if isinstance(value, int) else None

    @property
    def on_host(self) -> bool:
        """True for an operation of the host, also one that issues a collective or a message."""
        return bool(self.attributes.get("is_cpu_op"))

    def communicates(self, *types: NodeType) -> bool:
        """Return True for a node of the types, such as COLL, that is not the host's call which issues it."""
        return self.type in types and not self.on_host

    def text(self, name: str) -> str:
        """Return an attribute's text or whole number as text; empty if there is none."""
        value = self.attributes.get(name)
        return str(value) if isinstance(value, str | int) else ""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The trace of a rank."""

    source: str  # path of the file
    nodes: tuple[ChakraNode, ...]  # in the file's order
    network_time: float = 1.0  # factor on the time of transfers, which traces of this simulator state; 1 in others


def read_traces(prefix: str) -> tuple[RankTrace, ...]:
    """Return the traces PREFIX.0.et, PREFIX.1.et, ..., by rank.

    Raises
    ------
    ScenarioError
        There are no such files, a rank is missing, or a file is no trace or exceeds a limit.
    """
    files = _files(prefix)
    traces, nodes, dependencies = [], 0, 0
    for path in files:
        trace = _trace(_content(path), str(path))
        nodes += len(trace.nodes)
        dependencies += sum(len(node.after) for node in trace.nodes)
        if nodes > _MOST_NODES or dependencies > _MOST_DEPENDENCIES:
            raise ScenarioError(
                f"{prefix}: has more than {_MOST_NODES:,} nodes or {_MOST_DEPENDENCIES:,} dependencies up to {path}; "
                "take a trace of fewer steps or ranks"
            )
        traces.append(trace)
    if not nodes:
        raise ScenarioError(f"{prefix}: has no nodes in {len(files)} files")
    return tuple(traces)


def _files(prefix: str) -> list[Path]:
    """Return the files of a prefix by rank; the path of one of the files stands for its prefix."""
    stem = re.sub(r"\.\d+\.(et|json)(\.gz)?$", "", prefix)
    folder, name = Path(stem).parent, Path(stem).name
    pattern = re.compile(re.escape(name) + r"\.(\d{1,7})\.(et|json)(\.gz)?")
    files: dict[int, Path] = {}
    try:
        for path in folder.iterdir():
            if match := pattern.fullmatch(path.name):
                files[int(match.group(1))] = path
    except OSError as error:
        raise ScenarioError(one_line(f"{folder}: cannot be read: {error.strerror or error}")) from error
    if not files:
        hint = "PREFIX is the path of the files without .R.et"
        raise ScenarioError(one_line(f"{stem}: there is no file {name}.0.et in {folder}; {hint}"))
    if len(files) > _MOST_RANKS:
        raise ScenarioError(one_line(f"{stem}: has {len(files)} files; at most {_MOST_RANKS} ranks are read"))
    missing = sorted(set(range(max(files) + 1 if max(files) <= _MOST_RANKS else len(files))) - set(files))
    if missing:
        ranks = few([str(rank) for rank in missing], _MOST_SHOWN)
        raise ScenarioError(one_line(f"{stem}: has {len(files)} files, and none for rank {ranks}"))
    return [files[rank] for rank in sorted(files)]


def _content(path: Path) -> bytes:
    """Return a file's bytes, unpacked if gzipped."""
    content = read_bytes(path, most=MOST_DATA)
    if content[:4] == _ZSTD:
        raise ScenarioError(f"{path}: is packed with zstd; unpack it first")
    if content[:2] != _GZIP:
        return content
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        unpacked = unpacker.decompress(content, MOST_DATA + 1)
    except zlib.error as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    if len(unpacked) > MOST_DATA:
        raise ScenarioError(f"{path}: has more than {format_bytes(MOST_DATA)}; is it the right file?")
    return unpacked


def _trace(content: bytes, source: str) -> RankTrace:
    if content.lstrip()[:1] in (b"{", b"["):
        return _json_trace(content, source)
    number, nodes, metadata = 0, [], dict[str, AttributeValue]()
    try:
        for number, message in enumerate(messages(content)):
            if number == 0:
                metadata = _metadata(message)
            else:
                nodes.append(_node(message))
        if not content:
            raise WireError("is empty")
    except WireError as error:
        raise ScenarioError(one_line(f"{source}: message {number}: {error}; not a Chakra execution trace")) from error
    return _rank_trace(source, nodes, metadata)


def _rank_trace(source: str, nodes: list[ChakraNode], metadata: Mapping[str, AttributeValue]) -> RankTrace:
    factor = metadata.get(chakra.NETWORK_TIME)
    usable = isinstance(factor, float) and _LEAST_FACTOR <= factor <= 1 / _LEAST_FACTOR
    return RankTrace(source, tuple(nodes), factor if usable and isinstance(factor, float) else 1.0)


def _json_trace(content: bytes, source: str) -> RankTrace:
    """Return the trace in a text of Chakra's feeder, or of chakra_jsonizer."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ScenarioError(one_line(f"{source}: not a UTF-8 text: byte {error.start}")) from error
    listed = _BETWEEN.sub(r"\1},{", text)
    data = parse_json(text if listed == text else f"[{listed}]", source)
    graph = data.get(_GRAPH) if isinstance(data, dict) else data or None
    if not isinstance(graph, list):
        raise ScenarioError(one_line(f"{source}: has no list `{_GRAPH}`; not a Chakra execution trace"))
    nodes, metadata = [], dict[str, AttributeValue]()
    for place, node in enumerate(graph):
        try:
            if not isinstance(node, dict):
                raise WireError("must be a mapping")
            if graph is not data:
                nodes.append(_json_node(node))
            elif place or "type" in node:
                nodes.append(_json_message(node))
            else:
                metadata = _json_attributes(node)
        except WireError as error:
            what = "message" if graph is data else _GRAPH
            raise ScenarioError(one_line(f"{source}: {what}: {place}: {error}")) from error
    return _rank_trace(source, nodes, metadata)


def _json_message(data: Mapping[str, Any]) -> ChakraNode:
    """Return a node of chakra_jsonizer: a protobuf message in its JSON form, whose zeros are left out."""
    ident, duration = (_integer(name, data.get(name, 0)) for name in ("id", "durationMicros"))
    after = [_integer(name, other) for name in ("ctrlDeps", "dataDeps") for other in _list(data, name)]
    kind, name = _JSON_TYPES.get(str(data.get("type")), 0), str(data.get("name", ""))[:_LONGEST]
    return _checked(ident, name, kind, tuple(dict.fromkeys(after)), duration, _json_attributes(data))


def _json_attributes(data: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """Return the attributes of a message; numbers of 64 bits are texts in JSON, and a value of another type is 0."""
    attributes: dict[str, AttributeValue] = {}
    for attribute in _list(data, "attr"):
        if not isinstance(attribute, dict):
            raise WireError("attr: must be a list of mappings")
        form = next((key for key in attribute if key not in ("name", "docString")), "")
        value = attribute.get(form, 0)
        if form == "boolList" and isinstance(value, dict):
            value = tuple(flag is True for flag in _list(value, "values"))[:_MOST_ATTRIBUTES]
        elif isinstance(value, str):
            number = int(value) if _WHOLE.fullmatch(value) else 0
            value = one_line(value[:_LONGEST]) if form == "stringVal" else number
        name = one_line(str(attribute.get("name", ""))[:_LONGEST])
        attributes[name] = value if isinstance(value, int | float | str | tuple) else 0
    return attributes


def _list(data: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list of a mapping; empty if missing."""
    several = data.get(name, [])
    if not isinstance(several, list):
        raise WireError(f"{name}: got {several!r}; must be a list")
    return several


def _json_node(data: Mapping[str, Any]) -> ChakraNode:
    """Return a node of a text; keys that are not the node's fields are its attributes."""
    ident, kind, duration = (_integer(name, data.get(name, 0)) for name in ("Id", "NodeType", "runtime"))
    attributes = {
        key: one_line(value[:_LONGEST]) if isinstance(value, str) else value
        for key, value in data.items()
        if isinstance(value, int | str | float)
    }
    dependencies = tuple(dict.fromkeys(_integer("data_deps", other) for other in _list(data, "data_deps")))
    return _checked(ident, str(data.get("Name", ""))[:_LONGEST], kind, dependencies, duration, attributes)


def _integer(name: str, value: Any) -> int:
    value = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise WireError(f"{name}: got {value!r}; must be a whole number of at least 0")
    return value


def _metadata(message: bytes) -> dict[str, AttributeValue]:
    """Return the attributes of the first message; raise WireError if it is a node."""
    attributes: dict[str, AttributeValue] = {}
    for number, wire, value in fields(message):
        if wire != BYTES or number not in (chakra.METADATA_VERSION, chakra.METADATA_ATTRIBUTE):
            raise WireError("the first message is no GlobalMetadata")
        if number == chakra.METADATA_ATTRIBUTE and isinstance(value, bytes):
            name, content = _attribute(value)
            attributes[name] = content
    return attributes


def _node(message: bytes) -> ChakraNode:
    ident, name, kind, duration = 0, "", 0, 0
    after: list[int] = []
    attributes: dict[str, AttributeValue] = {}
    for number, _, value in fields(message):
        if number == chakra.ID:
            ident = _number(value)
        elif number == chakra.NAME:
            name = _text(value)
        elif number == chakra.TYPE:
            kind = _number(value)
        elif number in (chakra.CONTROL_DEPENDENCIES, chakra.DATA_DEPENDENCIES):
            after += packed(value)
        elif number == chakra.DURATION:
            duration = _number(value)
        elif number == chakra.ATTRIBUTE and isinstance(value, bytes):
            key, content = _attribute(value)
            attributes[key] = content
    return _checked(ident, name, kind, tuple(dict.fromkeys(after)), duration, attributes)


def _checked(
    ident: int,
    name: str,
    kind: int,
    after: tuple[int, ...],
    duration: int,
    attributes: Mapping[str, AttributeValue],
) -> ChakraNode:
    """Return a node; raise WireError for a wrong type, a long time, or too many attributes."""
    if not NodeType.METADATA <= kind <= NodeType.COLL:
        raise WireError(f"node {ident} has type {kind}; types are 1 .. {max(NodeType)}")
    if duration > _LONGEST_MICROS:
        raise WireError(f"node {ident} takes {duration} us; at most {_LONGEST_MICROS}")
    if len(attributes) > _MOST_ATTRIBUTES:
        raise WireError(f"node {ident} has more than {_MOST_ATTRIBUTES} attributes")
    return ChakraNode(ident, one_line(name), NodeType(kind), after, duration, attributes)


def _number(value: Value) -> int:
    if isinstance(value, bytes):
        raise WireError("has bytes in place of a number")
    return value


def _text(value: Value) -> str:
    if not isinstance(value, bytes):
        raise WireError("has a number in place of a text")
    # Names are printed: line breaks and control characters are escaped.
    return one_line(value[: 4 * _LONGEST].decode(errors="replace")[:_LONGEST])


def _attribute(message: bytes) -> tuple[str, AttributeValue]:
    """Return the name and value of an attribute; a value of another type is 0."""
    name = ""
    content: AttributeValue = 0
    for number, wire, value in fields(message):
        if number == chakra.ATTRIBUTE_NAME:
            name = _text(value)
        elif isinstance(value, int):
            content = _scalar(number, wire, value)
        elif number == chakra.STRING:
            content = _text(value)
        elif number == chakra.BOOL_LIST:
            content = tuple(bool(flag) for _, _, body in fields(value) for flag in packed(body))[:_MOST_ATTRIBUTES]
    return name, content


# Fields of AttributeProto with numbers that have another form than a plain varint.
_ZIGZAG: Final = (15, 17)
_SIGNED_FIXED: Final = {23: ("<I", "<i"), 25: ("<Q", "<q")}
_FLOATS: Final = {3: ("<Q", "<d"), 5: ("<I", "<f")}


def _scalar(number: int, wire: int, value: int) -> int | float:
    """Return the number in an attribute's field."""
    if wire == VARINT:
        return zigzag(value) if number in _ZIGZAG else signed(value)
    raw, form = {**_SIGNED_FIXED, **_FLOATS}.get(number, ("", ""))
    if (raw == "<Q") == (wire == FIXED64) and (raw == "<I") == (wire == FIXED32) and raw:
        decoded: int | float = struct.unpack(form, struct.pack(raw, value))[0]
        return decoded
    return value
