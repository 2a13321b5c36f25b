"""How is a model partitioned over ranks? The keys of `parallelism`, which are the step's record too.

Rules between these values, the model and the ranks are in scenario/parallelism_rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from simulator.basics import reading
from simulator.basics.spec import Count, Frozen, LargeCount, Spec
from simulator.model.expert_partition import EXCHANGE, ExpertPartition
from simulator.model.experts_spec import ExpertsSpec
from simulator.model.partition import Context, ModelPartition, Overlap
from simulator.step.pipelines.schedule import SCHEDULES, PipelineShape, Placement
from simulator.step.rank_grid import ORDER, Kind, RankGrid

# Names from papers, Megatron-LM ("vpp") and PyTorch, each with advice.
_OTHER_SCHEDULES: Final = {
    **dict.fromkeys(("pipedream", "one_forward_one_backward"), "did you mean '1f1b'?"),
    **dict.fromkeys(("Interleaved1F1B", "interleaved_1f1b", "vpp"), "did you mean 'interleaved'?"),
    "afab": "did you mean 'gpipe'?",
    **dict.fromkeys(("zb1p", "zero_bubble"), "did you mean 'zb_h1'?"),
    # PyTorch's name. As a different spelling it would be read as zb_v, a different schedule.
    "zbv": "did you mean 'zbv_zero_bubble'?",
}
_LESS: Final = ("first_less", "last_less")
# Upper bound for layers and for ranks; larger numbers are typing errors.
_MOST_LAYERS: Final = 10_000
_WAYS: Final = ("ring", "all_gather", "ulysses")
_REPEATED: Final = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))\*([0-9]{1,3})")


def layers_of_layout(layout: str) -> tuple[int, ...]:
    """Return the number of layers of each stage in a pipeline layout of Megatron-Core.

    E is the embedding, t a layer, m a layer that predicts a further token (multi-token prediction), L the loss; |
    separates two stages. A letter or a group in parentheses is repeated n times by *n; commas have no meaning. Layers t
    and m count. With virtual stages, a stage is a chunk of a rank.

    Raises
    ------
    ValueError
        The text is no layout (E first, then t, then m, L last, both once), or has more than 10,000 characters when
        nothing is left to repeat.

    Examples
    --------
    The stages are Ettt, tt, tt, m and L:

    >>> layers_of_layout("Et*3|(tt|)*2,m|L")
    (3, 2, 2, 1, 0)
    """
    text = layout.replace(",", "")
    while len(text) <= _MOST_LAYERS and (found := _REPEATED.search(text)):
        text = text[: found.start()] + (found[1] or found[2] or "") * int(found[3]) + text[found.end() :]
    if len(text) > _MOST_LAYERS or not re.fullmatch(r"E[t|]*[m|]*L", text):
        raise ValueError(
            f"got {reading.shown(layout)}; must be a layout such as Et*8|(t*8|)*2t*8L: E, layers t, layers m that "
            "predict further tokens, L"
        )
    return tuple(stage.count("t") + stage.count("m") for stage in text.split("|"))


def _stages() -> reading.ValueReader:
    """Return a validator for layers of stages: "auto", a list, a layout of Megatron-Core, or how many fewer the first
    and last stage have.
    """
    # Both are plain counts of layers.
    # A stage may have 0 layers: the first often holds the embedding alone.
    layers = less = reading.whole(0, _MOST_LAYERS)

    def reader(value: Any) -> Any:
        if value == "auto":
            return value
        if isinstance(value, str) and "|" in value:
            return layers_of_layout(value)
        if isinstance(value, list | tuple) and value:
            return tuple(int(layers.reader(number)) for number in value)
        if isinstance(value, dict) and value and set(value) <= set(_LESS):
            return Frozen({key: int(less.reader(layers)) for key, layers in value.items()})
        raise ValueError(
            f"got {reading.shown(value)}; must be auto, layers of each stage such as [8, 8, 8, 8], a layout such as "
            "Et*8|(t*8|)*2t*8L, or {first_less: 1, last_less: 1}"
        )

    return reading.ValueReader(
        reader,
        lambda: {
            "anyOf": [
                {"const": "auto"},
                {"type": "array", "items": layers.schema(), "minItems": 1},
                {"type": "string", "pattern": r"^E[EtmL0-9|()*,]*L$", "examples": ["Et*8|(t*8|)*2t*8L"]},
                {
                    "type": "object",
                    "properties": {key: less.schema() for key in _LESS},
                    "additionalProperties": False,
                    "minProperties": 1,
                },
            ]
        },
    )


def _context() -> reading.ValueReader:
    """Return a validator for the way of context parallelism: a word, or {ulysses: ranks, ring: ranks}."""
    ranks = reading.whole(1, _MOST_LAYERS)

    def reader(value: Any) -> Any:
        if isinstance(value, str) and value in _WAYS:
            return value
        # Both sizes are required; a rule checks their product against `cp`.
        if isinstance(value, dict) and set(value) == {"ulysses", "ring"}:
            return Frozen({key: int(ranks.reader(size)) for key, size in value.items()})
        raise ValueError(f"got {reading.shown(value)}; must be {', '.join(_WAYS)}, or {{ulysses: 4, ring: 2}}")

    return reading.ValueReader(
        reader,
        lambda: {
            "anyOf": [
                {"enum": list(_WAYS)},
                {
                    "type": "object",
                    "propertyNames": {"enum": ["ulysses", "ring"]},
                    "additionalProperties": ranks.schema(),
                    "minProperties": 2,
                },
            ]
        },
    )


def _order() -> reading.ValueReader:
    """Return a validator for an order over all kinds of parallelism, each kind once."""

    def reader(value: Any) -> tuple[str, ...]:
        # `str`, because a list may hold values that cannot be sorted together.
        if isinstance(value, list | tuple) and sorted(map(str, value)) == sorted(ORDER):
            return tuple(value)
        raise ValueError(
            f"got {reading.shown(value)}; must have each of [{', '.join(ORDER)}] once, the fastest-varying kind first"
        )

    length = len(ORDER)
    return reading.ValueReader(
        reader,
        lambda: {
            "type": "array",
            "items": {"enum": list(ORDER)},
            "uniqueItems": True,
            "minItems": length,
            "maxItems": length,
        },
    )


class Parallelism(Spec):
    """Ranks for each kind of parallelism; their product is world_size (keys of `parallelism`)."""

    dp: LargeCount | None = Field(
        default=None,
        description="Data parallelism: number of ranks; if omitted, world_size divided by tp x pp x cp. 1k is 1000.",
    )
    tp: Count = Field(default=1, description="Tensor parallelism: number of ranks that split every matrix.")
    pp: Count = Field(default=1, description="Pipeline parallelism: number of ranks that split the layers.")
    cp: Count = Field(default=1, description="Context parallelism: number of ranks that split every sequence.")
    ep: Count = Field(default=1, description="Expert parallelism: number of ranks in a stage that split the experts.")
    etp: Count | None = Field(
        default=None, description="Number of ranks that split each expert's matrices; tp if omitted."
    )
    experts: ExpertsSpec = Field(default=ExpertsSpec(), description="ep: dispatch of tokens to experts.")
    # Korthikanti et al. 2023: sums of whole activations become a reduce-scatter and an all-gather.
    sequence_parallel: Annotated[bool, reading.YES_NO] = Field(
        default=True, description="tp: whether activations between the matrices are split along the sequence."
    )
    tp_overlap: Annotated[Overlap, reading.choice(get_args(Overlap))] = Field(
        default="none",
        description=(
            "tp: overlap of matmuls with communication: pieces of a matmul during a ring exchange, or whole "
            "exchanges beside matmuls (bulk)."
        ),
    )
    schedule: Annotated[str, reading.part(reading.choice(SCHEDULES.names(), _OTHER_SCHEDULES))] = Field(
        default="1f1b",
        description="pp: order of passes through the stages: a schedule's name, or the path of an own schedule.",
    )
    virtual_stages: Count = Field(
        default=1, description="pp: number of stages per rank, for schedules without a fixed number."
    )
    microbatch_group: Count | None = Field(
        default=None,
        description=(
            "interleaved: number of consecutive micro-batches in a chunk before the next chunk; pp if omitted."
        ),
    )
    deferred_head_gradients: Annotated[int | Literal["all"], reading.whole_or("all", 0, 1_000_000)] = Field(
        default=0,
        description=(
            "1f1b and interleaved, with ddp or zero1: number of micro-batches, or all, whose weight gradient of the "
            "head is computed after the last backward pass, while other stages still compute."
        ),
    )
    stages: Annotated[Any, _stages()] = Field(
        default="auto",
        description=(
            "pp: number of layers of each stage, as a list or a layout of Megatron-Core; or how many layers fewer the "
            "first and the last stage have."
        ),
    )
    # Llama 3 gathers keys and values (all_gather); ulysses is DeepSpeed Ulysses (Jacobs et al. 2023).
    context: Annotated[Any, _context()] = Field(
        default="ring",
        description=(
            "cp: attention across ranks: keys and values pass round a ring, are gathered (all_gather), or heads are "
            "exchanged for tokens (ulysses); or ring with ulysses."
        ),
    )
    balanced: bool = Field(
        default=True,
        description="cp: whether each rank has an early and a late piece of the sequence (zigzag), and equal work.",
    )
    order: Annotated[tuple[Kind, ...], _order()] = Field(
        default=ORDER,
        description="Kinds of parallelism in rank order; the first kind varies fastest with the rank's number.",
    )

    @property
    def ulysses(self) -> int:
        """Number of ranks per sequence that exchange heads for tokens in attention; groups of these rotate or gather
        keys.
        """
        if isinstance(self.context, Mapping):
            return int(self.context["ulysses"])
        return self.cp if self.context == "ulysses" else 1

    @property
    def gathers_keys(self) -> bool:
        """True if keys are gathered rather than rotated."""
        return bool(self.context == "all_gather")

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """Number of layers of each stage; empty for an even distribution, but for `less`."""
        return tuple(self.stages) if isinstance(self.stages, tuple) else ()

    @property
    def less(self) -> tuple[int, int]:
        """Number of layers that the first and the last stage have less than the others."""
        fewer = self.stages if isinstance(self.stages, Mapping) else {}
        return fewer.get("first_less", 0), fewer.get("last_less", 0)

    @property
    def expert_tensor(self) -> int:
        """Number of ranks that cut each expert's matrices, as other matrices unless `etp` says otherwise."""
        return self.tp if self.etp is None else self.etp

    def cut(self, place: int = 0, experts_in_node: int = 0) -> ModelPartition:
        """Return the partition of a layer for the rank at index `place` among the context-parallel ranks, with
        `experts_in_node` consecutive expert-parallel ranks on each node; 0 if unknown.
        """
        context = Context(
            self.ulysses, self.cp // self.ulysses, self.gathers_keys, self.balanced, place // self.ulysses
        )
        exchange = self.experts if self.ep > 1 else EXCHANGE
        experts = ExpertPartition(self.ep, self.expert_tensor, exchange, experts_in_node)
        return ModelPartition(self.tp, self.sequence_parallel and self.tp > 1, context, experts, self.tp_overlap)

    def canonical(self) -> Parallelism:
        """Return an equal partition: defaults filled in, one form of each value with several forms in a scenario."""
        grid = Frozen(ulysses=self.ulysses, ring=self.cp // self.ulysses) if self.ulysses > 1 else self.context
        return self.replaced(
            dp=None,
            etp=self.expert_tensor,
            experts=self.experts if self.ep > 1 else EXCHANGE,
            context=grid if self.ulysses > 1 or self.gathers_keys else "ring",
            stages=self.layers_of_stages or Frozen(zip(_LESS, self.less, strict=True)),
        )

    @property
    def size(self) -> int:
        """Number of ranks that compute a micro-batch together."""
        return self.tp * self.pp * self.cp

    @property
    def unlike_places(self) -> int:
        """Number of context-parallel ranks with unequal work: all under unbalanced causal attention, otherwise 1."""
        # Unbalanced causal attention gives later pieces of a sequence more work.
        return self.cp if self.cut().context.uneven else 1

    @property
    def apart(self) -> bool:
        """True if embedding and head lie on different ranks."""
        # In a V, and with two copies, the first and the last stage share a rank.
        return self.pp > 1 and SCHEDULES.find(self.schedule).placement is Placement.LOOP

    @property
    def mirrored(self) -> bool:
        """True if a second model copy runs from the other end of the pipeline (DualPipe)."""
        return self.pp > 1 and SCHEDULES.find(self.schedule).placement is Placement.BOTH_WAYS

    def pipeline(self, micro_batches: int) -> PipelineShape:
        """Return the shape of the pipeline, or of a single rank's passes, for a step with this many micro-batches."""
        chunks = SCHEDULES.find(self.schedule).chunks or self.virtual_stages if self.pp > 1 else 1
        paired = self.experts.overlap and self.ep > 1
        return PipelineShape(self.pp, micro_batches, chunks, self.microbatch_group or self.pp, paired)

    def holders(self, world_size: int) -> int:
        """Return the number of ranks, among `world_size`, holding the same model part."""
        return world_size // (self.tp * self.pp) * (2 if self.mirrored else 1)

    def grid(self, world_size: int) -> RankGrid:
        """Return the ranks of a cluster as a grid; raise ValueError if the sizes do not divide the ranks."""
        if world_size % self.size:
            raise ValueError(
                f"parallelism: got tp {self.tp} x pp {self.pp} x cp {self.cp} = {self.size}; must divide the "
                f"{world_size} ranks"
            )
        # Experts are partitioned over a stage's ranks, across data, context and tensor parallelism.
        each, spread = world_size // self.pp, self.ep * self.expert_tensor
        if each % spread:
            raise ValueError(
                f"parallelism.ep: got {self.ep} (times etp {self.expert_tensor}); must divide the {each} "
                "ranks of a stage"
            )
        sizes: dict[Kind, int] = {"tp": self.tp, "pp": self.pp, "cp": self.cp, "dp": world_size // self.size}
        return RankGrid(sizes, self.order, self.mirrored)


ALONE: Final = Parallelism()
