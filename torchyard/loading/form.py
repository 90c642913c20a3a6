"""The form of a run: the parameters of the flow `train` as JSON Schema, with help, bounds and a profile's values.

Prefect renders the form from the schema, and its API refuses parameters that do not match before it creates a run.
"""

from typing import Any

from torchyard.loading.profile import list_profiles
from torchyard.model.profile import Profile

Schema = dict[str, Any]

# The keys that users change between runs, each with a field; other keys can be written as JSON instead of the fields.
_FIELD_KEYS = ("nodes", "processes", "image", "program", "args", "env", "fabric", "attempts", "deadlines")
_PARAMETERS = ("profile", "overrides", "resume", "dry_run")
_STRING_LIST_SCHEMA = {"title": "words", "type": "array", "items": {"type": "string"}}
_JSON_LIST_SCHEMA = {"title": "JSON", "type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}


def build_form(profile: Profile | None) -> Schema:
    """The schema of the parameters of `train` for one profile; for None, that of a deployment for any profile.

    The form of one profile has no field for the profile's name, and the help of each field contains its current value.
    """
    fields: Schema = {}
    if profile is None:
        fields["profile"] = _build_profile_field()
    fields["overrides"] = _build_overrides_field(profile)
    fields["resume"] = {
        "title": "resume",
        "type": "string",
        "description": "continue from the last complete checkpoint of this run, such as digits-local-4fb24e7e, or from "
        "the path of a checkpoint; empty: from the start",
    }
    fields["dry_run"] = {
        "title": "dry run",
        "type": "boolean",
        "default": False,
        "description": "show the plan and run preflight, without starting the job",
    }
    return {
        "title": "Parameters",
        "type": "object",
        "properties": _number_fields(fields),
        "required": [] if profile else ["profile"],
        "propertyNames": {"enum": list(_PARAMETERS)},
        "definitions": {},
    }


def _number_fields(fields: Schema) -> Schema:
    """The fields with their positions in the form."""
    return {key: field | {"position": position} for position, (key, field) in enumerate(fields.items())}


def _build_profile_field() -> Schema:
    return {
        "title": "profile",
        "description": "the profile to run: one of this project, or the path of a YAML file on the worker's machine",
        "anyOf": [
            {"title": "shipped", "type": "string", "enum": sorted(list_profiles())},
            {"title": "file", "type": "string", "pattern": r"\.ya?ml$"},
        ],
    }


def _build_overrides_field(profile: Profile | None) -> Schema:
    """The profile's keys: a typed field for each of _FIELD_KEYS that applies to the profile.

    The schema also checks other keys that have a single value, and refuses unknown keys. A key may have dots.
    """
    properties = Profile.model_json_schema()["properties"]
    fields: Schema = {}
    for key in _FIELD_KEYS:
        if profile is None or _applies_to_profile(profile, key):
            fields[key] = _build_field(key, properties[key], profile)
    patterns: Schema = {}
    for key, schema in properties.items():
        if key not in fields and key != "name" and _is_single_value(schema):
            patterns[f"^{key}$"] = schema | {"type": [schema["type"], "null"]}
    known_keys = "|".join(key for key in properties if key != "name")
    return {
        "title": "changes",
        "description": "changes to the profile for this run; an empty field changes nothing. The menu at the right "
        'accepts any key as JSON, such as {"deadlines.run": "2h"}',
        "type": "object",
        "properties": _number_fields(fields),
        "patternProperties": patterns,
        "propertyNames": {"pattern": rf"^({known_keys})(\..+)?$"},
    }


def _applies_to_profile(profile: Profile, key: str) -> bool:
    """Whether a run can change the key: a profile without an image or a hardware file has nothing to change there."""
    match key:
        case "image" | "program":
            return getattr(profile, key) is not None
        case "fabric":
            return profile.hardware is not None
        case _:
            return True


def _is_single_value(schema: Schema) -> bool:
    """Whether a schema describes one value: not a nested mapping, of which an override may contain a part."""
    return schema.get("type") in ("integer", "string", "boolean") and "$ref" not in schema


def _build_field(key: str, schema: Schema, profile: Profile | None) -> Schema:
    """The field of a key, in the few forms of JSON Schema for which Prefect has an input."""
    field: Schema = {"title": key, "description": schema["description"]}
    match key:
        case "nodes":
            field["anyOf"] = _build_node_alternatives(schema)
        case "args":
            field["anyOf"] = [_STRING_LIST_SCHEMA, _JSON_LIST_SCHEMA]
        case "env":
            field["type"] = "object"
        case "deadlines":
            field["type"] = "object"
            field["properties"] = _build_deadline_fields(profile)
        case "fabric":
            field["type"] = "string"
            if profile and profile.hardware:
                field["enum"] = list(profile.hardware.fabrics)
        case _:
            for bound in ("minimum", "maximum"):
                if bound in schema:
                    field[bound] = schema[bound]
            field["type"] = schema.get("type", "string")
    if profile and key != "deadlines":  # each deadline has its own field
        _add_value(field, getattr(profile, key))
    return field


def _build_node_alternatives(schema: Schema) -> list[Schema]:
    """The two forms of `nodes`: a number, or a mapping with `min` and `max`."""
    number, node_range = schema["anyOf"]
    bounds = {name: bound | {"title": name} for name, bound in node_range["properties"].items()}
    return [
        number | {"title": "number"},
        {"title": "range", "type": "object", "properties": bounds, "required": ["min", "max"]},
    ]


def _build_deadline_fields(profile: Profile | None) -> Schema:
    properties = Profile.model_json_schema()["$defs"]["Deadlines"]["properties"]
    fields: Schema = {}
    for key, schema in properties.items():
        text = {"title": "such as 30m", "type": "string", "pattern": schema["pattern"]}
        alternatives = [text, {"title": "seconds", "type": "number"}]
        field = {"title": key, "description": schema["description"], "anyOf": alternatives}
        if profile:
            _add_value(field, _format_duration(getattr(profile.deadlines, key)))
        fields[key] = field
    return fields


def _add_value(field: Schema, value: Any) -> None:
    """Add the profile's value of a key to the help of its field; of a mapping, only the keys."""
    value_text = " ".join(map(str, value)) if isinstance(value, tuple | dict) else value
    if value_text not in ("", None):
        field["description"] += f"; today: {value_text}"


def _format_duration(seconds: float) -> str:
    """`24h`, `30m`, `10s`: in the largest unit of which it is a whole number."""
    if seconds:
        for unit_s, unit in ((3600, "h"), (60, "m")):
            if seconds % unit_s == 0:
                return f"{seconds / unit_s:g}{unit}"
    return f"{seconds:g}s"
