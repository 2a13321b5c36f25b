"""Which of a rank's memory samples does a picture need: where they are too many to be seen, the highest of each bin?"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.records.timeline import MemorySample


def thinned(samples: Sequence[MemorySample], end: float, most: int) -> list[MemorySample]:
    """At most one sample a bin of time, the highest, where there are more than `most`; and always the last.

    Parameters
    ----------
    samples : sequence of MemorySample
        Of one rank, in order.
    end : float
        Until when the last one holds [s].
    most : int
        Bins.
    """
    if len(samples) <= most:
        return list(samples)
    width = (end - samples[0].time) / most or 1.0
    highest: dict[int, MemorySample] = {}
    for sample in samples:
        place = int((sample.time - samples[0].time) / width)
        if place not in highest or sample.nbytes > highest[place].nbytes:
            highest[place] = sample
    # What is held at the end is what the last sample has, not the highest of the last bin.
    kept = list(highest.values())
    return kept if kept[-1] is samples[-1] else [*kept, samples[-1]]
