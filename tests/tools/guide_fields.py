"""The guides, field by field: the value in each guide's job, the value in our profile's job, and why they differ.

    python -m tests.tools.guide_fields          writes the table of differences into docs/guides.md

tests/guides/rows.yaml holds the fields of each guide's job, as facts, or names its manifest; tests/guides/reasons.yaml
holds the reasons. A field is a path: `spec.queue`, `pod.hostNetwork`, `container.image`, `env.NCCL_IB_TC`,
`mount./dev/shm.emptyDir.medium`, `torchrun.nnodes`, `program`, `arg.--epochs`, `runai.--workers`.
"""

import functools
import re
import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.conftest import plan_of
from torchyard.common.project_root import ROOT
from torchyard.lint.workload import ManifestContainer, list_workloads
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan, Plan

GUIDES = ROOT / "tests" / "guides"
PAGE = ROOT / "docs" / "guides.md"
HEADING = "## Field by field"
Fields = dict[str, str]
# Keys that name an entry of a list, so that its position does not matter.
_NAMED_BY = ("name", "mountPath", "key", "event")
# Options of `runai submit-dist`: those without a value, and those with NAME=VALUE, by the prefix of their fields.
_RUNAI_SWITCHES = ("--large-shm", "--interactive", "--command")
_RUNAI_PAIRS = {
    "--environment": "env",
    "--label": "label",
    "--annotation": "annotation",
    "--extended-resource": "device",
}


class Reason(NamedTuple):
    """Why some fields of some rows differ; fields and rows are patterns of fnmatch."""

    fields: tuple[str, ...]
    text: str
    rows: tuple[str, ...] = ("*",)

    def covers(self, row: str, field: str) -> bool:
        return any(fnmatchcase(row, pattern) for pattern in self.rows) and any(
            fnmatchcase(field, pattern) for pattern in self.fields
        )


class Difference(NamedTuple):
    """A field whose values differ; None on the side that lacks the field."""

    row: str
    field: str
    guide: str | None
    ours: str | None


# --- reading fields


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a document, each with its path."""
    if isinstance(value, Mapping) and value:
        for key, child in value.items():
            yield from flatten(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
        for index, child in enumerate(value):
            names = [child[key] for key in _NAMED_BY if key in child]
            name = names[0] if names else index
            other_fields = {key: field for key, field in child.items() if field != name}
            yield from flatten(other_fields, f"{path}.{name}")
    elif value not in (None, {}, []):
        yield path, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_job(job: Mapping[str, Any]) -> Fields:
    """The fields of a job object: its own, those of its pods, of their main container, and of torchrun in it."""
    (workload,) = list_workloads(job)
    group = workload.groups[0]
    container = group.containers[0]
    fields = dict(_read_own_keys(job["kind"], workload.spec))
    fields |= {f"replicas.{pod_group.name}": str(pod_group.replicas) for pod_group in workload.groups if pod_group.name}
    pod = {key: value for key, value in group.pod.items() if key not in ("containers", "volumes")}
    fields |= dict(flatten(pod, "pod"))
    fields |= dict(_read_mounts(group.pod, container.spec))
    container_keys = {
        key: value for key, value in container.spec.items() if key not in ("env", "command", "args", "volumeMounts")
    }
    fields |= dict(flatten(container_keys | {"name": ""}, "container"))
    fields |= {f"env.{name}": _read_variable(variable) for name, variable in container.env.items()}
    return fields | read_command(container)


def _read_own_keys(kind: str, spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of a job and of its first group of pods, without those that have their own fields."""
    yield "kind", kind
    if kind != "Pod":
        groups = spec.get("tasks") or [*spec["pytorchReplicaSpecs"].values()]
        own_keys = {key: value for key, value in spec.items() if key not in ("tasks", "pytorchReplicaSpecs")}
        yield from flatten(own_keys, "spec")
        group_keys = {key: value for key, value in groups[0].items() if key not in ("template", "replicas", "name")}
        yield from flatten(group_keys, "part")


