"""Turns pydantic's errors for a scenario into faults in plain words, with line and example.

Every possible pydantic error becomes a Fault. No pydantic text reaches the user::

    pydantic    {"type": "missing", "loc": ("cluster", "world_size"), ...}
    Fault       cluster.world_size: missing; write for example 'world_size: 8'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from simulator.basics import yaml_dialect
from simulator.basics.document import Document, Fault, Key
from simulator.basics.plain_data import at as value_at
from simulator.basics.reading import shown
from simulator.basics.sections import SECTIONS
from simulator.scenario.key_names import unknown_key
from simulator.scenario.records import KINDS, adapter, axis_keys, fields, is_axis_key, takes_lists

# Longest value that a message writes as the entry of a list [characters].
_LONGEST: Final = 40
# Examples for each mapping and each required key, shown if the key is missing or has the wrong type.
_EXAMPLES: Final[dict[Key, str]] = {
    (): "{name: demo, cluster: {topology: star_100g, world_size: 8}, collective: {operation: all_reduce, size: 1 MiB}}",
    ("name",): "name: ring_of_eight",
    ("cluster",): "cluster: {topology: star_100g, world_size: 8}",
    ("cluster", "topology"): "topology: star_100g",
    ("cluster", "world_size"): "world_size: 8",
    ("cluster", "stragglers"): "stragglers: {3: 0.8}",
    ("cluster", "link_factors"): "link_factors: {'gpu0->switch0': 0.5}",
    ("cluster", "jitter"): "jitter: {compute: 0.02, latency: 0.05}",
    ("cluster", "placement"): "placement: [0, 2, 1, 3]",
    ("cluster", "ecmp"): "ecmp: {hash: 1}",
    ("cluster", "events"): "events: [{at: 10 ms, lasts: 5 ms, link: 'gpu0->switch0', factor: 0.5}]",
    ("cluster", "ecmp", "hash"): "hash: 1",
    ("collective",): "collective: {operation: all_reduce, size: 256 MiB}",
    ("collective", "operation"): "operation: all_reduce",
    ("collective", "servers"): "servers: {count: 4, on: workers}",
    ("collective", "rank_order"): "rank_order: [0, 2, 1, 3]",
    ("collective", "group"): "group: [0, 1, 2, 3]",
    ("collective", "tensors"): "tensors: [4 MiB, 1 MiB]",
    ("collective", "fusion"): "fusion: {buckets: 25 MiB}",
    ("training",): "training: {model: llama3_8b, seq_len: 8192}",
    ("training", "model"): "model: llama3_8b",
    ("training", "seq_len"): "seq_len: 8192",
    ("training", "parallelism"): "parallelism: {dp: 8}",
    ("training", "sharding"): "sharding: {strategy: zero3, prefetch: 1}",
    ("training", "precision"): "precision: {params: bfloat16, reduce: float32}",
    ("training", "activation_checkpointing"): "activation_checkpointing: {every: 2}",
    ("training", "activation_checkpointing", "every"): "every: 2",
    ("compare",): "compare: {collective.algorithm: [ring, tree]}",
    ("sweep",): "sweep: {cluster.world_size: [2, 4, 8]}",
    ("plots",): "plots: [scaling, timeline]",
    ("baseline",): "baseline: {training.sharding: ddp}",
    ("answer",): "answer: [change, {finding: threshold, along: training.seq_len}]",
    ("answer", "finding"): "finding: change",
    ("budget",): "budget: {tokens: 1e12, price: 2.5}",
    ("plan",): "plan: {global_batch: 4M, fix: {tp: 8}, among: {pp: [1, 2, 4]}, without: [zero3]}",
    ("plan", "global_batch"): "global_batch: 4M",
    ("plan", "fix"): "fix: {tp: 8}",
    ("plan", "among"): "among: {pp: [1, 2, 4]}",
    ("plan", "without"): "without: [zero3]",
    ("plots", "kinds"): "kinds: [scaling, timeline]",
    ("plots", "points"): "points: [{cluster.world_size: 8}]",
}


def faults(error: ValidationError, document: Document, at: Key = (), key: Key | None = None) -> Iterable[Fault]:
    """Yield a fault (key, line and plain message) for every error of a pydantic validation.

    Parameters
    ----------
    error : ValidationError
        The errors.
    document : Document
        Document with the lines.
    at : tuple
        Path of the validated value in the document.
    key : tuple, optional
        Path of the value's key in a scenario, if different from `at`: an axis value stands in a list.
    """
    keys: set[Key] = set()
    for detail in error.errors(include_url=False, include_context=True):
        several = _listed_values(detail["loc"], document.data) if not at else None
        if several is None:
            yield _fault(detail, document, at, at if key is None else key)
        # A key that takes lists has an error for each wrong value of the list; the list is reported once.
        elif several not in keys:
            keys.add(several)
            yield document.fault(several, _as_axis(several, document.data))


def _listed_values(loc: Key, data: Any) -> Key | None:
    """Return the key at or above an error's place whose value is a list of single settings, None without such a key.

    A key that takes lists counts only if each value of its list is a valid setting of the key.
    """
    dotted = next(
        (loc[:depth] for depth in range(1, len(loc) + 1) if isinstance(value_at(data, loc[:depth]), list)), None
    )
    name = ".".join(map(str, dotted or ()))
    if dotted is None or not is_axis_key(name) or name in SECTIONS:
        return None
    values = value_at(data, dotted)
    if not values or any(isinstance(value, list) for value in values):
        return None
    if takes_lists(name) and not all(_is_setting(name, value) for value in values):
        return None
    return dotted


def _is_setting(name: str, value: Any) -> bool:
    try:
        adapter(name).validate_python(value)
    except ValidationError:
        return False
    return True


def _as_axis(key: Key, data: Any) -> str:
    """Return the message for a list at a key with a single value: the line of `compare` or `sweep` with the values."""
    name, values = ".".join(map(str, key)), value_at(data, key)
    if len(values) == 1:
        written = yaml_dialect.dump({key[-1]: values[0]}, one_line=True)[1:-1]
        return f"got a list; must be a single value; write {written!r}"
    # Numbers and quantities, such as 8, "1 MiB" or "8k", are a sweep; names are compared.
    kind = "sweep" if all(str(value)[:1].isdigit() for value in values) else "compare"
    line = yaml_dialect.dump({name: values}, one_line=True)
    has_axis = isinstance(data.get(kind), dict)
    write = f"{line[1:-1]!r} below {kind}" if has_axis else f"'{kind}: {line}' beside {key[0]}"
    return f"got a list; must be a single value; to compare several, keep the first here and write {write}"


def _fault(detail: ErrorDetails, document: Document, at: Key, key: Key) -> Fault:
    # pydantic ends the path with "[key]" if a mapping's key is wrong, instead of its value.
    loc: Key = detail["loc"]
    of_key = bool(loc) and loc[-1] == "[key]"
    loc = loc[:-1] if of_key else loc
    kind, got = detail["type"], detail["input"]
    if kind == "missing":
        return document.fault((*at, *loc), f"missing; write for example '{example((*key, *loc))}'", of_key=True)
    if kind in ("extra_forbidden", "invalid_key"):
        return document.fault((*at, *loc), unknown((*key, *loc), document.data), of_key=True)
    # pydantic's names for wrong types; the value itself is shown, with an example for the key.
    if kind in ("model_type", "dict_type"):
        return document.fault((*at, *loc), _instead(got, "a mapping", (*key, *loc)))
    if kind in ("list_type", "tuple_type"):
        return document.fault((*at, *loc), _instead(got, "a list", (*key, *loc)))
    # ValueErrors come from our own readers; their text is ready for the user. The fallback covers every other type.
    raised = detail.get("ctx", {}).get("error")
    message = str(raised) if isinstance(raised, ValueError) else f"got {shown(got)}; this value is not allowed here"
    # An axis key was looked up among every key; look again among the keys for this kind of scenario.
    if of_key and message.startswith("unknown key"):
        message = unknown_key(str(loc[-1]), _keys(document.data))
    return document.fault((*at, *loc), message, of_key=of_key)


def unknown(key: Key, data: Any = None) -> str:
    """Return the message for an unknown key of a scenario (`data`); the text is that of `key_names.unknown_key`.

    >>> unknown(("cluster", "jitter", "compte"))
    "unknown key; one of compute, latency; did you mean 'compute'?"
    """
    return unknown_key(".".join(map(str, key)), _keys(data), fields(key[:-1]))


def _keys(data: Any) -> tuple[str, ...]:
    """Return the dotted keys allowed in a scenario of this data's kind, collective or training."""
    # With both kinds, or neither, the intended kind is unknown, and every key is allowed.
    kinds = [kind for kind in KINDS if isinstance(data, dict) and kind in data]
    return axis_keys(kinds[0] if len(kinds) == 1 else None)


def example(key: Key) -> str:
    """Return an example for a key, as a line of a scenario file: 'world_size: 8'."""
    return _EXAMPLES.get(key, f"{key[-1]}: ..." if key else "name: demo")


def _instead(got: Any, expected: str, key: Key) -> str:
    hint = f", such as '{_EXAMPLES[key]}'" if key in _EXAMPLES else ""
    # A word or a number may be the single entry of the list.
    if not hint and key and expected == "a list" and isinstance(got, str | int | float) and len(str(got)) <= _LONGEST:
        hint = f"; write '{key[-1]}: {yaml_dialect.dump([got], one_line=True)}'"
    return f"got {shown(got)}; must be {expected}{hint}"
