"""Which records describe a training step? Its keys, with the model, optimizer and framework loaded, in SI units.

The records contain no computation but the steps of a training that differ; scenario/ loads what a scenario's keys name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from simulator.model.expert_partition import ExpertPartition
from simulator.model.model import Model
from simulator.model.operation import ProgramName
from simulator.model.shape import Transformer
from simulator.step.framework import BARE, Framework
from simulator.step.learning_spec import LossScaling
from simulator.step.lengths import PACKING, Batches, MicroBatch, used_share
from simulator.step.optimizers.adam import ADAM
from simulator.step.optimizers.optimizer import Optimizer
from simulator.step.parallelism import Parallelism
from simulator.step.precision import MIXED, Precision
from simulator.step.sharding import Sharding
from simulator.step.training_spec import TrainingSpec

if TYPE_CHECKING:
    from simulator.collectives.algorithm import Algorithm
    from simulator.model.operation import LossKernels
    from simulator.model.trained import TrainedParts
    from simulator.step.learning_spec import TrainingTask


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A training step: its keys, and what they name, loaded."""

    # Keys of `training`. Nothing in them is left to another key: dtypes, servers, kind of collectives, rule of the loss
    # scaling and micro-batches are as the step has them.
    keys: TrainingSpec
    model: Model  # model with its adapters
    optimizer: Optimizer = ADAM  # optimizer with the chosen implementation and dtype of states
    framework: Framework = BARE  # overheads added to bare kernels
    # Algorithm of every collective: its name, a file's absolute path, or its record; "auto" for the machine's choice.
    algorithm: str | Algorithm = "auto"
    # Real training, whose arrays the program carries; None to simulate times only.
    lesson: TrainingTask | None = None
    # Trained parameters, others are frozen; None if all are trained.
    trained: TrainedParts | None = None
    # Bytes of a paged optimizer's states that the ranks of each pipeline stage hold on the host between updates; empty
    # if all states are on the GPU [B].
    paged_out: tuple[int, ...] = ()
    # Micro-batches of each data-parallel rank; empty if all have the same sequences.
    batches: Batches = ()
    # Consecutive expert-parallel ranks on each node; 0 if nodes are unknown, or have unequal numbers of these ranks.
    experts_in_node: int = 0

    def with_keys(self, **changes: Any) -> TrainingStep:
        """Return this step with other values of keys that name nothing to load."""
        return replace(self, keys=self.keys.replaced(**changes))

    @property
    def precision(self) -> Precision:
        """Dtypes of the step."""
        return self.keys.precision

    @property
    def sharding(self) -> Sharding:
        """Sharding of the model states."""
        return self.keys.sharding

    @property
    def parallelism(self) -> Parallelism:
        """Sizes and options of each kind of parallelism."""
        return self.keys.parallelism

    @property
    def is_list_of_layers(self) -> bool:
        """Return True if the model is a list of layers, and no transformer."""
        return not isinstance(self.model, Transformer)

    @property
    def program(self) -> ProgramName:
        """The program that says which kernels the layers launch: the framework's, or bare kernels if a compiler merges
        them, and in a list of layers.
        """
        return "bare" if self.keys.compile or self.is_list_of_layers else self.framework.program

    @property
    def autocasts(self) -> bool:
        """True if PyTorch's autocast runs the layers: parameters in float32, operands and results of matmuls in float16
        or bfloat16.

        Not modelled under autocast are experts, latent attention, state spaces, and tensor and context parallelism:
        activations of such steps all have the parameters' dtype.
        """
        model, precision = self.model, self.precision
        if not isinstance(model, Transformer) or model.adapters is not None:
            return False
        is_plain = not (model.num_experts or model.latent or model.blocks)
        dtypes = precision.params == "float32" and precision.matmul in ("float16", "bfloat16")
        return dtypes and is_plain and self.parallelism.tp == self.parallelism.cp == 1

    @property
    def transformer(self) -> Transformer:
        """The model of a step that only a transformer can take.

        Raises
        ------
        TypeError
            The model is a list of layers.
        """
        if not isinstance(self.model, Transformer):
            raise TypeError(f"{self.model.name} is a list of layers; this needs a transformer")
        return self.model

    @property
    def accumulation(self) -> int:
        """Number of micro-batches of a rank in a step."""
        return self.keys.gradient_accumulation_steps

    @property
    def copies_to_host(self) -> bool:
        """True if ranks copy arrays to their hosts and back."""
        return self.keys.offload.states or self.keys.offload.activations or any(self.paged_out)

    @property
    def splits_update(self) -> bool:
        """True if gradients wait on the GPU for an update of which the host does a part, or all with a master copy on
        the GPU; otherwise an update on the host takes gradients as the backward pass computes them.
        """
        return self.keys.offload.states and (self.keys.offload.fraction < 1 or self.framework.memory.keeps_master)

    @property
    def gradients_leave(self) -> bool:
        """True if gradients move to the host during the backward pass, whose processors update all states."""
        return self.keys.offload.states and not self.splits_update

    @property
    def heaviest(self) -> MicroBatch:
        """The micro-batch with the most tokens, and the most scores among these; the step's program is written for it,
        and memory holds it.
        """
        every = [micro for rank in self.batches for micro in rank]
        if not every:
            sequences, tokens = self.keys.micro_batch_size, self.keys.seq_len
            return MicroBatch(sequences, tokens, sequences * tokens)
        return max(every, key=lambda micro: (micro.tokens, micro.pairs, micro.documents))

    @property
    def tokens_used(self) -> float:
        """Share of the computed tokens that are not padding."""
        return used_share(self.batches) if self.batches else self.keys.tokens_used

    @property
    def packs(self) -> bool:
        """True if sequences are packed with documents."""
        return bool(self.batches) and self.keys.batching in PACKING

    @property
    def loss_kernels(self) -> LossKernels:
        """Kernels of the loss: the chosen ones, or the framework's."""
        return self.framework.loss if self.keys.loss == "auto" else self.keys.loss

    @property
    def loss_scaling(self) -> LossScaling | None:
        """Loss scaling after which gradients are unscaled and checked for overflow; None without."""
        return None if self.keys.loss_scaling.rule == "none" else self.keys.loss_scaling

    @property
    def saves(self) -> bool:
        """True if a checkpoint travels to the host and the storage during the step."""
        return self.keys.checkpoint_traffic != "none"

    @property
    def trained_dtype(self) -> str:
        """Dtype of the trained parameters: the adapters' own, or the working parameters'."""
        return self.precision.params if self.model.adapters is None else self.model.adapters.dtype

    @property
    def deferred(self) -> int:
        """Number of micro-batches of a step whose weight gradient of the head is computed after the last backward pass;
        0 without a pipeline.
        """
        setting = self.parallelism.deferred_head_gradients
        count = self.accumulation if setting == "all" else min(setting, self.accumulation)
        return count if self.parallelism.pp > 1 else 0

    @property
    def trains_head(self) -> bool:
        """True if a transformer's head has a weight gradient; a tied head has the embedding's token table."""
        if not isinstance(self.model, Transformer) or self.model.adapters is not None:
            return False
        name, parameter = ("embedding", "token") if self.model.tied else ("head", "head.weight")
        return self.trained is None or parameter in self.trained.of(name)

    @property
    def rounds(self) -> int:
        """Optimizer steps in a program: several for asynchronous workers, because their steps overlap; otherwise 1."""
        return self.keys.steps if self.sharding.asynchronous else 1


