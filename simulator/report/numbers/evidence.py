"""On what evidence does a step's time rest? Its parts by the grade of the constants behind its kernels.

Grades: "measured" (kernels or collectives measured on this GPU and machine), "other_gpu" (measured on another one),
"data_sheet" (a rating), "assumed". A kernel counts with the worst grade among its constants. Idle time rests on all of
them and does not count. Factors of a framework are not graded: the caveats tell what was measured of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, get_args

from simulator.basics.dtypes import is_narrow
from simulator.cluster.cluster import BORROWED
from simulator.cluster.library import MODELLED
from simulator.records.timeline import Span
from simulator.step.kernels.kernel_model import Grade, KernelModel, kernel_model
from simulator.step.kernels.kernel_time import MatmulKind, attention_family, default_attention

if TYPE_CHECKING:
    from simulator.cluster.cluster import Gpu
    from simulator.records.operation import KernelParts
    from simulator.step.spec import TrainingStep

# From the best evidence to none.
GRADES: Final[tuple[Grade, ...]] = get_args(Grade)


def worst(grades: Iterable[Grade]) -> Grade:
    """Return the worst of some grades; "assumed" if there are none.

    >>> worst(["measured", "data_sheet"]), worst([])
    ('data_sheet', 'assumed')
    """
    return max(grades, key=GRADES.index, default="assumed")


def grade_of(model: KernelModel, family: str) -> Grade:
    """Return the worst grade among the constants of a kernel ("matmul_bfloat16"), HBM's bandwidth included."""
    names = [name for name in model.constants if name == family or name.startswith(f"{family}_")]
    return worst([model.constants[name].grade for name in names])


def matmul_grade(model: KernelModel, dtype: str, *, blocks: bool = False, kind: MatmulKind = "matmul") -> Grade:
    """Return the worst grade among the constants of a matmul; plain matmuls say little about those of experts."""
    family = model.matmul_family(dtype, blocks=blocks, kind=kind)
    grade = grade_of(model, family)
    return grade if family.startswith(kind) else "assumed"


def kernel_grades(gpu: Gpu, step: TrainingStep) -> dict[str, Grade]:
    """Return the grade of each kind of kernel in a step on a GPU: "matmul", "attention" and "elementwise"."""
    model, precision = kernel_model(gpu), step.precision
    kinds: list[MatmulKind] = ["matmul", "grouped"] if step.model.num_experts else ["matmul"]
    blocks = precision.scaling == "block"
    chosen = step.keys.attention_generation
    generation = default_attention(gpu) if chosen == "auto" else chosen
    dtype = precision.params if is_narrow(precision.matmul) else precision.matmul
    attentions = {attention_family(model, generation, dtype, backward=backward) for backward in (False, True)}
    return {
        "matmul": worst(matmul_grade(model, precision.matmul, blocks=blocks, kind=kind) for kind in kinds),
        "attention": worst(grade_of(model, family) for family in attentions),
        "elementwise": model.constants["elementwise" if "elementwise" in model.constants else "hbm_efficiency"].grade,
    }


def evidence(
    kernels: Iterable[tuple[Span, KernelParts]], grades: Mapping[str, Grade], exposed: float, sources: Iterable[str]
) -> dict[str, float]:
    """Return the time of a rank's kernels and exposed communication by grade of evidence [s].

    Parameters
    ----------
    kernels : iterable of (Span, KernelParts)
        Kernels of the rank, with the shares of their kinds.
    grades : mapping of str to Grade
        From `kernel_grades`.
    exposed : float
        Exposed communication [s].
    sources : iterable of str
        Sources of the machine's measured constants.

    Examples
    --------
    >>> span = Span(0, "compute", "layer", "forward", 0.0, 3.0)
    >>> parts = ("matmul", 0.5), ("attention", 0.5)
    >>> evidence([(span, parts)], {"matmul": "measured", "attention": "assumed"}, 1.0, [])
    {'measured': 1.5, 'other_gpu': 0.0, 'data_sheet': 1.0, 'assumed': 1.5}
    """
    seconds: dict[str, float] = dict.fromkeys(GRADES, 0.0)
    for span, parts in kernels:
        for kind, share in parts or (("elementwise", 1.0),):
            seconds[grades.get(kind, "assumed")] += share * (span.end - span.start)
    seconds[_network_grade(sources)] += exposed
    return seconds


def _network_grade(sources: Iterable[str]) -> Grade:
    listed = list(sources)
    if not listed:
        return "data_sheet"
    return "other_gpu" if any(source.startswith((BORROWED, MODELLED)) for source in listed) else "measured"
