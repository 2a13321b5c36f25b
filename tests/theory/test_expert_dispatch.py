"""Deduplicated dispatch of tokens to experts: number of copies, links, and times beside those that DeepEP measured.

Expected numbers of places come from enumerating every choice of experts; times are those that DeepEP's authors printed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest

from simulator.model.expert_partition import ExpertPartition
from simulator.model.experts_spec import ExpertsSpec
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import Batch
from simulator.model.partition import ModelPartition
from simulator.model.shape import Transformer
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from simulator.step.plan import groups_of
from tests.theory.test_model_parallel import EXPERTS

DEEPSEEK = load_model("deepseek_v3")
assert isinstance(DEEPSEEK, Transformer)


@pytest.mark.parametrize(
    ("experts", "active", "groups", "active_groups"),
    [(8, 2, 1, 1), (12, 3, 1, 1), (12, 3, 4, 2), (8, 4, 2, 1), (12, 2, 6, 2)],
)
@pytest.mark.parametrize("places", [1, 2, 4])
def test_places_of_a_token_are_the_mean_over_every_choice_of_groups_and_experts(
    experts: int, active: int, groups: int, active_groups: int, places: int
) -> None:
    model = replace(
        EXPERTS, num_experts=experts, active_experts=active, expert_groups=groups, active_groups=active_groups
    )
    size, each = experts // groups, experts // places
    found = Counter[int]()
    for chosen_groups in combinations(range(groups), active_groups):
        allowed = [group * size + n for group in chosen_groups for n in range(size)]
        found.update(len({expert // each for expert in chosen}) for chosen in combinations(allowed, active))
    mean = sum(number * count for number, count in found.items()) / found.total()
    assert ExpertPartition(places).distinct(model, places) == pytest.approx(mean, rel=1e-12)


def test_a_model_without_groups_has_the_hypergeometric_number_of_places() -> None:
    for places in (1, 2, 4, 8, 16):
        nowhere = comb(16 - 16 // places, 2) / comb(16, 2)
        assert ExpertPartition(places).distinct(EXPERTS, places) == pytest.approx(places * (1 - nowhere), rel=1e-12)


def test_deepseek_v3_reaches_at_most_the_four_nodes_of_its_groups() -> None:
    """The technical report limits a token to 4 nodes; 8 experts of 4 groups with 32 experts each."""
    assert ExpertPartition(64).distinct(DEEPSEEK, 8) == pytest.approx(4 * (1 - comb(96, 8) / comb(128, 8)), rel=1e-12)


def _step(topology: Any, ranks: int, tokens: int, experts: dict[str, Any], **sizes: int) -> dict[str, Any]:
    """Return a scenario with one layer of DeepSeek-V3's experts and next to nothing else."""
    model = {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 256, "moe_intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "q_lora_rank": 64, "kv_lora_rank": 64,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64, "vocab_size": 256,
        "n_routed_experts": 256, "num_experts_per_tok": 8, **sizes,
    }  # fmt: skip
    training = {
        "model": model, "seq_len": tokens, "framework": "bare", "sharding": "zero1", "collectives": "played",
        "parallelism": {"ep": ranks, "experts": experts},
    }  # fmt: skip
    return {"name": "dispatch", "cluster": {"topology": topology, "world_size": ranks}, "training": training}


def test_a_token_crosses_to_each_node_once_and_is_forwarded_once_to_each_rank() -> None:
    """16 ranks on 2 nodes: T d2 h w / 2 over the cards and T d16 h w 7 / 8 over NVLink, at the same time."""
    wide, tokens = 7168 * 2, 64
    run = simulate(load_scenario(_step("dgx_h100", 16, tokens, {"dispatch": "deduplicated"})), limit_memory=False)
    moved = Counter[tuple[str, str]]()
    starts: dict[str, set[float]] = {}
    for span in run.timeline.spans:
        if span.rank == 3 and span.stream.startswith("communication experts") and " forward " in span.name:
            kind = "tokens to" if "tokens to" in span.name else "tokens from"
            moved[span.stream, kind] += round(span.nbytes)
            starts.setdefault(kind, set()).add(span.start)
    nodes, ranks = (
        round(tokens * 2 * (1 - comb(128, 8) / comb(256, 8))),
        round(tokens * 16 * (1 - comb(240, 8) / comb(256, 8))),
    )
    # A rank's own part of an array stays: a half between 2 nodes, an eighth between 8 ranks. Spans count whole arrays.
    for kind in ("tokens to", "tokens from"):
        assert moved["communication experts rail", kind] == nodes * wide
        assert moved["communication experts", kind] == pytest.approx(ranks * wide, abs=8 * 2)
        assert len(starts[kind]) == 1
    # A rank sends to its twin alone in the other node, and forwards to the seven other ranks of its own.
    sent = Counter[tuple[str, str]]()
    for log in run.timeline.logs:
        if "experts" in log.collective:
            names = np.array(log.vertices)
            sent.update(zip(names[log.transfers.src].tolist(), names[log.transfers.dst].tolist(), strict=True))
    place = {f"gpu{rank}": rank for rank in range(16)}
    pairs = {(place[src], place[dst]) for src, dst in sent}
    assert {pair for pair in pairs if (pair[0] < 8) != (pair[1] < 8)} == {(rank, (rank + 8) % 16) for rank in range(16)}
    assert len(pairs) == 16 + 16 * 7


