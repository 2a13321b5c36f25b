"""Rules of real training, and of servers that do not wait: which models, shardings and dtypes carry numbers.

Rule: as in training_rules.py; what is not built yet is refused here, each with what would go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from simulator.errors import ScenarioError
from simulator.scenario.conflict import Conflict, any_listening
from simulator.scenario.learning_shape import FaultShape
from simulator.scenario.remembered import remembered
from simulator.scenario.shape import ClusterShape
from simulator.scenario.tokens import read_tokens
from simulator.scenario.training_making import precision, scaling_rule, sequences
from simulator.scenario.training_shape import TrainingShape
from simulator.step.strategies import catalog as strategies
from simulator.step.strategies.strategy import Updater

if TYPE_CHECKING:
    from simulator.model.shape import Transformer
    from simulator.scenario.learning_files import Shapes

# More parameters than this train for minutes a step in numpy.
_MOST: Final = 20_000_000
# Keys of a config.json that change numbers and no time: what is computed with, and its other names.
_COMPUTED: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    }
)
_DTYPES: Final = ("float64", "float32", "float16", "bfloat16")
_OPTIMIZERS: Final = ("adam", "momentum", "sgd")
# What a fault may say besides its step and what it is; of a transfer also whose, where workers send by themselves.
_TRANSFER: Final = frozenset({"collective", "transfer"})
_FITTING: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        **dict.fromkeys(("dropped", "doubled", "stale"), _TRANSFER),
        "bit_flip": _TRANSFER | {"element", "bit"},
        "overflow": frozenset({"rank", "element"}),
        "stopped": frozenset({"rank"}),
    }
)
_ALL_KEYS: Final = _TRANSFER | {"element", "bit", "rank"}
# Operations of all workers' steps that are planned at once; more take minutes.
_MOST_WORKER_STEPS: Final = 20_000


# Keys of `learning` that only some optimizers listen to.
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"betas": ("adam",), "eps": ("adam",), "momentum": ("momentum",)}
)


@dataclass(frozen=True, slots=True)
class AskFiles:
    """Questions about the files that `learning` names, each of which is read once for all points.

    Attributes
    ----------
    tokens : function (path or numbers)
        How many tokens there are, and the largest.
    initial : function (path, shapes)
        Nothing, where the file has just those parameters.
    batches : function (path, shape, vocabulary)
        Nothing, where the file has batches for so many steps.
    """

    tokens: Callable[[str | tuple[int, ...]], tuple[int, int]]
    initial: Callable[[str, Shapes], None]
    batches: Callable[[str, tuple[int, int, int], int], None]


def files_of(base: Path) -> AskFiles:
    """Make the questions; paths start from `base`."""

    def tokens(given: str | tuple[int, ...]) -> tuple[int, int]:
        found = read_tokens(given, base)
        return len(found), max(found, default=0)

    def initial(given: str, shapes: Shapes) -> None:
        from simulator.scenario.learning_files import read_initial

        read_initial(given, base, shapes)

    def batches(given: str, shape: tuple[int, int, int], vocabulary: int) -> None:
        from simulator.scenario.learning_files import read_batches

        read_batches(given, base, shape, vocabulary)

    return AskFiles(remembered(tokens), remembered(initial), remembered(batches))


def conflicts(
    shape: TrainingShape, cluster: ClusterShape, model: Transformer | None, ask: AskFiles
) -> Iterator[Conflict]:
    """Find what numbers cannot be carried for, and what only real training or only such servers have."""
    yield from _asynchronous(shape, cluster)
    yield from _clipping(shape)
    yield from _faults(shape, cluster)
    if not shape.numerics:
        return
    yield from _schedule(shape)
    if model is not None:
        unable = list(_model(model, shape.model))
        yield from unable
        yield from _batches(shape, model, cluster, ask)
        yield from _overflows(shape, model)
        if not unable:
            yield from _initial(shape, model, ask)
    yield from _tokens(shape, model, ask)
    sharding = shape.sharding
    if sharding.keep_below:
        told = f"got {sharding.keep_below}, of which numbers are not carried yet; leave it out"
        yield _conflict("sharding.keep_below", told)
    if shape.optimizer not in _OPTIMIZERS:
        yield _conflict("optimizer", f"got {shape.optimizer!r}; numbers are updated by {', '.join(_OPTIMIZERS)}")
    served = strategies.find(sharding.strategy).updater is Updater.SERVERS
    if served and scaling_rule(shape.loss_scaling, shape.precision) != "none":
        told = "servers apply gradients without looking for overflows; write none, or precision: bf16"
        yield _conflict("loss_scaling", told, "training.sharding.strategy", "training.precision.params")
    yield from _dtypes(shape)
    count = sequences(shape, cluster.world_size) * shape.seq_len
    if count > _MOST:
        yield _conflict("seq_len", f"a step has {count:,} tokens; numpy trains on {_MOST:,} at most")


def _conflict(name: str, message: str, *involved: str, of_key: bool = False) -> Conflict:
    dotted = f"training.{name}"
    return Conflict(tuple(dotted.split(".")), message, (dotted, "training.numerics", *involved), of_key)


def _asynchronous(shape: TrainingShape, cluster: ClusterShape) -> Iterator[Conflict]:
    sharding = shape.sharding
    if sharding.staleness is not None and not sharding.asynchronous:
        told = f"got {sharding.staleness}, but all workers wait for each other; write asynchronous: true"
        yield _conflict("sharding.staleness", told, "training.sharding.asynchronous")
    if not sharding.asynchronous:
        return
    if "asynchronous" not in strategies.find(sharding.strategy).options:
        able = any_listening("asynchronous")
        told = f"got true, but with {sharding.strategy} ranks sum their gradients together; write {able}"
        yield _conflict("sharding.asynchronous", told, "training.sharding.strategy")
    elif sharding.servers_on != "own":
        told = "got 'workers'; servers that wait for nobody stand on machines of their own; write own"
        yield _conflict("sharding.servers_on", told, "training.sharding.asynchronous")
    if shape.steps * cluster.world_size > _MOST_WORKER_STEPS:
        told = f"got {shape.steps} for {cluster.world_size} workers; at most {_MOST_WORKER_STEPS} of all together"
        yield _conflict("steps", told, "training.sharding.asynchronous", "cluster.world_size")


def _clipping(shape: TrainingShape) -> Iterator[Conflict]:
    if shape.clip_norm is not None and strategies.find(shape.sharding.strategy).updater is Updater.SERVERS:
        told = f"got {shape.clip_norm:g}, but servers update before they know the whole norm; leave it out"
        yield _conflict("clip_norm", told, "training.sharding.strategy")


def _faults(shape: TrainingShape, cluster: ClusterShape) -> Iterator[Conflict]:
    if shape.faults and not shape.numerics:
        yield _conflict("faults", "are of real training; write numerics: true")
    for number, fault in enumerate(shape.faults):
        place = f"faults.{number}"
        if fault.step >= shape.steps:
            told = f"got {fault.step}; must be below steps {shape.steps}"
            yield _conflict(f"{place}.step", told, "training.steps")
        if fault.rank >= cluster.world_size:
            told = f"got {fault.rank}; the cluster has ranks 0 .. {cluster.world_size - 1}"
            yield _conflict(f"{place}.rank", told, "cluster.world_size")
        if fault.what == "stale" and fault.step == 0:
            yield _conflict(f"{place}.step", "got 0; a stale transfer brings what it brought a step before")
        fitting = _FITTING[fault.what] | ({"rank"} if shape.sharding.asynchronous else frozenset())
        for key in sorted(_ALL_KEYS - fitting):
            if getattr(fault, key) != FaultShape.model_fields[key].default:
                told = f"says nothing of {fault.what!r}; keys for that are {', '.join(sorted(fitting))}"
                yield _conflict(f"{place}.{key}", told, "training.sharding.asynchronous")


def _overflows(shape: TrainingShape, model: Transformer) -> Iterator[Conflict]:
    """What overflows is the last array of the last unit: the head's table, or the bias before a tied one."""
    size = model.hidden_size * (1 if model.tied else model.vocab_size)
    for number, fault in enumerate(shape.faults):
        if fault.what == "overflow" and fault.element >= size:
            name = "lnf.bias" if model.tied else "head.weight"
            told = f"got {fault.element}; the gradient of {name} has elements 0 .. {size - 1}"
            yield _conflict(f"faults.{number}.element", told, "training.model")


