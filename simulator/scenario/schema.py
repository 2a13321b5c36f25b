"""The JSON schema of a scenario file: editors use it to complete keys and to underline mistakes.

Nothing is listed twice: names come from the folders, keys from the records. A schema cannot express rules between keys;
`simulator check` checks these.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, create_model

from simulator.basics import registry
from simulator.basics.spec import Omittable
from simulator.scenario.records import KINDS, Scenario, adapter, axis_keys
from simulator.step.training_spec import TrainingSpec

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file (draft 2020-12).

    Quantities are strings with a pattern; names are enumerations of the shipped files.

    >>> schema()["required"]
    ['name', 'cluster']
    """
    document = _plain(_with_training().model_json_schema())
    # pydantic describes axes without their keys; editors complete the keys only from this list.
    document["properties"]["compare"] = _axes("Values to compare, by key.")
    document["properties"]["sweep"] = _axes("Values to sweep, by key.")
    cluster = document["$defs"]["ClusterSpec"]["properties"]
    for kind, key in (("topology", "topology"), ("gpu", "gpu")):
        cluster[key]["examples"] = list(registry.names(kind))  # type: ignore[arg-type]
    document["$defs"]["TrainingSpec"]["properties"]["model"]["examples"] = list(registry.names("model"))
    # Exactly one kind, as `load._kind` demands.
    document["oneOf"] = [{"required": [kind]} for kind in KINDS]
    # Ranks are whole numbers in YAML and text in JSON, like every key; pydantic describes only the values.
    cluster["stragglers"]["propertyNames"] = {"pattern": "^[0-9]+$"}
    return {"$schema": _DIALECT, "title": "Scenario of the cluster simulator", **document}


def _with_training() -> type[Scenario]:
    """Return the record of a scenario with the type of `training` itself, which the record imports late."""
    late = Scenario.model_fields["training"]
    training = Annotated[TrainingSpec | None, Omittable(TrainingSpec)]
    field: Any = (training, Field(default=late.default, description=late.description))
    return create_model("Scenario", __base__=Scenario, __doc__=Scenario.__doc__, training=field)


def _axes(description: str) -> dict[str, Any]:
    properties = {}
    for key in axis_keys():
        items = _plain(adapter(key).json_schema())
        # The whole document has the same definitions, and references find them there.
        items.pop("$defs", None)
        properties[key] = {"type": "array", "minItems": 1, "uniqueItems": True, "items": items}
    return {"type": "object", "description": description, "properties": properties, "additionalProperties": False}


def _plain(node: Any) -> Any:
    """Return a JSON schema without generated titles and backticks; mappings with name patterns allow no other names."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    mapping = {key: _plain(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if "patternProperties" in mapping:
        mapping["additionalProperties"] = False
    if isinstance(mapping.get("description"), str):
        mapping["description"] = mapping["description"].replace("`", "")
    return mapping
