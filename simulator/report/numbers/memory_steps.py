"""Which memory samples does a picture need? With too many samples, the highest per time bin."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.records.timeline import MemorySample


def thinned(samples: Sequence[MemorySample], end: float, most: int) -> list[MemorySample]:
    """Return at most about `most` memory samples of a rank: the highest of each time bin, and always the last sample.

    Parameters
    ----------
    samples : sequence of MemorySample
        Samples of a rank, in order.
    end : float
        End of the last sample's validity [s].
    most : int
        Number of bins.
    """
    if len(samples) <= most:
        return list(samples)
    # A run without duration has a single bin.
    width = (end - samples[0].time) / most or 1.0
    highest: dict[int, MemorySample] = {}
    for sample in samples:
        place = int((sample.time - samples[0].time) / width)
        if place not in highest or sample.nbytes > highest[place].nbytes:
            highest[place] = sample
    # The last sample shows the memory at the end, even if its bin has a higher sample.
    steps = list(highest.values())
    return steps if steps[-1] is samples[-1] else [*steps, samples[-1]]
