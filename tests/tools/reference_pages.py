"""Writes the reference pages of docs/ from the code: `python -m tests.tools.reference_pages`."""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.tools.causes_page import render_table
from torchyard.cli.documents import DOCUMENTS, ErrorDetails, ErrorDocument, FindingDocument
from torchyard.cli.exit_codes import ExitCode
from torchyard.cli.main import build_parser
from torchyard.common.project_root import ROOT
from torchyard.launchers import registry
from torchyard.loading import catalog
from torchyard.model.base import FrozenModel
from torchyard.model.hardware import Hardware
from torchyard.model.profile import METRICS_FORMATS, Profile

Schema = dict[str, Any]
DOCS = ROOT / "docs"
GENERATED_NOTE = "This page is generated from the code by `python -m tests.tools.reference_pages`."
KEYS_HEADER = f"""\
# Keys of a profile

A profile is a YAML file in `profiles/`, in your own folder (`TORCHYARD_PROFILES`; separate several with `:`), or at any
path. Only `about`, `launcher` and `program` are required. All errors are reported together, each with file, line and
key, before the start. `--set KEY=VALUE` changes one key for one run, with dots for nested keys:
`--set deadlines.run=5m`. `torchyard schema > profile.schema.json` writes the keys for editors.
{GENERATED_NOTE}

A duration is a number with a unit, such as `90s`, `30m`, `12h` or `2d`. An amount is a number with or without a unit of
Kubernetes, such as `64`, `500m` or `512Gi`. [Kubernetes](kubernetes.md#the-keys) describes how the launchers use the
keys of pods.

## The profile
"""
HARDWARE_HEADER = f"""\
# Keys of a hardware file

A hardware file describes one shape of node: `profiles/hardware/PLATFORM/SHAPE.yaml`, or the same below `hardware/` of a
folder in `TORCHYARD_PROFILES`. The shipped shapes, and how to write one: [shapes of nodes](hardware.md).
{GENERATED_NOTE}

## The file
"""
COMMANDS_HEADER = f"""\
# Commands

`torchyard` needs no server. In a checkout it is `.venv/bin/torchyard`.
{GENERATED_NOTE}
"""
EXIT_CODES_HEADER = """
## Exit codes
They are the same for all commands, and a script can rely on them. `torchyard demo --fail` ends with 0 if its run fails.

"""
JSON_HEADER = f"""\
# JSON output

With `--json` a command prints one JSON document on stdout, also if it ends by an error; progress, logs and messages are
on stderr. `run`, `attach`, `benchmark` and `demo` print it at the end of the run. Only a command that is killed, or
stopped by Ctrl-C outside of a run, prints none. [Exit codes](commands.md#exit-codes) are the same with and without it.

`torchyard schema --of VERB` prints the JSON Schema of the document, with all nested objects. Keys may be added; the
name and the meaning of a key do not change. A number that is nan or infinite is null.

`torchyard attach RUN --json` is how a script reads the result of a run that another process has started:

| the run | what `attach` does |
| --- | --- |
| has ended | prints the document of `run` at once, with its exit code |
| goes on in another process | prints an error (`RunInUseError`) at once, with exit code 4; the run is not touched |
| has lost its process | resumes the run, and prints the document at its end |

To wait for the end, repeat `torchyard ps --json` until it lists neither the run nor a problem.
{GENERATED_NOTE}

"""
METRICS_SECTION = """
## metrics
A program with `metrics: json-lines` prints two rows, which have an epoch, and a summary, which has none:

```json
{"epoch": 1, "loss": 0.50, "seconds": 31.2}
{"epoch": 2, "loss": 0.25, "seconds": 30.8}
{"accuracy": 0.98, "seconds": 62.0}
```

Lines of the same epoch, step, trial or size are one row, as where the losses of training and validation are printed
apart; of a value that both have, the later one counts.

`metrics` of the document is the last row and the summary in one object. A key that both have gets the value of the
summary, as `seconds` here; the rows themselves are in `report.json`:

```json
{"epoch": 2, "loss": 0.25, "seconds": 62.0, "accuracy": 0.98}
```

It holds at most 100 keys, and a text has at most 1000 characters. If the program printed more than 1000 rows, `rows` is
their number. [Formats](tasks/formats.md) describes the other formats.
"""
MAKE_HEADER = """
## make, in a checkout
Each target installs its requirements first. Their effects in Prefect: [with Prefect](prefect.md).

"""
PROFILES_HEADER = f"""\
# Shipped profiles

[The five guides](guides.md) lists the row of a guide that each profile implements, and the differences.
`torchyard plan NAME` prints the plan. The registries, claims and hosts in the profiles are examples: copy the file, or
use `--set`. {GENERATED_NOTE}

"""
MODEL_TITLES = {
    "ConfigReference": "env_from",
    "KeyReference": "env, a reference",
    "FieldReference": "env, a field",
    "Mount": "mounts, each",
    "Toleration": "pod.tolerations, each",
    "Init": "pod.init, each",
}
PLAIN_TYPES = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "`true`, `false`",
    "object": "mapping",
}
PROFILE_MODELS = (
    "Deadlines",
    "KeyReference",
    "FieldReference",
    "Mount",
    "Pod",
    "Toleration",
    "Init",
    "ConfigReference",
    "Job",
    "Cluster",
    "Trend",
)


