"""How do Python users find the fastest settings of a training step? `simulator.plan` returns a PlanResult."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.errors import ScenarioError, ScenarioWarning
from simulator.planner.cluster_sizes import ClusterSizeResult, sizes
from simulator.planner.contradictions import refuse_contradictions
from simulator.planner.explain import step_difference
from simulator.planner.plan_question import (
    Constraint,
    PlanQuestion,
    batch_of,
    largest_number,
    plan_question,
    shared_scenario,
)
from simulator.planner.plan_report import all_played, document, front, reasons, sentences
from simulator.planner.search import SearchResult, search
from simulator.planner.sensitivity import sensitivity
from simulator.planner.setting import scenario_of
from simulator.planner.what_if import what_if as what_if
from simulator.report.numbers.headline import HasSentences
from simulator.results.page.plan_page import plan_page
from simulator.scenario.load import load_scenario
from simulator.scenario.plan_spec import PlanSpec
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import to_yaml
from simulator.sweeps.sweep import Backend

if TYPE_CHECKING:
    import pandas as pd

# Columns displayed in a notebook.
_SHOWN: Final = (
    "tp", "pp", "cp", "ep", "dp", "schedule", "virtual_stages", "sharding", "micro_batch", "micro_batches",
    "checkpointing", "step_time_s", "mfu", "tokens_per_s_per_gpu", "peak_memory_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanResult(HasSentences, SearchResult):
    """Result of `simulator.plan`; a notebook displays its answer and its table."""

    question: PlanQuestion  # the question with its constraints
    # Plans for several numbers of GPUs, if requested or needed for a deadline.
    tried: tuple[ClusterSizeResult, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The plan's answer in sentences, printed by `simulator plan`."""
        return sentences(self, self.question.budget, self.question.plan.deadline)

    def scenario(self, place: int = 0) -> Scenario:
        """Return the scenario of a best setting, for `simulate`; `place` 0 is the fastest setting, 1 the next."""
        return scenario_of(self.base, self.best[place].setting)

    def why(self) -> pd.DataFrame:
        """Return a table of the best settings' additional seconds over the fastest, by part of a step.

        `whole` is the sum.
        """
        import pandas as pd

        differences = [step_difference(self.best[0], candidate) for candidate in self.best]
        rows = [difference.parts | {"whole": difference.whole} for difference in differences]
        return pd.DataFrame(rows, index=pd.Index([candidate.setting.text for candidate in self.best], name="setting"))

    def front(self) -> pd.DataFrame:
        """Return a table with the Pareto front of step time, peak memory and number of GPUs, fastest first."""
        import pandas as pd

        rows = [
            {"setting": candidate.setting.text, "gpus": candidate.setting.gpus, "step_time_s": candidate.step_time,
             "peak_memory_bytes": candidate.report["peak_memory_bytes"]}
            for candidate in front(all_played(self, self.tried))
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["setting", "gpus", "step_time_s", "peak_memory_bytes"]).set_index("setting")

    def sizes(self) -> pd.DataFrame:
        """Return a table with a row per number of GPUs: its fastest setting, and a training's days, GPU hours, cost.

        The table is empty without a request for several numbers or a deadline.
        """
        import pandas as pd

        # An empty table keeps its key column.
        return pd.DataFrame([size.to_dict() for size in self.tried], columns=["gpus"] if not self.tried else None)

    def left_out(self) -> pd.Series[Any]:
        """Return the number of settings that were not simulated, by reason, commonest reason first."""
        import pandas as pd

        return pd.Series(reasons(self), name="settings", dtype="int64")

    def sensitivity(self, jobs: int | None = None) -> pd.DataFrame:
        """Return a table of step times on changed machines: twice the network, one more network card, twice the memory.

        Columns are step times [s]: `before` for the best setting on this machine, `same` for this setting on the
        changed machine, and `fastest` for the fastest setting on the changed machine, named by `setting`.
        """
        import pandas as pd

        rows = [
            {"change": effect.change, "before": effect.before, "same": effect.same, "fastest": effect.best.step_time,
             "setting": effect.best.setting.text}
            for effect in sensitivity(self, Backend(jobs))
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["change", "before", "same", "fastest", "setting"]).set_index("change")

    def to_html(self) -> str:
        """Return the plan's page in HTML, written by `simulator plan --out` to report.html."""
        best = to_yaml(self.scenario()) if self.best else ""
        content = document(self, self.question.budget, self.question.plan.deadline, self.tried)
        return plan_page(content, self.question.text, best)

    def __repr__(self) -> str:
        return f"<Plan of {self.considered:,} settings, {len(self.played):,} simulated: {self.sentences[0]}>"

    def shown(self) -> tuple[str, str]:
        """Return what was asked, and the table of the best settings as HTML."""
        # The full table has too many columns for a notebook.
        return self.question.text, self.frame()[list(_SHOWN)].to_html() if self.best else ""


