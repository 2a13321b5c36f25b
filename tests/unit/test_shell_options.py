"""Options of shell scripts: variables of the same file are replaced, nothing is evaluated, branches are marked."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.importing.settings import Setting, Unresolved
from simulator.importing.syntax.shell import read


def options(text: str) -> dict[str, Setting]:
    """The options of a script's last command, by name."""
    *commands, held = read(text, "s.sh")
    return {setting.key: setting for setting in (commands[-1] if commands else held)}


def values(text: str) -> dict[str, Any]:
    """The values of the options of a script's last command."""
    return {key: setting.value for key, setting in options(text).items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run --a 1 --b=2 --c", {"--a": "1", "--b": "2", "--c": True}),
        ("run --a 1 2 --b", {"--a": ("1", "2"), "--b": True}),
        ("run --a -1 --b 'x y' --c \"p q\"", {"--a": "-1", "--b": "x y", "--c": "p q"}),
        # The program ends the launcher's options.
        ("torchrun --n 2 train.py --a 1", {"--n": "2", "--a": "1"}),
        ("torchrun --flag train.py --a 1", {"--flag": True, "--a": "1"}),
        ("torchrun --n 2 -m package.module --a 1", {"--n": "2", "--a": "1"}),
        ("A=1\nrun --a $A --b ${A} --c x${A}y", {"--a": "1", "--b": "1", "--c": "x1y"}),
        ("export A=1 B=2\nrun --a $A --b $B", {"--a": "1", "--b": "2"}),
        ("A=1\nA=2\nrun --a $A", {"--a": "2"}),
        ("A=1\nB=$A$A\nrun --a $B", {"--a": "11"}),
        # Single quotes keep a dollar.
        ("A=1\nrun --a '$A'", {"--a": "$A"}),
        ("ARGS=(--a 1\n  --b 2  # why\n)\nrun ${ARGS[@]} --c 3", {"--a": "1", "--b": "2", "--c": "3"}),
        ('ARGS=(--a "x y")\nrun "${ARGS[@]}"', {"--a": "x y"}),
        ("ARGS=(--a 1)\nARGS+=(--b 2)\nrun ${ARGS[*]}", {"--a": "1", "--b": "2"}),
        ('ARGS=("--a 1" "--b 2")\nrun ${ARGS[@]}', {"--a": "1", "--b": "2"}),
        ('ARGS="\n --a 1 \\\n --b 2\n"\nrun $ARGS', {"--a": "1", "--b": "2"}),
        ("run --a 1 \\\n  --b 2", {"--a": "1", "--b": "2"}),
        ("run --a 1 2>&1 | tee log.txt", {"--a": "1"}),
        ("run --a 1 > out.txt --b 2", {"--a": "1", "--b": "2"}),
        ("cat <<EOF\nrun --a 9\nEOF\nrun --a 1", {"--a": "1"}),
        # Without a command, the variables' own options are read.
        ("ARGS=(--a 1)", {"--a": "1"}),
        # A file of arguments, without a command.
        ("--a 1\n--b 2 3\n\n# why\n--c\n", {"--a": "1", "--b": ("2", "3"), "--c": True}),
        ("# run --a 9\nrun --a 1 # --b 2", {"--a": "1"}),
        ("run --a 1; echo done", {"--a": "1"}),
        ("cd there && run --a 1", {"--a": "1"}),
    ],
)  # fmt: skip
def test_options_are_read(text: str, expected: dict[str, Any]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    "value", ["$A", "${A}", "$1", "$(nproc)", "$((2*3))", "`nproc`", "${A:-$B}", "${A%x}", "${#A[@]}", "x$A"]
)
def test_a_value_that_the_file_does_not_assign_is_unresolved(value: str) -> None:
    (setting,) = options(f"run --a {value}").values()
    assert isinstance(setting.value, Unresolved)


def test_a_text_with_a_lost_piece_keeps_its_other_words() -> None:
    found = values('A=1\nARGS="--a $A --b $B --c $(nproc) --d 4"\nrun $ARGS')
    assert {key: value for key, value in found.items() if not isinstance(value, Unresolved)} == {"--a": "1", "--d": "4"}
    assert found["--b"].text == "$B"


def test_a_variable_from_outside_wins() -> None:
    (settings, _) = read("TP=${TP:-8}\nrun --a $TP --b $1 --c ${X}", "s.sh", {"TP": "2", "1": "one"})
    assert [setting.value for setting in settings[:2]] == ["2", "one"]
    assert isinstance(settings[2].value, Unresolved)
    assert settings[0].note == "--define TP"


