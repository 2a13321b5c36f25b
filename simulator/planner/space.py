"""Which settings does a plan search, and which settings are infeasible, for which reason?

Each dimension's values are data (`Choices`), with a sentence for each default. Their product is enumerated in a fixed
order. A setting is infeasible for the same reason for which a training step would be refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from simulator.basics.errors import TooLargeError
from simulator.basics.work_unit import SAMPLE
from simulator.cluster.cluster import Cluster
from simulator.model.layer_list import LayerList
from simulator.model.model import Model
from simulator.planner.setting import PlanSetting
from simulator.scenario import build_training, own_parts
from simulator.scenario.build_training import to_step
from simulator.scenario.plan_spec import SAID_OR_CHOSEN
from simulator.scenario.records import Scenario
from simulator.step.parallelism import Parallelism
from simulator.step.pipeline import Pipeline
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.plan import check_cut
from simulator.step.spec import TrainingStep, Updater
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.training_spec import TrainingSpec

# Default for the largest micro-batch [sequences].
LARGEST_MICRO_BATCH: Final = 8
# Reason for settings equal to another setting; not a fault.
SAME: Final = "duplicates: all shardings are equal on one data-parallel rank"
SAME_BASE: Final = "duplicates: without adapters no matrix is frozen"


@dataclass(frozen=True, slots=True)
class Choices:
    """Values for each dimension of the search space."""

    # Values by the dimension's name in `--among`: gpus, tp, pp, cp, ep, schedule, virtual_stages, sharding, shard_size,
    # micro_batch, checkpointing, offload, precision, framework, optimizer, rank, base
    values: Mapping[str, tuple[Any, ...]]
    why: Mapping[str, str] = field(default_factory=dict)  # reason for each dimension's values


@dataclass(slots=True)
class InfeasibleCounts:
    """Number of infeasible settings in a search space by reason, with an example for each reason."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, reason: str, example: str = "") -> None:
        """Count an infeasible setting under a reason, and keep the first example for this reason.

        >>> counts = InfeasibleCounts()
        >>> for example in ("tp 1: 90 GiB", "tp 2: 85 GiB"):
        ...     counts.note("does not fit", example)
        >>> counts
        InfeasibleCounts(counts=Counter({'does not fit': 2}), examples={'does not fit': 'tp 1: 90 GiB'})
        """
        self.counts[reason] += 1
        self.examples.setdefault(reason, example or reason)

    def count_error(self, error: ValueError) -> None:
        """Count an infeasible setting under the rule in the error that the training step's checks raised."""
        self.note(rule_of(str(error)), str(error))

    @property
    def common_example(self) -> str:
        """Example of the commonest reason for infeasible settings, except settings equal to another setting."""
        faults = [fault for fault in self.counts.most_common() if fault[0] not in (SAME, SAME_BASE)]
        (reason, _), *_ = faults or [("no value is left", 0)]
        return self.examples.get(reason, reason)


def rule_of(message: str) -> str:
    """Return an error message's rule without the case's numbers; equal reasons then count together.

    >>> rule_of("parallelism.stages: got 96 stages for 80 layers; every stage must have a layer")
    'stages: every stage must have a layer'
    >>> rule_of("parallelism.tp: got 8; must divide the 12 heads of gpt2: 1, 2, 3, 4, 6, 12")
    'tp must divide the heads of gpt2'
    """
    where, got, rest = message.removeprefix("parallelism.").partition(": got ")
    if not got:
        return where.partition(";")[0]
    # A message reads "key: got what; rule; hints".
    what, _, rule = rest.partition("; ")
    rule = rule.partition("; ")[0]
    subject = _without_numbers(re.sub(r" \(.*\)", "", what))
    rule = _without_numbers(re.sub(r"\d[\d,]* \(([^)]*)\)", r"\1", re.sub(r": [\d, ]+$", "", rule)))
    if not rule.startswith("must"):
        return f"{where}: {rule or subject}"
    return f"{where}: {subject} {rule}" if subject else f"{where} {rule}"


def _without_numbers(text: str) -> str:
    """Return a text without the numbers in it."""
    return re.sub(r"\b\d[\d,]*( |$)", "", text).strip()


