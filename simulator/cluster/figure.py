"""How is a figure written in a catalog file: a value with a unit, its source, and whether the value is certain?

A bare value is short for a figure without a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from simulator.basics.units import LEAST, MOST, within
from simulator.cluster.quantity import AnyBandwidth, Bandwidth, Count, FlopRate, Size


class Strict(BaseModel):
    """A pydantic model that refuses unknown keys and never converts types silently."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Sourced(Strict):
    """Entries of a catalog file with a source."""

    source: str = Field("", description="Source of the measured figures.")


class SourcedValue(Sourced):
    """A value in a catalog file, with its source and whether the value is certain."""

    sure: bool = True

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        # A bare value, such as `hbm_bytes: 80 GB`, is short for {value: 80 GB}.
        return data if isinstance(data, Mapping) else {"value": data}


class FittedValue(SourcedValue):
    """A value in a catalog file; `fitted_to` names the framework, or the source, whose measured runs gave the value."""

    fitted_to: str = ""


class Rate(SourcedValue):
    """A catalog value: a rate of operations [FLOP/s]."""

    value: FlopRate


class Memory(SourcedValue):
    """A catalog value: an amount of memory [B], greater than 0."""

    value: Annotated[Size, Field(gt=0)]


class Speed(SourcedValue):
    """A catalog value: a bandwidth [B/s], greater than 0."""

    value: Bandwidth


class AnySpeed(SourcedValue):
    """A catalog value: a bandwidth [B/s]; 0 if there is no such link."""

    value: AnyBandwidth


class Whole(SourcedValue):
    """A catalog value: a count of at least 1."""

    value: Count


def _sensible(value: float) -> float:
    if not (value >= 0 and within(value)):
        raise ValueError(f"got {value!r}; must be 0, or from {LEAST:g} to {MOST:g}")
    return value


class Number(SourcedValue):
    """A catalog value: a number without a unit, 0 or more."""

    value: Annotated[float, Field(allow_inf_nan=False), AfterValidator(_sensible)]


class Positive(Number):
    """A catalog value: a number without a unit, greater than 0."""

    value: Annotated[float, Field(allow_inf_nan=False, gt=0), AfterValidator(_sensible)]


T = TypeVar("T")
M = TypeVar("M", bound=Strict)
# A list in the file, stored as a tuple: frozen records must not hold lists.
Listed = Annotated[tuple[T, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)]


def file_of(record: type, base: type[M], *, without: tuple[str, ...] = ()) -> type[M]:
    """Return the pydantic model of a catalog file: a key for each field of a record, with a value and its source.

    Parameters
    ----------
    record : type
        A dataclass whose annotations say what each field may hold. A number is a FittedValue in the file, anything else
        a SourcedValue; a mapping holds such values, or records with a source each. A field that is a dataclass is a
        mapping with the keys of its own fields.
    base : type
        Model with the file's further keys.
    without : tuple of str
        Fields of the record that are no keys of the file.
    """
    hints = get_type_hints(record, include_extras=True)
    keys: dict[str, Any] = {}
    for field in fields(record):
        if field.name in without:
            continue
        kind = hints[field.name]
        if get_origin(kind) in _MAPPINGS:
            keys[field.name] = (dict[str, _sourced(get_args(kind)[1])], Field(default_factory=dict))  # type: ignore[misc]
        elif isinstance(kind, type) and is_dataclass(kind):
            nested = file_of(kind, Strict)
            keys[field.name] = (nested, Field(default_factory=nested))
        else:
            form = _sourced(kind)
            keys[field.name] = (form, form.model_construct(value=field.default))
    return create_model(f"{record.__name__}File", __base__=base, **keys)


_MAPPINGS: Final = (Mapping, dict)


def _sourced(kind: Any) -> Any:
    """Return the model of a value of a kind, or of a record, with its source."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        keys: dict[str, Any] = {
            field.name: (hints[field.name], ... if field.default is MISSING else field.default)
            for field in fields(kind)
        }
        return create_model(kind.__name__, __base__=FittedValue, **keys)
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    form: Any = FittedValue if bare is float else SourcedValue
    return create_model(getattr(bare, "__name__", "Value"), __base__=form, value=(kind, ...))


def values_of(file: BaseModel, record: type) -> dict[str, Any]:
    """Return the values in a model made by `file_of` without their sources, by field of the record."""
    hints = get_type_hints(record)

    def value(figure: Any, kind: Any) -> Any:
        if not (is_dataclass(kind) and isinstance(kind, type)):
            return figure.value
        # A record in a mapping has one source, and a nested record a source for each value.
        sourced = isinstance(figure, SourcedValue)
        return kind(**({f.name: getattr(figure, f.name) for f in fields(kind)} if sourced else values_of(figure, kind)))

    values = {}
    for field in fields(record):
        if field.name not in type(file).model_fields:
            continue
        figure, kind = getattr(file, field.name), hints[field.name]
        if isinstance(figure, dict):
            values[field.name] = {key: value(each, get_args(kind)[1]) for key, each in figure.items()}
        else:
            values[field.name] = value(figure, kind)
    return values


def figures(file: BaseModel, *, written: bool = False) -> list[tuple[str, Any]]:
    """Return the sourced values in a catalog file's model, as pairs (dotted key, value with source); with `written`,
    without the defaults of keys that the file omits.
    """
    by_key: list[tuple[str, Any]] = []
    for key in type(file).model_fields:
        value = getattr(file, key)
        if written and key not in file.model_fields_set:
            continue
        # Nested mappings, such as peaks by dtype, get dotted keys: matrix_flops.bfloat16.
        if isinstance(value, SourcedValue):
            by_key.append((key, value))
        elif isinstance(value, dict):
            by_key += [(f"{key}.{inner}", figure) for inner, figure in value.items()]
        elif isinstance(value, BaseModel):
            by_key += [(f"{key}.{inner}", figure) for inner, figure in figures(value, written=written)]
    return by_key
