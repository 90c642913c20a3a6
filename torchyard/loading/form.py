"""The form of a run: the parameters of the flow `train` as JSON Schema, with help, bounds and a profile's values.

Prefect draws the form from it, and its API refuses what does not fit before there is a run.
"""

from typing import Any

from torchyard.loading.profile import list_profiles
from torchyard.model.profile import Profile

Schema = dict[str, Any]

# The keys that people change between runs; every other key can be written as JSON in place of the fields.
_FIELD_KEYS = ("nodes", "processes", "image", "program", "args", "env", "fabric", "attempts", "deadlines")
_PARAMETERS = ("profile", "overrides", "dry_run")
_STRING_LIST_SCHEMA = {"title": "words", "type": "array", "items": {"type": "string"}}
_JSON_LIST_SCHEMA = {"title": "JSON", "type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}


def build_form(profile: Profile | None) -> Schema:
    """The parameters of `train` for one profile; for None, those of a deployment that takes any profile.

    A profile's form does not ask for the profile, and the value that each key has today stands in its help.
    """
    fields: Schema = {} if profile else {"profile": _build_profile_field()}
    fields["overrides"] = _build_overrides_field(profile)
    fields["dry_run"] = {
        "title": "dry run",
        "type": "boolean",
        "default": False,
        "description": "show the plan and check the cluster; start nothing",
    }
    return {
        "title": "Parameters",
        "type": "object",
        "properties": {key: {**field, "position": position} for position, (key, field) in enumerate(fields.items())},
        "required": [] if profile else ["profile"],
        "propertyNames": {"enum": list(_PARAMETERS)},
        "definitions": {},
    }


def _build_profile_field() -> Schema:
    return {
        "title": "profile",
        "description": "what to run: a profile of this project, or the path of a YAML file on the worker's machine",
        "anyOf": [
            {"title": "shipped", "type": "string", "enum": sorted(list_profiles())},
            {"title": "file", "type": "string", "pattern": r"\.ya?ml$"},
        ],
    }


def _build_overrides_field(profile: Profile | None) -> Schema:
    """The keys that fit the profile as typed fields. Of the others, those with a plain value are checked as well."""
    properties = Profile.model_json_schema()["properties"]
    visible_keys = [key for key in _FIELD_KEYS if profile is None or _fits_profile(profile, key)]
    fields = {key: _build_field(key, properties[key], profile) for key in visible_keys}
    other_schemas = {
        key: schema for key, schema in properties.items() if key not in (*fields, "name") and _is_single_value(schema)
    }
    patterns = {f"^{key}$": {**schema, "type": [schema["type"], "null"]} for key, schema in other_schemas.items()}
    return {
        "title": "changes",
        "description": "what this run changes in the profile; an empty field changes nothing. The menu at the right "
        'takes any key as JSON, such as {"deadlines.run": "2h"}',
        "type": "object",
        "properties": {key: {**field, "position": position} for position, (key, field) in enumerate(fields.items())},
        "patternProperties": patterns,
        "propertyNames": {"pattern": rf"^({'|'.join(key for key in properties if key != 'name')})(\..+)?$"},
    }


def _fits_profile(profile: Profile, key: str) -> bool:
    """Whether a key can be changed: a profile without an image or a hardware file has no use for one."""
    match key:
        case "image" | "program":
            return getattr(profile, key) is not None
        case "fabric":
            return profile.hardware is not None
        case _:
            return True


def _is_single_value(schema: Schema) -> bool:
    """Whether a schema stands alone and describes one value, not a nested mapping that may be given in part."""
    return schema.get("type") in ("integer", "string", "boolean") and "$ref" not in schema


def _build_field(key: str, schema: Schema, profile: Profile | None) -> Schema:
    """A key's field, in the few forms of JSON Schema for which Prefect has an input."""
    field: Schema = {"title": key, "description": schema["description"]}
    match key:
        case "nodes":
            number, bounds = schema["anyOf"]
            bounds = {bound: {**bound_schema, "title": bound} for bound, bound_schema in bounds["properties"].items()}
            ranged = {"title": "range", "type": "object", "properties": bounds, "required": ["min", "max"]}
            field["anyOf"] = [{**number, "title": "number"}, ranged]
        case "args":
            field["anyOf"] = [_STRING_LIST_SCHEMA, _JSON_LIST_SCHEMA]
        case "env":
            field["type"] = "object"
        case "deadlines":
            field |= {"type": "object", "properties": _build_deadline_fields(profile)}
        case "fabric":
            field["type"] = "string"
            if profile and profile.hardware:
                field["enum"] = list(profile.hardware.fabrics)
        case _:
            field |= {limit: schema[limit] for limit in ("minimum", "maximum") if limit in schema}
            field["type"] = schema.get("type", "string")
    return _add_value(field, getattr(profile, key) if profile and key != "deadlines" else None)


def _build_deadline_fields(profile: Profile | None) -> Schema:
    properties = Profile.model_json_schema()["$defs"]["Deadlines"]["properties"]
    fields: Schema = {}
    for key, schema in properties.items():
        text = {"title": "such as 30m", "type": "string", "pattern": schema["pattern"]}
        alternatives = [text, {"title": "seconds", "type": "number"}]
        field = {"title": key, "description": schema["description"], "anyOf": alternatives}
        fields[key] = _add_value(field, _format_duration(getattr(profile.deadlines, key)) if profile else None)
    return fields


def _add_value(field: Schema, value: Any) -> Schema:
    """A field whose help also says what the profile has today; of a mapping, only the keys."""
    value_text = " ".join(map(str, value)) if isinstance(value, tuple | dict) else value
    return (
        {**field, "description": f"{field['description']}; today: {value_text}"}
        if value_text not in ("", None)
        else field
    )


def _format_duration(seconds: float) -> str:
    """`24h`, `30m`, `10s`."""
    size, unit = next(
        (candidate for candidate in ((3600, "h"), (60, "m")) if seconds and not seconds % candidate[0]), (1, "s")
    )
    return f"{seconds / size:g}{unit}"
