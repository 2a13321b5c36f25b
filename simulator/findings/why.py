"""Why is a point faster than another? A part of the time differs, or a link carries more.

Parts of a step sum to its time, so the parts' differences sum to the whole difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.sentence import started
from simulator.basics.units import format_bandwidth, format_memory, format_time
from simulator.basics.work_unit import useful_rate, useful_unit
from simulator.findings.comparison import Comparison, Row, key_of
from simulator.findings.slow_parts import SlowPart, slow_parts
from simulator.findings.text import clause, grouped, join_list
from simulator.records.measures import HOST_WAIT, arrays_text
from simulator.report.numbers.bottleneck import Bottleneck
from simulator.report.numbers.idle_cards import IdleCards
from simulator.report.numbers.link_use import HOLDS_UP
from simulator.scenario import own_parts

# Parts below a tenth of the whole difference are omitted.
_TOLD: Final = 0.1
_MOST_PARTS: Final = 3
# Collectives are named until they cause this share of a difference.
_MOST: Final = 0.5
# Link loads that differ by less than 1 % explain nothing.
_ALIKE: Final = 0.01
# Measures explained by the categories of memory.
# A rest of memory smaller than this share of the difference is not mentioned.
_REST: Final = 0.05
_OF_MEMORY: Final = ("memory", "reserved", "least_stage")
# Wording in sentences, if a part's name in report.json is another word.
_WORDS: Final = {"recomputation": "recompute"}


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason why a point is faster or smaller than another."""

    sentence: str  # without a full stop; empty if nothing differs
    numbers: Mapping[str, Any]  # plain data: the parts, or the loads


def parts_of_step(report: Mapping[str, Any]) -> dict[str, float]:
    """Return a training report's step time split into parts (kernels, recompute ...) with the same sum [s].

    >>> parts_of_step({"step_time_s": 1.0, "compute_time_s": 0.7, "recompute_time_s": 0.1, "optimizer_time_s": 0.05,
    ...                "exposed_comm_time_s": 0.2, "bubble_time_s": 0.1})["kernels"]
    0.55
    """
    # Recompute and optimizer are included in the compute time; the rounding removes the subtraction's noise.
    kernels = report["compute_time_s"] - report["recompute_time_s"] - report["optimizer_time_s"]
    return {
        "kernels": round(kernels, 15),
        "recomputation": report["recompute_time_s"],
        "optimizer": report["optimizer_time_s"],
        "exposed communication": report["exposed_comm_time_s"],
        "idle time": report["bubble_time_s"],
        HOST_WAIT: report.get("host_wait_time_s", 0.0),
    }


def why(compared: Comparison, spoken: tuple[int, ...], of: str = "") -> Cause | None:
    """Return the reason why the first mentioned point differs from the second; None if nothing can be compared.

    Parameters
    ----------
    spoken : tuple of int
        Mentioned points, the most important first.
    of : str
        The first requested measure: memory is explained by categories, everything else by time.
    """
    rows = [compared.rows[index] for index in spoken[:3]]
    runs = [row for row in rows if row.report is not None]
    if not runs:
        return None
    if of in _OF_MEMORY and len(runs) > 1:
        return _of_memory(compared, runs)
    cause = _of_steps(compared, runs) if compared.kind == "training" else _of_links(compared, runs)
    return _with_slow_parts(cause or Cause("", {}), slow_parts(compared, runs)) or cause


def _with_slow_parts(cause: Cause, parts: list[SlowPart]) -> Cause | None:
    """Return a reason with the cost of slow links and GPUs, before the reason if they decide; None without such."""
    if not parts:
        return None
    first = [part.sentence for part in parts if part.decides]
    last = [part.sentence for part in parts if not part.decides]
    sentences = [started(sentence) for sentence in (*first, cause.sentence, *last) if sentence]
    return Cause(". ".join(sentences), {**cause.numbers, "slow_parts": [part.numbers for part in parts]})


def _of_one(compared: Comparison, row: Row) -> Cause:
    """Return the limiting part in a point's report as a reason; the point is named if the scenario has several."""
    reason = str((row.report or {})["because"])
    if len(compared.rows) == 1:
        return Cause(reason, {})
    if compared.kind == "collective":
        return Cause(reason.replace("Bottleneck", f"Bottleneck with {compared.place(row)}", 1), {})
    return Cause(f"with {compared.place(row)}: {reason[:1].lower()}{reason[1:]}", {})


