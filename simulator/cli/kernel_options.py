"""Which options describe the micro-batch whose kernels a command prints, and which step do they make?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from simulator.basics.errors import ScenarioError
from simulator.cli.completion import names_of
from simulator.cli.option_names import told_as_options
from simulator.cli.options import AsJson, ModelName, NoPlugins, Tokens
from simulator.model.load import sequence_length

if TYPE_CHECKING:
    from simulator.step.spec import TrainingStep

# Option for each scenario key.
_OPTIONS: Final = {
    "training.model": "MODEL",
    "training.seq_len": "--seq-len",
    "training.micro_batch_size": "--micro-batch-size",
    "training.precision": "--precision",
    "training.attention": "--attention",
    "training.framework": "--framework",
    "training.compile": "--compile",
    "training.parallelism.tp": "--tp",
    "cluster.gpu": "--gpu",
}


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """Arguments and options of `kernels`, which `program` has too."""

    model: ModelName
    gpu: Annotated[str, typer.Option(help="GPU that runs the kernels.", autocompletion=names_of("gpu"))] = "h100_sxm"
    seq_len: Tokens = None
    micro_batch_size: Annotated[int, typer.Option(help="Sequences per micro-batch.")] = 1
    precision: Annotated[str, typer.Option(help="Precision: bf16, fp32, tf32, fp8, ...")] = "bf16"
    attention: Annotated[str, typer.Option(help="Attention kernels: flash or standard.")] = "flash"
    framework: Annotated[
        str | None,
        typer.Option(
            help="Framework that launches the kernels: torchtitan, llm_foundry, bare, ...",
            autocompletion=names_of("framework"),
        ),
    ] = None
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="A compiler merges memory-bound kernels, which then move fewer bytes: 0.8 times as many, none with "
            "framework bare.",
        ),
    ] = False
    tp: Annotated[
        int, typer.Option(help="Number of tensor-parallel ranks; the table shows the kernels on each rank.")
    ] = 1
    as_json: AsJson = False
    no_plugins: NoPlugins = False

    def step(self) -> TrainingStep:
        """Return the step of the options, checked by a scenario's rules; raise an error with every fault in them."""
        from simulator.scenario.build_training import to_step
        from simulator.scenario.load import load_scenario

        training = {
            "model": self.model, "seq_len": sequence_length(self.seq_len, self.model),
            "micro_batch_size": self.micro_batch_size, "precision": self.precision, "attention": self.attention,
            "framework": self.framework,
            # False is the default of --compile, and must count as not given.
            "compile": self.compiled or None,
            # Kernels of one tensor-parallel rank: every rank has the same.
            "parallelism": {"tp": self.tp} if self.tp != 1 else None,
        }  # fmt: skip
        training = {key: value for key, value in training.items() if value is not None}
        cluster = {"topology": "star_100g", "world_size": max(self.tp, 1), "gpu": self.gpu}
        # The scenario's rules check the options; `to_step` is the same as for a simulation.
        with told_as_options(_OPTIONS):
            spec = load_scenario({"name": "kernels", "cluster": cluster, "training": training}).training
        # Never happens; tells the type checker that the scenario has a training.
        if spec is None:
            raise TypeError("a scenario of a training step has a training step")
        return to_step(spec, max(self.tp, 1))

    @contextmanager
    def on_gpu(self) -> Iterator[None]:
        """Let the errors of a block name the GPU, which lacks a dtype or a generation of attention kernels."""
        try:
            yield
        except ValueError as error:
            raise ScenarioError(f"--gpu: {self.gpu}: {error}") from error