def describe_type(schema: Schema) -> str:
    """The type and the choices of a value, as text."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        return f"[{get_title(name)}](#{build_anchor(get_title(name))})"
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds:
        alternatives = dict.fromkeys(describe_type(kind) for kind in kinds if kind.get("type") != "null")
        separator = ", or " if any("," in text for text in alternatives) else " or "
        return separator.join(alternatives)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return ", ".join(f"`{value}`" for value in values) or describe_plain_type(schema)


def describe_plain_type(schema: Schema) -> str:
    """The type of a value that is neither a model nor a choice, with its limits."""
    match schema:
        case {"type": "array", "items": items}:
            return f"list of {describe_type(items)}"
        case {"type": "object", "additionalProperties": dict() as values}:
            return f"mapping to {describe_type(values)}"
        case {"type": ["string", "number"]}:
            return "duration" if "pattern" in schema else "text or number"
        case _:
            bounds = {"minimum": "at least {}", "exclusiveMinimum": "more than {}", "maximum": "at most {}"}
            limits = [text.format(f"{schema[key]:g}") for key, text in bounds.items() if key in schema]
            return ", ".join([PLAIN_TYPES[schema["type"]], *limits])


def describe_default(key: str, schema: Schema, required: Iterable[str]) -> str:
    """The value of a key that a file does not set; `required`, or empty if the default is empty."""
    if key in required:
        return "required"
    value = schema.get("default")
    if isinstance(value, float) and "duration" in describe_type(schema):
        return f"`{format_duration(value)}`"
    if value == {"min": 1, "max": 1}:
        return "`1`"
    return f"`{json.dumps(value).strip(chr(34))}`" if value not in (None, [], {}, "") and "$ref" not in schema else ""


def format_duration(seconds: float) -> str:
    """Seconds in the largest unit that divides them, such as `30m`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if not seconds % size:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def render_keys_table(schema: Schema, without: Iterable[str] = ()) -> str:
    required = schema.get("required", ())
    rows = [
        (f"`{key}`", describe_type(key_schema), describe_default(key, key_schema, required), key_schema["description"])
        for key, key_schema in schema["properties"].items()
        if key not in without
    ]
    return render_table(("key", "value", "default", "meaning"), rows)


def get_title(name: str) -> str:
    """The heading of a model: its key in the file."""
    return MODEL_TITLES.get(name, name.lower())


def build_anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", re.sub(r"[.,]", "", heading.lower()))


def render_keys() -> str:
    """docs/keys.md"""
    schema = Profile.model_json_schema()
    schema["properties"]["launcher"]["enum"] = registry.list_launchers()
    schema["properties"]["metrics"]["anyOf"][0]["enum"] = list(METRICS_FORMATS)
    parts = [KEYS_HEADER, render_keys_table(schema, ("name",))]
    parts += [render_section(get_title(name), schema["$defs"][name]) for name in PROFILE_MODELS]
    for launcher in registry.list_launchers():
        options = registry.load_launcher(launcher).Options.model_json_schema()
        options_section = render_section(f"options of {launcher}", options)
        parts += [
            options_section,
            *(
                render_section(f"{name} of {launcher}", model_schema)
                for name, model_schema in options.get("$defs", {}).items()
            ),
        ]
    return "".join(parts)


def render_section(heading: str, schema: Schema) -> str:
    description = schema.get("description", "").split("\n\n")[0]
    return f"\n## {heading}\n{description}\n\n{render_keys_table(schema)}"


