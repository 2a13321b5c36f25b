"""Ten thousand broken scenario files: each is refused with one line that names the line that was broken.

A valid scenario is drawn as plain data, broken in one known way, and written as text in a style drawn at random (block
or flow, quotes, comments, order of keys); the writer notes the line of every key, so the right line is known.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.collectives.algorithm import ALGORITHMS, REDUCING, ROOTED
from simulator.scenario.load import load_scenario
from tests.playing import NODED

Data = dict[Any, Any]
Path_ = tuple[Any, ...]
Broken = tuple[Data, Path_]

FEW, CASES = 150, 500
CHUNKS = 5  # of each of four kinds of break: 4 x 5 x 500 = 10,000 files, of which `make test` reads 600
STEPS = 0.4  # how many of them are of training steps; the others are of collectives
PLAIN = re.compile(r"[A-Za-z0-9_]+( [A-Za-z]+)?")
NOT_TEXT = re.compile(r"true|false|null|[0-9.eE]*")


# ---------------------------------------------------------------------------------------------- writing, and where


class Writer:
    """Writes plain data as YAML in a style of its own, and notes the line of every key and list item."""

    def __init__(self, rng: random.Random, *, quotes: bool = True, flow: float = 0.4) -> None:
        self.rng, self.quotes, self.flow = rng, quotes, flow
        self.lines: list[str] = []
        self.line_of: dict[Path_, int] = {}

    def text(self, data: Any) -> str:
        self.noise(0)
        if isinstance(data, dict):
            self.mapping(data, (), 0)
        else:
            self.line_of[()] = len(self.lines) + 1
            self.lines.append(self.inline(data, ()))
        return "\n".join(self.lines) + "\n"

    def noise(self, indent: int) -> None:
        while self.rng.random() < 0.15:
            self.lines.append(self.rng.choice(["", " " * indent + "# what follows was measured twice", "#"]))

    def mapping(self, data: Data, at: Path_, indent: int) -> None:
        for name, value in data.items():
            self.noise(indent)
            key, head = (*at, name), " " * indent + self.scalar(name) + ":"
            self.line_of[key] = len(self.lines) + 1
            if isinstance(value, dict) and value and self.rng.random() > self.flow:
                self.lines.append(head + self.remark())
                self.mapping(value, key, indent + self.rng.choice([2, 4]))
            elif isinstance(value, list) and value and self.rng.random() > self.flow:
                self.lines.append(head + self.remark())
                for i, item in enumerate(value):
                    self.line_of[(*key, i)] = len(self.lines) + 1
                    self.lines.append(" " * (indent + 2) + "- " + self.inline(item, (*key, i)) + self.remark())
            else:
                self.lines.append(head + " " + self.inline(value, key) + self.remark())

    def remark(self) -> str:
        return self.rng.choice(["", "", "", "  # as in the lab"])

    def inline(self, value: Any, at: Path_) -> str:
        here = len(self.lines) + 1
        if isinstance(value, dict):
            for name in value:
                self.line_of[(*at, name)] = here
            return "{" + ", ".join(f"{self.scalar(n)}: {self.inline(v, (*at, n))}" for n, v in value.items()) + "}"
        if isinstance(value, list):
            for i in range(len(value)):
                self.line_of[(*at, i)] = here
            return "[" + ", ".join(self.inline(v, (*at, i)) for i, v in enumerate(value)) + "]"
        return self.scalar(value)

    def scalar(self, value: Any) -> str:
        if value is None:
            return "null"
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str):
            return str(value)
        plain = PLAIN.fullmatch(value) or re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", value)
        if plain and not NOT_TEXT.fullmatch(value) and (not self.quotes or self.rng.random() < 0.7):
            return value
        return self.rng.choice(["'{}'", '"{}"']).format(value)


def shuffled(rng: random.Random, data: Data) -> Data:
    """The same mapping with its keys in another order."""
    items = [
        (k, shuffled(rng, v) if isinstance(v, dict) and k in ("cluster", "collective", "training") else v)
        for k, v in data.items()
    ]
    rng.shuffle(items)
    return dict(items)


# ------------------------------------------------------------------------------------------------- valid scenarios


def valid(rng: random.Random, algorithm: str | None = None, operation: str | None = None) -> Data:
    """A scenario without axes that keeps every rule; always with the keys of the design's short example."""
    pairs = [
        (a, o) for a, o in ALGORITHMS.pairs() if a not in NODED and algorithm in (None, a) and operation in (None, o)
    ]
    algorithm, operation = rng.choice(pairs)
    world = rng.choice([2, 4, 8, 16])
    cluster: Data = {"topology": "star_100g", "world_size": world}
    collective: Data = {
        "operation": operation,
        "algorithm": algorithm,
        "size": f"{rng.choice([1, 4, 64, 256])} {rng.choice(['KiB', 'MiB', 'kB', 'MB', 'GiB'])}",
        "dtype": rng.choice(["float32", "float16", "bfloat16"]),
    }
    data: Data = {"name": rng.choice(["demo", "run_7", "ring-of-eight"]), "cluster": cluster, "collective": collective}
    extras: list[Callable[[], None]] = [
        lambda: data.update(seed=rng.randrange(1000)),
        lambda: data.update(engine=rng.choice(["auto", "events"])),
        lambda: data.update(plots=["timeline", "steps"]),
        lambda: data.update(question="How long does it take"),
        lambda: cluster.update(gpu="a100_sxm_80gb"),
        lambda: cluster.update(stragglers={1: 0.5}),
        lambda: cluster.update(jitter={"compute": 0.02, "latency": 0.05}),
        lambda: cluster.update(link_factors={"gpu0->switch0": 0.5}),
        lambda: cluster.update(placement=list(range(world))),
        lambda: collective.update(payload=rng.choice([True, False, "auto"])),
        lambda: collective.update(group=list(range(world))),
    ]
    if operation in REDUCING:
        extras += [lambda: collective.update(reduction="average"), lambda: collective.update(accumulate="float32")]
    if operation in ROOTED:
        extras.append(lambda: collective.update(root=rng.randrange(world)))
    if algorithm == "parameter_server":
        extras.append(lambda: collective.update(servers={"count": 2, "on": "workers"}))
    for extra in extras:
        if rng.random() < 0.3:
            extra()
    return data