def default_choices(base: Scenario, model: Model, gpus_per_node: int, sequences: int) -> Choices:
    """Return the values to search without constraints, for a model and a machine.

    Parameters
    ----------
    gpus_per_node : int
        GPUs in a node, connected by NVLink or similar links.
    sequences : int
        Global batch [sequences per step].
    """
    gpus, seq_len = base.cluster.world_size, base.training.seq_len if base.training is not None else 0
    inside = tuple(_powers(min(gpus_per_node, gpus)))
    # Every stage needs a layer.
    deep = tuple(n for n in _powers(min(gpus, model.num_layers)) if n <= 64)
    values: dict[str, tuple[Any, ...]] = {
        "gpus": (gpus,),
        # Ranks cannot cut a list of layers.
        "tp": (1,) if isinstance(model, LayerList) else inside,
        "pp": deep,
        "cp": tuple(_powers(min(8, gpus))) if seq_len >= 32768 and not isinstance(model, LayerList) else (1,),
        "ep": tuple(n for n in _powers(64) if model.num_experts % n == 0) if model.num_experts else (1,),
        "schedule": ("1f1b", "interleaved"),
        "virtual_stages": (2, 3, 4, 5, 6, 8, 10),
        "sharding": ("ddp", "zero1", "zero2", "zero3"),
        "shard_size": (None, *([gpus_per_node] if gpus > gpus_per_node > 1 else [])),
        "micro_batch": tuple(n for n in _powers(LARGEST_MICRO_BATCH) if n <= sequences),
        "checkpointing": ("none", "selective_op", "full"),
        "offload": ("none",),
        # None is the scenario's value. Other values change the learning itself, or the required software.
        "precision": (None,),
        "framework": (None,),
        "optimizer": (None,),
        "rank": (None,),
        "base": (None,),
    }
    work = "samples" if model.work_unit == SAMPLE else "sequences"
    why = {
        "tp": f"powers of two inside a node of {gpus_per_node} GPUs, because tensor parallelism needs fast links",
        "pp": f"powers of two up to {model.num_layers} layers, at most 64",
        "cp": "powers of two up to 8" if seq_len >= 32768 else "1: only sequences of 32,768 or more tokens are split",
        "ep": (f"powers of two that divide {model.num_experts} experts")
        if model.num_experts
        else "1: the model has no experts",
        "schedule": "schedules of most frameworks; --among schedule=... adds more",
        "sharding": "ddp and all ZeRO stages",
        "shard_size": "over all data-parallel ranks, or (zero3) inside each node",
        "micro_batch": f"powers of two up to {LARGEST_MICRO_BATCH} {work}",
        "checkpointing": "none, selective_op, full",
        "offload": "none; --among offload=none,optimizer adds offloading to the host",
    }
    if isinstance(model, LayerList):
        why |= dict.fromkeys(("tp", "cp"), "1: ranks cannot cut a list of layers")
    return Choices(values, why)


def gpus_per_node(cluster: Cluster) -> int:
    """Return the number of GPUs in the cluster's largest node."""
    return max(map(len, cluster.nodes), default=cluster.world_size)


def _powers(most: int) -> Iterator[int]:
    """Yield the powers of two from 1 up to `most`."""
    number = 1
    while number <= most:
        yield number
        number *= 2


def settings(
    choices: Choices, base: Scenario, sequences: int, refused: InfeasibleCounts
) -> Iterator[tuple[PlanSetting, TrainingStep]]:
    """Yield every feasible setting of a search space with its training step, in a fixed order; count the others in
    `refused`.
    """
    spec = base.training
    if spec is None:
        raise TypeError("a plan is of a training step")
    spec = own_parts.located(spec, base.base)
    uncut = spec.replaced(parallelism=Parallelism())
    steps: dict[tuple[str | int | None, ...], TrainingStep] = {}
    for setting in _multiplied(choices, sequences, spec.lora.rank, refused):
        try:
            # Build a step once per precision, framework, optimizer and adapters; settings replace its fields.
            if setting.named not in steps:
                steps[setting.named] = to_step(setting.spec_of_named(uncut), base.cluster.world_size, base.base)
            yield setting, _step(steps[setting.named], spec, setting)
        except ValueError as error:
            refused.count_error(error)
        except TooLargeError as error:
            refused.note("larger than this machine can simulate", str(error))


def _step(base: TrainingStep, spec: TrainingSpec, setting: PlanSetting) -> TrainingStep:
    """Return a setting's training step: `base` with the setting's fields; raise ValueError if infeasible."""
    keys = setting.spec(spec)
    step = replace(
        base.with_keys(
            micro_batch_size=keys.micro_batch_size,
            gradient_accumulation_steps=keys.gradient_accumulation_steps,
            parallelism=keys.parallelism,
            # With `servers: all`, the whole step has as many servers as ranks.
            sharding=keys.sharding.among(base.sharding.server_count),
            activation_checkpointing=keys.activation_checkpointing,
            offload=keys.offload,
        ),
        # The distribution of whole matrices follows the sharding.
        optimizer=build_training.optimizer(
            keys.optimizer, keys.sharding.strategy, base.optimizer.state_dtype, base.precision.updated
        ),
    )
    # Rules of scenarios (training_rules.py) that a setting may break.
    adapters = step.model.adapters
    if adapters is not None and adapters.dora and setting.tp > 1:
        raise ValueError(f"tp: got {setting.tp}; DoRA needs whole matrices")
    if adapters is not None and adapters.float32_hidden and (setting.tp > 1 or adapters.base in ("params", "gptq")):
        key, value = ("tp", setting.tp) if setting.tp > 1 else ("base", repr(adapters.base))
        raise ValueError(f"{key}: got {value}; hidden states in float32 need whole matrices in nf4 or int8")
    if step.trained is not None and adapters is not None:
        raise ValueError(f"rank: got {setting.rank}; adapters freeze the model, and trainable names trained parts")
    if step.trained is not None and step.keys.activation_checkpointing == "sqrt":
        raise ValueError("checkpointing: got 'sqrt', whose segments would cross frozen and trained layers")
    if step.keys.offload.states and (step.optimizer.paged or step.optimizer.of_matrices is not None):
        raise ValueError(f"offload: got optimizer; {step.optimizer.name} updates on the GPU")
    # These checks raise the same errors as planning the step.
    step.parallelism.grid(setting.gpus)
    check_cut(step)
    Pipeline.of(step).layers()
    return step