def _model(model: Transformer, written: Any) -> Iterator[Conflict]:
    """A GPT-2, small enough for numpy."""
    from simulator.model.parameters import total

    plain = model.norm == "layernorm" and model.norm_bias and not model.gated and model.positions == "learned"
    biased = model.attention_bias and model.output_bias and model.mlp_bias
    square = model.num_kv_heads == model.num_heads and model.attention_width == model.hidden_size
    if not (plain and biased and square) or model.num_experts:
        yield _conflict("model", f"got {model.name}; real numbers are those of a GPT-2, so write model_type: gpt2")
    elif model.ffn_size != 4 * model.hidden_size:
        wide = 4 * model.hidden_size
        told = f"has an MLP of {model.ffn_size}; real numbers are of one four times as wide as the model, {wide}"
        yield _conflict("model", told)
    elif total(model) > _MOST:
        yield _conflict("model", f"has {total(model):,} parameters; numpy trains {_MOST:,} at most")
    for key, able in _COMPUTED.items():
        if isinstance(written, Mapping) and written.get(key, able[0]) not in able:
            yield _conflict("model", f"{key}: got {written[key]!r}; real numbers are computed with {able[0]}")


def _schedule(shape: TrainingShape) -> Iterator[Conflict]:
    """How fast what is learned is learned: keys that nobody listens to, and a warmup that has no end."""
    learning = shape.learning
    for key, able in OPTIONS.items():
        if shape.optimizer not in able and getattr(learning, key) != type(learning).model_fields[key].default:
            told = f"only for {' and '.join(able)}, but the optimizer is {shape.optimizer}; remove it"
            yield _conflict(f"learning.{key}", told, "training.optimizer", of_key=True)
    if learning.warmup > shape.steps:
        told = f"got {learning.warmup}; must be at most steps, {shape.steps}"
        yield _conflict("learning.warmup", told, "training.steps")


