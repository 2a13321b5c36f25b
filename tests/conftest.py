"""Fixtures for all tests."""

from __future__ import annotations

import gc
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, is_hypothesis_test, settings
from threadpoolctl import threadpool_limits

from simulator.cluster.cluster import Cluster
from tests.playing import star

T = TypeVar("T")

# The machines are shared: how long a case takes, or its data, says nothing of it.
settings.register_profile("shared machines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machines")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", help="run part K of N of the tests: K/N", metavar="K/N")


def part_of(tests: Sequence[T], name: str) -> list[T]:
    """Return part K of N, where `name` is "K/N": every Nth test, so that each part has cases of every function."""
    match = re.fullmatch(r"(\d+)/(\d+)", name)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise pytest.UsageError(f"--part: must be K/N with K from 1 to N, such as 2/6; got {name!r}")
    return list(tests[number - 1 :: count])


# Of the examples of a property, short runs draw one of so many, and ten at least; long runs draw all of them.
_ONE_OF, _FEWEST = 3, 10


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Draw fewer examples of properties, or make them long; make cases long that are not their turn; leave the part of
    the tests that the option names.
    """
    for item in list(out_of_turn(items)):
        item.add_marker(pytest.mark.long)
    draw_examples(items, all_of_them=config.getoption("markexpr") == "long")
    # Tests without the wanted marks are left out.
    yield
    name = config.getoption("--part")
    if name is not None:
        all_items, items[:] = set(items), part_of(items, name)
        config.hook.pytest_deselected(items=list(all_items.difference(items)))


def out_of_turn(items: Sequence[pytest.Item]) -> Iterator[pytest.Function]:
    """Yield the cases that are not for short runs: of a test marked `one_of(n)`, those whose places along the axes of
    its parameters do not add up to a multiple of n. Of three axes or more, each value of an axis then meets each value
    of another one, as in a Latin square.
    """
    numbers: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("one_of")
        if mark is None or not isinstance(item, pytest.Function):
            continue
        test = item.nodeid.partition("[")[0]
        # Cases come in the order of the product of the axes, the last of which changes first; those of parametrized
        # fixtures are counted above them.
        sizes = [len(axis.args[1]) for axis in item.iter_markers("parametrize")]
        above, within = divmod(numbers[test], prod(sizes))
        places = (above, *np.unravel_index(within, sizes))
        numbers[test] += 1
        if sum(places) % mark.args[0]:
            yield item


def draw_examples(items: Sequence[pytest.Item], *, all_of_them: bool) -> None:
    """Draw a third of the examples of properties, or mark the properties as long tests, which draw all."""
    properties = [item for item in items if is_hypothesis_test(getattr(item, "obj", None))]
    if all_of_them:
        for item in properties:
            item.add_marker(pytest.mark.long)
        return
    # The cases of a parametrized property are one function.
    for test in {item.obj for item in properties}:  # type: ignore[attr-defined]
        drawn = test._hypothesis_internal_use_settings
        count = max(min(drawn.max_examples, _FEWEST), drawn.max_examples // _ONE_OF)
        test._hypothesis_internal_use_settings = settings(drawn, max_examples=count)


# Garbage collections between allocations of so many more containers than frees; Python's own is 700.
_GARBAGE = 100_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while modules are imported and tests are made: nearly everything stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave modules and test items out of garbage collections, which took an eighth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE, 20, 50)


# Larger texts are read once: a cache of these would hold hundreds of megabytes.
_LONGEST = 100_000


def pytest_configure(config: pytest.Config) -> None:
    """Compose each YAML text once: thousands of clusters and models are read from a few dozen files.

    `parse` of simulator/basics/document.py builds new data from the nodes at each call, and changes no node.
    """
    compose = yaml.compose
    composed = lru_cache(maxsize=256)(compose)
    patch = pytest.MonkeyPatch()
    patch.setattr(
        yaml,
        "compose",
        lambda text, Loader: (composed if len(text) < _LONGEST else compose)(text, Loader),  # noqa: N803
    )
    config.add_cleanup(patch.undo)


@pytest.fixture(autouse=True, scope="session")
def _matrices_on_one_thread() -> Iterator[None]:
    """Models are so small, and test processes so many, that threads of BLAS would only wait for each other."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(autouse=True)
def _signals_are_heeded() -> Iterator[None]:
    """A command that is interrupted heeds no further signal, for its process ends; that of the tests goes on."""
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def eight_gpus() -> Cluster:
    """Eight GPUs around one 100 Gb/s switch, HBM out of the way."""
    return star(8)


@pytest.fixture(autouse=True)
def _no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn into files; no test may open a window."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
