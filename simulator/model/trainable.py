"""Which parts of a model are trained (`training.trainable`)? All, or parts and patterns; the others are frozen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Final

from simulator.basics import reading
from simulator.basics.errors import MOST_MEANT, did_you_mean, similar
from simulator.model.model import modules
from simulator.model.trained import TrainedParts, parameter_path

if TYPE_CHECKING:
    from simulator.model.model import Model

ALL: Final = "all"
# One layer, or a range of layers.
_LAYERS: Final = re.compile(r"layers? (\d{1,6})(?: ?- ?(\d{1,6}))?")
# What no name of a part has: a pattern of paths, or a path.
_PATTERN: Final = re.compile(r"[.*?\[]")
_HINT: Final = (
    "must be all, or a list of embedding, head, layer 3, layers 28-31, or patterns of parameters such as "
    "layers.*.attention.*"
)


def trained_parts() -> reading.ValueReader:
    """Return a validator for the trained parts of a model: the word all, or a list of parts and patterns."""

    def reader(value: Any) -> Any:
        if value == ALL:
            return ALL
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not parts:
            raise ValueError(f"got {reading.shown(value)}; {_HINT}")
        for part in parts:
            matches = isinstance(part, str) and (_LAYERS.fullmatch(part) or _PATTERN.search(part))
            if part not in ("embedding", "head") and not matches:
                raise ValueError(f"got {reading.shown(part)}; {_HINT}")
        return tuple(parts)

    part = {"type": "string", "pattern": rf"^(embedding|head|{_LAYERS.pattern})$|{_PATTERN.pattern}"}
    return reading.ValueReader(reader, lambda: {"anyOf": [{"const": ALL}, part, {"type": "array", "items": part}]})


def trained_of(value: Any, model: Model) -> TrainedParts | None:
    """Return the trained parameters of a model; None if all are trained.

    Raises
    ------
    ValueError
        The model has no such layer, or no parameter that a pattern matches.

    Examples
    --------
    >>> from simulator.model.load import load_model
    >>> trained = trained_of(("head", "layers.2?.attention.*"), load_model("llama3_8b"))
    >>> trained.first, sorted(trained.of("layer 20")), len(trained.modules)
    ('layer 20', ['proj.weight', 'qkv.weight'], 11)
    """
    if value == ALL:
        return None
    # Path of each parameter, with the module and the parameter's names: the experts of a layer share a path.
    paths: dict[str, tuple[str, set[str]]] = {}
    for module in modules(model):
        for parameter in module.parameters:
            paths.setdefault(parameter_path(module.name, parameter.name), (module.name, set()))[1].add(parameter.name)
    trained: dict[str, set[str]] = {}
    for part in value:
        for path in _matched(part, paths, model):
            name, parameters = paths[path]
            trained.setdefault(name, set()).update(parameters)
    if sum(map(len, trained.values())) == sum(len(parameters) for _, parameters in paths.values()):
        return None
    order = [module.name for module in modules(model) if module.name in trained]
    return TrainedParts(tuple((name, frozenset(trained[name])) for name in order))


def _matched(part: str, paths: Iterable[str], model: Model) -> list[str]:
    """Return the paths of the parameters that a part or a pattern names."""
    layers = _LAYERS.fullmatch(part)
    if layers is None:
        # A path of a module or block means all its parameters.
        matches = re.compile(f"{translate(part)}|{translate(f'{part}.*')}").match
        matching = [path for path in paths if matches(path)]
        if not matching:
            proposals = _proposals(part, paths, model.num_layers)
            raise ValueError(f"got {part!r}, which matches no parameter of {model.name}; {proposals}")
        return matching
    first, last = int(layers[1]), int(layers[2] or layers[1])
    if not first <= last < model.num_layers:
        raise ValueError(f"got {part!r}; the layers are 0 to {model.num_layers - 1}")
    modules_of = {f"layers.{number}" for number in range(first, last + 1)}
    matching = [path for path in paths if ".".join(path.split(".")[:2]) in modules_of]
    if not matching:
        raise ValueError(f"got {part!r}, which has no parameters in {model.name}; name a layer with parameters")
    return matching


def _proposals(part: str, paths: Iterable[str], layers: int) -> str:
    """Return the patterns that a pattern without a match probably means, or else a few parameters of layers."""
    general = dict.fromkeys(re.sub(r"^layers\.\d+", "layers.*", path) for path in paths)
    blocks = dict.fromkeys(
        block for path in general for block in (path, path.rpartition(".")[0], ".".join(path.split(".")[:3]))
    )
    likely = similar([f"{block}.*" if block not in general else block for block in blocks], part, MOST_MEANT)
    some = [path for path in general if path.startswith("layers.")][:MOST_MEANT]
    return did_you_mean(likely) or f"some of layers 0 to {layers - 1} are {', '.join(some)}"
