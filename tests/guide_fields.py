"""The guides, field by field: what each of their jobs says, what the job of our profile says, and why they differ.

    python -m tests.guide_fields          writes the table of differences into docs/guides.md

tests/guides/rows.yaml holds the fields of each guide's job, as facts, or names its manifest; tests/guides/reasons.yaml
holds the reasons. A field is a path: `spec.queue`, `pod.hostNetwork`, `container.image`, `env.NCCL_IB_TC`,
`mount./dev/shm.emptyDir.medium`, `torchrun.nnodes`, `program`, `arg.--epochs`, `runai.--workers`.
"""

import functools
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.conftest import plan_of
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan, Plan, get_nested
from torchyard.pods.workload import ManifestContainer, read_workloads

GUIDES = ROOT / "tests" / "guides"
PAGE = ROOT / "docs" / "guides.md"
HEADING = "## Field by field"
Fields = dict[str, str]
_NAMED_BY = ("name", "mountPath", "key", "event")  # of the entries of a list, so that their order does not count


class Reason(NamedTuple):
    """Why some fields of some rows differ."""

    fields: tuple[str, ...]
    why: str
    rows: tuple[str, ...] = ("*",)

    def covers(self, row: str, field: str) -> bool:
        return any(fnmatchcase(row, each) for each in self.rows) and any(
            fnmatchcase(field, each) for each in self.fields
        )


class Difference(NamedTuple):
    """A field whose values differ; None where one of both has no such field."""

    row: str
    field: str
    guide: str | None
    here: str | None


# --- reading fields


