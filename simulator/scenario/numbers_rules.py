"""Rules of real training: which models, shardings and dtypes carry numbers.

Rule: as in training_rules.py; what is not built yet is refused here, each with what would go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from simulator.scenario.conflict import Conflict
from simulator.scenario.shape import ClusterShape
from simulator.scenario.training_making import precision
from simulator.scenario.training_shape import TrainingShape

if TYPE_CHECKING:
    from simulator.model.shape import Transformer

# More parameters than this train for minutes a step in numpy.
_MOST: Final = 20_000_000
_DTYPES: Final = ("float64", "float32", "float16", "bfloat16")


def conflicts(shape: TrainingShape, cluster: ClusterShape, model: Transformer | None) -> Iterator[Conflict]:
    """Find what numbers cannot be carried for."""
    if not shape.numerics:
        return
    if model is not None:
        yield from _model(model)
    sharding = shape.sharding
    if sharding.keep_below:
        told = f"got {sharding.keep_below}, of which numbers are not carried yet; leave it out"
        yield _conflict("sharding.keep_below", told)
    if shape.offload.what != "none":
        yield _conflict("offload", f"got {shape.offload.what!r}, for which numbers are not carried yet; write none")
    if shape.dropout:
        yield _conflict("dropout", "got true, but numbers are carried without dropout yet; write false")
    if shape.optimizer != "adam":
        yield _conflict("optimizer", f"got {shape.optimizer!r}; numbers are updated by adam alone yet")
    yield from _dtypes(shape)
    batch = shape.micro_batch_size * shape.gradient_accumulation_steps * cluster.world_size
    if batch * shape.seq_len > _MOST:
        yield _conflict("seq_len", f"a step has {batch * shape.seq_len:,} tokens; numpy trains on {_MOST:,} at most")


def _conflict(name: str, message: str, *involved: str) -> Conflict:
    dotted = f"training.{name}"
    return Conflict(tuple(dotted.split(".")), message, (dotted, "training.numerics", *involved))


def _model(model: Transformer) -> Iterator[Conflict]:
    """A GPT-2 with a head of its own, small enough for numpy."""
    from simulator.model.parameters import total

    plain = model.norm == "layernorm" and model.norm_bias and not model.gated and model.positions == "learned"
    biased = model.attention_bias and model.output_bias and model.mlp_bias
    square = model.num_kv_heads == model.num_heads and model.attention_width == model.hidden_size
    if not (plain and biased and square) or model.ffn_size != 4 * model.hidden_size or model.num_experts:
        yield _conflict("model", f"got {model.name}; real numbers are those of a GPT-2, so write model_type: gpt2")
    elif model.tied:
        yield _conflict("model", "a tied head is not trained yet; write tie_word_embeddings: false")
    elif total(model) > _MOST:
        yield _conflict("model", f"has {total(model):,} parameters; numpy trains {_MOST:,} at most")


def _dtypes(shape: TrainingShape) -> Iterator[Conflict]:
    chosen = precision(shape.precision)
    if chosen.params not in _DTYPES:
        yield _conflict("precision.params", f"got {chosen.params!r}; numbers are of {', '.join(_DTYPES)}")
    if chosen.matmul not in (chosen.params, "tf32"):
        yield _conflict("precision.matmul", f"got {chosen.matmul!r}, in which numbers are not multiplied yet")