def plan(
    model: str | Mapping[str, Any] | Scenario,
    *,
    topology: str | Mapping[str, Any] | None = None,
    gpus: int | None = None,
    seq_len: int | None = None,
    global_batch: str | int | None = None,
    fix: Mapping[str, Any] | None = None,
    among: Mapping[str, Sequence[Any]] | None = None,
    without: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    best: int | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    cache: Path | str | None = None,
) -> PlanResult:
    """Find the fastest settings (parallelism, sharding, micro-batch, checkpointing) for a training step.

    Parameters
    ----------
    model : str, mapping or Scenario
        A catalog model, the path to a config.json, or its content. Without `topology`: a scenario with a `plan` section
        (its name, path, content, or a `load_scenario` result), which contains every other parameter.
    topology : str or mapping, optional
        A shipped topology, the path to a topology file, or its content.
    gpus : int, optional
        Number of GPUs; if omitted, the largest number in `among["gpus"]`.
    seq_len : int, optional
        Sequence length [tokens].
    global_batch : str or int, optional
        Global batch per step in tokens (`"4M"`, 4194304) or in sequences (`"512seq"`).
    fix, among : mapping, optional
        A dimension's value, or values to choose among: {"tp": 8}, {"pp": [1, 2, 4]}. With several numbers of GPUs,
        {"gpus": [128, 256]}, each number is planned separately.
    without : sequence of str
        Values to exclude: "zero3", "offload".
    settings : mapping, optional
        Other scenario keys: {"training.framework": "nemo"}.
    best : int, optional
        Number of settings to find; ten if omitted.
    jobs : int, optional
        Number of processes; if omitted, this process simulates.
    scheduler : str, optional
        "tcp://HOST:PORT" for simulations on a Dask cluster.
    cache : path, optional
        Folder with cached outcomes.

    Returns
    -------
    PlanResult
        `best` lists the settings, `frame()` is a pandas table, `why()` and `left_out()` explain the result.

    Raises
    ------
    ScenarioError
        The question is not valid, or its constraints contradict each other.
    TooLargeError
        This machine cannot hold the cluster, or any step.

    Warns
    -----
    ScenarioWarning
        The search takes long.

    Examples
    --------
    >>> result = plan("gpt2", topology="dgx_a100", gpus=8, seq_len=1024, global_batch="64seq",
    ...               fix={"pp": 1, "checkpointing": "none"}, among={"sharding": ["zero1", "zero3"]}, best=1)
    >>> result.best[0].setting.sharding
    'zero1'
    """
    parameters = {"topology": topology, "gpus": gpus, "seq_len": seq_len, "global_batch": global_batch}
    if topology is None or isinstance(model, Scenario):
        # A scenario's `plan` section already contains these parameters.
        others = parameters | {"fix": fix, "among": among, "without": without or None, "settings": settings}
        question = _of_scenario(model, [name for name, value in others.items() if value is not None])
    else:
        # The first field is the constraint's text in error messages.
        rules = [Constraint(f"fix {name}={value}", name, [value]) for name, value in (fix or {}).items()]
        rules += [Constraint(f"among {name}={list(values)}", name, values) for name, values in (among or {}).items()]
        # With several numbers of GPUs, the full report is on the largest.
        parameters["gpus"] = gpus = largest_number(gpus, rules, "gpus")
        if gpus is None or seq_len is None or global_batch is None:
            missing = [name for name, value in parameters.items() if value is None]
            raise ScenarioError(
                f"plan: missing {', '.join(missing)}; the plan of a model needs topology, gpus, seq_len and "
                "global_batch"
            )
        base = shared_scenario(model, {"topology": topology, "world_size": gpus}, seq_len, settings or {})
        left_out = tuple(Constraint(f"without {value}", "", [value]) for value in without)
        batch = batch_of(global_batch, seq_len, "global_batch")
        question = PlanQuestion(base, PlanSpec.model_construct(global_batch=batch), tuple(rules), left_out)
    backend = Backend(jobs, scheduler, None if cache is None else Path(cache))
    # The argument overrides the scenario's `plan.best`.
    question = question if best is None else replace(question, plan=question.plan.replaced(best=best))
    # Warn before the search, which may take hours.
    for line in question.announced():
        warnings.warn(line, ScenarioWarning, stacklevel=2)
    refuse_contradictions(question)
    # The search yields a result after each simulation; only the last is complete.
    *_, outcome = search(
        question.base, question.sequences, question.choices(), best=question.plan.best, backend=backend
    )
    tried = tuple(sizes(outcome, question, backend))
    return PlanResult(
        question=question, tried=tried, **{field.name: getattr(outcome, field.name) for field in fields(outcome)}
    )


def _of_scenario(source: str | Mapping[str, Any] | Scenario, others: Sequence[str]) -> PlanQuestion:
    """Return the question in a scenario's `plan` section; raise ScenarioError if `others` are also given."""
    if others:
        raise ScenarioError(f"plan: {others[0]}: needs a model and a topology; a scenario has its own key `plan`")
    return plan_question(source if isinstance(source, Scenario) else load_scenario(source))
