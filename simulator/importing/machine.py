"""On which machine does the imported training run? Options of the command, or else the files' own numbers of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Final

from simulator.importing.facts import Facts
from simulator.importing.launchers import derive_node
from simulator.importing.rules import REST
from simulator.importing.settings import Setting

WORLD: Final = "cluster.world_size"
# Ranks that work on the same micro-batch.
_CUT: Final = ("training.parallelism.tp", "training.parallelism.pp", "training.parallelism.cp")
# Machine and GPUs of a node where neither files nor options say.
MACHINE: Final = "dgx_h100"
NODE: Final = 8


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command; None if not given.

    Attributes
    ----------
    topology, gpu : str or None
        Names of a topology and of a GPU.
    gpus, nodes : int or None
        Number of GPUs, or of nodes.
    model, framework : str or None
        Names in the catalog, or paths.
    seq_len, micro_batch_size : int or None
        Tokens of a sequence; sequences of a micro-batch.
    gpus_per_node : int
        GPUs of a node of the topology.
    machine : str
        Topology if none is given: the machine with such GPUs.
    variables : mapping of str to str, or None
        Values of a script's variables that its file does not assign.
    """

    topology: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    model: str | None = None
    framework: str | None = None
    seq_len: int | None = None
    micro_batch_size: int | None = None
    gpus_per_node: int = NODE
    machine: str = MACHINE
    variables: Mapping[str, str] | None = None


_FACTS: Final = {
    "cluster.topology": "topology", "cluster.gpu": "gpu", WORLD: "gpus", "nodes": "nodes", "training.model": "model",
    "training.framework": "framework", "training.seq_len": "seq_len", "training.micro_batch_size": "micro_batch_size",
}  # fmt: skip


def apply_options(facts: Facts, options: Options) -> None:
    """Set the facts that options of the command give."""
    for fact, name in _FACTS.items():
        value = getattr(options, name)
        if value is not None:
            facts.give(fact, value, Setting(f"--{name.replace('_', '-')}", value, "command line"))


def derive_machine(facts: Facts, options: Options) -> None:
    """Add topology and number of ranks; assume values that neither files nor options give."""
    derive_node(facts)
    _derive_world(facts, options)
    world, cut = facts.value(WORLD), cut_of(facts)
    if world is not None and world % cut:
        sizes = " x ".join(
            f"{name.rpartition('.')[2]} {facts.value(name)}" for name in _CUT if facts.value(name, 1) > 1
        )
        facts.fault(f"{world} GPUs are no multiple of {sizes} = {cut}; write for example --gpus {cut}", WORLD)


def _derive_world(facts: Facts, options: Options) -> None:
    if not facts.has("cluster.topology"):
        why = "--topology changes it"
        facts.assume(
            "cluster.topology", options.machine, why if options.gpu is None else f"it has {options.gpu}; {why}"
        )
    if facts.has(WORLD):
        return
    if facts.has("nodes"):
        # With --nodes, a node has as many GPUs as the file or the topology says.
        per_node = facts.value("gpus_per_node", options.gpus_per_node)
        facts.derive(WORLD, facts.value("nodes") * per_node, "nodes", "gpus_per_node")
    else:
        _world_from_batch(facts)


def copies_of(facts: Facts) -> int:
    """Return the number of data-parallel ranks, at least 1, once the machine is derived."""
    return max(1, (facts.value(WORLD) or facts.assumed(WORLD) or 1) // cut_of(facts))


def cut_of(facts: Facts) -> int:
    """Return tp x pp x cp."""
    product = 1
    for name in _CUT:
        product *= facts.value(name, 1)
    return product


def _world_from_batch(facts: Facts) -> None:
    """Add the number of ranks that follows from the batch; without a batch, assume the fewest whole nodes."""
    names = ("sequences", "training.micro_batch_size", "training.gradient_accumulation_steps")
    if facts.value("shard_ranks", REST) != REST:
        shards = facts.value("shard_ranks") * facts.value("replicas", 1)
        facts.derive(WORLD, shards * cut_of(facts), "shard_ranks", "replicas", *_CUT)
    elif all(facts.has(name) for name in names):
        sequences, micro, steps = (facts.value(name) for name in names)
        if sequences % (micro * steps):
            facts.fault(f"got {sequences} sequences; must be a multiple of {micro} x {steps} per rank", *names)
            return
        facts.derive(WORLD, sequences // (micro * steps) * cut_of(facts), *names, *_CUT)
    else:
        tp, pp, ep, etp = (facts.value(f"training.parallelism.{kind}") for kind in ("tp", "pp", "ep", "etp"))
        # The ranks of a stage hold every expert a whole number of times.
        experts = (pp or 1) * (ep or 1) * (etp or tp or 1) if (ep or 1) > 1 else 1
        node = facts.value("gpus_per_node", NODE)
        why = "the files name no number of nodes; --gpus or --nodes changes it"
        facts.assume(WORLD, lcm(cut_of(facts), node, experts), why)