def test_ranks_that_nodes_do_not_cut_into_equal_runs_get_a_copy_each() -> None:
    """6 of 8 ranks of a node, and 2 of another: groups of 4 have runs of 4, and of 2 and 2."""
    placement = [*range(6), 8, 9]
    for ranks, streams in ((4, {"communication experts"}), (2, {"communication experts"})):
        data = _step("dgx_h100", 8, 64, {"dispatch": "deduplicated"})
        data["cluster"]["placement"] = placement
        data["training"]["parallelism"]["ep"] = ranks
        run = simulate(load_scenario(data), limit_memory=False)
        assert {s.stream for s in run.timeline.spans if s.stream.startswith("communication experts")} == streams
        groups = groups_of(run.plan.step, 8)
        assert groups.experts_in_node == (2 if ranks == 2 else 0)


# Times of DeepEP's normal kernels with DeepSeek-V3's sizes: tokens of a rank, groups of experts of which a token has at
# most 4 (0: none), links of the bottleneck, and its bandwidth for dispatch (FP8 with a float32 scale per 128 numbers)
# and for combine (BF16), which counts a token once per node (RDMA) or rank (NVLink) with its experts, the own included.
# Sources: deepseek-ai/DeepEP@dd758caf45, docs/legacy.md (H800: NVLink about 160 GB/s) and README.md, performance.
DEEPEP = [
    ("hgx_h800", 8, 4096, 1, "NVLink", 153, 158),
    ("hgx_h800", 16, 4096, 2, "RDMA", 43, 43),
    ("hgx_h800", 32, 4096, 4, "RDMA", 58, 57),
    ("hgx_h800", 64, 4096, 8, "RDMA", 51, 50),
    ("dgx_h100", 16, 8192, 0, "RDMA", 90, 81),
    ("dgx_h100", 32, 8192, 0, "RDMA", 61, 61),
    ("dgx_b200", 16, 8192, 0, "RDMA", 90, 91),
    ("dgx_b200", 8, 8192, 0, "NVLink", 643, 675),
    # A B200's exchanges are NCCL's now, which DeepEP's kernels pass: they have no rate of their own yet.
    pytest.param("dgx_b200", 8, 8192, 0, "NVLink", 726, 740, marks=pytest.mark.xfail(strict=True)),
]


@pytest.mark.parametrize(("machine", "ranks", "tokens", "groups", "link", "dispatch", "combine"), DEEPEP)
def test_dispatch_and_combine_take_what_deepep_measured(
    machine: str, ranks: int, tokens: int, groups: int, link: str, dispatch: float, combine: float
) -> None:
    sizes = {"n_group": groups or 1, "topk_group": min(groups or 1, 4)}
    experts = {"dispatch": "deduplicated", "dtype": "float8_e4m3fn"}
    run = simulate(load_scenario(_step(machine, ranks, tokens, experts, **sizes)), limit_memory=False)
    places = ExpertPartition(ranks).distinct(
        replace(DEEPSEEK, expert_groups=sizes["n_group"], active_groups=sizes["topk_group"]),
        ranks // 8 if link == "RDMA" else ranks,
    )
    for word, rate, wide in (("tokens to", dispatch, 7168 + 7168 // 128 * 4), ("tokens from", combine, 2 * 7168)):
        spans = [
            span
            for span in run.timeline.spans
            if span.rank == 0 and word in span.name and span.stream.startswith("communication experts")
        ]
        simulated = max(span.end for span in spans) - min(span.start for span in spans)
        assert simulated == pytest.approx(tokens * places * wide / (rate * 1e9), rel=0.15)


def test_tokens_of_an_all_to_all_are_sorted_by_expert_and_back_on_ranks_with_several() -> None:
    """Megatron-LM, token_dispatcher.py, MoEAlltoAllTokenDispatcher: `sort_chunks_by_idxs` if num_local_experts > 1."""
    tokens, wide = 64, EXPERTS.hidden_size * 2

    def names(experts: ExpertPartition) -> list[str]:
        made = layer_operations(EXPERTS, Batch(1, tokens, cut=ModelPartition(experts=experts)))
        return [operation.name for operation in made if operation.name.startswith(("dispatch", "sort", "combine"))]

    sorted_twice = ["dispatch", "sort by expert", "sort by sender", "combine"]
    assert names(ExpertPartition(4)) == sorted_twice
    # A rank with one expert, or with all, has nothing to sort again; DeepEP's tokens are sorted once.
    for alone in (
        ExpertPartition(16),
        ExpertPartition(1),
        ExpertPartition(4, exchange=ExpertsSpec(dispatch="deduplicated")),
    ):
        assert names(alone) == ["dispatch", "combine"]
    made = layer_operations(EXPERTS, Batch(1, tokens, cut=ModelPartition(experts=ExpertPartition(4))))
    again = next(operation for operation in made if operation.name == "sort by expert")
    # Two experts per token: the rank reads and writes as many tokens as it has chosen, in each pass.
    for kernel in (*again.forward, *again.backward):
        assert (kernel.read, kernel.written) == (2 * tokens * wide, 2 * tokens * wide)  # type: ignore[union-attr]
