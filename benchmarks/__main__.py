"""`make bench`: every figure beside its baseline and its aim; exit code 1 where one is missed."""

from __future__ import annotations

import sys

from benchmarks import compiled, events, learning, payload, routing, sharing, sweeping, training


def lines() -> list[tuple[str, bool]]:
    """What was measured, and whether it meets its aim."""
    found = []
    for kind in ("ring", "star"):
        ours, bare, apart = events.ratio(256, kind)
        text = f"events engine, {kind} of 256: {ours:.3f} s, bare SimPy loop {bare:.3f} s, ratio {ours / bare:.2f}"
        found.append((f"{text} (aim 1.0); finish within {apart:.1e} (aim 1e-9)", ours <= bare and apart <= 1e-9))
    large = events.large()
    text = f"events engine, ring of 1,024: {large['seconds']:.2f} s (aim 6), {large['mib']:.0f} MiB (aim 300)"
    found.append((text, large["seconds"] <= 6 and large["mib"] <= 300))
    quick, slow, apart = compiled.ring(1024)
    text = f"compiled engine, ring of 1,024 unlike links: {quick:.3f} s, events {slow:.2f} s, ratio {slow / quick:.0f}"
    found.append((f"{text} (aim 10); ends within {apart:.1e} (aim 1e-9)", slow >= 10 * quick and apart <= 1e-9))
    least = payload.floor(64, 16 * 2**20)
    play, drawing, judging, wrong = payload.engine(64, 16 * 2**20)
    text = f"payload, 64 ranks x 16 MiB: {play:.3f} s, numpy alone {least:.3f} s, ratio {play / least:.2f} (aim 1.3)"
    found.append((f"{text}; drawing {drawing:.2f} s, judging {judging:.2f} s, wrong {wrong}", play <= 1.3 * least))
    for jittered in (False, True):
        cost = sharing.microseconds_a_flow(jittered=jittered)
        name = "jittered" if jittered else "in step"
        found.append((f"8 rings over one NIC a node, {name}: {cost:.1f} us a flow (aim 30)", cost <= 30))
    for machine in routing.MACHINES:
        seconds = routing.seconds(machine)
        text = f"{machine} of 16,384 GPUs: built, ring and random pairs routed in {seconds:.2f} s (aim 5)"
        found.append((text, seconds <= 5))
    for ranks, collectives, aim in ((64, "played", 10), (512, "auto", 3)):
        seconds = training.seconds(ranks, collectives)
        text = f"Llama 3 8B, zero3, {ranks} GPUs, collectives {collectives}: {seconds:.2f} s (aim {aim})"
        found.append((text, seconds <= aim))
    ours, bare = (min(measure() for _ in range(3)) for measure in (learning.played, learning.bare))
    text = f"real training, 20 steps of a small GPT on 4 ranks, zero3: {ours:.2f} s (aim 4)"
    found.append((f"{text}, bare numpy {bare:.2f} s, ratio {ours / bare:.2f} (aim 2.5)", ours <= min(4, 2.5 * bare)))
    swept, bare, count = sweeping.overhead()
    text = f"sweep of {count:,} small points: {1e3 * swept:.1f} ms each, played bare {1e3 * bare:.1f} ms"
    found.append((f"{text}, overhead {1e3 * (swept - bare):.1f} ms (aim 5)", swept - bare <= 5e-3))
    one, two = sweeping.two_processes()
    text = f"the same as a command: {one:.1f} s on one process, {two:.1f} s on two, ratio {one / two:.2f} (aim 1.7)"
    found.append((text, one >= 1.7 * two))
    return found


if __name__ == "__main__":
    results = lines()
    for text, met in results:
        print(("ok      " if met else "MISSED  ") + text)
    sys.exit(not all(met for _, met in results))