def _read_mounts(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The volume at each mount path; a volume's name is left out."""
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        source = {key: value for key, value in volumes[mount["name"]].items() if key != "name"}
        yield from flatten(source, f"mount.{mount['mountPath']}")


def _read_variable(variable: Mapping[str, Any]) -> str:
    """The value of a variable; of one that is read from elsewhere, the last leaf of its source, such as the key."""
    if "value" in variable:
        return str(variable["value"])
    leaves = list(flatten(variable["valueFrom"]))
    return leaves[-1][1]


def read_command(container: ManifestContainer) -> Fields:
    """The options of torchrun, the program and its arguments."""
    fields = {"shell": container.shell} if container.shell else {}
    argv = _split_arguments(container)
    programs = [arg for arg in argv if arg.endswith(".py")]
    if not programs:
        return {"command": " ".join(argv)}
    program_index = argv.index(programs[0])
    if container.torchrun_calls:
        options = container.torchrun_calls[0].options
        fields |= {f"torchrun.{name}": value.replace("\0", "…") for name, value in options}
    fields |= {f"arg.{arg.partition('=')[0]}": arg.partition("=")[2] for arg in argv[program_index + 1 :]}
    return fields | {"program": argv[program_index]}


def _split_arguments(container: ManifestContainer) -> list[str]:
    """The arguments of the command; of a script, those from its last `torchrun` on."""
    if not container.shell or '"$@"' in container.script:
        return container.argv
    return re.sub(r"\\\n", " ", container.script[container.script.rindex("torchrun") :]).split()


def read_submission(argv: list[str]) -> Fields:
    """The options of `runai submit-dist`, and the fields of the command that it starts in the pods."""
    fields: Fields = {}
    options = argv[3 : argv.index("--")]
    command = argv[argv.index("--") + 1 :]
    remaining_args = iter(options)
    for option in remaining_args:
        value = "yes" if option in _RUNAI_SWITCHES else next(remaining_args)
        if option in _RUNAI_PAIRS:
            name, _, pair_value = value.partition("=")
            fields[f"{_RUNAI_PAIRS[option]}.{name}"] = pair_value
        else:
            fields[f"runai.{option}"] = value or "yes"
    script = fields.pop("env.TORCHYARD_COMMAND", "") or " ".join(command)
    inner_argv = command
    if "exec /bin/sh" in script:
        inner_argv = shlex.split(script[script.index("exec /bin/sh") :])[4:]
    return fields | read_command(ManifestContainer("", {"command": inner_argv[1:]}))


def read_plan(plan: Plan, kind: str = "") -> Fields:
    """The fields of a plan's job, or of its store's object of a kind; of commands, those of the first node."""
    if isinstance(plan, ManifestPlan) and kind:
        stored = [obj for obj in plan.store if obj["kind"] == kind]
        return read_job(stored[0])
    if isinstance(plan, ManifestPlan):
        return read_job(plan.main if plan.wrapped is None else plan.wrapped)
    submission: Any = plan.processes[0].spec
    if submission["argv"][0] == "runai":
        return read_submission(submission["argv"])
    env_fields = {f"env.{name}": value for name, value in submission["env"].items()}
    return env_fields | read_command(ManifestContainer("", {"command": submission["argv"]}))


# --- comparing


@functools.cache
def load_rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = yaml.safe_load((GUIDES / "rows.yaml").read_text())
    return rows


def load_reasons() -> tuple[Reason, ...]:
    entries = yaml.safe_load((GUIDES / "reasons.yaml").read_text())
    return tuple(Reason(tuple(entry["fields"]), entry["why"], tuple(entry.get("rows", ("*",)))) for entry in entries)


def read_guide(row: str) -> Fields:
    """The fields of the guide's job: those of its manifest, or those listed in rows.yaml."""
    guide_row = load_rows()[row]
    if "manifest" in guide_row:
        documents = yaml.safe_load_all((ROOT / "tests" / "manifests" / f"{guide_row['manifest']}.yaml").read_text())
        kinds = (guide_row["object"],) if "object" in guide_row else ("Job", "PyTorchJob")
        jobs = [document for document in documents if document["kind"] in kinds]
        return read_job(jobs[0])
    return {field: str(value) for field, value in guide_row["fields"].items()}


def read_ours(row: str) -> Fields:
    guide_row = load_rows()[row]
    plan = plan_of(load_profile(guide_row.get("profile", row), guide_row.get("set", {})), Path("/runs/RUN"))
    return read_plan(plan, guide_row.get("object", ""))


def compare(row: str) -> tuple[int, list[Difference]]:
    """The number of fields, and those that differ. Fields that only ours has count if the guide shows a whole job."""
    guide = read_guide(row)
    ours = read_ours(row)
    names = guide.keys() | (ours.keys() if "manifest" in load_rows()[row] else set())
    differences = [Difference(row, name, guide.get(name), ours.get(name)) for name in sorted(names)]
    return len(names), [difference for difference in differences if difference.guide != difference.ours]


# --- the page


def render() -> str:
    """The section of the page: for each reason its fields, an example, the rows that it holds for, and the sentence."""
    results = {row: compare(row) for row in load_rows()}
    differences = [difference for _, row_differences in results.values() for difference in row_differences]
    count = sum(total for total, _ in results.values())
    lines = [
        HEADING,
        "",
        (
            f"{count} fields of the guides' jobs, and of the profiles' jobs if a guide shows a whole manifest. "
            f"{count - len(differences)} are equal."
        ),
        "The others, with the first row of each as an example:",
        "",
        "| fields | the guide | here | rows | why |",
        "|---|---|---|---|---|",
    ]
    for reason in load_reasons():
        covered = [difference for difference in differences if reason.covers(difference.row, difference.field)]
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(_shorten(difference.field) for difference in covered))
        rows = len({difference.row for difference in covered})
        lines.append(
            f"| {names} | {_quote(covered[0].guide)} | {_quote(covered[0].ours)} | "
            f"{f'`{covered[0].row}`' if rows == 1 else rows} | {reason.text} |"
        )
    return "\n".join(lines) + "\n"


def _shorten(field: str) -> str:
    """A path without the names after the third, which belong to the same key."""
    match = re.match(r"(?:mount\.[^.]+|(?:[^.]+\.){0,2}[^.]+)", field)
    return (
        match[0] if match and field.count(".") > 2 and not field.startswith(("container.resources", "env.")) else field
    )


def _quote(value: str | None) -> str:
    if value is None:
        return "-"
    ellipsis = "…" if len(value) > 60 else ""
    return f"`{value[:60]}{ellipsis}`".replace("|", "\\|")


def write_page() -> None:
    """Replace the page's section by the current one."""
    text = PAGE.read_text()
    before, _, rest = text.partition(HEADING)
    after = re.search(r"^## ", rest, re.MULTILINE)
    PAGE.write_text(before + render() + ("\n" + rest[after.start() :] if after else ""))


if __name__ == "__main__":
    write_page()