def flatten(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a document, each with its path."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from flatten(each, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        for place, each in enumerate(value):
            name = next((each[key] for key in _NAMED_BY if key in each), place)
            yield from flatten({key: inner for key, inner in each.items() if inner != name}, f"{at}.{name}")
    elif value not in (None, {}, []):
        yield at, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_job(job: Mapping[str, Any]) -> Fields:
    """The fields of a job object: its own, those of its pods, of their main container, and of torchrun in it."""
    (work,) = read_workloads(job)
    group = work.groups[0]
    container = group.containers[0]
    found = dict(_read_own_keys(job["kind"], work.spec))
    found |= {f"replicas.{each.name}": str(each.replicas) for each in work.groups if each.name}
    pod = {key: value for key, value in group.pod.items() if key not in ("containers", "volumes")}
    found |= dict(flatten(pod, "pod"))
    found |= dict(_read_mounts(group.pod, container.spec))
    bare = {
        key: value for key, value in container.spec.items() if key not in ("env", "command", "args", "volumeMounts")
    }
    found |= dict(flatten({**bare, "name": ""}, "container"))
    found |= {f"env.{name}": _read_variable(each) for name, each in container.env.items()}
    return found | read_command(container)


def _read_own_keys(kind: str, spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A job's own keys, and those of its first part: without the pods and their number, which have their own fields."""
    yield "kind", kind
    if kind != "Pod":
        parts = spec.get("tasks") or [*spec["pytorchReplicaSpecs"].values()]
        own = {key: value for key, value in spec.items() if key not in ("tasks", "pytorchReplicaSpecs")}
        yield from flatten(own, "spec")
        yield from flatten(
            {key: value for key, value in parts[0].items() if key not in ("template", "replicas", "name")}, "part"
        )


def _read_mounts(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is mounted where; a volume's name says nothing."""
    volumes = {each["name"]: each for each in pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        source = {key: value for key, value in volumes[mount["name"]].items() if key != "name"}
        yield from flatten(source, f"mount.{mount['mountPath']}")


def _read_variable(variable: Mapping[str, Any]) -> str:
    return str(variable["value"]) if "value" in variable else dict(flatten(variable["valueFrom"])).popitem()[1]


def read_command(container: ManifestContainer) -> Fields:
    """The options of torchrun, the program and its arguments."""
    found = {"shell": container.shell} if container.shell else {}
    words = _split_words(container)
    program = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    if program is None:
        return {"command": " ".join(words)}
    options = itertools.takewhile(lambda option: option[0], container.calls[0] if container.calls else ())
    found |= {f"torchrun.{name}": value.replace("\0", "…") for name, value in options}
    found |= {f"arg.{word.partition('=')[0]}": word.partition("=")[2] for word in words[program + 1 :]}
    return found | {"program": words[program]}


def _split_words(container: ManifestContainer) -> list[str]:
    """The words of the command; of a script, those from the program on."""
    if not container.shell or '"$@"' in container.script:
        return container.argv
    return re.sub(r"\\\n", " ", container.script[container.script.rindex("torchrun") :]).split()


def read_submission(argv: list[str]) -> Fields:
    """The options of `runai submit-dist`, and what it starts in the pods."""
    found: Fields = {}
    options, command = argv[3 : argv.index("--")], argv[argv.index("--") + 1 :]
    words = iter(options)
    for word in words:
        value = "" if word in ("--large-shm", "--interactive", "--command") else next(words)
        kind, _, rest = value.partition("=")
        named = {
            "--environment": "env",
            "--label": "label",
            "--annotation": "annotation",
            "--extended-resource": "device",
        }
        found |= {f"{named[word]}.{kind}": rest} if word in named else {f"runai.{word}": value or "yes"}
    script = found.pop("env.TORCHYARD_COMMAND", "") or " ".join(command)
    inner = shlex.split(script[script.index("exec /bin/sh") :])[4:] if "exec /bin/sh" in script else command
    return found | read_command(ManifestContainer("", {"command": inner[1:]}))


def read_plan(plan: Plan, kind: str = "") -> Fields:
    """The fields of a plan's job, or of its store's object of a kind; of commands, those of the first node."""
    if isinstance(plan, ManifestPlan) and kind:
        return read_job(next(each for each in plan.store if each["kind"] == kind))
    if isinstance(plan, ManifestPlan):
        return read_job(get_nested(plan.main, plan.wrapped_path))
    submit = plan.processes[0].submit
    assert submit
    asked: Any = submit.input
    if asked["argv"][0] == "runai":
        return read_submission(asked["argv"])
    own = {f"env.{name}": value for name, value in asked["env"].items()}
    return own | read_command(ManifestContainer("", {"command": asked["argv"]}))


# --- comparing


@functools.cache
def load_rows() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((GUIDES / "rows.yaml").read_text())
    return found


def load_reasons() -> tuple[Reason, ...]:
    told = yaml.safe_load((GUIDES / "reasons.yaml").read_text())
    return tuple(Reason(tuple(each["fields"]), each["why"], tuple(each.get("rows", ("*",)))) for each in told)


def read_guide(row: str) -> Fields:
    """The fields of the guide's job: those of its manifest, or those that the guide tells."""
    told = load_rows()[row]
    if "manifest" in told:
        documents = yaml.safe_load_all((ROOT / "tests" / "manifests" / f"{told['manifest']}.yaml").read_text())
        kinds = (told["object"],) if "object" in told else ("Job", "PyTorchJob")
        return read_job(next(each for each in documents if each["kind"] in kinds))
    return {field: str(value) for field, value in told["fields"].items()}


def read_ours(row: str) -> Fields:
    told = load_rows()[row]
    plan = plan_of(load_profile(told.get("profile", row), told.get("set", {})), Path("/runs/RUN"))
    return read_plan(plan, told.get("object", ""))


def compare(row: str) -> tuple[int, list[Difference]]:
    """The number of fields, and those that differ. What only ours has counts where the guide shows a whole job."""
    guide, ours = read_guide(row), read_ours(row)
    names = guide.keys() | (ours.keys() if "manifest" in load_rows()[row] else set())
    found = [Difference(row, name, guide.get(name), ours.get(name)) for name in sorted(names)]
    return len(names), [each for each in found if each.guide != each.here]


# --- the page


def render() -> str:
    """The section of the page: for each reason its fields, an example, the rows that it holds for, and the sentence."""
    compared = {row: compare(row) for row in load_rows()}
    found = [each for _, differences in compared.values() for each in differences]
    count = sum(total for total, _ in compared.values())
    lines = [
        HEADING,
        "",
        (
            f"{count} fields of the guides' jobs, and of ours where a guide shows a whole manifest. Equal are "
            f"{count - len(found)}."
        ),
        "The others, with the first row of each as the example:",
        "",
        "| fields | the guide | here | rows | why |",
        "|---|---|---|---|---|",
    ]
    for reason in load_reasons():
        mine = [each for each in found if reason.covers(each.row, each.field)]
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(_shorten(each.field) for each in mine))
        rows = len({each.row for each in mine})
        lines.append(
            f"| {names} | {_quote(mine[0].guide)} | {_quote(mine[0].here)} | "
            f"{f'`{mine[0].row}`' if rows == 1 else rows} | {reason.why} |"
        )
    return "\n".join(lines) + "\n"


def _shorten(field: str) -> str:
    """A path of at most three names: what stands deeper belongs to the same key."""
    kept = re.match(r"(?:mount\.[^.]+|(?:[^.]+\.){0,2}[^.]+)", field)
    return kept[0] if kept and field.count(".") > 2 and not field.startswith(("container.resources", "env.")) else field


def _quote(value: str | None) -> str:
    return "-" if value is None else f"`{value[:60]}{'…' if len(value) > 60 else ''}`".replace("|", "\\|")


def write_page() -> None:
    """Put the section into the page, in place of the one before."""
    text = PAGE.read_text()
    before, _, rest = text.partition(HEADING)
    after = re.search(r"^## ", rest, re.MULTILINE)
    PAGE.write_text(before + render() + ("\n" + rest[after.start() :] if after else ""))


if __name__ == "__main__":
    write_page()
