"""Which runs has a user measured? Reads a CSV file with documented columns.

`UserRow` alone defines the columns; the documentation's table is made from it. Each fault is a line with file, line and
column.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from simulator.basics import registry
from simulator.basics.dtypes import find
from simulator.basics.errors import MOST_MEANT, ScenarioError, in_lines, one_of, similar
from simulator.calibration.cells import Count, Number, Tokens, YesNo, among, entry, filled, read_cells
from simulator.calibration.training_runs.log_files import read_log
from simulator.calibration.training_runs.recipe_rows import scenario_row, tokens_of_step
from simulator.calibration.training_runs.rows import GIB, MeasuredRow, ModelShape
from simulator.model.load import load_transformer
from simulator.scenario.load import check_single_point, load_scenario
from simulator.scenario.records import JitterSpec
from simulator.step.checkpointing import POLICIES
from simulator.step.framework import Implementation
from simulator.step.parallelism import Parallelism
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.precision import Precision
from simulator.step.strategies.strategy import STRATEGIES


def _dtype(name: str) -> str:
    try:
        return find(name, stored=False).name
    except ScenarioError as error:
        raise ValueError(str(error)) from error


def _policy(text: object) -> object:
    """Return a cell's checkpointing policy: a name, or k for every k-th layer; raise ValueError for other text."""
    if isinstance(text, str) and text.isdigit():
        return int(text)
    if text not in POLICIES:
        raise ValueError(f"{one_of(POLICIES, str(text))}, or a number k for every k-th layer")
    return text


def _stages(text: object) -> object:
    if isinstance(text, str) and not re.fullmatch(r"[0-9]{1,6}( +[0-9]{1,6})*", text):
        raise ValueError("must be whole numbers, separated by blanks")
    return tuple(int(part) for part in text.split()) if isinstance(text, str) else text


Dtype = Annotated[str, AfterValidator(_dtype)]


class _Measurement(BaseModel):
    """What was measured in a line of a user's CSV file."""

    model_config = ConfigDict(extra="forbid")

    step_time_s: Number | None = Field(None, description="Measured time of a step [s]")
    tokens_per_s: Number | None = Field(
        None, description="Measured tokens per second of all GPUs together; alternative to `step_time_s`"
    )
    log: str = Field(
        "",
        description="Log file of torchtitan, Megatron-LM or NeMo, beside the CSV file; alternative to `step_time_s`, "
        "and to `peak_gib` where the log has memory",
    )
    peak_gib: Number | None = Field(None, description="Measured peak memory of a GPU [GiB]")
    source: str = Field("", description="Source of the figures")

    def figures(self, table: str, line: int, folder: Path, gpus: int, tokens: int) -> dict[str, Any]:
        """Return the fields of a measured row that hold what was measured, and where.

        Parameters
        ----------
        table, line
            Name of the CSV file, and number of the line.
        folder : Path
            Folder of the CSV file, against which the path of a log is read.
        gpus, tokens : int
            Number of GPUs, and tokens of a step.
        """
        if sum(figure is not None for figure in (self.step_time_s, self.tokens_per_s, self.log or None)) != 1:
            raise ValueError("step_time_s: give one of step_time_s, tokens_per_s and log")
        logged = read_log(folder / self.log) if self.log else None
        step_time, rate = self.step_time_s, self.tokens_per_s
        if logged is not None:
            step_time = logged.step_time
            rate = logged.tokens_per_s_per_gpu and logged.tokens_per_s_per_gpu * gpus
        peak = self.peak_gib if self.peak_gib is not None or logged is None else logged.peak_gib
        return {
            "table": table,
            "line": line,
            "source": self.source or f"{table} line {line}",
            "tokens_per_s": rate or tokens / (step_time or 1.0),
            "peak": None if peak is None else peak * GIB,
        }


