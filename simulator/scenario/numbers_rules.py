"""Rules of real training, and of servers that do not wait: which models, shardings and dtypes carry numbers.

Rule: as in training_rules.py; what is not built yet is refused here, each with what would go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from simulator.errors import ScenarioError
from simulator.scenario.conflict import Conflict, any_listening
from simulator.scenario.learning_shape import FaultShape
from simulator.scenario.shape import ClusterShape
from simulator.scenario.tokens import read_tokens
from simulator.scenario.training_making import precision
from simulator.scenario.training_shape import TrainingShape
from simulator.training.sharding import catalog as strategies
from simulator.training.sharding.strategy import Updater

if TYPE_CHECKING:
    from simulator.model.shape import Transformer

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
# What a fault may say besides its step and what it is.
_TRANSFER: Final = frozenset({"collective", "transfer", "rank"})
_FITTING: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        **dict.fromkeys(("dropped", "doubled", "stale"), _TRANSFER),
        "bit_flip": _TRANSFER | {"element", "bit"},
        **dict.fromkeys(("overflow", "stopped"), frozenset({"rank"})),
    }
)
_ALL_KEYS: Final = _TRANSFER | {"element", "bit"}
# Operations of all workers' steps that are planned at once; more take minutes.
_MOST_WORKER_STEPS: Final = 20_000


def conflicts(shape: TrainingShape, cluster: ClusterShape, model: Transformer | None, base: Path) -> Iterator[Conflict]:
    """Find what numbers cannot be carried for, and what only real training or only such servers have."""
    yield from _asynchronous(shape, cluster)
    yield from _clipping(shape)
    yield from _faults(shape, cluster)
    if not shape.numerics:
        return
    if model is not None:
        yield from _model(model, shape.model)
        yield from _tokens(shape, model, base)
    sharding = shape.sharding
    if sharding.keep_below:
        told = f"got {sharding.keep_below}, of which numbers are not carried yet; leave it out"
        yield _conflict("sharding.keep_below", told)
    if shape.optimizer not in _OPTIMIZERS:
        yield _conflict("optimizer", f"got {shape.optimizer!r}; numbers are updated by {', '.join(_OPTIMIZERS)}")
    if strategies.find(sharding.strategy).updater is Updater.SERVERS and _scales(shape):
        told = "servers apply gradients without looking for overflows; write none, or precision: bf16"
        yield _conflict("loss_scaling", told, "training.sharding.strategy", "training.precision.params")
    yield from _dtypes(shape)
    batch = shape.micro_batch_size * shape.gradient_accumulation_steps * cluster.world_size
    if batch * shape.seq_len > _MOST:
        yield _conflict("seq_len", f"a step has {batch * shape.seq_len:,} tokens; numpy trains on {_MOST:,} at most")


def _conflict(name: str, message: str, *involved: str) -> Conflict:
    dotted = f"training.{name}"
    return Conflict(tuple(dotted.split(".")), message, (dotted, "training.numerics", *involved))


def _scales(shape: TrainingShape) -> bool:
    rule = shape.loss_scaling.rule
    return rule not in ("auto", "none") or (rule == "auto" and shape.precision.params == "float16")


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
        for key in sorted(_ALL_KEYS - _FITTING[fault.what]):
            if getattr(fault, key) != FaultShape.model_fields[key].default:
                fits = ", ".join(sorted(_FITTING[fault.what]))
                yield _conflict(f"{place}.{key}", f"says nothing of {fault.what!r}; keys for that are {fits}")


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


def _tokens(shape: TrainingShape, model: Transformer, base: Path) -> Iterator[Conflict]:
    if shape.learning.tokens is None:
        return
    try:
        tokens = read_tokens(shape.learning.tokens, base)
    except ScenarioError as error:
        yield _conflict("learning.tokens", str(error))
        return
    involved = ("training.seq_len", "training.model")
    if len(tokens) <= shape.seq_len:
        told = f"has {len(tokens)} tokens; a sequence and what follows it take {shape.seq_len + 1}"
        yield _conflict("learning.tokens", told, *involved)
    if tokens and max(tokens) >= model.vocab_size:
        told = f"has token {max(tokens)}; {model.name} has 0 .. {model.vocab_size - 1}; write a larger vocab_size"
        yield _conflict("learning.tokens", told, *involved)


def _dtypes(shape: TrainingShape) -> Iterator[Conflict]:
    chosen = precision(shape.precision)
    if chosen.params not in _DTYPES:
        yield _conflict("precision.params", f"got {chosen.params!r}; numbers are of {', '.join(_DTYPES)}")
    if chosen.matmul not in (chosen.params, "tf32"):
        yield _conflict("precision.matmul", f"got {chosen.matmul!r}, in which numbers are not multiplied yet")
