"""The scenario schema, read once: to write it down takes longer than to hold a scenario to it."""

from __future__ import annotations

from functools import cache

import jsonschema

from simulator.scenario.schema import schema


@cache
def scenario_validator() -> jsonschema.Draft202012Validator:
    """Holds data to the schema of a scenario."""
    return jsonschema.Draft202012Validator(schema())