def tiny(**keys: Any) -> Data:
    """A small model written out."""
    return {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 1024,
        "vocab_size": 1000,
        **keys,
    }


def valid_step(rng: random.Random) -> Data:
    """A scenario of a training step, without axes, that keeps every rule."""
    world = rng.choice([1, 2, 4, 8])
    cluster: Data = {"topology": "star_100g", "world_size": world}
    step: Data = {"model": rng.choice(["gpt2", "gpt2_medium", tiny()]), "seq_len": rng.choice([64, 1024])}
    data: Data = {"name": rng.choice(["demo", "run_7", "one-step"]), "cluster": cluster, "training": step}
    dtypes = {"params": "bfloat16", "grads": "float32", "reduce": "bfloat16", "master": None, "matmul": "bfloat16"}
    extras: list[Callable[[], None]] = [
        lambda: data.update(seed=rng.randrange(1000)),
        lambda: data.update(plots=["memory", "breakdown"]),
        lambda: cluster.update(gpu="a100_sxm_80gb"),
        lambda: cluster.update(stragglers={0: 0.5}),
        lambda: step.update(micro_batch_size=rng.randrange(1, 9)),
        lambda: step.update(gradient_accumulation_steps=2),
        lambda: step.update(parallelism={"dp": world, "tp": 1}),
        lambda: step.update(sharding=rng.choice(["ddp", "zero3", {"strategy": "zero2", "bucket_size": "1 MiB"}])),
        lambda: step.update(precision=rng.choice(["fp16", "tf32", dtypes])),
        lambda: step.update(activation_checkpointing=rng.choice(["full", "sqrt", {"every": 2}, [0, 3]])),
        lambda: step.update(attention=rng.choice(["flash", "standard"])),
        lambda: step.update(attention_generation=1),
        lambda: step.update(optimizer=rng.choice(["sgd", "adafactor"])),
        lambda: step.update(collectives="played"),
        lambda: step.update(compile=True),
        lambda: step.update(dropout=False),
    ]
    for extra in extras:
        if rng.random() < 0.3:
            extra()
    return data


