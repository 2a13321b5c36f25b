"""How long does report.html take to load, in Chromium with 100,000 spans; and the form's answer after a change?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.planner.what_if import WhatIf, answered
from simulator.report.views.view import compressed
from simulator.results.page.page import FILE, report_page
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.sweep import play_points

_SPANS, _RANKS = 10_000, 10


def load() -> tuple[float, float]:
    """Return the time until a page of 100,000 spans is drawn [s], the best of three, and the heap size [MB]."""
    from tests.browser.chromium import browser, opened

    with tempfile.TemporaryDirectory() as scratch, browser() as running:
        page = Path(scratch) / FILE
        page.write_text(_page(), encoding="utf-8")
        found = []
        for _ in range(3):
            # Wall time: the browser is another process.
            began = time.perf_counter()
            with opened(running, page) as one:
                one.drawn()
                found.append((time.perf_counter() - began, one.value("performance.memory.usedJSHeapSize") / 1e6))
    return min(found)


def changes() -> float:
    """Return the median CPU time of the form's answer after 50 drawn changes, on 8 to 1,024 GPUs [s]."""
    draw, times = Random(1), []
    answered(WhatIf())
    for number in range(50):
        gpus = 2 ** (3 + number % 8)
        asked = WhatIf(
            gpus=gpus, seq_len=draw.choice([2048, 4096, 8192]), micro_batch=draw.choice([1, 2]),
            accumulation=draw.choice([1, 2, 4]), recompute=draw.choice(["none", "full"]),
            sharding=draw.choice(["auto", "zero1", "zero3"]), tp=draw.choice([1, 1, 2, 8]),
            pp=draw.choice([1, 1, 2, 4]) if gpus >= 64 else 1,
            model=draw.choice(["llama3_8b", "llama3_70b", "llama2_7b"]),
        )  # fmt: skip
        began = time.process_time()
        answered(asked)
        times.append(time.process_time() - began)
    return median(times)


def _page() -> str:
    scenario = load_scenario({"name": "spans", "cluster": {"topology": "star_100g", "world_size": 4},
                              "collective": {"operation": "all_reduce", "size": "4 KiB"}})  # fmt: skip
    compared = Comparison(scenario, list(play_points(list(enumerate(points(scenario))))))
    return report_page(compared, answer(compared), {0: compressed(many_spans(_RANKS, _SPANS))})


def many_spans(ranks: int, each: int) -> dict[str, Any]:
    """Return a view with this number of ranks, and of spans per rank."""
    # Starts are differences to the previous start, in units of 1 ns.
    lane = {
        "stream": "compute", "start": [0] + [1000] * (each - 1), "duration": [700] * each,
        "name": [i % 500 for i in range(each)], "kind": [i % 3 for i in range(each)],
    }  # fmt: skip
    return {
        "unit_s": 1e-9, "end": each * 1000, "notes": [], "memory": None, "pipeline": None, "links": {"rows": []},
        "lanes": {
            "names": [f"layer {i}" for i in range(500)], "kinds": ["forward", "backward", "all_gather"],
            "lanes": [lane | {"rank": rank, "alike": [rank]} for rank in range(ranks)], "last_rank": 0, "slow": [],
        },
    }  # fmt: skip
