"""How is a figure written in a catalog file: a value with a unit, its source, and whether the value is certain?

A bare value is short for a figure without a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from simulator.basics.units import LEAST, MOST, within
from simulator.cluster.quantity import AnyBandwidth, Bandwidth, Count, FlopRate, Size


class Strict(BaseModel):
    """A pydantic model that refuses unknown keys and never converts types silently."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SourcedValue(Strict):
    """A value in a catalog file, with its source and whether the value is certain."""

    source: str = ""
    sure: bool = True

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        # A bare value, such as `hbm_bytes: 80 GB`, is short for {value: 80 GB}.
        return data if isinstance(data, Mapping) else {"value": data}


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


def figures(file: BaseModel) -> list[tuple[str, Any]]:
    """Return the sourced values in a catalog file's model, as pairs (dotted key, value with source)."""
    by_key: list[tuple[str, Any]] = []
    for key in type(file).model_fields:
        value = getattr(file, key)
        # Nested mappings, such as peaks by dtype, get dotted keys: matrix_flops.bfloat16.
        if isinstance(value, SourcedValue):
            by_key.append((key, value))
        elif isinstance(value, dict):
            by_key += [(f"{key}.{inner}", figure) for inner, figure in value.items()]
    return by_key
