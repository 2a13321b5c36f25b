"""Turns pydantic's errors for a small file (jobs, days) into faults in plain words.

error_messages.py does the same for scenarios, whose keys have examples and axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pydantic import ValidationError

from simulator.basics import reading
from simulator.basics.document import Document, Fault, Key
from simulator.basics.errors import one_of
from simulator.basics.spec import Spec

# What pydantic's error types expect, in words.
_WANTED = {"model_type": "a mapping", "dict_type": "a mapping", "list_type": "a list", "string_type": "text"}


def plain_faults(document: Document, error: ValidationError, spec_at: Callable[[Key], type[Spec]]) -> Iterator[Fault]:
    """Yield a fault for each error; `spec_at` returns the record of the mapping at a key path."""
    for detail in error.errors(include_url=False, include_context=True):
        loc: Key = tuple(detail["loc"])
        of_key = bool(loc) and loc[-1] == "[key]"
        loc = loc[:-1] if of_key else loc
        kind, raised = detail["type"], detail.get("ctx", {}).get("error")
        if kind == "missing":
            yield document.fault(loc, "missing", of_key=True)
        elif kind == "extra_forbidden":
            allowed = tuple(field.alias or key for key, field in spec_at(loc[:-1]).model_fields.items())
            yield document.fault(loc, f"unknown key; {one_of(allowed, loc[-1])}", of_key=True)
        elif isinstance(raised, ValueError):
            yield document.fault(loc, str(raised), of_key=of_key)
        else:
            rule = f"must be {_WANTED[kind]}" if kind in _WANTED else "this value is not allowed here"
            yield document.fault(loc, f"got {reading.shown(detail['input'])}; {rule}", of_key=of_key)
