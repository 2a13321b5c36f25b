"""How is the value of `collective.algorithm` and `training.algorithm` read: a name, `auto`, or the path of a file?"""

from __future__ import annotations

from functools import cache

from simulator.basics import reading


def algorithm_reader() -> reading.ValueReader:
    """Return a validator for the name of an algorithm, in any spelling, or the path of an algorithm's file."""
    # A function in place of the endings: they are imported with every algorithm, and therefore late.
    return reading.ValueReader(lambda value: _reader().reader(value), lambda: _reader().schema())


@cache
def _reader() -> reading.ValueReader:
    from simulator.collectives.algorithm_files import SUFFIXES, refuse_plan

    part = reading.part(reading.known(_names, listed_by="simulator list algorithms"), SUFFIXES)

    def reader(value: object) -> object:
        if isinstance(value, str):
            refuse_plan(value)
        return part.reader(value)

    return reading.ValueReader(reader, part.schema)


def _names() -> tuple[str, ...]:
    from simulator.collectives.algorithm import ALGORITHMS

    return ("auto", *ALGORITHMS.names())
