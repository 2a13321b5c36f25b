"""What does a training step process: tokens of sequences, or samples that are no sequences, such as images?

A model has a unit of work, and a report states the unit of its model. Tables, sentences, pages and plots take their
words from here: "tokens/s" or "samples/s". Names of fields are the same for both: `tokens_per_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from simulator.basics.counts import number_of

TOKEN: Final = "token"
SAMPLE: Final = "sample"
# Tokens that are not padding. Rates in tokens count every token, as most logs do.
USEFUL_TOKEN: Final = "useful token"
# Share of used tokens from which padding is not told: what packing leaves at the end of sequences.
_NEARLY_ALL: Final = 0.995


def work_unit(reports: Iterable[Mapping[str, Any] | None]) -> str:
    """Return the unit in which the speeds of all reports are told; tokens if the reports have different units.

    None stands for a point without a report and has no unit.

    >>> work_unit([{"work_unit": "sample"}, None]), work_unit([{"work_unit": "sample"}, {"work_unit": "token"}])
    ('sample', 'token')
    """
    units = {report.get("work_unit", TOKEN) for report in reports if report is not None}
    return SAMPLE if units == {SAMPLE} else TOKEN


def useful_unit(reports: Iterable[Mapping[str, Any] | None]) -> str:
    """Return the unit of the work that counts towards a training: useful tokens if a report has padding.

    >>> useful_unit([{"tokens_used": 0.6}]), useful_unit([{"work_unit": "sample"}])
    ('useful token', 'sample')
    """
    present = [report for report in reports if report is not None]
    return USEFUL_TOKEN if has_padding(present) else work_unit(present)


def has_padding(reports: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if tokens in the steps of the reports are padding, more than a few in a thousand.

    >>> has_padding([{"tokens_used": 0.9}, {}]), has_padding([{}]), has_padding([{"tokens_used": 0.9998}])
    (True, False, False)
    """
    return any(report.get("tokens_used", 1.0) < _NEARLY_ALL for report in reports)


def useful_rate(report: Mapping[str, Any]) -> float:
    """Return a report's speed without padding, in tokens or samples per second [1/s].

    >>> useful_rate({"tokens_per_s": 100.0, "useful_tokens_per_s": 90.0})
    90.0
    >>> useful_rate({"tokens_per_s": 100.0})  # from an earlier version
    100.0
    """
    return float(report.get("useful_tokens_per_s", report["tokens_per_s"]))


def micro_batch_text(unit: str, size: int, seq_len: int) -> str:
    """Return the size of a micro-batch as text: sequences x tokens, or samples that are no sequences.

    >>> micro_batch_text(TOKEN, 2, 8192), micro_batch_text(SAMPLE, 256, 1)
    ('2 x 8,192 tokens', '256 samples')
    """
    return number_of(size, SAMPLE) if unit == SAMPLE else f"{size} x {seq_len:,} tokens"


def rate_name(unit: str) -> str:
    """Return the name of a speed in a unit of work.

    >>> rate_name(TOKEN), rate_name(SAMPLE)
    ('tokens/s', 'samples/s')
    """
    return f"{unit}s/s"