class _ScenarioRow(_Measurement):
    """A line whose run has the settings of a scenario file: any model, cluster and training."""

    scenario: str

    def measured(self, table: str, line: int, folder: Path) -> MeasuredRow:
        """Return the measured run in this line of the file; raise ValueError for a scenario without such a run."""
        scenario = load_scenario(folder / self.scenario)
        check_single_point(scenario)
        spec = scenario.training
        frameworks = ("bare", *registry.names("framework"))
        if spec is None or spec.numerics or not isinstance(spec.framework, str) or spec.framework not in frameworks:
            raise ValueError(
                f"scenario: got {self.scenario!r}, which has no simulated training with a shipped framework "
                f"({', '.join(frameworks)}), from whose constants a calibration begins"
            )
        # A few micro-batches are simulated, and stand for the others of an undisturbed step.
        if scenario.cluster.jitter != JitterSpec() or scenario.cluster.events:
            raise ValueError(f"scenario: got {self.scenario!r}, whose cluster has jitter or events; remove both keys")
        tokens = tokens_of_step(scenario, spec)
        return scenario_row(scenario, spec, **self.figures(table, line, folder, scenario.cluster.world_size, tokens))


class UserRow(_Measurement):
    """A line of a user's CSV file with measured runs; empty cells and missing columns have the default."""

    scenario: Literal[""] = Field(
        "",
        description="Scenario file with all settings of the run, beside the CSV file: for adapters, own models, own "
        "topologies; of the other columns, such a line has only those of the measurement above",
    )
    model: Annotated[str, entry("model")] = Field(description="Model: a catalog name (`simulator list models`)")
    layers: Count | None = Field(None, description="Number of layers, if fewer than the model's layers ran")
    gpu: Annotated[str, entry("gpu")] = Field(description="GPU: a catalog name")
    topology: Annotated[str, entry("topology")] = Field(description="Shipped topology with the most similar nodes")
    gpus: Count = Field(description="Total number of GPUs")
    framework: Annotated[str, entry("framework", "bare")] = Field(
        "torchtitan", description="Framework whose constants apply"
    )
    seq_len: Tokens = Field(description="Sequence length in tokens")
    micro_batch_size: Count = Field(description="Sequences per micro-batch on each rank")
    accumulation: Count = Field(1, description="Micro-batches per step and replica")
    sharding: Annotated[str, among(STRATEGIES.names())] = Field(
        "zero3", description="Sharding strategy: ddp, zero1, zero2, zero3, ..."
    )
    reshard: YesNo = Field(True, description="Whether zero3 frees parameters between forward and backward")
    tp: Count = Field(1, description="Tensor-parallel ranks")
    pp: Count = Field(1, description="Pipeline stages")
    cp: Count = Field(1, description="Context-parallel ranks")
    ep: Count = Field(1, description="Expert-parallel ranks")
    sequence_parallel: YesNo = Field(True, description="Whether tensor-parallel ranks also split sequences")
    context: Annotated[Literal["ring", "ulysses"], among(("ring", "ulysses"))] = Field(
        "ring", description="Partition of attention over context-parallel ranks"
    )
    schedule: Annotated[str, among(SCHEDULES.names())] = Field("1f1b", description="Pipeline schedule")
    virtual_stages: Count = Field(1, description="Stages per rank")
    stages: Annotated[tuple[Count, ...], BeforeValidator(_stages)] = Field(
        (), description="Layers of each stage, separated by blanks, if the numbers differ"
    )
    params: Dtype = Field("bfloat16", description="Dtype of parameters and activations")
    grads: Dtype = Field("float32", description="Dtype of accumulated gradients")
    matmul: Dtype = Field("bfloat16", description="Dtype of matmuls' inputs, such as float8_e4m3fn")
    reduce: Dtype = Field("float32", description="Dtype of gradients in communication")
    checkpointing: Annotated[str | int, BeforeValidator(_policy)] = Field(
        "none",
        description="Activation checkpointing: none, full, sqrt, attention, selective_op, feed_forward, activation, or "
        "k for every k-th layer",
    )
    attention: Annotated[Literal["flash", "flash3", "standard"], among(("flash", "flash3", "standard"))] = Field(
        "flash", description="Attention kernels"
    )
    compiled: YesNo = Field(False, description="Whether a compiler merged kernels")
    buckets: YesNo = Field(True, description="Whether the communication of gradients overlaps the backward pass")
    fused_loss: YesNo = Field(False, description="Whether the loss is a single kernel, regardless of the framework")
    optimizer_implementation: Annotated[Implementation, among(get_args(Implementation))] | None = Field(
        None,
        description=(
            "Implementation of the optimizer's update: fused, foreach or for_loop; the framework's default if omitted"
        ),
    )

    def measured(self, table: str, line: int, folder: Path) -> MeasuredRow:
        """Return the measured run in this line of the file; raise ValueError if settings contradict each other.

        `folder` is the CSV file's folder, against which the path of a log is read.
        """
        if self.gpus % (self.tp * self.pp * self.cp):
            raise ValueError(
                f"gpus: got {self.gpus}; must be a multiple of tp x pp x cp, {self.tp * self.pp * self.cp}"
            )
        replicas = self.gpus // (self.tp * self.pp * self.cp)
        tokens = self.seq_len * self.micro_batch_size * self.accumulation * replicas
        row = MeasuredRow(
            **self.figures(table, line, folder, self.gpus, tokens),
            parallelism=self._parallelism(),
            precision=Precision(
                params=self.params, grads=self.grads, reduce=self.reduce, master="float32", matmul=self.matmul
            ),
            **{name: getattr(self, name) for name in _ALIKE},
        )
        # Without `layers`, the whole catalog model ran.
        if self.layers is None:
            return row
        model = load_transformer(self.model, self.seq_len)
        if self.layers > model.num_layers:
            raise ValueError(f"layers: got {self.layers}; {self.model} has {model.num_layers}")
        # Only the number of layers counts for a catalog model; the remaining sizes are unused.
        return replace(row, shape=ModelShape(self.model, self.layers, 0, 0, 0, 0, 0, model.tied))

    def _parallelism(self) -> Parallelism:
        return Parallelism(
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            context=self.context,
            sequence_parallel=self.sequence_parallel,
            schedule=self.schedule,
            virtual_stages=self.virtual_stages,
            stages=self.stages or "auto",
            ep=self.ep,
        )