def either(rng: random.Random, step: bool) -> Data:
    """A valid scenario of a training step, or else of a collective."""
    return valid_step(rng) if step else valid(rng)


def with_axes(rng: random.Random, data: Data) -> Data:
    """The same with a comparison and a sweep that keep every rule whatever the scenario is."""
    if "training" in data:
        data["compare"] = {"training.optimizer": ["adam", "sgd"]}
        data["sweep"] = {"training.sharding.strategy": ["ddp", "zero1"], "seed": [rng.randrange(9), 9]}
        return data
    data["compare"] = {"collective.payload": [False, "auto"]}
    data["sweep"] = {"collective.size": ["64 KiB", "1 MiB"], "seed": [rng.randrange(9), 9]}
    return data


def put(data: Data, key: Path_, value: Any) -> Broken:
    """Write a value under a path; the path is where the fault must be told."""
    inner = data
    for step in key[:-1]:
        # What stands there as one word (`sharding: zero3`) makes room for a mapping.
        inner[step] = inner[step] if isinstance(inner.get(step), dict) else {}
        inner = inner[step]
    inner[key[-1]] = value
    return data, key


# --------------------------------------------------------------------------------------------------------- breaks

NUMBERS = [-1, 2.5, "four", True, [1], {"a": 1}]
WRONG: list[tuple[Path_, list[Any]]] = [
    (("name",), [12, "", "a/b", "two words here", ["a"], None, True]),
    (("seed",), [*NUMBERS, None, 10**40]),
    (("engine",), ["arrays", 1, None]),
    (("plots",), ["timeline", 3, True, None]),
    (("cluster",), [8, "star_100g", None, [1]]),
    (("cluster", "topology"), [8, "", None, ["star_100g"], 1.5]),
    (("cluster", "world_size"), [*NUMBERS, 0, None, 8.0, "8", 10**12]),
    (("cluster", "gpu"), [100, True, [], ""]),
    (("cluster", "stragglers"), [0.5, [0.5], "rank 1", None]),
    (("cluster", "stragglers", 1), [0, -0.5, "slow", True, None, [1]]),
    (("cluster", "link_factors", "gpu0->switch0"), [0, -2, "half", None]),
    (("cluster", "link_factors", "gpu0"), [0.5]),
    (("cluster", "jitter"), [0.1, None, [0.1]]),
    (("cluster", "jitter", "latency"), [-0.1, "much", 99, None]),
    (("cluster", "placement"), [0, "first", {"a": 1}]),
    (("cluster", "ecmp"), [1, "hash", [1]]),
    (("cluster", "ecmp", "hash"), [-1, "seed", 1.5]),
    (("collective",), [8, "ring", None, []]),
    (("collective", "size"), [1024, "256", "256 Mb", "1 Mib", "-1 KiB", "0.3 B", "5 us", True, ["1 B"], "1e9", "9 EB"]),
    (("collective", "dtype"), [32, None, ["float32"], "tf32"]),
    (("collective", "payload"), ["maybe", 1, None, []]),
    (("collective", "chunks"), [*NUMBERS, 0]),
    (("collective", "root"), NUMBERS),
    (("collective", "servers"), [4, "workers", [4]]),
    (("collective", "servers", "count"), [*NUMBERS, 0]),
    (("collective", "group"), [4, "all", {"a": 1}]),
    (("collective", "tensors"), ["1 MiB", 5]),
    (("collective", "fusion"), ["25 MiB", 5, [1]]),
    (("collective", "fusion", "buckets"), [25, "0 B", "much", "1 ms"]),
    (("collective", "fusion", "cycle"), [1, "1 MB", "soon"]),
    (("compare",), [["ring"], "ring", 3, None]),
    (("compare", "collective.algorithm"), ["ring", [], 3, {"a": "ring"}]),
    (("sweep", "cluster.world_size", 0), [[0], ["two"], [2.5], [[2]], [None]]),
    (("sweep", "cluster.world_size", 1), [[4, 4], [2, -1]]),
    (("sweep", "collective.size", 0), [[1024], ["1 Mb"], ["many"]]),
]
WRONG_STEP: list[tuple[Path_, list[Any]]] = [
    (("training",), [8, "gpt2", None, []]),
    (("training", "model"), [8, "", None, ["gpt2"], 1.5, {}]),
    (("training", "seq_len"), [*NUMBERS, 0, None, "512", 10**10]),
    (("training", "micro_batch_size"), [*NUMBERS, 0, None]),
    (("training", "gradient_accumulation_steps"), [*NUMBERS, 0, None]),
    (("training", "parallelism"), [8, "dp", [8], None]),
    (("training", "parallelism", "dp"), [*NUMBERS, 0]),
    (("training", "parallelism", "tp"), [*NUMBERS, 0, -2, None]),
    (("training", "parallelism", "pp"), [*NUMBERS, 0]),
    (("training", "parallelism", "cp"), [0, 2.5, "two"]),
    (("training", "parallelism", "ep"), [0, 2, 16]),
    (("training", "sharding"), [3, None, True, ["zero3"]]),
    (("training", "sharding", "prefetch"), [*NUMBERS, None]),
    (("training", "sharding", "reshard_after_forward"), [1, "yes", None]),
    (("training", "sharding", "bucket_size"), [25, "0 B", "25 Mb", "many", None]),
    (("training", "sharding", "shard_size"), [0, "all", True]),
    (("training", "precision"), [16, None, ["bf16"]]),
    (("training", "precision", "params"), [16, None, ["float16"], "tf32", "float8_e4m3fn"]),
    (("training", "precision", "master"), [True, 32, []]),
    (("training", "precision", "matmul"), [None, 8, "int8"]),
    (("training", "activation_checkpointing"), [None, 3, True, 0.5]),
    (("training", "activation_checkpointing", "every"), [*NUMBERS, 0, None]),
    (("training", "activation_checkpointing", 1), [[0, -1], [1, "two"], [0, 2.5]]),
    (("training", "attention_generation"), [*NUMBERS, 0, 4, None]),
    (("training", "compile"), ["on", 1, None]),
    (("training", "dropout"), [0.1, "off", None]),
    (("compare", "training.sharding"), ["ddp", [], 3]),
    (("sweep", "training.micro_batch_size", 0), [[0], ["two"], [None]]),
    (("sweep", "training.activation_checkpointing", 1), [["none", "none"], ["full", 7]]),
    (("sweep", "training.precision.reduce", 0), [[16], [None]]),
]
REQUIRED = [
    ("name",),
    ("cluster",),
    ("collective",),
    ("cluster", "topology"),
    ("cluster", "world_size"),
    ("collective", "operation"),
    ("training",),
    ("training", "model"),
    ("training", "seq_len"),
]


