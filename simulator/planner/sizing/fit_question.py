"""What is asked: a model, a way to train it, and a number of cards; as a scenario that `simulator run` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.registry import shipped
from simulator.cluster.chassis import machine_of
from simulator.cluster.gpu_file import load_gpu
from simulator.model.load import load_model
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Scenario
from simulator.step.framework import BARE

# Ways to train, with the format of the frozen matrices; full training freezes nothing.
BASES: Final[Mapping[str, str | None]] = {"full": None, "lora": "params", "qlora": "nf4"}
METHODS: Final = tuple(BASES)
NAMES: Final = {"full": "full training", "lora": "LoRA", "qlora": "QLoRA"}
# Rank of adapters if none is given: PEFT's examples take 8 to 64.
RANK: Final = 16
# Keys of a scenario, dotted, with values.
Keys = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuestion:
    """A training of a model on cards of one kind."""

    model: str | Mapping[str, Any]  # catalog name, path of a config.json, or its content
    # Card: catalog name or path.
    gpu: str
    gpus: int = 1  # number of cards
    # All parameters are trained, or adapters on a frozen model, or adapters on a model in 4-bit NF4.
    method: str = "full"
    # Rank of the adapters; None: `RANK`.
    rank: int | None = None
    # `seq_len`, `micro_batch`: Tokens of a sequence, and sequences of a micro-batch on each card.
    seq_len: int = 2048
    micro_batch: int = 1
    # `optimizer`, `framework`: As in a scenario.
    optimizer: str = "adam"
    framework: str = "transformers"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ScenarioError(f"method: got {self.method!r}; {one_of(METHODS, self.method)}")
        if self.rank is not None and self.method == "full":
            raise ScenarioError(f"rank: got {self.rank}; full training has no adapters; write method lora or qlora")
        if self.rank is not None and self.rank < 1:
            raise ScenarioError(f"rank: got {self.rank}; must be at least 1; method full trains every parameter")

    @property
    def card(self) -> str:
        """The card's name in the catalog: h100_sxm for h100."""
        return shipped("gpu", self.gpu) or self.gpu

    @property
    def text(self) -> str:
        """The model and the method: "llama3_8b with QLoRA of rank 16"."""
        rank = "" if self.method == "full" else f" of rank {self.rank or RANK}"
        return f"{load_model(self.model, self.seq_len).name} with {NAMES[self.method]}{rank}"

    @property
    def place(self) -> str:
        """The framework, with a blank before it: " in transformers"; empty for kernels without a framework."""
        return "" if self.framework == BARE.name else f" in {Path(self.framework).stem}"

    @property
    def work_unit(self) -> str:
        """Unit in which the model's work and speed are told: "token" or "sample"."""
        return load_model(self.model, self.seq_len).work_unit

    def keys(self) -> dict[str, Any]:
        """Return the keys of the training, dotted, apart from the model."""
        return {
            "cluster.world_size": self.gpus,
            "training.seq_len": self.seq_len,
            "training.micro_batch_size": self.micro_batch,
            "training.framework": self.framework,
            "training.optimizer": self.optimizer,
            "training.sharding": sharding(self.gpus),
            **lora_keys(self.method, self.rank or RANK),
        }

    def scenario(self, changes: Keys | None = None) -> Scenario:
        """Return the training as a scenario, with further keys in place of the question's.

        Raises
        ------
        ScenarioError
            A key is wrong, or the changes contradict each other; one line for each fault.
        """
        return load_scenario(self.document(changes))

    def document(self, changes: Keys | None = None) -> dict[str, Any]:
        """Return the scenario as plain data, to be written to a file."""
        data: dict[str, Any] = {
            "name": "fit_check",
            "cluster": {"topology": machine_of(self.card), "gpu": self.gpu},
            "training": {"model": self.model, "precision": _precision(self.gpu)},
        }
        for dotted, value in (self.keys() | dict(changes or {})).items():
            section, key = dotted.split(".")
            data[section][key] = value
        return data


def sharding(gpus: int) -> str:
    """Return the sharding that saves most memory: zero3 (FSDP) over several cards, none (ddp) on one.

    >>> sharding(8), sharding(1)
    ('zero3', 'ddp')
    """
    return "zero3" if gpus > 1 else "ddp"


def lora_keys(method: str, rank: int) -> dict[str, Any]:
    """Return the scenario keys of a method.

    >>> lora_keys("qlora", 16), lora_keys("full", 16)
    ({'training.lora': {'rank': 16, 'base': 'nf4'}}, {})
    """
    base = BASES[method]
    return {} if base is None else {"training.lora": {"rank": rank, "base": base}}


def _precision(gpu: str) -> str:
    try:
        return load_gpu(gpu).mixed_precision
    # The scenario's own rules name an unknown card, with other faults of the question.
    except ScenarioError:
        return "fp32"
