"""Loads models from catalog/models, the path of a file, or a mapping of its keys.

A model is a Hugging Face config.json or a file of layers (`layer_file.py`), known by its key `layers`. There is a file
per model, and the file's name is the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simulator.basics import registry
from simulator.basics.counts import number_of
from simulator.basics.document import Document, parse
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import read_text
from simulator.model.huggingface import read_transformer
from simulator.model.layer_file import read_layer_list
from simulator.model.layer_list import LayerList
from simulator.model.model import Model
from simulator.model.shape import Transformer
from simulator.model.traced_file import read_traced

# Tokens of a sequence if a question about a model names no number.
_SEQ_LEN: Final = 2048


def load_model(model: str | Path | Mapping[str, Any], seq_len: int | None = None, base: Path | None = None) -> Model:
    """Return a model from the catalog, a config.json, a file of layers, or a mapping of their keys.

    Parameters
    ----------
    model : str, Path or mapping
        A catalog name, the path of a config.json or of a file of layers, or its keys.
    seq_len : int, optional
        Tokens of a sequence in the run. Models that build their position table for a run (MPT) get this many rows; for
        other models with learned positions it may not exceed their table. A list of layers has a number of tokens of
        its own, 1 for images.
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
    >>> load_model("llama3_8b").num_layers
    32
    >>> load_transformer("mpt_1b", seq_len=8192).max_positions
    8192
    """
    if seq_len is not None and (isinstance(seq_len, bool) or not isinstance(seq_len, int) or seq_len < 1):
        raise ScenarioError(f"seq_len: got {seq_len!r}; must be a whole number of at least 1")
    if isinstance(model, Mapping):
        return _read(Document("model", dict(model)), str(model.get("name", "inline")), seq_len)
    path = model if isinstance(model, Path) else _locate(model, base)
    return _read(_document(path), _name(path), seq_len)


def load_transformer(
    model: str | Path | Mapping[str, Any], seq_len: int | None = None, base: Path | None = None
) -> Transformer:
    """Return a model that is a transformer; see `load_model`.

    Raises
    ------
    ScenarioError
        The model is a list of layers.
    """
    model_read = load_model(model, seq_len, base)
    if isinstance(model_read, LayerList):
        raise ScenarioError(
            f"model: {model_read.name} is a list of layers; this needs a transformer, such as llama3_8b"
        )
    return model_read


def _read(document: Document, name: str, seq_len: int | None) -> Model:
    """Return the model that a file's data describes, for sequences of `seq_len` tokens if given."""
    _refuse_scenario(document)
    if not (isinstance(document.data, Mapping) and "layers" in document.data):
        return read_transformer(document, name, seq_len)
    model = (read_traced if "format" in document.data else read_layer_list)(document, name)
    if seq_len not in (None, model.tokens):
        what = "a sample, such as an image, counts as 1 token" if model.tokens == 1 else "its input has a fixed length"
        raise ScenarioError(
            f"{document.source}: seq_len: got {seq_len}; {name} has {number_of(model.tokens, 'token')}, because {what}"
            f"; write seq_len: {model.tokens}"
        )
    return model


def _refuse_scenario(document: Document) -> None:
    """Raise ScenarioError if a document is a scenario; the message names its model and the commands for scenarios."""
    keys = document.data
    if not isinstance(keys, Mapping) or "model_type" in keys or not {"training", "collective"} & set(keys):
        return
    training = keys.get("training")
    model = training.get("model") if isinstance(training, Mapping) else None
    instead = f"; its model is {model}" if isinstance(model, str) else ""
    raise ScenarioError(
        f"{document.source}: is a scenario and no model{instead}; `simulator run`, `simulator check` and "
        "`simulator expect` take scenarios"
    )


def sequence_length(seq_len: int | None, model: str | Mapping[str, Any]) -> int:
    """Return the tokens of a sequence for a question about a model: `seq_len`, or the default if None.

    The default is 2048 tokens, and at most the positions that the model has learned; for a model of images it is the
    number of patches plus the class token. For an unknown model it is 2048; the caller's own check reports the name.

    >>> sequence_length(None, "llama3_8b"), sequence_length(None, "gpt2"), sequence_length(4096, "gpt2")
    (2048, 1024, 4096)
    >>> sequence_length(None, "vit_b16")
    197
    """
    if seq_len is not None:
        return seq_len
    try:
        loaded = load_model(model)
    except ScenarioError:
        return _SEQ_LEN
    if isinstance(loaded, LayerList):
        return loaded.tokens
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
    """Return a file's contents as a document that knows each key's line."""
    # JSON may be indented by tabs, YAML may not; JSON strings cannot contain a bare tab.
    return parse(read_text(path).replace("\t", " "), str(path))