def fits(key: Path_, data: Data) -> bool:
    """Whether a key is for this scenario: not below `training` where there is a collective, nor the other way."""
    named = str(key[1] if key[0] in ("compare", "sweep") and len(key) > 1 else key[0]).partition(".")[0]
    return named not in ("collective", "training") or named in data


def wrong_value(rng: random.Random) -> Broken:
    """A value of the wrong type or out of range, or a required key that is missing."""
    data = either(rng, rng.random() < STEPS)
    if rng.random() < 0.1:
        key = rng.choice([k for k in REQUIRED if fits(k, data)])
        inner = data if len(key) == 1 else data[key[0]]
        del inner[key[-1]]
        return data, key[:-1]
    menu = WRONG_STEP if "training" in data and rng.random() < 0.7 else WRONG
    key, values = rng.choice([wrong for wrong in menu if fits(wrong[0], data)])
    value = rng.choice(values)
    if isinstance(key[-1], int) and key[:2] != ("cluster", "stragglers"):
        return put(data, key[:-1], value)[0], key
    return put(data, key, value)


NAMES = [
    (("cluster", "topology"), ["star_100", "dgx_a1000", "moon"]),
    (("cluster", "gpu"), ["a100_80", "h100_smx", "voodoo"]),
    (("collective", "operation"), ["allreduces", "all_reduc", "send"]),
    (("collective", "algorithm"), ["rng", "butterfly", "Rings", "paramter_server"]),
    (("collective", "dtype"), ["fp32", "bf16", "float31", "int4"]),
    (("collective", "reduction"), ["mean", "add", "maximum"]),
    (("collective", "accumulate"), ["fp32", "wide"]),
    (("collective", "servers", "on"), ["worker", "rack"]),
    (("engine",), ["event", "fast"]),
    (("plots", 1), [["timeline", "timelines"], ["steps", "pie"]]),
    (("compare", "collective.algorithm", 1), [["ring", "rnig"], ["tree", "three"]]),
    (("sweep", "collective.dtype", 0), [["fp16"], ["halfs"]]),
    (("sweep", "cluster.topology", 1), [["star_100g", "sta_100g"]]),
    (("training", "model"), ["llama3_9b", "gtp2", "bert"]),
    (("training", "sharding"), ["zero4", "fsdp", "dpp"]),
    (("training", "sharding", "strategy"), ["zero0", "hsdp", "Zero3"]),
    (("training", "precision"), ["bfloat16", "fp15", "int8"]),
    (("training", "precision", "grads"), ["bf16", "fp32", "halfs"]),
    (("training", "precision", "matmul"), ["fp8", "tf16"]),
    (("training", "activation_checkpointing"), ["ful", "selective", "nothing"]),
    (("training", "attention"), ["flsh", "paged"]),
    (("training", "optimizer"), ["rmsprop", "lion", "Sgdd"]),
    (("training", "collectives"), ["play", "closed"]),
    (("compare", "training.sharding.strategy", 1), [["ddp", "zeor3"]]),
    (("sweep", "training.model", 0), [["gpt9"], ["gpt_22"]]),
]


