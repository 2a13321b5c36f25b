"""Answers a question: the verdict, the fewest cards, and changes that help or sizes that still fit.

Changes are single ones, then pairs. Pairs are tried by the product of the speeds of their parts, the fastest first, so
that few of them are simulated. A pair that keeps the method (full training, LoRA, QLoRA) is sought before the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice
from typing import Final

from simulator.planner.sizing.answer import FitChange, FitCheck
from simulator.planner.sizing.changes import TrainingChange, cards_keys, changes
from simulator.planner.sizing.fit_question import FitQuestion
from simulator.planner.sizing.trials import Trials
from simulator.run.checks import warn_of

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
    trial = trials.simulated({})
    fewest, most = _fewest_cards(trials, question.gpus, fits=trial.margin.fits)
    helpful: tuple[FitChange, ...] = ()
    micro_batch = seq_len = None
    if trial.margin.fits:
        micro_batch = _largest(trials, "training.micro_batch_size", question.micro_batch, _MOST_SEQUENCES)
        seq_len = _largest(trials, "training.seq_len", question.seq_len, _MOST_TOKENS, _PARTS)
    else:
        helpful = _helpful(trials, changes(question), trial.tokens_per_s_per_gpu)
    return FitCheck(
        question=question,
        margin=trial.margin,
        tokens_per_s_per_gpu=trial.tokens_per_s_per_gpu,
        fewest_gpus=fewest,
        most_gpus=most,
        changes=helpful,
        largest_micro_batch=micro_batch,
        longest_sequence=seq_len,
    )


def _fewest_cards(trials: Trials, gpus: int, *, fits: bool) -> tuple[int | None, int]:
    """Return the fewest cards that fit, of 1, 2, 4, ... and the asked number, and the largest number that was tried.

    `fits` says whether the asked number fits.
    """
    most = gpus
    for cards in sorted({gpus, *(2**power for power in range(_MOST_CARDS.bit_length()))}):
        # The machine has no more cards.
        if not trials.exists(cards_keys(cards)):
            break
        most = max(most, cards)
        if fits if cards == gpus else trials.fits(cards_keys(cards)):
            return cards, most
    return None, most


def _largest(trials: Trials, key: str, first: int, most: int, parts: int | None = None) -> int:
    """Return the largest value of a key, from a value that fits, with which the training fits.

    Parameters
    ----------
    key : str
        Dotted key with a whole number.
    first : int
        A value that fits.
    most : int
        Largest value to try.
    parts : int, optional
        Resolution: the doubled range is searched in so many parts; whole numbers if omitted.
    """
    low = first
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


def _helpful(trials: Trials, possible: Sequence[TrainingChange], speed: float) -> tuple[FitChange, ...]:
    """Return up to three changes that make a training fit: single changes before pairs, changes that keep the method
    before others, then the smallest loss of speed.

    `speed` is that of the training without changes [tokens/s per card].
    """
    by_kind = dict(_fitting(trials, [(change,) for change in possible], speed))
    listed = list(by_kind.values())
    if len(listed) < _MOST_TOLD:
        # Stronger changes of the same kinds: full checkpointing, if selective_op is enough.
        texts = {change.text for change in listed}
        stronger = [(change,) for change in possible if (change.kind,) in by_kind and change.text not in texts]
        listed += [change for _, change in islice(_fitting(trials, stronger, speed), _MOST_TOLD - len(listed))]
    if len(listed) < _MOST_TOLD:
        # A pair with a change that suffices alone, or with a stronger one of its kind, costs more than needed.
        pairs = _pairs(trials, [change for change in possible if (change.kind,) not in by_kind])
        same_method = [pair for pair in pairs if all(part.kind != "method" for part in pair)]
        listed += [change for _, change in islice(_fitting(trials, same_method, speed), 1)]
        others = [
            pair for pair in pairs if tuple(part.kind for part in pair) not in {change.kinds for change in listed}
        ]
        listed += [change for _, change in islice(_fitting(trials, others, speed), _MOST_TOLD - len(listed))]
    return tuple(sorted(listed, key=lambda change: change.order)[:_MOST_TOLD])


def _pairs(trials: Trials, parts: Sequence[TrainingChange]) -> list[tuple[TrainingChange, ...]]:
    """Return pairs of changes of different kinds, by the product of the speeds of their parts, the fastest first."""
    # Without such a training, a change is in no pair.
    speeds = {part.text: trials.simulated(part.keys).tokens_per_s_per_gpu for part in parts if trials.exists(part.keys)}
    pairs = combinations([part for part in parts if part.text in speeds], 2)
    return sorted(
        (pair for pair in pairs if pair[0].kind != pair[1].kind),
        key=lambda pair: -speeds[pair[0].text] * speeds[pair[1].text],
    )


def _fitting(
    trials: Trials, tried: Iterable[tuple[TrainingChange, ...]], speed: float
) -> Iterator[tuple[tuple[str, ...], FitChange]]:
    """Yield (kinds, change) for changes after which a training fits, the first of each combination of kinds."""
    sufficient = set[tuple[str, ...]]()
    for together in tried:
        kinds = tuple(part.kind for part in together)
        keys = {key: value for part in together for key, value in part.keys.items()}
        if kinds in sufficient or not trials.may_fit(keys):
            continue
        trial = trials.simulated(keys)
        if trial.margin.fits:
            sufficient.add(kinds)
            text = " and ".join(part.text for part in together)
            rate = trial.tokens_per_s_per_gpu
            yield kinds, FitChange(text, kinds, keys, trial.margin, rate, rate / speed)
