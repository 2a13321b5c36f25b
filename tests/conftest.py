"""Fixtures for all tests."""

from __future__ import annotations

import pytest

from simulator.cluster.cluster import Cluster
from tests.playing import star


@pytest.fixture
def eight_gpus() -> Cluster:
    """Eight GPUs around one 100 Gb/s switch, HBM out of the way."""
    return star(8)


@pytest.fixture(autouse=True)
def _no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn into files; no test may open a window."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
