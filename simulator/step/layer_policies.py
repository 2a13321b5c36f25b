"""How may `activation_checkpointing` be written? As a policy's name, {every: k}, or lists of layers.

Same form as reading.py. The key has many forms, and therefore a file of its own::

    full                              every layer
    {every: 2}                        every second layer, in full
    {full: [0, 1], attention: [2]}    a policy for each layer; other layers keep everything
    [0, 1]                            these layers, in full
    [layernorm, moe_act]              these modules of every layer, as Megatron-Core names them
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field, TypeAdapter

from simulator.basics import reading
from simulator.basics.errors import one_of
from simulator.basics.spec import Count, Rank, Spec
from simulator.step.checkpointing import JOINED, MODULES, POLICIES, Checkpointing

# Names used elsewhere, each with advice.
_OTHER_POLICIES: Final = {
    "selective": "write attention (Megatron's selective recomputation) or selective_op (torchtitan's)",
    **dict.fromkeys(("all", "every"), "write full, or {every: 2} for every second layer"),
}


class LayersSpec(Spec):
    """Keys of `activation_checkpointing` as a mapping: layers at a regular distance, or layers by policy."""

    every: Count = Field(default=0, description="Recompute every k-th layer in full.")
    full: list[Rank] = Field(default=[], description="Layers to recompute in full.")
    attention: list[Rank] = Field(default=[], description="Layers whose attention scores are recomputed.")
    selective_op: list[Rank] = Field(
        default=[], description="Layers with selective_op: every second matmul is kept, the rest is recomputed."
    )
    feed_forward: list[Rank] = Field(
        default=[], description="Layers whose feed-forward block is recomputed from its input."
    )
    activation: list[Rank] = Field(default=[], description="Layers whose activation function's output is recomputed.")


_LAYERS: Final = TypeAdapter(list[Rank])


def _by_layer(value: dict[str, Any]) -> Checkpointing:
    shape = LayersSpec.model_validate(value)
    # Policies in the order of the class, each with its layers.
    lists = {name: layers for name, layers in shape.model_dump().items() if name != "every" and layers}
    # `every` excludes lists of layers. An empty mapping says nothing; {full: []} means "none".
    if shape.every and not lists:
        return shape.every
    if shape.every or not value:
        raise ValueError(f"got {', '.join(value) or 'an empty mapping'}; write {{every: 2}}, or {{full: [0, 1]}}")
    return tuple((name, tuple(layers)) for name, layers in lists.items()) or "none"


def _joined(names: list[str]) -> str:
    """Return the names of recomputed modules as a policy."""
    if unknown := next((name for name in names if name not in MODULES), None):
        raise ValueError(f"got {unknown!r}; {one_of(MODULES, unknown)}")
    return JOINED.join(name for name in MODULES if name in names)


def checkpointing() -> reading.ValueReader:
    """Return a validator for `activation_checkpointing`: a policy's name, {every: k}, layers by policy, or a list."""
    policy = reading.choice(POLICIES, _OTHER_POLICIES)

    def reader(value: Any) -> Checkpointing:
        # pydantic places errors from the inner models below this key.
        if isinstance(value, dict):
            return _by_layer(value)
        if isinstance(value, list):
            if value and all(isinstance(name, str) for name in value):
                return _joined(value)
            return tuple(_LAYERS.validate_python(value))
        if isinstance(value, str) and set(names := value.split(JOINED)) <= set(MODULES):
            return _joined(names)
        if isinstance(value, str):
            return str(policy.reader(value))
        raise ValueError(
            f"got {reading.shown(value)}; must be one of {', '.join(POLICIES)}, or {{every: 2}}, or a list of layers "
            f"or of modules ({', '.join(MODULES)})"
        )

    every = {
        "type": "object",
        "properties": {"every": {"type": "integer", "minimum": 1}},
        "required": ["every"],
        "additionalProperties": False,
    }
    layers = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    modules = {"type": "array", "items": {"enum": list(MODULES)}}
    policies = {
        "type": "object",
        "properties": dict.fromkeys(("full", "attention", "selective_op", "feed_forward", "activation"), layers),
        "minProperties": 1,
        "additionalProperties": False,
    }
    return reading.ValueReader(
        reader, lambda: {"anyOf": [{"enum": [*POLICIES, *MODULES]}, every, policies, layers, modules]}
    )
