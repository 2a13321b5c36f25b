"""How a pass asks for exchanges with other ranks: a pass is a generator that yields arrays and is sent the results.

The pass knows neither the other ranks nor the way that arrays take. A pass without exchanges runs through at once.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from simulator.basics.arrays import Array

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """An exchange requested by a pass, from the side of a single rank."""

    # Name of the exchange, as in `model.partition.Communication`: the simulated exchange must be the requested one
    name: str
    # This rank's contribution; shape (n,).
    array: Array
    reduction: Literal["sum", "max"] = "sum"  # reduction over ranks, if the exchange reduces
    # If True, the pass continues at once and asks for the result when it needs it (`ExchangeResult`)
    later: bool = False
    # All-to-all only: elements for each receiver; several entries per rank if a rank has several receivers (experts).
    # The result is then a pair: the array, and the received splits, shape (ranks, receivers of a rank).
    splits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """A pass's request for the result of an exchange that the pass started earlier."""

    what: str  # handle that the pass received when it started the exchange


# A pass and its driver, for a rank that gathers x early and uses the result later:
#    pass                                                driver
#    handle = yield Wanted("gather x", x, later=True)    records x and sends back a handle at once
#    ... compute ...
#    whole = yield Came(handle)                          waits until the gather has ended, then sends its result
#    other = yield Wanted("sum y", y)                    waits until the sum has ended, then sends its result
#    return result                                       StopIteration carries the result
# Received arrays are flat.
Pass = Generator[ExchangeRequest | ExchangeResult, Any, T]


def alone(run: Pass[T]) -> T:
    """Run a forward or backward pass without exchanges between ranks, and return the pass's result.

    Raises
    ------
    ValueError
        The pass asks for an exchange.
    """
    try:
        request = next(run)
    except StopIteration as end:
        result: T = end.value
        return result
    raise ValueError(f"a pass on one rank asks for {request!r}")


__all__ = ["ExchangeRequest", "ExchangeResult", "Pass", "alone"]
