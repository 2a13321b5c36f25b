"""Every part of a layer belongs to the scopes of CUDA graphs and the modules of recomputation that contain it.

A new part fails here until it is in a scope or module, or in a list below.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.basics import registry
from simulator.cluster.gpu_file import load_gpu
from simulator.model.load import load_model
from simulator.model.operation import GRAPH_SCOPES
from simulator.model.shape import Transformer
from simulator.step.checkpointing import MODULES
from simulator.step.framework import load_framework
from simulator.step.kernel_timer import KernelTimer
from simulator.step.parallelism import Parallelism
from simulator.step.spec import bare_step
from simulator.step.units import batch_of, of_framework

# Parts of experts, and behind them, which no graph of Megatron-Core holds.
OUTSIDE_GRAPHS: Final = {
    "shared gating", "shared activation product", "sort by expert", "expert bias", "sort by sender", "combine",
    "latent up", "shared add", "shared gate", "join", "next token embedding", "next token norm", "hidden norm",
}  # fmt: skip
# Parts that Megatron-Core recomputes with the whole layer alone.
IN_NO_MODULE: Final = {
    "qkv", "queries", "keys", "values", "repeated heads", "query and key norm", "rotary", "proj", "residual1",
    "residual2", "norm1 after", "norm2 after", "query down", "kv down", "mamba norm", "mamba in", "mamba scan",
    "mamba out", "mamba residual", "shared add", "shared gate", "join", "next token embedding", "next token norm",
    "hidden norm",
}  # fmt: skip


def _parts() -> set[str]:
    """Return the names of the operations in the layers of every model in the catalog, also with experts apart."""
    names = set[str]()
    for model in map(load_model, registry.names("model")):
        if not isinstance(model, Transformer):
            continue
        for framework in ("nemo", "transformers"):
            step = replace(bare_step(model, model.max_positions or 128, 1), framework=load_framework(framework))
            apart = (1, 2) if model.num_experts else (1,)
            for ranks in apart:
                step = step.with_keys(parallelism=Parallelism(ep=ranks))
                timer = KernelTimer(load_gpu("b200"), step)
                for kind in model.kinds:
                    names |= {op.name for op in of_framework(timer, kind, batch_of(step))}
    return names


def test_every_part_is_in_a_graph_and_a_module_or_known_to_be_in_none() -> None:
    parts = _parts()
    captured, recomputed = (set().union(*names.values()) for names in (GRAPH_SCOPES, MODULES))
    assert parts - captured - OUTSIDE_GRAPHS == set()
    assert parts - recomputed - IN_NO_MODULE == set()
    # And no name is a leftover.
    assert (captured | recomputed) - parts <= {"query", "repeated heads"}