def different_steps(step: TrainingStep) -> list[tuple[float, TrainingStep]]:
    """Return the steps of the training to which a step belongs, in order, each with a key that equal steps share.

    The key is the step's number, from 0, if each step has other documents; the tokens of the fullest expert-parallel
    rank over the ranks' mean if each step has other loads of experts; otherwise 0, for the step itself.
    """
    lengths, layout = step.keys.lengths, step.parallelism
    if lengths is not None and lengths.steps > 1:
        documents = [lengths.replaced(seed=lengths.seed + number, steps=1) for number in range(lengths.steps)]
        return [(number, step.with_keys(lengths=each)) for number, each in enumerate(documents)]
    if not isinstance(step.model, Transformer) or layout.ep == 1 or not layout.experts.moves:
        return [(0, step)]
    exact = ExpertPartition(layout.ep, exchange=layout.experts).loads(step.model)
    if len(exact) == 1:
        return [(0, step)]
    # No load is known to more digits.
    loads = [round(load, 3) for load in exact]
    experts = layout.experts
    layouts = {load: layout.replaced(experts=experts.replaced(imbalance=load)) for load in dict.fromkeys(loads)}
    return [(load, step.with_keys(parallelism=layouts[load])) for load in loads]


def bare_step(model: Model, seq_len: int, micro_batch_size: int = 1, **settings: Any) -> TrainingStep:
    """Return a step of a loaded model outside any scenario, without a framework and without loss scaling.

    Parameters
    ----------
    model : Model
        Loaded model.
    seq_len, micro_batch_size : int
        Tokens of a sequence, and sequences of a micro-batch.
    **settings
        Other fields of TrainingStep, and keys of `training`, as the step has them; none is checked.

    Examples
    --------
    >>> from simulator.model.load import load_model
    >>> bare_step(load_model("gpt2"), 1024, compile=True).keys.compile
    True
    """
    loaded = {name: settings.pop(name) for name in TrainingStep.__slots__ if name in settings}
    keys = TrainingSpec(model=model.name, seq_len=seq_len, micro_batch_size=micro_batch_size).replaced(
        **{"precision": MIXED, "loss_scaling": LossScaling(rule="none")} | settings
    )
    return TrainingStep(keys=keys, model=model, **loaded)


class State(Enum):
    """Kind of model state (optimizer states, gradients, parameters), in the order in which ZeRO's stages shard them
    (Rajbhandari et al., SC 2020).
    """

    OPTIMIZER = "optimizer states"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"


class Updater(Enum):
    """Place of the optimizer's update: on every rank in full, on the rank that owns a shard, or on parameter
    servers.
    """

    EVERY_RANK = "every rank updates the whole model"
    OWNERS = "every rank updates its own part"
    SERVERS = "every server updates its own part"


class Gathering(Enum):
    """Way in which updated parameters reach a rank: by an all-gather after the update, by gathers before use, by a
    pull, or no gather at all.
    """

    NOT_NEEDED = "no gather, because every rank updates all parameters"
    AFTER_UPDATE = "a single all-gather after the update"
    BEFORE_USE = "each unit is gathered before its use"
    PULLED = "workers pull the parameters from the servers"


class GradientSync(Enum):
    """Micro-batches of a step that communicate gradients: every micro-batch, or only the last."""

    LAST = "the last micro-batch"
    EVERY = "every micro-batch"
