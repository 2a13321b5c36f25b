"""How do tokens reach experts on other ranks, and how evenly? The keys of `parallelism.experts`.

They are the model's record too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from simulator.basics import reading
from simulator.basics.spec import Frozen, Spec

# Other programs' names of a dispatch, with advice.
_DISPATCHERS: Final = {
    **dict.fromkeys(("deepep", "DeepEP", "deep_ep"), "deduplicated is DeepEP's exchange; write deduplicated"),
    "flex": "Megatron-LM's flex dispatcher with DeepEP is deduplicated; write deduplicated",
}


def _capacity() -> reading.ValueReader:
    """Return a validator for the experts' capacity factor: a positive number, or "none"."""
    factor = reading.number(positive=True, most=1e6)

    def reader(value: Any) -> float | None:
        return None if value is None or value == "none" else float(factor.reader(value))

    return reading.ValueReader(reader, lambda: {"anyOf": [{"const": "none"}, factor.schema()]})


def _imbalance() -> reading.ValueReader:
    """Return a validator for the experts' load: a factor from 1 on, {zipf: exponent}, with a walk over steps if wanted,
    or {recorded: FILE}.
    """
    factor, exponent = reading.number(positive=True, most=1e6), reading.number(positive=True, most=10)
    walk = {"walk": exponent, "steps": reading.whole(2, 1000), "seed": reading.whole(0, 2**31)}

    def reader(value: Any) -> float | Frozen:
        if isinstance(value, Mapping):
            if set(value) == {"recorded"} and isinstance(value["recorded"], str):
                return Frozen(recorded=value["recorded"])
            moves = {name: value[name] for name in walk if name in value}
            if set(value) - set(moves) != {"zipf"} or (moves and not {"walk", "steps"} <= set(moves)):
                raise ValueError(
                    f"got {reading.shown(value)}; must be a number such as 1.1, {{zipf: 0.3}}, "
                    "{zipf: 0.3, walk: 0.1, steps: 20}, or {recorded: FILE}"
                )
            numbers = {name: walk[name].reader(number) for name, number in moves.items()}
            return Frozen(zipf=float(exponent.reader(value["zipf"])), **numbers)
        if factor.reader(value) < 1:
            raise ValueError(
                f"got {reading.shown(value)}; must be at least 1, because the fullest rank has at least the mean"
            )
        return float(value)

    return reading.ValueReader(
        reader,
        lambda: {
            "anyOf": [
                {"type": "number", "minimum": 1, "maximum": 1e6},
                {
                    "type": "object",
                    "properties": {"zipf": exponent.schema(), **{name: of.schema() for name, of in walk.items()}},
                    "required": ["zipf"],
                    "additionalProperties": False,
                },
                {
                    "type": "object",
                    "properties": {"recorded": {"type": "string"}},
                    "required": ["recorded"],
                    "additionalProperties": False,
                },
            ]
        },
    )


class ExpertsSpec(Spec):
    """Dispatch of tokens to experts on other ranks (keys of `parallelism.experts`)."""

    # With top-k routing, all_to_all sends a token up to k times to the same rank; deduplicated, as DeepEP does, once to
    # a node and there once to a rank.
    dispatch: Annotated[str, reading.choice(("all_to_all", "all_gather", "deduplicated"), _DISPATCHERS)] = Field(
        default="all_to_all",
        description=(
            "Token dispatch: a copy per chosen expert (all_to_all), every token to every rank (all_gather), or a "
            "copy per node, and in the node per rank (deduplicated)."
        ),
    )
    routing: Annotated[str, reading.choice(("uniform", "round_robin"))] = Field(
        default="uniform",
        description=(
            "How tokens choose experts, for deduplicated: any experts are equally probable (uniform), or consecutive "
            "experts in turn, as balanced benchmarks do (round_robin)."
        ),
    )
    capacity: Annotated[float | None, _capacity()] = Field(
        default=None,
        description="Capacity of an expert relative to its even share of tokens, with padding; no limit if omitted.",
    )
    imbalance: Annotated[Any, _imbalance()] = Field(
        default=1.0,
        description=(
            "Load of the fullest rank relative to the mean; {zipf: exponent} for the popularity of experts, with walk "
            "(deviation by which its logarithm moves each step), steps and, if wanted, seed for a popularity that "
            "drifts; or {recorded: FILE} for a CSV file of counts with the columns expert and tokens, and layer and "
            "step if wanted."
        ),
    )
    dtype: Annotated[str, reading.choice(("auto", "bfloat16", "float8_e4m3fn"))] = Field(
        default="auto", description="Token dtype during dispatch; auto: the activations' dtype."
    )

    # Megatron-Core's overlap_moe_expert_parallel_comm
    overlap: Annotated[bool, reading.YES_NO] = Field(
        default=False,
        description=(
            "Whether a micro-batch's exchanges overlap with another micro-batch's kernels: a forward pass runs beside "
            "the preceding micro-batch's backward pass."
        ),
    )

    @property
    def sent_dtype(self) -> str | None:
        """Dtype of tokens on their way to experts; None: the activations' dtype, which the way back always uses."""
        return None if self.dtype == "auto" else self.dtype

    @property
    def zipf(self) -> float:
        """Exponent of the experts' popularity: the n-th most popular expert is chosen in proportion to n^-zipf; 0 for
        equal popularity.
        """
        return self._of_imbalance("zipf")

    @property
    def walk(self) -> float:
        """Deviation by which the logarithm of an expert's popularity moves from step to step."""
        return self._of_imbalance("walk")

    @property
    def steps(self) -> int:
        """Number of steps over which the popularity is drawn; 1 if it does not drift."""
        return max(1, int(self._of_imbalance("steps")))

    @property
    def seed(self) -> int:
        """Seed of the drift."""
        return int(self._of_imbalance("seed"))

    @property
    def moves(self) -> bool:
        """True if the load is that of counts, which may differ from step to step."""
        return bool(self.recorded or self.steps > 1)

    @property
    def recorded(self) -> str:
        """Path of a file with recorded counts of tokens by expert; "" without one."""
        return str(self.imbalance.get("recorded", "")) if isinstance(self.imbalance, Mapping) else ""

    def _of_imbalance(self, name: str) -> float:
        return float(self.imbalance.get(name, 0)) if isinstance(self.imbalance, Mapping) else 0.0

    def located(self, base: Path | None) -> ExpertsSpec:
        """Return the keys with the path of recorded counts under a folder."""
        if not self.recorded or base is None:
            return self
        return self.replaced(imbalance=Frozen(recorded=str(base / self.recorded)))

    @property
    def factor(self) -> float:
        """Tokens of the fullest rank over the mean, at least 1; 1 where they follow from the experts' popularity."""
        return 1.0 if isinstance(self.imbalance, Mapping) else float(self.imbalance)
