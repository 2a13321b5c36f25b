"""Damaged configuration files: each is imported, or refused in lines with exit code 2; no other exception comes out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from simulator.basics.errors import MOST_FAULTS, ScenarioError
from simulator.importing.importer import import_files
from simulator.importing.settings import MOST_BYTES
from tests.configurations import SAMPLES
from tests.damaging import damaged

ALL = [sample for several in SAMPLES.values() for sample in several]
# Five hundred damaged files in total.
EACH = -(-500 // len(ALL))


@pytest.mark.parametrize("number", range(len(ALL)), ids=lambda number: ALL[number].file)
def test_a_damaged_file_is_imported_or_refused_in_lines(tmp_path: Path, number: int) -> None:
    sample, chance = ALL[number], random.Random(number)
    path = tmp_path / sample.file
    name = f"{path}:{sample.function}" if sample.function else str(path)
    for _ in range(EACH):
        path.write_bytes(damaged(sample.written().encode(), chance))
        try:
            import_files([name], sample.options)
        except ScenarioError as error:
            lines = str(error).splitlines()
            assert 0 < len(lines) <= MOST_FAULTS + 1
            assert all(line.isprintable() and len(line) < 2000 for line in lines)


DOUBLING = "A0=--x\n" + "".join(f"A{i + 1}=$A{i}$A{i}\n" for i in range(60)) + "torchrun p.py --num-layers 2 $A60\n"
ITEMS = (
    "A0=(a b)\n"
    + "".join(f"A{i + 1}=(${{A{i}[@]}} ${{A{i}[@]}})\n" for i in range(60))
    + "run --seq-length ${A60[@]}\n"
)
ALIASES = "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}, *a{i}]\n" for i in range(40))
VARIABLES = "def f():\n    a0 = C(x=1, y=1)\n"
VARIABLES += "".join(f"    a{i + 1} = C(x=a{i}, y=a{i}, z=a{i})\n" for i in range(15)) + "    return a15\n"
BOMBS = [
    ("doubling.sh", DOUBLING, "after variables are replaced"),
    ("items.sh", ITEMS, "after variables are replaced"),
    ("words.sh", "torchrun " + "--a 1 " * 60_000, "words.sh:1: more than 100000 words"),
    ("brackets.sh", "torchrun " + "<a>" * 150_000, "brackets.sh:1: more than 100000 words"),
    ("deep.sh", "if x; then\n" * 10_000, "nested too deeply"),
    ("subshells.sh", "(" * 100_000, "nested too deeply"),
    ("aliases.yaml", ALIASES, "aliases"),
    ("deep.json", "[" * 100_000, "nested too deeply"),
    ("deep.yaml", "a: " + "[" * 5_000, "nested too deeply"),
    ("deep.toml", "a = " + "[" * 50_000, "nested too deeply"),
    ("deep.py", "def f():\n    return C(a=" + "-" * 100_000 + "1)\n", "nested too deeply"),
    ("calls.py", "def f():\n    return C(a=" + "C(a=" * 80 + "1" + ")" * 81 + "\n", "nested too deeply"),
    ("rings.py", "def f():\n    return g()\ndef g():\n    return f()\n", "name the function"),
    ("variables.py", VARIABLES, "more than 100000 values"),
    ("pattern.sh", "run --num-layers 2 --hidden-size 8 --seq-length 8 --moe-layer-freq '" + "[1]*9999+" * 9999 + "[1]'",
     "must be a number, or a list"),
    ("keys.toml", "".join(f"k{i}=1\n" for i in range(100_001)), "more than 100000 values"),
    ("blanks.toml", "a = 1\n[" + " " * 2_000_000 + "\n", "not TOML"),
    ("large.py", "#" * (2**20 + 1), "must be at most 1 MiB"),
    ("digits.toml", "[training]\nseq_len = " + "9" * 10_000, "not TOML"),
    ("large.sh", "#" * (MOST_BYTES + 1), "must be at most 4 MiB"),
    ("empty.sh", "", "it has no settings"),
    ("nothing.yaml", "x: 1\n", "its settings are x"),
    ("config.json", '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}', "is given with --model"),
    ("list.yaml", "- 1\n", "must be a mapping"),
    ("words.txt", "a letter to a friend\n", "it has no settings"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "text", "message"), BOMBS, ids=[bomb[0] for bomb in BOMBS])
def test_a_file_made_to_exhaust_the_machine_is_refused(tmp_path: Path, file: str, text: str, message: str) -> None:
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=message) as caught:
        import_files([str(path)])
    assert len(str(caught.value).splitlines()) == 1


def test_functions_that_start_from_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rings.py"
    path.write_text("def f():\n    return g()\ndef g():\n    return f()\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match="start from each other without an end"):
        import_files([f"{path}:f"])


def test_nothing_of_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = "X=$(touch made)\n`touch made`\neval 'touch made'\nrun --num-layers 2 --hidden-size 8 --seq-length $X\n"
    (tmp_path / "train.sh").write_text(script, encoding="utf-8")
    module = "open('made', 'w')\ndef f():\n    return C(model_spec=open('made', 'w'), training=T(local_batch_size=1))\n"
    (tmp_path / "train.py").write_text(module, encoding="utf-8")
    with pytest.raises(ScenarioError, match="the model's heads are missing"):
        import_files(["train.sh"])
    import_files(["train.py"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", "train.sh"]


def test_too_many_files_are_refused() -> None:
    with pytest.raises(ScenarioError, match="at most 20"):
        import_files(["a.yaml"] * 21)