def _of_steps(compared: Comparison, rows: list[Row]) -> Cause | None:
    """Return the difference between two training steps' times, split into parts, as a reason; None if impossible."""
    best = rows[0].report or {}
    # A single point's report has a reason already; real trainings are compared by losses, not by times.
    if len(rows) < 2 or best.get("learning"):
        return _of_one(compared, rows[0]) if len(rows) == 1 else None
    other = rows[1].report or {}
    mine, its = parts_of_step(best), parts_of_step(other)
    # Steps with different numbers of tokens: scale the second step to the first one's tokens.
    scale = (useful_rate(best) * best["step_time_s"]) / (useful_rate(other) * other["step_time_s"])
    parts = {name: mine[name] - scale * its[name] for name in mine}
    total = best["step_time_s"] - scale * other["step_time_s"]
    if abs(total) < 1e-9 * best["step_time_s"]:
        return None
    # The largest parts first.
    main = sorted((n for n in parts if abs(parts[n]) >= _TOLD * abs(total)), key=lambda n: -abs(parts[n]))[:_MOST_PARTS]
    texts = [f"{_WORDS.get(n, n)} {'-' if parts[n] < 0 else '+'}{format_time(abs(parts[n]))}" for n in main]
    if main[:1] == ["optimizer"]:
        texts[0] += _updates(rows[:2])
    if main[:1] == ["exposed communication"]:
        texts[0] += _collectives(compared, rows, scale)
    change = f"{format_time(abs(total))} {'less' if total < 0 else 'more'}"
    work = f" for the same number of {useful_unit([best, other])}s" if abs(scale - 1) > _ALIKE else ""
    sentence = f"{_contrast(compared, rows, change, 'takes', work)}: {', '.join(texts)}"
    return Cause(sentence, {"of": rows[0].index, "against": rows[1].index, "whole": total, "parts": parts})


def _collectives(compared: Comparison, rows: list[Row], scale: float) -> str:
    """Return a text on the collectives that cause most of the difference in exposed communication between the first two
    points, and the bottleneck link of the point with more of it; times of the second point count `scale` times.
    """
    mine, its = ((row.report or {})["exposed_comm_time_by_kind"] for row in rows[:2])
    changes = {kind: mine.get(kind, 0.0) - scale * its.get(kind, 0.0) for kind in dict.fromkeys([*mine, *its])}
    total = sum(changes.values())
    # The fewest collectives that together cause at least half of the difference.
    kinds: list[str] = []
    for kind in sorted(changes, key=lambda kind: -changes[kind] / total):
        if abs(sum(changes[cause] for cause in kinds)) < _MOST * abs(total):
            kinds.append(kind)
    more = 0 if total > 0 else 1
    report = rows[more].report or {}
    link, seconds = _limit(report)
    if link is None or seconds < HOLDS_UP * report["step_time_s"]:
        return f" (mostly {join_list(kinds)})"
    busy = f"link {link} is {100 * report['bottleneck']['busy_fraction']:.0f} % busy"
    busy += f" with {_names(compared, rows[:2])[more]}"
    return f" (mostly {join_list(kinds)}; {busy})"


def _updates(rows: list[Row]) -> str:
    """Return a text on where or with which kernels the points' optimizer updates: the rate of an update on the host,
    else the implementation on GPUs, and the key to choose it; "" without a choice.
    """
    # Imported late, because a collective has no parts of a step.
    from simulator.scenario.build_training import optimizer
    from simulator.step.framework import load_framework
    from simulator.step.optimizer_update import implementation_of
    from simulator.step.spec import Updater
    from simulator.step.strategies.strategy import STRATEGIES

    located = [(row.point.base, row.point.training) for row in rows if row.point.training is not None]
    trainings = [own_parts.located(training, base) for base, training in located]
    rates = dict.fromkeys(training.offload.host_rate for training in trainings if training.offload.what != "none")
    if rates:
        # The implementation has no effect on the host, and the host's update takes nearly all of the difference.
        return f" (update on the host at {join_list([format_bandwidth(rate) for rate in rates])})"
    names = dict.fromkeys(
        implementation_of(
            optimizer(training.optimizer, training.sharding.strategy),
            load_framework(training.framework, base),
        )
        for (base, _), training in zip(located, trainings, strict=True)
        # Only updates on GPUs have a choice of kernels.
        if STRATEGIES.find(training.sharding.strategy).updater is not Updater.SERVERS
    )
    if not names:
        return ""
    return f" (update: {join_list(list(names))}, selected by training.optimizer.implementation)"


