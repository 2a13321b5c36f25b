"""Rules for real training (`numerics: true`) and asynchronous parameter servers.

Same form as training_rules.py: each function is named after the key in its reports, in the order of `conflicts`.
Features not built yet are refused here, with advice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.errors import ScenarioError
from simulator.model.layer_list import LayerList
from simulator.scenario.build_training import scaling_rule, sequences
from simulator.scenario.caching import memoized
from simulator.scenario.records import ClusterSpec
from simulator.scenario.rule_violation import RuleViolation, any_listening
from simulator.scenario.tokens import read_tokens
from simulator.step.learning_spec import FaultSpec
from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.spec import Updater
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.training_spec import TrainingSpec

if TYPE_CHECKING:
    from simulator.model.model import Model
    from simulator.model.shape import Transformer
    from simulator.scenario.learning_files import Shapes

# Most parameters in a model, and most tokens in a step; with more, numpy takes minutes per step.
_MOST: Final = 20_000_000
# Keys in a config.json that change numbers but no times, each with the values implemented by `simulator.numerics`;
# messages name the first value.
_IMPLEMENTED: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    }
)
# Features of a model beside its sizes that real training supports; other features must have GPT-2's values.
_TRAINED: Final = frozenset({"tied", "num_experts", "active_experts", "fused_activation"})
_NO_NUMBERS: Final = "got {}; real training supports only GPT-2; write model_type: gpt2"
_DTYPES: Final = ("float64", "float32", "float16", "bfloat16")
_OPTIMIZERS: Final = ("adam", "lion", "momentum", "muon", "sgd")
# Keys in a fault that select the failing transfer.
_TRANSFER: Final = frozenset({"collective", "transfer"})
# Keys read by each kind of fault, besides `step` and `what`.
_KEYS_OF_FAULT: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        **dict.fromkeys(("dropped", "doubled", "stale"), _TRANSFER),
        "bit_flip": _TRANSFER | {"element", "bit"},
        "overflow": frozenset({"rank", "element"}),
        "stopped": frozenset({"rank"}),
    }
)
_ALL_FAULT_KEYS: Final = _TRANSFER | {"element", "bit", "rank"}
# Most steps, summed over asynchronous workers. The steps are planned as a single program; more would take minutes.
_MOST_WORKER_STEPS: Final = 20_000
# Keys in `learning` read only by certain optimizers.
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"betas": ("adam", "lion", "muon"), "eps": ("adam", "muon"), "momentum": ("momentum", "muon")}
)


@dataclass(frozen=True, slots=True)
class LearningFiles:
    """Readers for the files named in `training.learning`; each file is read once for every point of a sweep."""

    tokens: Callable[[str | tuple[int, ...]], tuple[int, int]]  # returns the number of tokens, and the largest token
    # Returns None; raises ScenarioError unless the file holds parameters with exactly these names and shapes.
    initial: Callable[[str, Shapes], None]
    # Returns None; raises ScenarioError unless the file holds batches for enough steps.
    batches: Callable[[str, tuple[int, int, int], int], None]


def learning_files(base: Path) -> LearningFiles:
    """Return functions reading the files of `training.learning`, each once.

    `base` is the folder for relative paths.
    """

    # Only facts are cached, because the files' contents may take a gigabyte.
    def tokens(source: str | tuple[int, ...]) -> tuple[int, int]:
        tokens_read = read_tokens(source, base)
        return len(tokens_read), max(tokens_read, default=0)

    def initial(source: str, shapes: Shapes) -> None:
        from simulator.scenario.learning_files import read_initial

        read_initial(source, base, shapes)

    def batches(source: str, shape: tuple[int, int, int], vocabulary: int) -> None:
        from simulator.scenario.learning_files import read_batches

        read_batches(source, base, shape, vocabulary)

    return LearningFiles(memoized(tokens), memoized(initial), memoized(batches))


def conflicts(
    shape: TrainingSpec, cluster: ClusterSpec, model: Model | None, files: LearningFiles
) -> Iterator[RuleViolation]:
    """Yield a violation for each broken rule of real training and asynchronous servers.

    `model` is None if the model is invalid.
    """
    yield from _sharding_asynchronous(shape, cluster)
    yield from _clip_norm(shape)
    yield from _faults(shape, cluster)
    if not shape.numerics:
        return
    if isinstance(model, LayerList):
        yield _conflict("model", _NO_NUMBERS.format(model.name))
        return
    yield from _seq_len(shape, cluster)
    yield from _lora(shape)
    yield from _sharding_keep_below(shape)
    yield from _precision(shape)
    yield from _optimizer(shape)
    yield from _loss_scaling(shape)
    if shape.attention == "eager":
        yield _conflict("attention", "got eager; real training has flash and standard attention; write standard")
    yield from _learning_schedule(shape)
    if shape.learning.checkpoint is not None and shape.sharding.asynchronous:
        message = "asynchronous workers have no common step to go back to; omit the key"
        yield _conflict("learning.checkpoint", message, "training.sharding")
    yield from _learning_tokens(shape, model, files)
    if model is None:
        return
    yield from _learning_batches(shape, model, cluster, files)
    yield from _faults_element(shape, model)
    of_model = list(_model(model, shape.model))
    yield from of_model
    if not of_model:
        # Only a GPT-2 has parameter names that the file can be compared with.
        yield from _learning_initial(shape, model, files)


def _conflict(name: str, message: str, *involved: str, of_key: bool = False) -> RuleViolation:
    dotted = f"training.{name}"
    return RuleViolation(tuple(dotted.split(".")), message, (dotted, "training.numerics", *involved), of_key)


def _sharding_asynchronous(shape: TrainingSpec, cluster: ClusterSpec) -> Iterator[RuleViolation]:
    """Yield violations of `sharding.staleness`, `.asynchronous`, `.servers_on`, and of asynchronous `steps`."""
    sharding = shape.sharding
    if sharding.staleness is not None and not sharding.asynchronous:
        message = f"got {sharding.staleness}, but synchronous workers wait for each other; write asynchronous: true"
        yield _conflict("sharding.staleness", message, "training.sharding.asynchronous")
    if not sharding.asynchronous:
        return
    if "asynchronous" not in STRATEGIES.find(sharding.strategy).options:
        able = any_listening("asynchronous")
        message = f"got true, but ranks with {sharding.strategy} sum their gradients synchronously; write {able}"
        yield _conflict("sharding.asynchronous", message, "training.sharding.strategy")
    elif sharding.servers_on != "own":
        message = "got 'workers'; asynchronous servers need separate machines; write own"
        yield _conflict("sharding.servers_on", message, "training.sharding.asynchronous")
    if shape.steps * cluster.world_size > _MOST_WORKER_STEPS:
        message = (
            f"got {shape.steps} for {cluster.world_size} workers; must be at most {_MOST_WORKER_STEPS} for all workers"
        )
        yield _conflict("steps", message, "training.sharding.asynchronous", "cluster.world_size")


def _clip_norm(shape: TrainingSpec) -> Iterator[RuleViolation]:
    if shape.clip_norm is not None and STRATEGIES.find(shape.sharding.strategy).updater is Updater.SERVERS:
        message = f"got {shape.clip_norm:g}, but servers update before the whole norm is known; omit the key"
        yield _conflict("clip_norm", message, "training.sharding.strategy")


def _faults(shape: TrainingSpec, cluster: ClusterSpec) -> Iterator[RuleViolation]:
    if shape.faults and not shape.numerics:
        yield _conflict("faults", "need real training; write numerics: true")
    for number, fault in enumerate(shape.faults):
        place = f"faults.{number}"
        if fault.step >= shape.steps:
            message = f"got {fault.step}; must be below steps {shape.steps}"
            yield _conflict(f"{place}.step", message, "training.steps")
        if fault.rank >= cluster.world_size:
            message = f"got {fault.rank}; the cluster has ranks 0 .. {cluster.world_size - 1}"
            yield _conflict(f"{place}.rank", message, "cluster.world_size")
        if fault.what == "stale" and fault.step == 0:
            yield _conflict(f"{place}.step", "got 0; a stale transfer repeats the data of the previous step")
        # Each asynchronous worker has its own steps; a fault therefore needs a step and a worker (`rank`).
        fitting = _KEYS_OF_FAULT[fault.what] | ({"rank"} if shape.sharding.asynchronous else frozenset())
        for key in sorted(_ALL_FAULT_KEYS - fitting):
            # A default value counts as not written.
            if getattr(fault, key) != FaultSpec.model_fields[key].default:
                message = f"does not apply to {fault.what!r}; its keys are {', '.join(sorted(fitting))}"
                yield _conflict(f"{place}.{key}", message, "training.sharding.asynchronous")


def _seq_len(shape: TrainingSpec, cluster: ClusterSpec) -> Iterator[RuleViolation]:
    count = sequences(shape, cluster.world_size) * shape.seq_len
    if count > _MOST:
        yield _conflict("seq_len", f"a step has {count:,} tokens; must be at most {_MOST:,} for real training in numpy")


def _lora(shape: TrainingSpec) -> Iterator[RuleViolation]:
    if shape.lora.rank:
        yield _conflict("lora.rank", f"got {shape.lora.rank}, which real training does not support yet; omit lora")


def _sharding_keep_below(shape: TrainingSpec) -> Iterator[RuleViolation]:
    if shape.sharding.keep_below:
        message = f"got {shape.sharding.keep_below}, which real training does not support yet; omit the key"
        yield _conflict("sharding.keep_below", message)


def _precision(shape: TrainingSpec) -> Iterator[RuleViolation]:
    precision = shape.precision.resolved()
    if precision.params not in _DTYPES:
        yield _conflict("precision.params", f"got {precision.params!r}; real training supports {', '.join(_DTYPES)}")
    if precision.matmul not in (precision.params, "tf32"):
        yield _conflict("precision.matmul", f"got {precision.matmul!r}, which real training does not support yet")


def _optimizer(shape: TrainingSpec) -> Iterator[RuleViolation]:
    name = shape.optimizer.name
    if name not in _OPTIMIZERS and not _is_own(name):
        hint = (
            "" if name in OPTIMIZERS.names()
            else "; an own optimizer needs `numbers=...` in its OPTIMIZER: the update of arrays in numpy"
        )  # fmt: skip
        yield _conflict("optimizer", f"got {name!r}; real training supports {', '.join(_OPTIMIZERS)}{hint}")
    if shape.optimizer.distribution == "owners":
        every_rank = STRATEGIES.find(shape.sharding.strategy).updater is Updater.EVERY_RANK
        able = "auto, replicated" if every_rank else "auto, gathered, all_to_all"
        message = f"got 'owners', which real training does not support yet; with {shape.sharding.strategy}: {able}"
        yield _conflict("optimizer.distribution", message, "training.sharding.strategy")
    if shape.optimizer.state_dtype not in ("auto", "float32"):
        message = f"got {shape.optimizer.state_dtype!r}; real training supports float32"
        yield _conflict("optimizer.state_dtype", message)


def _is_own(name: str) -> bool:
    """Return True if an optimizer defines an update of its own for real training."""
    return OPTIMIZERS.find(name).numbers is not None


def _loss_scaling(shape: TrainingSpec) -> Iterator[RuleViolation]:
    served = STRATEGIES.find(shape.sharding.strategy).updater is Updater.SERVERS
    if served and scaling_rule(shape.loss_scaling, shape.precision) != "none":
        message = "servers apply gradients without a check for overflows; write none, or precision: bf16"
        yield _conflict("loss_scaling", message, "training.sharding.strategy", "training.precision.params")


def _learning_schedule(shape: TrainingSpec) -> Iterator[RuleViolation]:
    """Yield violations of `learning.betas`, `.eps`, `.momentum` (unread by the optimizer) and `.warmup` (too long)."""
    learning = shape.learning
    for key, able in OPTIONS.items():
        # The update of an own optimizer gets every constant.
        unread = shape.optimizer.name not in able and not _is_own(shape.optimizer.name)
        if unread and getattr(learning, key) != type(learning).model_fields[key].default:
            message = f"only for {', '.join(able)}, but the optimizer is {shape.optimizer.name}; remove the key"
            yield _conflict(f"learning.{key}", message, "training.optimizer.name", of_key=True)
    if learning.warmup > shape.steps:
        message = f"got {learning.warmup}; must be at most steps, {shape.steps}"
        yield _conflict("learning.warmup", message, "training.steps")


def _learning_tokens(shape: TrainingSpec, model: Transformer | None, files: LearningFiles) -> Iterator[RuleViolation]:
    if shape.learning.tokens is None:
        return
    try:
        count, most = files.tokens(shape.learning.tokens)
    except ScenarioError as error:
        yield _conflict("learning.tokens", str(error))
        return
    involved = ("training.seq_len", "training.model")
    # A sequence of n tokens predicts the n tokens one place further: n + 1 are read.
    if count <= shape.seq_len:
        message = f"has {count} tokens; a sequence and its next token need {shape.seq_len + 1}"
        yield _conflict("learning.tokens", message, *involved)
    if model is not None and most >= model.vocab_size:
        message = f"has token {most}; {model.name} has 0 .. {model.vocab_size - 1}; write a larger vocab_size"
        yield _conflict("learning.tokens", message, *involved)


def _learning_batches(
    shape: TrainingSpec, model: Transformer, cluster: ClusterSpec, files: LearningFiles
) -> Iterator[RuleViolation]:
    path = shape.learning.batches
    if path is None:
        return
    if shape.learning.tokens is not None:
        message = "excludes tokens, because a training learns from one of the two; remove one"
        yield _conflict("learning.batches", message, "training.learning.tokens", of_key=True)
    try:
        files.batches(path, (shape.steps, sequences(shape, cluster.world_size), shape.seq_len + 1), model.vocab_size)
    except ScenarioError as error:
        batch = ("micro_batch_size", "gradient_accumulation_steps", "global_batch", "seq_len", "steps", "model")
        yield _conflict("learning.batches", str(error), "cluster.world_size", *(f"training.{key}" for key in batch))


def _faults_element(shape: TrainingSpec, model: Transformer) -> Iterator[RuleViolation]:
    """Yield a violation for each overflow fault whose `element` lies outside the last array of the last unit.

    This array is the head, or the bias before a tied head.
    """
    size = model.hidden_size * (1 if model.tied else model.vocab_size)
    for number, fault in enumerate(shape.faults):
        if fault.what == "overflow" and fault.element >= size:
            name = "lnf.bias" if model.tied else "head.weight"
            message = f"got {fault.element}; the gradient of {name} has elements 0 .. {size - 1}"
            yield _conflict(f"faults.{number}.element", message, "training.model")


def _model(model: Transformer, written: Any) -> Iterator[RuleViolation]:
    """Yield a violation if the model is no GPT-2, or too large for real training in numpy."""
    from simulator.model.parameters import total

    # GPT-2's features: every field that is no size has its default, and heads fill the hidden size without groups.
    features = {
        key.name: key.default for key in fields(model) if key.default is not MISSING and key.name not in _TRAINED
    }
    plain = all(getattr(model, name) == default for name, default in features.items())
    square = model.num_kv_heads == model.num_heads and model.attention_width == model.hidden_size
    if not (plain and square):
        yield _conflict("model", _NO_NUMBERS.format(model.name))
    elif model.ffn_size != 4 * model.hidden_size:
        wide = 4 * model.hidden_size
        message = f"has an MLP of {model.ffn_size}; real training needs four times the hidden size, {wide}"
        yield _conflict("model", message)
    elif total(model) > _MOST:
        yield _conflict(
            "model", (f"has {total(model):,} parameters; must be at most {_MOST:,} for real training in numpy")
        )
    for key, able in _IMPLEMENTED.items():
        if isinstance(written, Mapping) and written.get(key, able[0]) not in able:
            yield _conflict("model", f"{key}: got {written[key]!r}; real training uses {able[0]}")


def _learning_initial(shape: TrainingSpec, model: Transformer, files: LearningFiles) -> Iterator[RuleViolation]:
    if shape.learning.initial is None:
        return
    from simulator.scenario.learning_files import parameter_shapes

    try:
        files.initial(shape.learning.initial, parameter_shapes(model))
    except ScenarioError as error:
        yield _conflict("learning.initial", str(error), "training.model")
