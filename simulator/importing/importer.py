"""How do configuration files become a scenario? The whole way on one page.

read each file  ->  its format  ->  facts  ->  machine  ->  the formats' derivations  ->  model, batch  ->  text
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from simulator.basics.counts import number_of
from simulator.basics.errors import ScenarioError, few
from simulator.basics.input_files import read_text
from simulator.importing import architecture, batch, machine, writer
from simulator.importing.facts import Facts
from simulator.importing.format import Format, Readings, format_of
from simulator.importing.machine import Options
from simulator.importing.settings import MOST_BYTES, MOST_PYTHON_BYTES, Imported, Setting
from simulator.importing.syntax import mapping, python, shell, toml
from simulator.importing.zero_stage import STAGE

_SEQ_LEN: Final = "training.seq_len"
# Most files of a configuration.
_MOST_FILES: Final = 20
_SYNTAXES: Final = {
    **dict.fromkeys((".json", ".yaml", ".yml"), ("mapping", mapping.read)),
    ".toml": ("toml", toml.read),
}


def import_files(
    files: Sequence[str], options: Options | None = None, name: str = "imported", base: Path | None = None
) -> Imported:
    """Return the scenario of a training's configuration files.

    Parameters
    ----------
    files : sequence of str
        Paths; a configuration may have several files, such as a script and a DeepSpeed JSON.
    options : Options, optional
        What the files cannot say: the machine.
    name : str
        Name of the scenario.
    base : Path, optional
        Folder of the scenario, against which relative paths are read.

    Raises
    ------
    ScenarioError
        A line for each fault: an unreadable file, an unknown format, a wrong value, a contradiction, or settings that
        the simulator refuses.
    """
    if len(files) > _MOST_FILES:
        raise ScenarioError(f"got {len(files)} files; a configuration has at most {_MOST_FILES}")
    facts, by_path, options = Facts(), dict[str, Format](), options or Options()
    machine.apply_options(facts, options)
    others = list[str]()
    for path in files:
        syntax, readings = _readings(path, options)
        kind, settings = format_of(path, syntax, readings)
        if syntax == "shell":
            others += _other_commands(kind, settings, readings)
        facts.read(settings, kind.table, kind.plain, kind.idle)
        by_path[path] = kind
    facts.refuse()
    machine.derive_machine(facts, options)
    # A companion's facts first: the program's defaults depend on them.
    kinds = sorted(dict.fromkeys(by_path.values()), key=lambda kind: not kind.companion)
    for kind in kinds:
        kind.derive(facts)
    _derive_rest(facts, kinds)
    facts.refuse()
    facts.ignore_unused()
    question = f"How fast is the training of {', '.join(Path(path).name for path in files)}?"
    text = writer.written(facts, question, name, base or Path())
    formats = {path: kind.name for path, kind in by_path.items()}
    understood = sorted(facts.understood(), key=lambda entry: writer.order(entry.key))
    missing = sorted(facts.missing(), key=lambda entry: writer.order(entry.key))
    notes = (*others, *facts.notes(), *text.warnings)
    return Imported(formats, tuple(understood), tuple(facts.ignored), tuple(missing), text.text, notes)


def _readings(path: str, options: Options) -> tuple[str, Readings]:
    # FILE.py:FUNCTION names one of a file's configurations.
    file, colon, function = path.rpartition(":")
    if path.endswith(".py") or (colon and file.endswith(".py")):
        file = file if colon and file.endswith(".py") else path
        return "python", python.read(read_text(file, most=MOST_PYTHON_BYTES), file, function if file != path else None)
    text = read_text(path, most=MOST_BYTES)
    reader = _SYNTAXES.get(Path(path).suffix.lower())
    if reader is None:
        return "shell", shell.read(text, path, options.variables)
    syntax, read = reader
    return syntax, read(text, path)


def _other_commands(kind: Format, settings: Sequence[Setting], readings: Readings) -> Iterator[str]:
    """Yield a note on the commands of a script whose settings of the same program differ from those that are read."""

    def values(reading: Sequence[Setting]) -> set[tuple[str, object]]:
        return {(name, setting.value) for setting in reading if (name := kind.plain(setting.key)) in kind.table}

    # The last reading has the options in variables, and is no command.
    *commands, variables = readings
    # A command with few of the settings is no other training, but prepares data or the like.
    trainings = [command for command in commands if 2 * kind.known(command) > kind.known(settings)]
    others = [command[-1].place for command in trainings if values(command) != values(settings)]
    if others:
        origin = "the options in variables" if settings is variables else f"the command in {settings[-1].place}"
        yield (
            f"{few(others, 6)}: {number_of(len(others), 'command')} with other settings of {kind.name}; read: {origin}"
        )


def _derive_rest(facts: Facts, kinds: Sequence[Format]) -> None:
    """Complete the facts that every format has: framework, model, batch."""
    program = next((kind for kind in kinds if not kind.companion), kinds[0])
    # DeepSpeed's stages run as FSDP, whose constants are measured.
    kind = "DeepSpeed as FSDP, with this framework's constants; deepspeed_2021 is the only DeepSpeed"
    of = kind if facts.has(STAGE) else program.name
    facts.assume("training.framework", program.framework, f"{of}; --framework changes it")
    seq_len = facts.value(_SEQ_LEN)
    if seq_len is None:
        seq_len = facts.assumed(_SEQ_LEN) or _DEFAULT_SEQ_LEN
        facts.assume(_SEQ_LEN, seq_len, "--seq-len changes it")
    architecture.derive_model(facts, seq_len)
    if not facts.has(architecture.MODEL):
        facts.assume(architecture.MODEL, _DEFAULT_MODEL, "the files name no model; --model changes it")
    batch.derive_batch(facts)
    for key, usual in _USUAL.items():
        facts.assume(key, usual, "the files do not say; the default of scenarios")


# Keys that change every step, and are therefore written in any case.
_USUAL: Final = {
    "training.precision.params": "bfloat16",
    "training.activation_checkpointing": "none",
    "training.optimizer.name": "adam",
}
_DEFAULT_SEQ_LEN: Final = 2048
_DEFAULT_MODEL: Final = "llama3_8b"