def _of_memory(compared: Comparison, rows: list[Row]) -> Cause | None:
    """Return the difference between two points' memory peaks, split into categories, as a reason; None if equal."""
    mine, its = ((row.report or {})["peak_memory_by_category"] for row in rows[:2])
    parts = {name: mine.get(name, 0) - its.get(name, 0) for name in dict.fromkeys([*mine, *its])}
    total = sum(parts.values())
    if not total:
        return None
    main = sorted((n for n in parts if abs(parts[n]) >= _TOLD * abs(total)), key=lambda n: -abs(parts[n]))[:_MOST_PARTS]
    texts = [f"{n} {'-' if parts[n] < 0 else '+'}{format_memory(abs(parts[n]))}" for n in main]
    # The listed parts and this rest add up to the difference.
    rest = total - sum(parts[n] for n in main)
    if abs(rest) >= _REST * abs(total):
        texts.append(f"others {'-' if rest < 0 else '+'}{format_memory(abs(rest))}")
    change = f"{format_memory(abs(total))} {'less' if total < 0 else 'more'} memory"
    sentence = f"{_contrast(compared, rows, change, 'needs')}: {', '.join(texts)}"
    return Cause(
        sentence,
        {"of": rows[0].index, "against": rows[1].index, "whole_bytes": total, "parts_bytes": parts, "rest_bytes": rest},
    )


def _contrast(compared: Comparison, rows: list[Row], change: str, verb: str, work: str = "") -> str:
    """Return a text that contrasts the first two points: "ring takes 3 ms less than tree (8 GPUs)"."""
    first, second = (compared.name(row.setting) for row in rows[:2])
    where, other = (compared.where(row.condition) for row in rows[:2])
    # The same setting under two conditions: name the conditions instead.
    if rows[0].setting == rows[1].setting:
        of = f" ({first})" if len(compared.settings) > 1 else ""
        return f"the step {verb} {change} with {where} than with {other}{work}{of}"
    # Points under two conditions: name both, because the change may belong to the condition alone.
    place = f" ({where})" if where and where == other else f" ({where} against {other})" if where != other else ""
    return f"{clause(first, f'{verb} {change} than {second}')}{work}{place}"


def _of_links(compared: Comparison, rows: list[Row]) -> Cause | None:
    """Return collectives' loads, idle network cards, or bottlenecks as a reason; None without a known link."""
    if len(rows) == 1:
        return _of_one(compared, rows[0])
    # A slow GPU explains a difference that the links' loads do not show.
    if rows[0].setting == rows[-1].setting or any((row.report or {}).get("slow_memory") is not None for row in rows):
        return _of_bottlenecks(compared, rows)
    cause, cards = _of_loads(compared, rows), _of_idle_cards(compared, rows)
    return cause if cause is None else Cause(". ".join(filter(None, [cause.sentence, *cards])), cause.numbers)


def _of_idle_cards(compared: Comparison, rows: list[Row]) -> list[str]:
    """Return a sentence for each number of network cards that points leave idle, with the points' names."""
    idle = [(compared.place(row), cards) for row in rows if (cards := (row.report or {}).get("idle_cards"))]
    texts = grouped((name, IdleCards(**cards).text) for name, cards in idle)
    return [f"With {join_list(names)}, {text}" for text, names in texts.items()]


def _of_loads(compared: Comparison, rows: list[Row]) -> Cause | None:
    """Return the busiest links' loads as a reason, or waiting times if loads explain nothing; None without a link."""
    texts, loads = [], []
    for row, name in zip(rows, _names(compared, rows), strict=True):
        report = row.report or {}
        link = report.get("bottleneck")
        if link is None:
            continue
        size = row.point.collective.nbytes if row.point.collective is not None else 0
        busiest = Bottleneck.of(link)
        arrays = link["bytes"] / size if size else 0.0
        back = f", then {arrays_text(busiest.reverse_bytes / size)} back" if size and busiest.takes_turns else ""
        texts.append((f"{arrays_text(arrays)}{back}", f" with {name}" if name else "", link["link"]))
        bandwidth = link["bytes"] / busiest.bandwidth_time_s if busiest.bandwidth_time_s else 0.0
        # A cable's two directions are busy in turn (a parameter server first receives, then sends): count both loads.
        in_turn = arrays * busiest.limiting_time_s / busiest.bandwidth_time_s if busiest.bandwidth_time_s else arrays
        there_and_back = {"there": arrays, "back": busiest.reverse_bytes / size if size else 0.0}
        loads.append(
            {"point": row.index, "link": link["link"], "arrays": in_turn, **there_and_back, "bandwidth": bandwidth}
        )
    if not texts:
        return None
    where = compared.where(rows[0].condition)
    place = f" ({where})" if where and len({key_of(row.condition) for row in rows}) == 1 else ""
    # The same load takes longer on a narrower link.
    times = [entry["arrays"] / (entry["bandwidth"] or 1.0) for entry in loads]
    # The fastest carries more, or every load is the same: loads are not the reason.
    if max(times) <= (1 + _ALIKE) * min(times) or times[0] > (1 + _ALIKE) * min(times):
        return _of_waiting(compared, rows, place)
    links, rates = {link for *_, link in texts}, [entry["bandwidth"] for entry in loads]
    carried = []
    for (load, name, link), rate in zip(texts, rates, strict=True):
        notes = [link] if len(links) > 1 else []
        notes += [format_bandwidth(rate)] if max(rates) > (1 + _ALIKE) * min(rates) else []
        carried.append(f"{load}{name}" + (f" ({', '.join(notes)})" if notes else ""))
    subject = f"the busiest link, {texts[0][2]}," if len(links) == 1 else "the busiest link"
    return Cause(f"{subject} carries {join_list(carried)}{place}", {"loads": loads})


