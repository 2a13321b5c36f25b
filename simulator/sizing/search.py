"""Answers a question: the verdict, the fewest cards, and changes that help or sizes that still fit.

Changes are single ones, then pairs. Pairs are tried by the product of the speeds of their parts, the fastest first, so
that few of them are simulated. A pair that keeps the method (full training, LoRA, QLoRA) is sought before the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice
from typing import Final

from simulator.run.checks import warn_of
from simulator.sizing.answer import FitChange, FitCheck
from simulator.sizing.changes import Change, cards_keys, changes
from simulator.sizing.question import FitQuestion
from simulator.sizing.trials import Trials

# Changes to report.
_MOST_TOLD: Final = 3
# Most cards, sequences of a micro-batch and tokens of a sequence that are searched.
_MOST_CARDS: Final = 512
_MOST_SEQUENCES: Final = 1024
_MOST_TOKENS: Final = 2**20
# The longest sequence is found to a sixteenth of the power of two below it.
_PARTS: Final = 16


def fit_check(question: FitQuestion) -> FitCheck:
    """Return whether a training fits on its cards, with the changes that help, or the largest sizes that fit.

    Raises
    ------
    ScenarioError
        The question is invalid, or the card does not support such a training; one line for each fault.

    Examples
    --------
    >>> found = fit_check(FitQuestion(model="llama3_8b", gpu="rtx_4090", method="qlora", seq_len=1024))
    >>> found.fits, found.fewest_gpus
    (True, 1)
    """
    warn_of(question.scenario())
    trials = Trials(question)
    asked = trials.simulated({})
    fewest, most = _fewest_cards(trials, question.gpus, fits=asked.margin.fits)
    helpful: tuple[FitChange, ...] = ()
    micro_batch = seq_len = None
    if asked.margin.fits:
        micro_batch = _largest(trials, "training.micro_batch_size", question.micro_batch, _MOST_SEQUENCES)
        seq_len = _largest(trials, "training.seq_len", question.seq_len, _MOST_TOKENS, _PARTS)
    else:
        helpful = _helpful(trials, changes(question), asked.tokens_per_s_per_gpu)
    return FitCheck(
        question=question,
        margin=asked.margin,
        tokens_per_s_per_gpu=asked.tokens_per_s_per_gpu,
        fewest_gpus=fewest,
        most_gpus=most,
        changes=helpful,
        largest_micro_batch=micro_batch,
        longest_sequence=seq_len,
    )


def _fewest_cards(trials: Trials, asked: int, *, fits: bool) -> tuple[int | None, int]:
    """Return the fewest cards that fit, of 1, 2, 4, ... and the asked number, and the largest number that was tried.

    `fits` says whether the asked number fits.
    """
    most = asked
    for cards in sorted({asked, *(2**power for power in range(_MOST_CARDS.bit_length()))}):
        # The machine has no more cards.
        if not trials.exists(cards_keys(cards)):
            break
        most = max(most, cards)
        if fits if cards == asked else trials.fits(cards_keys(cards)):
            return cards, most
    return None, most


def _largest(trials: Trials, key: str, asked: int, most: int, parts: int | None = None) -> int:
    """Return the largest value of a key, from a value that fits, with which the training fits.

    Parameters
    ----------
    key : str
        Dotted key with a whole number.
    asked : int
        A value that fits.
    most : int
        Largest value to try.
    parts : int, optional
        Resolution: the doubled range is searched in so many parts; whole numbers if omitted.
    """
    low = asked
    while 2 * low <= most and trials.fits({key: 2 * low}):
        low *= 2
    unit = max(1, low // parts) if parts else 1
    beyond = min(2 * low, most + 1)
    while beyond - low > unit:
        middle = low + max(unit, (beyond - low) // 2 // unit * unit)
        if trials.fits({key: middle}):
            low = middle
        else:
            beyond = middle
    return low


def _helpful(trials: Trials, possible: Sequence[Change], speed: float) -> tuple[FitChange, ...]:
    """Return up to three changes that make a training fit: single changes before pairs, changes that keep the method
    before others, then the smallest loss of speed.

    `speed` is that of the training without changes [tokens/s per card].
    """
    found = dict(_fitting(trials, [(change,) for change in possible], speed))
    told = list(found.values())
    if len(told) < _MOST_TOLD:
        # Stronger changes of the same kinds: full checkpointing, if selective_op is enough.
        texts = {one.text for one in told}
        stronger = [(change,) for change in possible if (change.kind,) in found and change.text not in texts]
        told += [one for _, one in islice(_fitting(trials, stronger, speed), _MOST_TOLD - len(told))]
    if len(told) < _MOST_TOLD:
        # A pair with a change that suffices alone, or with a stronger one of its kind, costs more than needed.
        pairs = _pairs(trials, [change for change in possible if (change.kind,) not in found])
        kept = [pair for pair in pairs if all(part.kind != "method" for part in pair)]
        told += [one for _, one in islice(_fitting(trials, kept, speed), 1)]
        others = [pair for pair in pairs if tuple(part.kind for part in pair) not in {one.kinds for one in told}]
        told += [one for _, one in islice(_fitting(trials, others, speed), _MOST_TOLD - len(told))]
    return tuple(sorted(told, key=lambda one: one.order)[:_MOST_TOLD])


def _pairs(trials: Trials, parts: Sequence[Change]) -> list[tuple[Change, ...]]:
    """Return pairs of changes of different kinds, by the product of the speeds of their parts, the fastest first."""
    # Without such a training, a change is in no pair.
    speeds = {part.text: trials.simulated(part.keys).tokens_per_s_per_gpu for part in parts if trials.exists(part.keys)}
    pairs = combinations([part for part in parts if part.text in speeds], 2)
    return sorted(
        (pair for pair in pairs if pair[0].kind != pair[1].kind),
        key=lambda pair: -speeds[pair[0].text] * speeds[pair[1].text],
    )


def _fitting(
    trials: Trials, tried: Iterable[tuple[Change, ...]], speed: float
) -> Iterator[tuple[tuple[str, ...], FitChange]]:
    """Yield (kinds, change) for changes after which a training fits, the first of each combination of kinds."""
    known = set[tuple[str, ...]]()
    for together in tried:
        kinds = tuple(part.kind for part in together)
        keys = {key: value for part in together for key, value in part.keys.items()}
        if kinds in known or not trials.may_fit(keys):
            continue
        trial = trials.simulated(keys)
        if trial.margin.fits:
            known.add(kinds)
            text = " and ".join(part.text for part in together)
            own = trial.tokens_per_s_per_gpu
            yield kinds, FitChange(text, kinds, keys, trial.margin, own, own / speed)