def unknown(rng: random.Random) -> Broken:
    """A key or a name that nothing carries."""
    data = either(rng, rng.random() < STEPS)
    if rng.random() < 0.5:
        key, values = rng.choice([name for name in NAMES if fits(name[0], data) and known_plots(name[0], data)])
        at = key[:-1] if isinstance(key[-1], int) else key
        return put(data, at, rng.choice(values))[0], key
    data = with_axes(rng, data)
    places = [key for key in walk(data) if isinstance(key[-1], str) and "->" not in key[-1] and not of_model(key)]
    key = rng.choice(places)
    wrong = misspelt(rng, key[-1])
    return put(data, (*key[:-1], wrong), 5 if key[0] not in ("compare", "sweep") else [5])


def known_plots(key: Path_, data: Data) -> bool:
    """Whether the other figures of a list with an unknown one are of this scenario."""
    return key[0] != "plots" or "collective" in data


def of_model(key: Path_) -> bool:
    """Keys of a model that is written out: those that nothing reads are left alone, as in the files of its authors."""
    return key[:2] == ("training", "model") and len(key) > 2


def walk(data: Data, at: Path_ = ()) -> Iterator[Path_]:
    """Paths of all keys."""
    for name, value in data.items():
        yield (*at, name)
        if isinstance(value, dict):
            yield from walk(value, (*at, name))


def misspelt(rng: random.Random, name: str) -> str:
    """A name with one slip that no key has."""
    i = rng.randrange(1, len(name))
    return rng.choice([name[:i] + "x" + name[i:], name[:i] + "qq" + name[i + 1 :], name + "s_", name.upper() + "_X"])


def conflict(rng: random.Random) -> Broken:
    """Two keys, each fine by itself, that do not go together."""
    return rng.choice(CONFLICTS_OF_STEPS if rng.random() < STEPS else CONFLICTS)(rng)


def in_collective(
    key: str, value: Any, algorithm: str | None = None, operation: str | None = None
) -> Callable[[random.Random], Broken]:
    """One more key of `collective` that does not go with its algorithm or operation."""
    return lambda rng: put(valid(rng, algorithm, operation), ("collective", key), value)


def beyond(
    key: Path_, make: Callable[[int], Any], told: Path_ = (), operation: str | None = None
) -> Callable[[random.Random], Broken]:
    """A value that goes beyond the world size."""

    def broken(rng: random.Random) -> Broken:
        data = valid(rng, operation=operation)
        data["collective"].pop("group", None)
        return put(data, key, make(data["cluster"]["world_size"]))[0], (*key, *told)

    return broken