def render_hardware_keys() -> str:
    """docs/hardware-keys.md"""
    schema = Hardware.model_json_schema()
    parts = [HARDWARE_HEADER, render_keys_table(schema, ("name",))]
    parts += [render_section(get_title(name), schema["$defs"][name]) for name in ("Gpus", "Fabric", "Expect")]
    parts.append("\n## pod\nAs in a profile: [pod](keys.md#pod), [mounts](keys.md#mounts-each).\n\n## mounts, each\n")
    parts.append("[As in a profile](keys.md#mounts-each).\n")
    return "".join(parts)


def find_verbs() -> "argparse._SubParsersAction[argparse.ArgumentParser]":
    """The part of the program's parser that contains the verbs. argparse has no public way to read a parser."""
    (verbs,) = (action for action in list_actions(build_parser()) if isinstance(action, argparse._SubParsersAction))
    return verbs


def list_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options and arguments of a parser, with `--help`."""
    return list(parser._actions)


def list_verbs() -> dict[str, argparse.ArgumentParser]:
    """Each verb with its parser."""
    return dict(find_verbs().choices)


def render_commands() -> str:
    """docs/commands.md"""
    verbs = list_verbs()
    helps = {choice.dest: str(choice.help) for choice in find_verbs()._choices_actions}
    rows = [(f"[`torchyard {name}`](#torchyard-{name})", helps[name]) for name in verbs]
    rows.append(("`torchyard --version`", "print the version"))
    parts = [COMMANDS_HEADER, "\n", render_table(("command", "what it does"), rows)]
    for name, parser in verbs.items():
        parts.append(f"\n## torchyard {name}\n{helps[name][0].upper()}{helps[name][1:]}.\n\n")
        parts.append(
            render_table(
                ("argument", "meaning"), [(f"`{argument[0]}`", argument[1]) for argument in list_arguments(parser)]
            )
        )
    parts += [EXIT_CODES_HEADER, render_table(("code", "meaning"), list_exit_codes())]
    targets = re.findall(r"^([a-z0-9-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    parts += [
        MAKE_HEADER,
        render_table(("command", "what it does"), [(f"`make {name}`", help_text) for name, help_text in targets]),
    ]
    return "".join(parts).replace("| argument | meaning |\n| --- | --- |\n\n", "It takes no arguments.\n\n")


def list_exit_codes() -> list[tuple[str, str]]:
    """The rows of the table of exit codes."""
    return [(str(code.value), code.meaning) for code in ExitCode]


def render_json_page() -> str:
    """docs/json.md"""
    parts = [JSON_HEADER]
    verbs_by_document: dict[type[FrozenModel], list[str]] = {}
    for verb, document in DOCUMENTS.items():
        verbs_by_document.setdefault(document, []).append(verb)
    for document, verbs in verbs_by_document.items():
        parts += [render_document(", ".join(verbs), document), "\n"]
    parts.append(METRICS_SECTION.removeprefix("\n"))
    parts.append("\n")
    parts.append(render_document("An error", ErrorDocument))
    parts.append(f"\nThe keys of `error`:\n\n{render_document_keys(ErrorDetails)}")
    parts.append(f"\nThe keys of a finding, as in `findings` and `checks`:\n\n{render_document_keys(FindingDocument)}")
    return "".join(parts)


def render_document(heading: str, document: type[FrozenModel]) -> str:
    return f"## {heading}\n{document.__doc__}\n\n{render_document_keys(document)}"


def render_document_keys(document: type[FrozenModel]) -> str:
    rows = [(f"`{name}`", field.description or "") for name, field in document.model_fields.items()]
    return render_table(("key", "meaning"), rows)


def list_arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Each argument as users type it, and its help."""
    for action in list_actions(parser):
        if action.dest == "help":
            continue
        value = action.metavar or (f"{{{','.join(action.choices)}}}" if action.choices else action.dest.upper())
        tokens = action.option_strings[:1]
        if action.nargs != 0:
            tokens = [*tokens, str(value)]
        text = " ".join(tokens)
        yield (text if action.required else f"[{text}]"), str(action.help or "")


def render_profiles() -> str:
    """docs/profiles.md"""
    return PROFILES_HEADER + "\n".join(catalog.format_catalog_table(catalog.load_catalog())) + "\n"


PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "keys.md": render_keys,
    DOCS / "hardware-keys.md": render_hardware_keys,
    DOCS / "commands.md": render_commands,
    DOCS / "profiles.md": render_profiles,
    DOCS / "json.md": render_json_page,
}


if __name__ == "__main__":
    for page, render in PAGES.items():
        page.write_text(render())