def test_a_default_in_the_script_is_taken_and_told() -> None:
    setting = options("TP=${TP:-8}\nrun --a $TP")["--a"]
    assert setting.value == "8"
    assert setting.note == "the default of ${TP}"
    # An assignment in the file wins over the default.
    assert values("TP=2\nrun --a ${TP:-8}") == {"--a": "2"}


@pytest.mark.parametrize(
    "branch",
    [
        'if [ "$X" == 1 ]; then\n  ARGS+=(--b 2)\nfi',
        "if true; then :; else ARGS+=(--b 2); fi",
        "if true; then :; elif false; then ARGS+=(--b 2); fi",
        "case $X in\n  a) ARGS+=(--b 2) ;;\nesac",
        "for i in 1 2; do\n  ARGS+=(--b 2)\ndone",
        "while true; do ARGS+=(--b 2); done",
        "[ -n $X ] && ARGS+=(--b 2)",
        "test -n $X && ARGS+=(--b 2)",
        "other || ARGS+=(--b 2)",
        "f() {\n  ARGS+=(--b 2)\n}",
    ],
)
def test_options_of_a_branch_are_marked(branch: str) -> None:
    found = options(f"ARGS=(--a 1)\n{branch}\nrun ${{ARGS[@]}}")
    assert {key: setting.conditional for key, setting in found.items()} == {"--a": False, "--b": True}


def test_a_variable_that_a_branch_changes_has_no_value() -> None:
    assert isinstance(values("A=1\nif x; then A=2; fi\nrun --a $A")["--a"], Unresolved)


def test_every_option_has_its_line() -> None:
    found = options("#!/bin/bash\nARGS=(\n  --a 1\n  --b 2\n)\nrun \\\n  --c 3 \\\n  ${ARGS[@]}\n")
    assert {key: setting.line for key, setting in found.items()} == {"--c": 7, "--a": 3, "--b": 4}


def test_requests_to_the_batch_system_are_options() -> None:
    found = values("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node 8\nrun --a 1")
    assert found == {"--nodes": "4", "--ntasks-per-node": "8", "--a": "1"}


def test_an_array_that_both_branches_assign_keeps_both_and_the_first_counts() -> None:
    text = "S=8\nif x; then\n  ARGS=(--a $S --c 1)\nelse\n  ARGS=(--a 4 --d 2)\nfi\nrun ${ARGS[@]}"
    (settings, _) = read(text, "s.sh")
    found = [(one.key, one.value, one.line, one.conditional) for one in settings]
    assert found == [("--a", "8", 3, False), ("--c", "1", 3, False), ("--a", "4", 5, True), ("--d", "2", 5, True)]
    assert settings[0].note == "the first branch of the condition in line 2"


def test_a_branch_without_else_does_not_hide_an_array() -> None:
    (settings, _) = read("ARGS=(--a 1)\nif x; then ARGS=(--a 2); fi\nrun ${ARGS[@]}", "s.sh")
    assert [(one.value, one.conditional) for one in settings] == [("1", False), ("2", True)]


