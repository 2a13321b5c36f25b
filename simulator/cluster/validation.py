"""Checks catalog and topology files against their pydantic models; each error becomes a fault with line and column.

Every fault is reported on a line that contains the value and the allowed values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from simulator.basics.document import Document, Fault, Key
from simulator.basics.errors import one_of

M = TypeVar("M", bound=BaseModel)

_WANTED: Final = {
    # pydantic's error types -> text in this package's words.
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "dict_type": "must be a mapping (key: value)",
    "model_type": "must be a mapping (key: value)",
    "model_attributes_type": "must be a mapping (key: value)",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "is_instance_of": "must be a list",
}
_QUOTED: Final = re.compile(r"'([^']*)'")
_BOUND: Final = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def check(model: type[M], document: Document, at: Key = ()) -> tuple[M | None, list[Fault]]:
    """Return a document's data, or a single key's value, as the given pydantic model, and the faults found.

    Parameters
    ----------
    at : tuple of str and int
        Path of the key to check; empty for the whole document.

    Returns
    -------
    tuple
        The model and no faults, or None and every fault.
    """
    data = document.data
    for step in at:
        data = data[step]
    if not isinstance(data, Mapping):
        return None, [document.fault(at, f"got {data!r}; must be a mapping (key: value)")]
    try:
        return model.model_validate(dict(data)), []
    except ValidationError as error:
        return None, [_fault(model, document, at, dict(detail)) for detail in error.errors()]


def checked(model: type[M], document: Document) -> M:
    """Return a whole document's data as the given pydantic model.

    Raises
    ------
    ScenarioError
        The document has faults; one line for each fault.
    """
    file, faults = check(model, document)
    document.refuse(faults)
    return cast(M, file)


def _fault(model: type[BaseModel], document: Document, at: Key, detail: Mapping[str, Any]) -> Fault:
    # pydantic marks an error in a mapping's key (not value) with "[key]" in the path.
    inner = tuple(step for step in detail["loc"] if step != "[key]")
    key = (*at, *inner)
    kind = str(detail["type"])
    if kind == "extra_forbidden":
        homes = _homes(model, inner, detail["input"])
        meant = f"write it under {'.'.join(map(str, (*key[:-1], homes[0])))}" if len(homes) == 1 else ""
        meant = meant or one_of(_keys_at(model, inner[:-1]), inner[-1])
        return document.fault(key, f"unknown key; {meant}", of_key=True)
    if kind == "missing":
        return document.fault(key, "is missing; give it")
    message = _message(kind, detail)
    return document.fault(key, message, of_key="[key]" in detail["loc"])


def _message(kind: str, detail: Mapping[str, Any]) -> str:
    got, context = detail["input"], detail.get("ctx", {})
    # Raised by this package's own validators: the text is complete.
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"got {got!r}; {one_of(_QUOTED.findall(context['expected']), got)}"
    if kind in _BOUND:
        word, name = _BOUND[kind]
        return f"got {got!r}; must be {word} {context[name]}"
    return f"got {got!r}; {_WANTED.get(kind, str(detail['msg']).lower())}"


def _homes(model: Any, steps: Key, value: Any) -> list[str]:
    """Return the keys beside an unknown key that hold records with this key, or entries with the keys of its value."""
    *above, name = steps
    inner = set(value) if isinstance(value, Mapping) else set()
    return [
        home
        for home in _keys_at(model, (*above,))
        if name in _keys_at(model, (*above, home)) or set() < inner <= {*_keys_at(model, (*above, home, name))}
    ]


def _keys_at(model: Any, steps: Key) -> list[str]:
    """Return the allowed keys of the pydantic model at the end of the path `steps` in `model`."""
    kind = _plain(model)
    for step in steps:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if step not in kind.model_fields:
                return []
            kind = _plain(kind.model_fields[str(step)].annotation)
        elif get_args(kind):
            # A container such as dict[str, X]: the last type argument is the values' type.
            kind = _plain(get_args(kind)[-1])
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _plain(kind: Any) -> Any:
    """Return the pydantic model inside the annotations `X | None` and `Annotated[X, ...]`."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        options = [a for a in get_args(kind) if a is not type(None)]
        kind = options[0]
    return kind