# Columns with equal names in a measured row.
_ALIKE = (
    "framework", "model", "gpu", "topology", "seq_len", "gpus", "micro_batch_size", "accumulation",
    "sharding", "reshard", "checkpointing", "compiled", "attention", "buckets", "fused_loss",
    "optimizer_implementation",
)  # fmt: skip


# Keys of a scenario, which name the same columns.
_SCENARIO_KEYS: Final = {
    "activation_checkpointing": "checkpointing", "compile": "compiled", "gradient_accumulation_steps": "accumulation",
    "world_size": "gpus", "strategy": "sharding", "reshard_after_forward": "reshard",
    "implementation": "optimizer_implementation",
}  # fmt: skip
# The key of a scenario that the column `attention` states, too: flash3 is flash of generation 3.
_GENERATION: Final = "attention_generation"
_GENERATIONS: Final = {"2": "flash", "3": "flash3"}
# Columns' names in other tables; an abbreviation resembles the wrong column: "ckpt" resembles "cp".
_OTHER_COLUMNS: Final = {
    **dict.fromkeys(("ac", "ckpt", "recompute"), "checkpointing"),
    **dict.fromkeys(("bs", "batch_size", "mbs", "micro_batch"), "micro_batch_size"),
    **dict.fromkeys(("n_gpus", "num_gpus", "ranks"), "gpus"),
    **dict.fromkeys(("ga", "grad_accum", "gradient_accumulation", "micro_batches"), "accumulation"),
    **dict.fromkeys(("seq", "seqlen", "sequence_length"), "seq_len"),
    **dict.fromkeys(("cluster", "machine"), "topology"),
    **dict.fromkeys(("strategy", "zero"), "sharding"),
}


def user_rows(path: Path, topology: str | None = None) -> tuple[MeasuredRow, ...]:
    """Return the measured training runs in a user's CSV file.

    Parameters
    ----------
    path : Path
        CSV with column names in the first line; lines that start with # are skipped.

    topology : str, optional
        Topology of the runs without a topology of their own.

    Raises
    ------
    ScenarioError
        A line for each fault: file, line, column, allowed values.
    """
    table = read_cells(path, _column)
    head = table.head
    absent, wrong = _header(head, None if topology is None else "topology")
    rows, faults = [], [f"{path} line {table.line}: {fault}" for fault in wrong]
    for number, cells in table.lines:
        try:
            entries: dict[str, Any] = filled(cells, head)
            row_type = _ScenarioRow if "scenario" in entries else UserRow
            if topology is not None and row_type is UserRow:
                entries.setdefault("topology", topology)
            if generation := entries.pop(_GENERATION, ""):
                entries["attention"] = _attention(generation, entries.get("attention", "flash"))
            row = row_type(**{name: text for name, text in entries.items() if name in UserRow.model_fields})
            if not wrong:
                rows.append(row.measured(path.stem, number, path.parent))
        except ValidationError as error:
            # An absent column is a single mistake, of the first line.
            texts = [_fault(one) for one in error.errors() if one["type"] != "missing" or one["loc"][0] not in absent]
            faults += [f"{path} line {number}: {fault}" for fault in texts]
        except (ValueError, ScenarioError) as error:
            faults.append(f"{path} line {number}: {error}")
    if not rows and not faults:
        faults.append(f"{path}: has no rows; the first line names columns, every further line is a run")
    if faults:
        raise ScenarioError(in_lines(faults))
    return tuple(rows)