def test_a_variable_of_both_branches_has_the_value_of_the_first() -> None:
    setting = options("if x; then A=1; else A=2; fi\nrun --a $A")["--a"]
    assert (setting.value, setting.note) == ("1", "the first branch of the condition in line 1")
    # Inside its branch, a variable has its value.
    assert values("if x; then A=2; ARGS=(--a $A); fi\nrun ${ARGS[@]}") == {"--a": "2"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A command in each branch, and one after the branches.
        ('if [ "$S" = 7 ]; then N=2; run --n $N; else N=32; run --n $N; fi\nrun --n $N', ["--n 2", "--n 32", "--n 2"]),
        ("N=1\nif x; then N=2; run --n $N; else run --n $N; fi", ["--n 2", "--n 1"]),
        ("if x; then N=2; elif y; then N=3; run --n $N; else N=4; run --n $N; fi", ["--n 3", "--n 4"]),
        ('if x; then A="--tp 4 --experts 8"; else A="--tp 2"; run $A; fi', ["--tp 2"]),
        ("A=(--a 1)\nif x; then A+=(--tp 4); run ${A[@]}; else A+=(--pp 2); run ${A[@]}; fi",
         ["--a 1 --tp 4", "--a 1 --pp 2"]),
        ("if x; then A=(--tp 4 --experts 8); else A=(--tp 2); run ${A[@]}; fi", ["--tp 2"]),
        ("if x; then A=(--tp 4); run ${A[@]}; A=(--tp 8); run ${A[@]}; fi", ["--tp 4", "--tp 8"]),
        # A value of the first branch is no value of the second one.
        ("if x; then A=(--tp 4); else run --n 1 ${A[@]}; fi", ["--n 1"]),
        ("if x; then if y; then N=2; fi; else N=3; run --n $N; fi", ["--n 3"]),
        ("main() {\n  if x; then N=2; else N=3; run --n $N; fi\n  run --n $N\n}", ["--n 3", "--n 2"]),
        ("if x; then N=2; else for i in 1 2; do run --n ${N:-5}; done; fi", ["--n 5"]),
        *((f"case $S in\n  a) N=2; A=(--tp 4) {end}\n  b|c) A=(--pp 2); run --n ${{N:-5}} ${{A[@]}} {end}\n"
           f"  (*) N=7; run --n $N {end}\nesac", ["--n 5 --pp 2", "--n 7"]) for end in (";;", ";;&", ";&")),
        ("case $S in a) (cd there; N=1);; b) N=2; run --n $N;; esac", ["--n 2"]),
    ],
)  # fmt: skip
def test_a_command_in_a_branch_has_the_values_of_this_branch(text: str, expected: list[str]) -> None:
    commands = [settings for settings in read(text, "s.sh")[:-1] if settings]
    assert [" ".join(f"{one.key} {one.value}" for one in settings) for settings in commands] == expected
    # The condition around a command is none of its options.
    assert not any(one.conditional for settings in commands for one in settings)


def test_arms_of_a_case_leave_no_value_behind() -> None:
    found = options("case $S in a) A+=(--b 1); N=1 ;; c) A+=(--c 2); N=2 ;; esac\nrun ${A[@]} --n $N")
    assert {key: setting.conditional for key, setting in found.items()} == {"--b": True, "--c": True, "--n": False}
    assert isinstance(found["--n"].value, Unresolved)


def test_options_in_variables_do_not_replace_those_of_a_command_in_a_later_branch() -> None:
    *_, held = read('B="--b 1"\nif x; then A="--tp 4 --experts 8"; else A="--tp 2"; run $A; fi', "s.sh")
    assert [one.key for one in held] == ["--b"]
    # Without a command that uses them, they stand in the order of the script.
    *_, held = read("A=(--x 1)\nB=(--x 2)\nif y; then A+=(--z 3); else A+=(--y 4); fi", "s.sh")
    assert [(one.key, one.value) for one in held] == [("--x", "1"), ("--z", "3"), ("--y", "4"), ("--x", "2")]


@pytest.mark.parametrize("extra", ["$*", "$@", '"$@"', "${@}", "${@:2}", "$EXTRA", "${EXTRA}", "${EXTRA[@]}", "$3"])
def test_further_arguments_are_empty(extra: str) -> None:
    found = options(f"run --a 1 --b 2 {extra}")
    assert {key: setting.value for key, setting in found.items()} == {"--a": "1", "--b": "2"}
    written = "$EXTRA" if "EXTRA" in extra else extra.strip('"')
    assert found["--b"].note == f"{written} taken as empty"
    # Behind an option without a value, the value itself may be the variable's.
    alone = options(f"run --a {extra}")["--a"]
    if ("@" in extra and "EXTRA" not in extra) or extra == "$*":
        assert alone.value is True
    else:
        assert isinstance(alone.value, Unresolved)
        assert alone.value.variable


def test_an_unresolved_value_names_what_to_define() -> None:
    (setting,) = options("run --a x${SIZE}y$2").values()
    assert setting.value.remedy == "give --define SIZE=VALUE and --define 2=VALUE"


@pytest.mark.parametrize(
    "around", ["if x; then\n{}\nfi", "main() {{\n{}\n}}\nmain", "for i in 1 2; do\n{}\ndone", "[ -n $X ] && {}"]
)
def test_options_of_a_command_in_a_branch_are_those_of_the_command(around: str) -> None:
    *_, settings, _ = read("ARGS=(--a 1)\n[ $Y ] && ARGS+=(--c 3)\n" + around.format("run ${ARGS[@]} --b 2"), "s.sh")
    assert [(one.key, one.conditional) for one in settings] == [("--a", False), ("--c", True), ("--b", False)]
