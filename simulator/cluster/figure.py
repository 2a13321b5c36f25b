"""How a figure stands in a catalog file: a value with a unit, the source that printed it, and whether it is sure.

Rule: a bare value is short for a figure without source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from simulator.basics.units import LEAST, MOST, within
from simulator.cluster.quantity import AnyBandwidth, Bandwidth, Count, FlopRate, Seconds, Size


class Strict(BaseModel):
    """A model that refuses unknown keys and converts nothing silently."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Figure(Strict):
    """A value with its source."""

    source: str = ""
    sure: bool = True

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return data if isinstance(data, Mapping) else {"value": data}


class Rate(Figure):
    """[FLOP/s]."""

    value: FlopRate


class Memory(Figure):
    """[B], more than none."""

    value: Annotated[Size, Field(gt=0)]


class Speed(Figure):
    """[B/s], more than none."""

    value: Bandwidth


class AnySpeed(Figure):
    """[B/s]; 0 where there is no such link."""

    value: AnyBandwidth


class Time(Figure):
    """[s]."""

    value: Seconds


class Whole(Figure):
    """A count of at least one."""

    value: Count


def _sensible(value: float) -> float:
    if not (value >= 0 and within(value)):
        raise ValueError(f"got {value!r}; must be 0, or from {LEAST:g} to {MOST:g}")
    return value


class Number(Figure):
    """A number whose unit is not read, 0 or more."""

    value: Annotated[float, Field(allow_inf_nan=False), AfterValidator(_sensible)]


class Positive(Number):
    """A number whose unit is not read, more than 0."""

    value: Annotated[float, Field(allow_inf_nan=False, gt=0), AfterValidator(_sensible)]


class Open(Figure):
    """A number, or text that nothing reads."""

    value: float | str


def figures(file: BaseModel) -> list[tuple[str, Any]]:
    """List every figure of a file under its dotted key."""
    by_key: list[tuple[str, Any]] = []
    for key in type(file).model_fields:
        value = getattr(file, key)
        if isinstance(value, Figure):
            by_key.append((key, value))
        elif isinstance(value, dict):
            by_key += [(f"{key}.{inner}", figure) for inner, figure in value.items()]
    return by_key
