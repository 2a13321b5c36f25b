"""Which parallelism, sharding, batching and checkpointing has a point in the search space? See `PlanSetting`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.foreign_code import file_name
from simulator.scenario.plan_spec import KEYS, SAID_OR_CHOSEN
from simulator.scenario.records import Scenario
from simulator.step.precision import PRECISIONS, Precision
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.training_spec import TrainingSpec

# Names of the field by the number of sharded kinds of model states: none, optimizer, and gradients, and parameters.
_NAMES: Final = ("DDP", "ZeRO-1", "ZeRO-2", "FSDP")


@dataclass(frozen=True, slots=True)
class PlanSetting:
    """A point in a plan's search space: parallelism, sharding, batching and memory options of a training step.

    Attributes
    ----------
    tp, pp, cp, ep : int
        Ranks for tensor, pipeline, context and expert parallelism.
    precision, framework, optimizer, base : str or None
        None for the scenario's value; `base` is the format of the frozen matrices beside adapters.
    """

    gpus: int
    tp: int
    pp: int
    cp: int
    ep: int
    schedule: str  # pipeline schedule; "1f1b" without a pipeline
    virtual_stages: int  # model chunks on a pipeline rank; 1 unless the schedule leaves the number open
    sharding: str  # sharding strategy
    shard_size: int | None  # ranks that share a copy of the model states; None for every data-parallel rank
    micro_batch: int  # sequences per micro-batch
    micro_batches: int  # micro-batches per data-parallel rank and step
    checkpointing: str
    offload: str  # "none" or "optimizer"
    precision: str | None = None
    framework: str | None = None
    optimizer: str | None = None
    rank: int | None = None  # rank of adapters, 0 to train every parameter; None for the scenario's value
    base: str | None = None

    @property
    def dp(self) -> int:
        """Number of data-parallel ranks."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def cut(self) -> tuple[int | str | None, ...]:
        """Parallelism and sharding; settings with equal values differ in batch, schedule and memory options."""
        return self.tp, self.pp, self.cp, self.ep, self.sharding, self.shard_size

    @property
    def named(self) -> tuple[str | int | None, ...]:
        """Values of the keys that the scenario sets unless the search names them."""
        return tuple(getattr(self, name) for name in SAID_OR_CHOSEN)

    @property
    def kind(self) -> str:
        """The kind of layout in words.

        >>> PlanSetting(64, 2, 4, 1, 1, "1f1b", 1, "zero1", None, 1, 32, "none", "none").kind
        'ZeRO-1, tp, pp'
        >>> PlanSetting(64, 2, 1, 1, 1, "1f1b", 1, "zero3", 8, 1, 32, "none", "none").kind
        'HSDP, tp'
        """
        name = _NAMES[len(STRATEGIES.find(self.sharding).shards)] if self.dp > 1 else "no sharding"
        if self.dp > 1 and self.shard_size is not None:
            name = "HSDP"
        return ", ".join([name, *(part for part in ("tp", "pp", "cp", "ep") if getattr(self, part) > 1)])

    def spec_of_named(self, base: TrainingSpec) -> TrainingSpec:
        """Return a scenario's `training` section with this setting's `named` values."""
        rank, form = base.lora.rank if self.rank is None else self.rank, self.base or base.lora.base
        return base.replaced(
            precision=precision_of(base, self.precision),
            framework=self.framework or base.framework,
            optimizer=base.optimizer.replaced(name=self.optimizer or base.optimizer.name),
            lora=base.lora.replaced(rank=rank, base=form),
        )

    def spec(self, base: TrainingSpec) -> TrainingSpec:
        """Return a scenario's `training` section with this setting's values; `base` supplies the remaining keys."""
        return self.spec_of_named(base).replaced(
            micro_batch_size=self.micro_batch,
            gradient_accumulation_steps=self.micro_batches,
            parallelism=base.parallelism.replaced(
                tp=self.tp,
                pp=self.pp,
                cp=self.cp,
                ep=self.ep,
                schedule=self.schedule,
                virtual_stages=self.virtual_stages,
            ),
            sharding=base.sharding.replaced(strategy=self.sharding, shard_size=self.shard_size),
            activation_checkpointing=self.checkpointing,
            offload=base.offload.replaced(what=self.offload),
        )

    def overrides(self) -> Mapping[str, Any]:
        """Return the setting as a mapping from scenario keys to values, without keys at their defaults."""
        parallelism = {name: getattr(self, name) for name in ("tp", "pp", "cp", "ep") if getattr(self, name) > 1}
        if self.pp > 1:
            parallelism["schedule"] = self.schedule
        if self.virtual_stages > 1:
            parallelism["virtual_stages"] = self.virtual_stages
        sharding: dict[str, Any] = {"strategy": self.sharding}
        if self.shard_size is not None:
            sharding["shard_size"] = self.shard_size
        keys: dict[str, Any] = {
            "cluster.world_size": self.gpus,
            "training.micro_batch_size": self.micro_batch,
            "training.gradient_accumulation_steps": self.micro_batches,
            "training.sharding": sharding,
            "training.activation_checkpointing": self.checkpointing,
        }
        if parallelism:
            keys["training.parallelism"] = parallelism
        if self.offload != "none":
            keys["training.offload"] = {"what": self.offload}
        if self.optimizer is not None:
            keys["training.optimizer"] = {"name": self.optimizer}
        adapters = {name: value for name, value in (("rank", self.rank), ("base", self.base)) if value is not None}
        if adapters:
            keys["training.lora"] = adapters
        constants = {"training.precision": self.precision, "training.framework": self.framework}
        return keys | {key: value for key, value in constants.items() if value is not None}

    def values(self) -> dict[str, Any]:
        """Return a dict with the value of each search dimension, and the numbers of data-parallel ranks and
        micro-batches.
        """
        return {"gpus": self.gpus, "dp": self.dp, "micro_batches": self.micro_batches} | {
            name: getattr(self, name) for name in KEYS
        }

    @property
    def text(self) -> str:
        """The setting in words.

        >>> PlanSetting(64, 2, 4, 1, 1, "1f1b", 1, "zero1", None, 1, 32, "full", "none").text
        'tp 2, pp 4, dp 8, 1f1b, zero1, micro-batch 1 x 32, full checkpointing'
        """
        sizes = [f"{name} {getattr(self, name)}" for name in ("tp", "pp", "cp", "ep") if getattr(self, name) > 1]
        order = [] if self.pp == 1 else [file_name(self.schedule)]
        order += [f"v {self.virtual_stages}"] if self.virtual_stages > 1 else []
        shard = file_name(self.sharding) + ("" if self.shard_size is None else f" over {self.shard_size}")
        # On a single data-parallel rank, strategies do not differ: there is no sharding.
        shard = "no sharding" if self.dp * self.cp == 1 else shard
        batch = f"micro-batch {self.micro_batch} x {self.micro_batches}"
        extra = [] if self.offload == "none" else [f"{self.offload} on the host"]
        extra += [file_name(name) for name in (self.precision, self.framework, self.optimizer) if name is not None]
        if self.rank is not None:
            extra.append(f"LoRA rank {self.rank}" if self.rank else "full fine-tuning")
        extra += [f"base {self.base}"] if self.base is not None and self.rank != 0 else []
        memory = "no checkpointing" if self.checkpointing == "none" else f"{self.checkpointing} checkpointing"
        return ", ".join([*sizes, f"dp {self.dp}", *order, shard, batch, memory, *extra])


def precision_of(base: TrainingSpec, name: str | None) -> Precision:
    """Return the dtypes of the precision with this name; the scenario's dtypes for None."""
    return base.precision if name is None else Precision.model_validate(dict(PRECISIONS[name]))


def scenario_of(base: Scenario, setting: PlanSetting) -> Scenario:
    """Return the scenario of a setting, ready to simulate; `base` supplies the remaining keys."""
    if base.training is None:
        raise TypeError("a plan is of a training step")
    cluster = base.cluster.replaced(world_size=setting.gpus)
    return base.replaced(cluster=cluster, training=setting.spec(base.training))