def no_such_pair(rng: random.Random) -> Broken:
    data = valid(rng, "ring", "all_reduce")
    data["collective"].pop("reduction", None), data["collective"].pop("accumulate", None)
    algorithm = rng.choice([a for a in ("tree", "halving_doubling") if "all_to_all" not in ALGORITHMS.operations(a)])
    data["collective"]["operation"] = "all_to_all"
    return put(data, ("collective", "algorithm"), algorithm)


def odd_size(rng: random.Random) -> Broken:
    data = valid(rng)
    data["collective"]["dtype"] = "float32"
    return put(data, ("collective", "size"), f"{4 * rng.randrange(100) + rng.choice([1, 2, 3])} B")


def integers(key: str, value: str) -> Callable[[random.Random], Broken]:
    def broken(rng: random.Random) -> Broken:
        data = valid(rng, operation="all_reduce")
        data["collective"] = {k: v for k, v in data["collective"].items() if k not in ("reduction", "accumulate")}
        data["collective"]["dtype"] = "int32" if key == "reduction" else rng.choice(["int32", "float64"])
        return put(data, ("collective", key), value)

    return broken


def no_own_servers(rng: random.Random) -> Broken:
    data = valid(rng, "parameter_server", "all_reduce")
    data["cluster"]["topology"] = "dgx_a100"
    return put(data, ("collective", "servers"), {"count": 1, "on": "own"})[0], ("collective", "servers", "on")


def too_many_servers(rng: random.Random) -> Broken:
    data = valid(rng, "parameter_server", "all_reduce")
    put(data, ("collective", "servers"), {"on": "workers", "count": data["cluster"]["world_size"] + 1})
    return data, ("collective", "servers", "count")


def both_axes(rng: random.Random) -> Broken:
    data = with_axes(rng, valid(rng))
    data["compare"] = {"collective.size": ["1 MiB"]}
    return data, ("sweep", "collective.size")


def swept(rng: random.Random) -> Broken:
    data = valid(rng, operation=rng.choice(ROOTED))
    for key in ("stragglers", "placement"):
        data["cluster"].pop(key, None)
    data["collective"].pop("group", None), data["collective"].pop("servers", None)
    data["collective"]["root"] = 5
    return put(data, ("sweep", "cluster.world_size"), rng.choice([[8, 4], [2, 8, 16], [4]]))


def tensors_beside(rng: random.Random) -> Broken:
    data = valid(rng, operation="all_reduce")
    data["collective"] |= {"tensors": ["4 MiB", "4 KiB"], "size": "4 MiB"}
    return data, ("collective", "size")


def training(rng: random.Random) -> Broken:
    return put(valid(rng), ("training",), {"model": "llama3_8b", "seq_len": 8192})


def in_step(key: Path_, value: Any, told: Path_ | None = None, **others: Any) -> Callable[[random.Random], Broken]:
    """Keys of `training` of which one does not go with another; told at `key`, or at the one below it."""

    def broken(rng: random.Random) -> Broken:
        data = valid_step(rng)
        for name in ("precision", "activation_checkpointing"):
            data["training"].pop(name, None)
        data["training"] |= {"model": "gpt2", "seq_len": 64} | others
        put(data, ("training", *key), value)
        return data, ("training", *(key if told is None else told))

    return broken


def too_few_ranks(rng: random.Random) -> Broken:
    data = valid_step(rng)
    return put(data, ("training", "parallelism", "dp"), data["cluster"]["world_size"] * rng.choice([2, 3]))


def ranks_of_a_point(rng: random.Random) -> Broken:
    data = valid_step(rng)
    data["cluster"].pop("stragglers", None)
    put(data, ("training", "parallelism", "dp"), data["cluster"]["world_size"])
    return put(data, ("sweep", "cluster.world_size"), [data["cluster"]["world_size"], 16])


def no_such_arithmetic(rng: random.Random) -> Broken:
    data = valid_step(rng)
    data["cluster"]["gpu"] = "v100_sxm_32gb"
    data["training"]["precision"] = {"reduce": "float32"}
    return put(data, ("training", "precision", "params"), "bfloat16")