def _multiplied(choices: Choices, sequences: int, rank: int, refused: InfeasibleCounts) -> Iterator[PlanSetting]:
    """Yield the settings in the product of all dimensions' values; count infeasible combinations in `refused` by
    reason. `rank` is the scenario's rank of adapters.
    """
    values = choices.values
    able = {offload: _shardings(values["sharding"], offload) for offload in values["offload"]}
    sizes = product(*(values[name] for name in ("gpus", "tp", "pp", "cp", "ep")))
    for gpus, tp, pp, cp, ep in sizes:
        # Checked first: the inner loops are skipped.
        if gpus % (tp * pp * cp):
            ranks = f"tp {tp} x pp {pp} x cp {cp} = {tp * pp * cp}"
            refused.note("tp x pp x cp does not divide the GPUs", f"{ranks} does not divide {gpus:,} GPUs")
            continue
        dp = gpus // (tp * pp * cp)
        for sharding, shard_size, micro in product(values["sharding"], values["shard_size"], values["micro_batch"]):
            if shard_size is not None and not _shares(sharding, shard_size, dp):
                # If the space also has the setting without shard_size, the infeasible setting is merely a duplicate.
                if None not in values["shard_size"]:
                    refused.note(
                        "shard_size needs a strategy that shards parameters, and must divide the data-parallel ranks",
                        f"{sharding} on {dp} data-parallel ranks cannot form shard groups of {shard_size} ranks",
                    )
                continue
            # On a single data-parallel rank, only the first sharding is kept for each offload.
            if dp * cp == 1 and sharding not in [names[0] for names in able.values() if names]:
                refused.note(SAME)
                continue
            # The global batch fixes the accumulation.
            if sequences % (dp * micro):
                refused.note(
                    "data-parallel ranks x micro-batch do not divide the global batch",
                    f"dp {dp} x micro-batch {micro} = {dp * micro} does not divide {sequences:,} sequences",
                )
                continue
            for schedule, virtual in _orders(values, pp):
                rest = product(*(values[name] for name in ("checkpointing", "offload", *SAID_OR_CHOSEN)))
                for checkpointing, offload, *options in rest:
                    # Without adapters nothing is frozen: the first format stands for all.
                    by_name = dict(zip(SAID_OR_CHOSEN, options, strict=True))
                    if (
                        not (rank if by_name["rank"] is None else by_name["rank"])
                        and by_name["base"] != values["base"][0]
                    ):
                        refused.note(SAME_BASE)
                        continue
                    if sharding not in able[offload]:
                        who = STRATEGIES.find(sharding).updater.value
                        refused.note(
                            ("offload needs ranks that own a part of the optimizer states"), f"with {sharding} {who}"
                        )
                        continue
                    # The offload decides which shardings are equal.
                    if dp * cp == 1 and sharding != able[offload][0]:
                        refused.note(SAME)
                        continue
                    yield PlanSetting(
                        gpus, tp, pp, cp, ep, schedule, virtual, sharding, shard_size, micro,
                        sequences // (dp * micro), checkpointing, offload, *options,
                    )  # fmt: skip


def _shardings(names: Sequence[str], offload: str) -> list[str]:
    """Return the sharding strategies that allow an offload: a host updates only shards owned by its ranks."""
    return [name for name in names if offload == "none" or STRATEGIES.find(name).updater is Updater.OWNERS]


def _shares(sharding: str, shard_size: int, dp: int) -> bool:
    """Return True if groups of `shard_size` data-parallel ranks can each hold a copy of sharded parameters."""
    return STRATEGIES.find(sharding).shards_parameters and dp % shard_size == 0 and shard_size < dp


def _orders(values: Mapping[str, tuple[Any, ...]], pp: int) -> Iterator[tuple[str, int]]:
    """Yield pairs of a schedule and a number of virtual stages that it allows, for `pp` pipeline ranks."""
    # Schedules do not matter without a pipeline: one setting represents them.
    if pp == 1:
        yield "1f1b", 1
        return
    for name in values["schedule"]:
        schedule = SCHEDULES.find(str(name))
        if schedule.chunks is not None:
            yield str(name), 1
        else:
            for virtual in values["virtual_stages"]:
                yield str(name), int(virtual)