def _column(name: str) -> str:
    """Return the column that a name in the first line means: its own name, or a key of a scenario.

    >>> _column("tp"), _column("compile"), _column("training.parallelism.tp")
    ('tp', 'compiled', 'tp')
    """
    key = name.rpartition(".")[2] if name.startswith(("training.", "cluster.")) else name
    return _SCENARIO_KEYS.get(key, key)


def _attention(generation: str, attention: str) -> str:
    """Return the attention kernels of a generation; raise ValueError if there are none, or `attention` names others."""
    if generation not in _GENERATIONS:
        raise ValueError(f"{_GENERATION}: got {generation!r}; {one_of(_GENERATIONS, generation)}")
    # Without flash kernels there is no generation.
    if not attention.startswith("flash"):
        return attention
    if attention == "flash3" and generation != "3":
        raise ValueError(f"{_GENERATION}: got {generation!r} with attention flash3, which is generation 3")
    return _GENERATIONS[generation]


def _header(head: Sequence[str], column: str | None) -> tuple[frozenset[str], list[str]]:
    """Return the required columns that the first line lacks, and a fault for each mistake in it.

    `column` is a required column that the rows may lack. A column proposed in place of an unknown one is not reported
    as missing, too.
    """
    fields = UserRow.model_fields
    needed = {name for name, field in fields.items() if field.is_required() and name != column}
    # Lines with a scenario need none of these columns.
    absent = frozenset(needed.difference(head)) if "scenario" not in head else frozenset()
    uses = Counter(filter(None, head))
    faults = [f"{name}: names {count} columns; keep one of them" for name, count in uses.items() if count > 1]
    proposed: set[str] = set()
    for name in uses.keys() - fields.keys() - {_GENERATION}:
        if _is_rate_of_a_gpu(name):
            proposed.add("tokens_per_s")
            faults.append(f"{name}: no such column; tokens_per_s is the total of all GPUs; multiply by their number")
            continue
        near = _OTHER_COLUMNS.get(name.lower(), name)
        proposed.update(similar(sorted(fields), near, MOST_MEANT))
        faults.append(f"{name}: no such column; {one_of(fields, near, 'docs/validation.md')}")
    faults += [f"{name}: is missing; every run needs this column" for name in sorted(absent - proposed)]
    if not {"step_time_s", "tokens_per_s", "log"} & (uses.keys() | proposed):
        faults.append("step_time_s: is missing; give one of step_time_s, tokens_per_s and log")
    return absent, sorted(faults)


def _is_rate_of_a_gpu(name: str) -> bool:
    """Return True if a column's name means tokens per second of each GPU."""
    return "gpu" in name.lower() and re.search("tok|tps|wps", name.lower()) is not None


def _fault(error: Any) -> str:
    column = ".".join(str(part) for part in error["loc"][:1])
    if error["type"] == "missing":
        return f"{column}: is missing; every run needs this column, or a scenario"
    if error["type"] == "extra_forbidden":
        return f"{column}: got {error['input']!r} beside a scenario, which has all settings; remove the cell"
    return f"{column}: got {error['input']!r}; {error['msg'].removeprefix('Value error, ')}"


def columns() -> str:
    """Return the documentation's table of the CSV file's columns, in Markdown."""
    lines = ["| column | default | meaning |", "|---|---|---|"]
    for name, field in UserRow.model_fields.items():
        default = "needed" if field.is_required() else "" if field.default in (None, (), "") else f"{field.default}"
        lines.append(
            f"| `{name}` | {default.lower() if isinstance(field.default, bool) else default} | {field.description} |"
        )
    return "\n".join(lines) + "\n"