def of_a_collective(kind: str) -> Callable[[random.Random], Broken]:
    return lambda rng: put(valid_step(rng), (kind, "collective.size"), ["1 MiB"])


def axis_below_an_axis(rng: random.Random) -> Broken:
    data = valid_step(rng)
    data["compare"] = {"training.sharding": ["ddp", "zero3"]}
    return put(data, ("sweep", "training.sharding.prefetch"), [0, 1])


def figure_of_a_collective(rng: random.Random) -> Broken:
    return put(valid_step(rng), ("plots",), ["timeline", "steps"])[0], ("plots", 1)


CONFLICTS_OF_STEPS: list[Callable[[random.Random], Broken]] = [
    too_few_ranks,
    ranks_of_a_point,
    no_such_arithmetic,
    of_a_collective("compare"),
    of_a_collective("sweep"),
    axis_below_an_axis,
    figure_of_a_collective,
    in_step(("precision",), {"params": "float32", "master": "float32"}, ("precision", "master")),
    in_step(("precision",), {"master": "bfloat16"}, ("precision", "master")),
    in_step(("precision",), {"matmul": "tf32", "params": "float16"}, ("precision", "matmul")),
    in_step(("precision",), {"matmul": "float32"}, ("precision", "matmul")),
    in_step(("precision",), "fp8"),
    in_step(("activation_checkpointing",), [0, 12], ("activation_checkpointing", 1)),
    in_step(("activation_checkpointing",), [5, 3, 5], ("activation_checkpointing", 2)),
    in_step(("seq_len",), 1025),
    in_step(("model",), tiny(n_head=7), ("model", "n_head")),
    in_step(("model",), tiny(n_layer=0), ("model", "n_layer")),
    in_step(("model",), tiny(n_positions=32), ("seq_len",)),
]


CONFLICTS: list[Callable[[random.Random], Broken]] = [
    no_such_pair,
    odd_size,
    integers("reduction", "average"),
    integers("accumulate", "float32"),
    no_own_servers,
    too_many_servers,
    both_axes,
    swept,
    tensors_beside,
    training,
    in_collective("reduction", "max", operation="all_gather"),
    in_collective("accumulate", "float32", operation="broadcast"),
    in_collective("root", 0, operation="all_reduce"),
    in_collective("servers", {"count": 1}, "ring"),
    in_collective("rank_order", [1, 0], "tree"),
    in_collective("chunks", 4, "naive"),
    in_collective("group_size", 2, "ring"),
    in_collective("algorithm", "nvls", operation="all_reduce", algorithm="ring"),
    in_collective("fusion", {"buckets": "1 MiB"}),
    in_collective("tensors", ["1 MiB"], operation="all_gather"),
    beyond(("collective", "root"), lambda n: n, operation="broadcast"),
    beyond(("collective", "group"), lambda n: [0, n], (1,), "all_reduce"),
    beyond(("collective", "group"), lambda n: [0, 1, 1], (2,), "all_reduce"),
    beyond(("collective", "group"), lambda n: [0], (), "all_reduce"),
    beyond(("cluster", "stragglers"), lambda n: {0: 0.5, n: 0.5}, ()),
    beyond(("cluster", "placement"), lambda n: list(range(n - 1))),
    beyond(("cluster", "placement"), lambda n: [*range(n - 1), 0], (-1,)),
]


# What stands instead of a value: each alone is a fault of its line.
NOT_VALUES = [
    *("]", "}", "a: b", "[1}", "- 1"),  # never opened, or two things at once
    *("@a", "`a", "%a", "!strange a", "*nothing"),  # begins nothing
    *('"\\q"', '"\\x1"', '"\\u12"'),  # no such escape
    *("'a", '"a', "[a", "{a"),  # never closed
    *("a\x07", "a\x00", "\x1b"),  # not text
]
# What stands as a line of its own, as deep as the line before: each is a fault of that line.
NOT_LINES = ["--- 1", "{indent} more: 1", "]", "{indent}no colon here\n{indent}more: 1", "{line}", "{indent}\tmore: 1"]


