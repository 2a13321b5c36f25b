"""Which keys describe low-rank adapters (`training.lora`)? Rank and targets, and their meaning for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from simulator.basics import reading
from simulator.basics.errors import one_of
from simulator.basics.spec import Spec
from simulator.model.adapters import TARGETS, Adapters
from simulator.model.layer_list import LayerList
from simulator.model.quantised import FORMATS
from simulator.step.learning_spec import yes_no_or_probability

if TYPE_CHECKING:
    from simulator.model.model import Model

# Words for several targets at once; PEFT's name for the first is "all-linear".
_ALL: Final = "all"
_GROUPS: Final = {"attention": ("q", "k", "v", "o"), "feed_forward": ("gate", "up", "down")}


def _targets() -> reading.ValueReader:
    """Return a validator for the adapted matrices: a word, or a list of names."""
    words = (_ALL, *_GROUPS)

    def reader(value: Any) -> Any:
        if value in ("all-linear", "all_linear"):
            return _ALL
        if isinstance(value, str):
            if value not in words:
                raise ValueError(f"got {value!r}; {one_of(words, value)}, or a list of {', '.join(TARGETS)}")
            return value
        if not isinstance(value, list | tuple) or not value:
            raise ValueError(f"got {reading.shown(value)}; {one_of(words, '')}, or a list of {', '.join(TARGETS)}")
        names = tuple(str(name).removesuffix("_proj") for name in value)
        unknown = next((name for name in names if name not in TARGETS), None)
        if unknown is not None:
            raise ValueError(f"got {unknown!r}; {one_of(TARGETS, unknown)}")
        return tuple(target for target in TARGETS if target in names)

    schema = {"type": "array", "minItems": 1, "items": {"enum": [*TARGETS, *(f"{name}_proj" for name in TARGETS)]}}
    return reading.ValueReader(reader, lambda: {"anyOf": [{"enum": [*words, "all-linear"]}, schema]})


class LoraSpec(Spec):
    """Low-rank adapters on a frozen model (keys of `lora`)."""

    rank: Annotated[int, reading.whole(0, 4096)] = Field(
        default=0, description="Rank of the adapters, which alone are trained; 0 trains every parameter."
    )
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], reading.choice(("float32", "bfloat16", "float16"))] = (
        Field(
            default="float32",
            description="Dtype of the adapters' parameters and arithmetic; PEFT's default is float32.",
        )
    )
    dropout: Annotated[bool | float, yes_no_or_probability()] = Field(
        default=False, description="Dropout of the adapters' inputs: true (probability 0.1), false, or a probability."
    )
    base: Annotated[Literal["params", "nf4", "nf4_single", "gptq", "int8"], reading.choice(("params", *FORMATS))] = (
        Field(
            default="params",
            description=(
                "Format of the frozen matrices of layers: the dtype of parameters, 4-bit NF4 with double (nf4) or "
                "single quantisation (QLoRA), 4-bit GPTQ in groups of 128, or 8 bits, multiplied in 8 bits (int8, "
                "LLM.int8())."
            ),
        )
    )
    dora: Annotated[bool, reading.YES_NO] = Field(
        default=False,
        description="Whether each output of an adapted matrix has a trained length (DoRA), with PEFT's kernels.",
    )
    hidden: Annotated[Literal["params", "float32"], reading.choice(("params", "float32"))] = Field(
        default="params",
        description=(
            "Dtype of hidden states between matrices: the dtype of parameters (params), or float32, as after PEFT's "
            "prepare_model_for_kbit_training on nf4 and int8."
        ),
    )
    targets: Annotated[Any, _targets()] = Field(
        default=_ALL,
        description=(
            "Matrices with an adapter in every layer: all, attention, feed_forward, or a list of q, k, v, o, gate, up, "
            "down."
        ),
    )


def adapters(spec: LoraSpec, model: Model) -> Adapters | None:
    """Return the adapters that a scenario's keys describe for a model; None for rank 0.

    Raises
    ------
    ValueError
        The model has no such matrix, or its kind of layer cannot have adapters yet.
    """
    if spec.rank == 0:
        return None
    if isinstance(model, LayerList):
        raise ValueError(f"adapters are not supported yet for the layers of {model.name}; omit lora")
    able = model.adapter_targets
    if not able:
        raise ValueError(f"adapters are not supported yet for the latent attention of {model.name}")
    wanted = spec.targets if not isinstance(spec.targets, str) else _GROUPS.get(spec.targets, able)
    # A group's word means those of its matrices that the model has.
    chosen = tuple(target for target in able if target in wanted)
    missing = [target for target in wanted if target not in able] if not isinstance(spec.targets, str) else []
    if missing or not chosen:
        where = "expert layers, whose matrices cannot have adapters yet" if model.num_experts else "no such matrix"
        named = ", ".join(missing) or str(spec.targets)
        raise ValueError(f"got {named}; {model.name} has {where}; write some of {', '.join(able)}")
    base = "" if spec.base == "params" else spec.base
    dropout = spec.dropout is not False and spec.dropout > 0
    return Adapters(spec.rank, chosen, spec.dtype, dropout, base, spec.dora, spec.hidden == "float32")
