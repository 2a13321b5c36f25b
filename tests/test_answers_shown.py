"""What do answers show at a prompt and in a notebook? Their first sentence; question, sentences and table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import simulator
from simulator.report.numbers.headline import HasSentences

TRAINING = {"model": "gpt2", "seq_len": 512, "sharding": "zero1"}
SCENARIO = {
    "name": "small",
    "question": "Is a <b> enough?",
    "cluster": {"topology": "dgx_h100", "world_size": 2},
    "training": TRAINING,
}


def shared() -> HasSentences:
    jobs = {name: {"training": TRAINING, "world_size": 2} for name in ("a", "b")}
    return simulator.simulate_jobs({"cluster": {"topology": "dgx_h100"}, "jobs": jobs})


def days() -> HasSentences:
    return simulator.goodput(SCENARIO, days=3.0)


def swept() -> HasSentences:
    return simulator.play(SCENARIO | {"sweep": {"training.seq_len": [256, 512]}})


def planned() -> HasSentences:
    return simulator.plan("gpt2", topology="dgx_h100", gpus=2, seq_len=512, global_batch="4seq", best=2)


@pytest.mark.parametrize(
    ("answer", "kind", "column"),
    [
        (shared, "SharedRun", "slowdown"),
        (days, "Goodput", "share"),
        (swept, "Sweep", "step_time_s"),
        (planned, "Plan", "step_time_s"),
    ],
)
def test_an_answer_shows_its_first_sentence_and_in_notebooks_question_sentences_and_table(
    answer: Callable[[], HasSentences], kind: str, column: str
) -> None:
    found = answer()
    assert repr(found).startswith(f"<{kind}")
    assert repr(found).endswith(f": {found.sentences[0]}>")
    shown = found._repr_html_()
    assert shown.startswith("<p><b>")
    # A user's question is text.
    assert shown.count("<b>") == 1
    assert all(sentence.split("<")[0].split("&")[0] in shown for sentence in found.sentences)
    assert f"<th>{column}" in shown