def broken_text(rng: random.Random) -> tuple[str, int]:
    """Text that is not YAML, or not YAML that says one thing, and the line where it is not."""
    step = rng.random() < STEPS
    data = shuffled(rng, with_axes(rng, valid_step(rng) if step else valid(rng, operation="all_reduce")))
    writer = Writer(rng, quotes=False, flow=0.2)
    lines = writer.text(data).splitlines()
    key = rng.choice([k for k in leaves(data) if writer.line_of[k] != writer.line_of.get(k[:-1])])
    number = writer.line_of[key]
    line = lines[number - 1]
    indent = line[: len(line) - len(line.lstrip())]
    if rng.random() < 0.6:
        lines[number - 1] = line[: line.index(":") + 1] + " " + rng.choice(NOT_VALUES)
        # A quote further down would close the one that is left open, and the fault would really be there.
        lines = [part if i == number - 1 else re.sub("['\"]", "", part) for i, part in enumerate(lines)]
        return "\n".join(lines), number
    lines.insert(number, rng.choice(NOT_LINES).format(indent=indent, line=line))
    return "\n".join(lines), number + 1


def leaves(data: Data) -> Iterator[Path_]:
    """Paths of all keys that hold a scalar."""
    for key in walk(data):
        value: Any = data
        for step in key:
            value = value[step]
        if not isinstance(value, dict | list):
            yield key


# ---------------------------------------------------------------------------------------------------------- tests

KINDS: dict[str, Callable[[random.Random], Broken]] = {
    "wrong_value": wrong_value,
    "unknown": unknown,
    "conflict": conflict,
}


def draw(kind: str, rng: random.Random) -> tuple[str, int]:
    """A broken text and the line that must be told."""
    if kind == "syntax":
        return broken_text(rng)
    data, key = KINDS[kind](rng)
    data = shuffled(rng, data)
    writer = Writer(rng)
    text = writer.text(data)
    if key and key[-1] == -1:
        key = (*key[:-1], max(k[-1] for k in writer.line_of if k[:-1] == key[:-1]))
    if key == ("cluster", "stragglers") and isinstance(data["cluster"].get("stragglers"), dict):
        key = next(k for k in writer.line_of if k[:2] == key and len(k) == 3 and k[2] != 0)
    # A fault in the whole file is told where its first key stands.
    return text, writer.line_of[key] if key else min(writer.line_of.values())


def refusal(path: Path) -> ScenarioError | None:
    """How a file is refused; None for a valid one. Any other exception goes through and fails the test."""
    try:
        load_scenario(path)
    except ScenarioError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("chunk", "cases"), [(0, FEW), *(pytest.param(n, CASES, marks=pytest.mark.long) for n in range(CHUNKS))]
)
@pytest.mark.parametrize("kind", ["syntax", *KINDS])
@pytest.mark.one_of(4)
def test_a_broken_file_is_refused_at_the_line_that_was_broken(
    kind: str, chunk: int, cases: int, tmp_path: Path
) -> None:
    stayed_valid = 0
    path = tmp_path / "broken.yaml"
    for number in range(cases):
        rng = random.Random(f"{kind} {chunk} {number}")
        text, line = draw(kind, rng)
        path.write_text(text, encoding="utf-8")
        error = refusal(path)
        if error is None:
            stayed_valid += 1
            continue
        told = str(error).splitlines()
        assert error.exit_code == 2
        assert len(told) == 1, f"case {number}: more than one fault\n{error}\n{text}"
        found = re.match(re.escape(str(path)) + r":(\d+):\d+: \S", told[0])
        assert found, f"case {number}: no line\n{error}\n{text}"
        assert int(found[1]) == line, f"case {number}: line {line} was broken\n{error}\n{text}"
    assert stayed_valid <= cases // 100


@pytest.mark.parametrize("cases", [FEW, pytest.param(CASES, marks=pytest.mark.long)])
def test_the_files_are_valid_before_they_are_broken(tmp_path: Path, cases: int) -> None:
    path = tmp_path / "whole.yaml"
    for number in range(cases):
        rng = random.Random(number)
        data = either(rng, number % 4 > 1)
        path.write_text(Writer(rng).text(shuffled(rng, with_axes(rng, data) if number % 2 else data)), encoding="utf-8")
        assert load_scenario(path).name == data["name"]