def _of_bottlenecks(compared: Comparison, rows: list[Row]) -> Cause:
    """Return as a reason the bottleneck of each point, in the order of the points; points of one setting are named by
    their conditions.

    Loads are not compared: under different conditions the busiest link may be of another kind.
    """
    ordered = sorted(rows, key=lambda row: row.index)
    same = all(row.setting == rows[0].setting for row in rows)
    of = f" of {compared.name(rows[0].setting)}" if same and len(compared.settings) > 1 else ""
    texts = [
        (
            compared.where(row.condition) if same else compared.place(row),
            str((row.report or {})["because"]).partition(": ")[2],
        )
        for row in ordered
    ]
    sentences = [f"Bottleneck{of} with {join_list(names)}: {text}" for text, names in grouped(texts).items()]
    links = []
    for row in ordered:
        report = row.report or {}
        link, seconds = _limit(report)
        # Share of the time in which the busiest link sends at its bandwidth.
        links.append({"point": row.index, "link": link, "share": seconds / report["time_s"]})
    return Cause(". ".join(sentences), {"links": links})


def _names(compared: Comparison, rows: list[Row]) -> list[str]:
    """Return a name for each of several points: the setting, or the condition if they have one setting, or both."""
    if all(row.setting == rows[0].setting for row in rows):
        return [compared.where(row.condition) for row in rows]
    if all(row.condition == rows[0].condition for row in rows):
        return [compared.name(row.setting) for row in rows]
    return [compared.place(row) for row in rows]


def _limit(report: Mapping[str, Any]) -> tuple[str | None, float]:
    """Return a report's bottleneck link and the link's time at its bandwidth [s]; (None, 0) without a link."""
    link = report["bottleneck"]
    return (None, 0.0) if link is None else (link["link"], Bottleneck.of(link).limiting_time_s)


def _of_waiting(compared: Comparison, rows: list[Row], place: str) -> Cause:
    """Return as a reason how much of each point's time its busiest link sends; the rest is latency and waiting."""
    parts, texts, names = [], [], []
    for row, name in zip(rows, _names(compared, rows), strict=True):
        report = row.report or {}
        link, seconds = _limit(report)
        time = report["time_s"]
        parts.append({"point": row.index, "time_s": time, "bandwidth_s": seconds})
        texts.append((format_time(seconds), format_time(time), f" with {name}" if name else ""))
        names.append(link)
    sent, took = (len({text[part] for text in texts}) for part in (0, 1))
    # Equal times need no explanation.
    if len(texts) > 1 and took == 1:
        return Cause("", {"parts": parts})
    several = len({*names}) > 1
    ends = [f" ({link})" if several and link else "" for link in names]
    sending = join_list([f"{sends} of {time}{name}{end}" for (sends, time, name), end in zip(texts, ends, strict=True)])
    totals = join_list([f"of {time}{name}" for _, time, name in texts])
    shares = sending if sent > 1 or several else f"{texts[0][0]} {totals}"
    subject = f", {names[0]}," if names[0] and not several else ""
    # The machine's caps keep flows below the bandwidth of their links.
    capped = any((row.report or {}).get("constants") for row in rows)
    rest = "latency, waiting and the rate of the machine's collectives" if capped else "latency and waiting"
    sentence = f"the busiest link{subject} sends for {shares}{place}; the remaining time is {rest}"
    return Cause(sentence, {"parts": parts})
