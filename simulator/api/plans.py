"""`simulator.plan`: the fastest layouts of a training, asked for from Python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.errors import ScenarioError, ScenarioWarning
from simulator.planner.asked import Question, Said, base_scenario, batch_of, question_of, told_number
from simulator.planner.contradictions import refuse_contradictions
from simulator.planner.explain import against
from simulator.planner.search import Plan, search
from simulator.planner.sensitivity import sensitivity
from simulator.planner.setting import scenario_of
from simulator.planner.sizes import Size, sizes
from simulator.planner.told import all_played, document, front, reasons, sentences
from simulator.results.page.plan_page import plan_page
from simulator.scenario.load import load_scenario
from simulator.scenario.plan_spec import BEST
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import to_yaml
from simulator.sweeps.sweep import Backend

if TYPE_CHECKING:
    import pandas as pd

# Columns of the table that a notebook shows.
_SHOWN: Final = (
    "tp", "pp", "cp", "ep", "dp", "schedule", "virtual_stages", "sharding", "micro_batch", "micro_batches",
    "checkpointing", "step_time_s", "mfu", "tokens_per_s_per_gpu", "peak_memory_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Planned(Plan):
    """A plan that shows itself: in a notebook its answer and its table.

    Attributes
    ----------
    question : Question
        What was asked for.
    tried : tuple of Size
        Numbers of GPUs, where several or a deadline were asked for.
    """

    question: Question
    tried: tuple[Size, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The answer, as `simulator plan` prints it."""
        return sentences(self, self.question.budget, self.question.deadline)

    def scenario(self, place: int = 0) -> Scenario:
        """The scenario of one of the best, for `simulate`: 0 is the fastest."""
        return scenario_of(self.base, self.best[place].setting)

    def why(self) -> pd.DataFrame:
        """What each of the best takes more than the fastest, by part of a step; the parts add up to `whole` [s]."""
        import pandas as pd

        found = [against(self.best[0], one) for one in self.best]
        rows = [one.parts | {"whole": one.whole} for one in found]
        return pd.DataFrame(rows, index=pd.Index([one.setting.text for one in self.best], name="setting"))

    def front(self) -> pd.DataFrame:
        """Of the played settings those than which none is as fast, as small and on as few GPUs, fastest first."""
        import pandas as pd

        rows = [
            {"setting": one.setting.text, "gpus": one.setting.gpus, "step_time_s": one.step_time,
             "peak_memory_bytes": one.report["peak_memory_bytes"]}
            for one in front(all_played(self, self.tried))
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["setting", "gpus", "step_time_s", "peak_memory_bytes"]).set_index("setting")

    def sizes(self) -> pd.DataFrame:
        """What each number of GPUs gives, where several or a deadline were asked for: its fastest setting, and that
        training's days, GPU hours and cost."""
        import pandas as pd

        return pd.DataFrame([one.to_dict() for one in self.tried], columns=["gpus"] if not self.tried else None)

    def left_out(self) -> pd.Series[Any]:
        """How many settings were left out, by reason, most first."""
        import pandas as pd

        return pd.Series(reasons(self), name="settings", dtype="int64")

    def sensitivity(self, jobs: int | None = None) -> pd.DataFrame:
        """What twice the network, one more network card a node and twice the memory would change: plans again for each.

        Columns are seconds of a step: of the best setting as it is, of the same one on the other machine, and of the
        fastest there, which `setting` names.
        """
        import pandas as pd

        rows = [
            {"change": one.change, "before": one.before, "same": one.same, "fastest": one.best.step_time,
             "setting": one.best.setting.text}
            for one in sensitivity(self, Backend(jobs))
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["change", "before", "same", "fastest", "setting"]).set_index("change")

    def to_html(self) -> str:
        """The page that `simulator plan --out` leaves as report.html."""
        best = to_yaml(self.scenario()) if self.best else ""
        return plan_page(document(self, self.question.budget, self.tried), self.question.text, self.sentences, best)

    def __repr__(self) -> str:
        return f"<Plan of {self.considered:,} settings, {len(self.played):,} played: {self.sentences[0]}>"

    def _repr_html_(self) -> str:
        lines = [f"<p><b>{escape(self.question.text)}</b></p>", *(f"<p>{escape(one)}</p>" for one in self.sentences)]
        table = self.frame()[list(_SHOWN)].to_html() if self.best else ""
        return "".join(lines) + table


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
) -> Planned:
    """Find the fastest layouts of a training on so many GPUs.

    Parameters
    ----------
    model : str, mapping or Scenario
        A catalog's name, the path of a config.json, or its content. Without `topology` a scenario that has `plan`: its
        name, path or content, or what `load_scenario` gives; then it says all that is asked for here.
    topology : str or mapping, optional
    gpus : int, optional
        Ranks; the most of `among["gpus"]` if it is left out.
    seq_len : int, optional
        Tokens of a sequence.
    global_batch : str or int, optional
        Of a step: tokens (`"4M"`, 4194304) or sequences (`"512seq"`).
    fix, among : mapping, optional
        By name what is chosen already, or the values to choose among: {"tp": 8}, {"pp": [1, 2, 4]}. Each of several
        {"gpus": [128, 256]} is planned by itself.
    without : sequence of str
        Values to leave out: "zero3", "offload".
    settings : mapping, optional
        Other keys of the scenario: {"training.framework": "nemo"}.
    best : int, optional
        How many are wanted; ten if it is left out.
    jobs : int, optional
        Processes of this machine; all is played in this one if it is left out.
    scheduler : str, optional
        "tcp://HOST:PORT" of a Dask cluster that plays instead.
    cache : path, optional
        Folder in which outcomes are kept, and looked up before they are played.

    Returns
    -------
    Planned
        `best` are records, `frame()` is a pandas table of them, `why()` and `left_out()` explain them.

    Raises
    ------
    ScenarioError
        What is asked for cannot be, or contradicts itself.
    TooLargeError
        This machine cannot hold the cluster, or any step.

    Warns
    -----
    ScenarioWarning
        Simulating takes long.

    Examples
    --------
    >>> found = plan("gpt2", topology="dgx_a100", gpus=8, seq_len=1024, global_batch="64seq",
    ...              fix={"pp": 1, "checkpointing": "none"}, among={"sharding": ["zero1", "zero3"]}, best=1)
    >>> found.best[0].setting.sharding
    'zero1'
    """
    given = {"topology": topology, "gpus": gpus, "seq_len": seq_len, "global_batch": global_batch}
    if topology is None or isinstance(model, Scenario):
        others = given | {"fix": fix, "among": among, "without": without or None, "settings": settings}
        question = _of_scenario(model, [name for name, value in others.items() if value is not None])
    else:
        said = [Said(f"fix {name}={value}", name, [value]) for name, value in (fix or {}).items()]
        said += [Said(f"among {name}={list(values)}", name, values) for name, values in (among or {}).items()]
        given["gpus"] = gpus = told_number(gpus, said, "gpus")
        if gpus is None or seq_len is None or global_batch is None:
            missing = [name for name, value in given.items() if value is None]
            raise ScenarioError(f"plan: of a model needs {', '.join(missing)} too")
        base = base_scenario(model, {"topology": topology, "world_size": gpus}, seq_len, settings or {})
        left_out = tuple(Said(f"without {value}", "", [value]) for value in without)
        question = Question(base, batch_of(global_batch, seq_len, "global_batch"), tuple(said), left_out, BEST)
    backend = Backend(jobs, scheduler, None if cache is None else Path(cache))
    question = question if best is None else replace(question, best=best)
    line = question.announced()
    if line:
        warnings.warn(line, ScenarioWarning, stacklevel=2)
    refuse_contradictions(question)
    *_, found = search(question.base, question.sequences, question.choices(), best=question.best, backend=backend)
    tried = tuple(sizes(found, question, backend))
    return Planned(
        question=question, tried=tried, **{field.name: getattr(found, field.name) for field in fields(found)}
    )


def _of_scenario(source: str | Mapping[str, Any] | Scenario, others: Sequence[str]) -> Question:
    """What a scenario asks for, which says everything itself."""
    if others:
        raise ScenarioError(f"plan: {others[0]}: goes with a model and a topology; a scenario's `plan` says it itself")
    return question_of(source if isinstance(source, Scenario) else load_scenario(source))