def _tokens(shape: TrainingShape, model: Transformer | None, ask: AskFiles) -> Iterator[Conflict]:
    if shape.learning.tokens is None:
        return
    try:
        count, most = ask.tokens(shape.learning.tokens)
    except ScenarioError as error:
        yield _conflict("learning.tokens", str(error))
        return
    involved = ("training.seq_len", "training.model")
    if count <= shape.seq_len:
        told = f"has {count} tokens; a sequence and what follows it take {shape.seq_len + 1}"
        yield _conflict("learning.tokens", told, *involved)
    if model is not None and most >= model.vocab_size:
        told = f"has token {most}; {model.name} has 0 .. {model.vocab_size - 1}; write a larger vocab_size"
        yield _conflict("learning.tokens", told, *involved)


def _batches(shape: TrainingShape, model: Transformer, cluster: ClusterShape, ask: AskFiles) -> Iterator[Conflict]:
    path = shape.learning.batches
    if path is None:
        return
    if shape.learning.tokens is not None:
        told = "stands beside tokens, but a training learns from one of the two; remove one"
        yield _conflict("learning.batches", told, "training.learning.tokens", of_key=True)
    try:
        ask.batches(path, (shape.steps, sequences(shape, cluster.world_size), shape.seq_len + 1), model.vocab_size)
    except ScenarioError as error:
        batch = ("micro_batch_size", "gradient_accumulation_steps", "seq_len", "steps", "model")
        yield _conflict("learning.batches", str(error), "cluster.world_size", *(f"training.{key}" for key in batch))


def _initial(shape: TrainingShape, model: Transformer, ask: AskFiles) -> Iterator[Conflict]:
    if shape.learning.initial is None:
        return
    from simulator.scenario.learning_files import parameter_shapes

    try:
        ask.initial(shape.learning.initial, parameter_shapes(model))
    except ScenarioError as error:
        yield _conflict("learning.initial", str(error), "training.model")


def _dtypes(shape: TrainingShape) -> Iterator[Conflict]:
    chosen = precision(shape.precision)
    if chosen.params not in _DTYPES:
        yield _conflict("precision.params", f"got {chosen.params!r}; numbers are of {', '.join(_DTYPES)}")
    if chosen.matmul not in (chosen.params, "tf32"):
        yield _conflict("precision.matmul", f"got {chosen.matmul!r}, in which numbers are not multiplied yet")
