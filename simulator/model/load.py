"""Loads models from catalog/models/NAME.json, the path of a config.json, or a mapping of its keys.

A model is a Hugging Face config.json and nothing more. There is a file per model, and the file's name is the model's
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simulator.basics import registry
from simulator.basics.document import Document, parse
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import read_text
from simulator.model.huggingface import read_transformer
from simulator.model.shape import Transformer

# Tokens of a sequence if a question about a model names no number.
_SEQ_LEN: Final = 2048


def load_model(
    model: str | Path | Mapping[str, Any], seq_len: int | None = None, base: Path | None = None
) -> Transformer:
    """Return a model from the catalog, a config.json file or a mapping of its keys.

    Parameters
    ----------
    model : str, Path or mapping
        A catalog name, the path of a config.json, or its keys.
    seq_len : int, optional
        Tokens of a sequence in the run. Models that build their position table for a run (MPT) get this many rows; for
        other models with learned positions it may not exceed their table.
    base : Path, optional
        Folder against which a relative path is read first.

    Raises
    ------
    UnknownNameError
        Unknown model; the message suggests similar names.
    ScenarioError
        A line per fault in the file.

    Examples
    --------
    >>> load_model("llama3_8b").num_kv_heads
    8
    >>> load_model("mpt_1b", seq_len=8192).max_positions
    8192
    """
    if seq_len is not None and (isinstance(seq_len, bool) or not isinstance(seq_len, int) or seq_len < 1):
        raise ScenarioError(f"seq_len: got {seq_len!r}; must be a whole number of at least 1")
    if isinstance(model, Mapping):
        return read_transformer(Document("model", dict(model)), str(model.get("name", "inline")), seq_len)
    path = model if isinstance(model, Path) else _locate(model, base)
    return read_transformer(_document(path), _name(path), seq_len)


def sequence_length(asked: int | None, model: str | Mapping[str, Any]) -> int:
    """Return the tokens of a sequence for a question about a model: `asked`, or the default if None.

    The default is 2048 tokens, and at most the positions that the model has learned; for a model of images it is the
    number of patches plus the class token. For an unknown model it is 2048; the caller's own check reports the name.

    Examples
    --------
    >>> sequence_length(None, "llama3_8b"), sequence_length(None, "gpt2"), sequence_length(4096, "gpt2")
    (2048, 1024, 4096)
    >>> sequence_length(None, "vit_b16")
    197
    """
    if asked is not None:
        return asked
    try:
        loaded = load_model(model)
    except ScenarioError:
        return _SEQ_LEN
    positions = loaded.max_positions - loaded.position_offset
    if loaded.patches is not None:
        return positions
    return min(_SEQ_LEN, positions) if loaded.positions == "learned" else _SEQ_LEN


def _locate(name: str, base: Path | None) -> Path:
    """Return the path of the model with this name: in the catalog first, then relative to the folder `base`."""
    if name not in registry.names("model") and base is not None and registry.is_file(base / name):
        return base / name
    return registry.find("model", name)


def _name(path: Path) -> str:
    """Return a model's name from the path of its file: the file's stem, or the folder's name for a config.json."""
    return path.absolute().parent.name if path.stem == "config" else path.stem


def _document(path: Path) -> Document:
    """Return a JSON file's contents as a document that knows each key's line."""
    # JSON may be indented by tabs, YAML may not; JSON strings cannot contain a bare tab.
    return parse(read_text(path).replace("\t", " "), str(path))
