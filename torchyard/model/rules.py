"""The rules between the keys of a profile, which one key alone does not show."""

import difflib
import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

from torchyard.model.finding import Finding
from torchyard.model.profile import PLACEHOLDERS, WITH_AGENT, WITHOUT_AGENT, Profile

RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE"})
OWN_LABEL_PREFIX = "torchyard/"
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MODULE_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_PATH_PART = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9.-]+(?::\d+)?/)?{_PATH_PART}(?:/{_PATH_PART})*(?::\w[\w.-]{{0,127}})?(?:@\w+:[0-9a-fA-F]+)?"
)
# What examples write in place of a registry, an account or a tag: `<account>`, `$IMAGE`, `{{ tag }}`, `your-registry`.
_PLACEHOLDER = re.compile(
    r"[<>{}$]|path/to/"
    r"|[a-z]\.dkr\.ecr\."  # a registry of AWS starts with the number of an account
    r"|(?<![a-z0-9])your(?:[-_.]|registry|repo|org|name|user|image|project|company|account|docker)"
    r"|(?<![a-z0-9])(?:(?:replace|change)[-_]?(?:me|this)\b|placeholder|x{3,}(?![a-z0-9])|user[-_]?name/)",
    re.IGNORECASE,
)
# Yields a finding for each mistake, whose `where` is the key that is to be changed.
RuleFunction = Callable[[Profile], Iterator[Finding]]


class Rule(NamedTuple):
    """A rule, and the keys that it reads: it is not checked if one of them is already known to be wrong."""

    keys: frozenset[str]
    list_findings: RuleFunction


_RULES: list[Rule] = []


def list_findings(profile: Profile, wrong_keys: Container[str] = frozenset()) -> Iterator[Finding]:
    """A finding for each mistake: the key that is to be changed, and what is wrong with it.

    `wrong_keys`: top-level keys whose values were left out because they are wrong. A rule that reads one of them is not
    checked, nor one that reads the key of an earlier finding: a mistake is reported once.
    """
    reported_keys: set[str] = set()
    for rule in _RULES:
        if any(key in wrong_keys or key in reported_keys for key in rule.keys):
            continue
        for finding in rule.list_findings(profile):
            yield finding
            reported_keys.add(get_first_key(finding))


def get_first_key(finding: Finding) -> str:
    """The top-level key of a finding: `env` of one about `env.A`; empty if it is about the whole profile."""
    return finding.where.partition(".")[0]


def _reads(*keys: str) -> Callable[[RuleFunction], RuleFunction]:
    """Add a function to the rules, in the order of this file, as one that reads these keys."""

    def add_rule(function: RuleFunction) -> RuleFunction:
        _RULES.append(Rule(frozenset(keys), function))
        return function

    return add_rule


# --- the job


@_reads("program", "module", "manifest")
def _check_job(profile: Profile) -> Iterator[Finding]:
    if sum(map(bool, (profile.program, profile.module, profile.manifest))) != 1:
        yield Finding("", "a profile must name one of program, module (both with an image, in pods) and manifest")


@_reads("program", "agent", "rendezvous")
def _check_program(profile: Profile) -> Iterator[Finding]:
    """A module in place of a file. Without an agent the program may be any command: a.out."""
    program = profile.program or ""
    if program.startswith("-"):
        yield Finding(
            "program", f"{program} is an option, and not a file: for `python -m my.train` use module: my.train"
        )
    elif _MODULE_PATH.fullmatch(program) and not program.endswith(".py") and profile.resolved_agent != "none":
        yield Finding(
            "program", f"{program} is not a Python file, whose name ends in .py; for a module use module: {program}"
        )


@_reads("module")
def _check_module(profile: Profile) -> Iterator[Finding]:
    if profile.module and not _MODULE.fullmatch(profile.module):
        yield Finding(
            "module", f"{profile.module!r} is not the name of a module: write names with dots, as in my.train"
        )


@_reads("program", "agent", "rendezvous", "setup", "check_fabric", "on_hang", "hardware", "fabric")
def _check_entrypoint(profile: Profile) -> Iterator[Finding]:
    """What torchyard's command does before the program cannot be done before the entrypoint of an image."""
    if not profile.has_image_entrypoint:
        return
    reason = "with program: image the pods run no command of torchyard's"
    if profile.resolved_agent != "none":
        yield Finding("agent", f"must be none: {reason}. Set it, with rendezvous: env, static or file")
    if profile.setup:
        yield Finding("setup", f"requires a shell: {reason}. Put the lines into the image")
    if profile.network and (profile.network.setup or profile.network.find_gid):
        yield Finding("fabric", f"{profile.fabric} requires a shell: {reason}. Use another fabric, or name a program")
    if profile.check_fabric:
        yield Finding("check_fabric", f"requires a shell: {reason}. Remove it")
    if "on_hang" in profile.model_fields_set and profile.on_hang != "off":
        yield Finding("on_hang", f"{profile.on_hang} requires the recorder: {reason}. Remove it, or set off")


@_reads("agent", "rendezvous")
def _check_agent(profile: Profile) -> Iterator[Finding]:
    agent = profile.resolved_agent
    if agent == "none" and profile.rendezvous in WITH_AGENT:
        yield Finding(
            "agent",
            f"none cannot be combined with rendezvous: {profile.rendezvous}, which needs an agent on each "
            "node. Use rendezvous: static, env or file",
        )
    if agent != "none" and profile.rendezvous in WITHOUT_AGENT:
        yield Finding(
            "agent",
            f"{agent} cannot be combined with rendezvous: {profile.rendezvous}. Use rendezvous: c10d, etcd-v2 "
            "or static",
        )


@_reads("rendezvous", "nodes")
def _check_elastic(profile: Profile) -> Iterator[Finding]:
    if profile.rendezvous not in WITH_AGENT and profile.nodes.min != profile.nodes.max:
        yield Finding("nodes", f"must be one number with rendezvous: {profile.rendezvous}, not {profile.nodes}")


@_reads("rendezvous", "shared_file")
def _check_shared_file(profile: Profile) -> Iterator[Finding]:
    if (profile.rendezvous == "file") != bool(profile.shared_file):
        yield Finding("shared_file", "is where nodes meet with rendezvous: file. Set both, or neither")


@_reads("restarts", "manifest", "agent", "rendezvous")
def _check_restarts(profile: Profile) -> Iterator[Finding]:
    if profile.restarts and (profile.manifest or profile.resolved_agent == "none"):
        yield Finding("restarts", "requires torchrun, which restarts the processes; this job has none. Remove it")


@_reads("manifest_name", "manifest")
def _check_manifest_name(profile: Profile) -> Iterator[Finding]:
    if profile.manifest_name == "keep" and not profile.manifest:
        yield Finding("manifest_name", "requires a manifest, whose job keeps its name")


@_reads("checkpoints", "manifest")
def _check_checkpoints_of_manifest(profile: Profile) -> Iterator[Finding]:
    if profile.checkpoints and profile.manifest:
        yield Finding("checkpoints", "cannot be combined with a manifest, which names the folder itself. Remove it")


@_reads("on_companion_data", "manifest")
def _check_companion_data(profile: Profile) -> Iterator[Finding]:
    if profile.on_companion_data == "delete" and not profile.manifest:
        yield Finding("on_companion_data", "requires a manifest with objects beside the job")


@_reads("on_hang", "attempts")
def _check_hang(profile: Profile) -> Iterator[Finding]:
    if profile.on_hang == "restart" and profile.attempts < 2:
        yield Finding("on_hang", "restart requires another attempt: set attempts to 2 or more, or use report or fail")


@_reads("deadlines")
def _check_notice(profile: Profile) -> Iterator[Finding]:
    deadlines = profile.deadlines
    if deadlines.notice > deadlines.grace:
        yield Finding(
            "deadlines.notice",
            f"must be deadlines.grace ({deadlines.grace:g} s) or less, not {deadlines.notice:g} s: the ranks are "
            "killed at the end of the grace. Set a longer grace too",
        )
    elif deadlines.notice and deadlines.notice >= deadlines.run:
        yield Finding("deadlines.notice", f"must be less than deadlines.run ({deadlines.run:g} s)")


@_reads("on_nan", "metrics")
def _check_nan(profile: Profile) -> Iterator[Finding]:
    if profile.on_nan == "fail" and profile.metrics == "none":
        yield Finding("on_nan", "fail requires metrics: name the format in which rank 0 prints its loss")


@_reads("files", "manifest")
def _check_files_of_manifest(profile: Profile) -> Iterator[Finding]:
    if profile.files and profile.manifest:
        yield Finding("files", "cannot be combined with a manifest: add a ConfigMap to it, and mount it in its pods")


@_reads("code", "manifest")
def _check_code_of_manifest(profile: Profile) -> Iterator[Finding]:
    if profile.code and profile.manifest:
        yield Finding("code", "cannot be combined with a manifest, whose pods run their own commands")


@_reads("avoid_failed", "manifest")
def _check_avoid_failed(profile: Profile) -> Iterator[Finding]:
    if profile.avoid_failed and profile.manifest:
        yield Finding("avoid_failed", "cannot be combined with a manifest, which itself places its pods")


# --- the hardware


@_reads("hardware", "fabric")
def _check_fabric_name(profile: Profile) -> Iterator[Finding]:
    if profile.hardware and profile.fabric not in profile.hardware.fabrics:
        choices = ", ".join(profile.hardware.fabrics)
        yield Finding("fabric", f"{profile.fabric or 'none'} is not a fabric of this hardware: use {choices}")
    if profile.fabric and not profile.hardware:
        yield Finding("fabric", "requires hardware, whose file lists the fabrics")


@_reads("min_busbw", "check_fabric")
def _check_threshold(profile: Profile) -> Iterator[Finding]:
    if profile.min_busbw and not profile.check_fabric:
        yield Finding("min_busbw", "requires check_fabric, which measures it: set check_fabric too, such as 30s")


@_reads("check_fabric", "min_busbw", "manifest", "nodes", "processes", "hardware", "fabric")
def _check_fabric_check(profile: Profile) -> Iterator[Finding]:
    gpus_per_node = profile.hardware.gpus.per_node if profile.hardware else None
    if not profile.check_fabric:
        return
    if profile.manifest:
        yield Finding("check_fabric", "cannot be combined with a manifest, whose pods run their own commands")
    elif profile.nodes.max < 2 or profile.nodes.min != profile.nodes.max:
        yield Finding("check_fabric", f"requires one number of nodes, 2 or more, not {profile.nodes}: all take part")
    elif profile.required_busbw is None:
        yield Finding(
            "check_fabric",
            "requires the GB/s that an all-reduce must reach: set min_busbw, or a fabric with a "
            "min_busbw in its hardware file",
        )
    elif not profile.min_busbw and gpus_per_node and profile.processes < gpus_per_node:
        yield Finding(
            "check_fabric",
            f"the hardware file's {profile.required_busbw:g} GB/s are for all {gpus_per_node} GPUs of a "
            f"node, but this job has {profile.processes} processes on each: set min_busbw",
        )


@_reads("resources", "manifest", "hardware", "processes")
def _check_counts(profile: Profile) -> Iterator[Finding]:
    gpus = 0 if profile.manifest else int(profile.resources.get("gpus", 0))
    gpus_per_node = profile.hardware.gpus.per_node if profile.hardware else None
    if gpus_per_node and gpus > gpus_per_node:
        yield Finding("resources.gpus", f"must be {gpus_per_node} or less on a node of this hardware, not {gpus}")
    elif 0 < gpus < profile.processes:
        yield Finding("processes", f"must be {gpus} or less, one per GPU of a node, not {profile.processes}")


# --- names


@_reads("image")
def _check_image(profile: Profile) -> Iterator[Finding]:
    fault = find_image_fault(profile.image) if profile.image is not None else None
    if fault:
        yield Finding("image", f"{profile.image!r} {fault}: write [registry/]path[:tag], the path in lower case")


def find_image_fault(image: str) -> str | None:
    """Why a text cannot be the name of an image, as a clause; None if it can."""
    if _PLACEHOLDER.search(image):
        return "is a placeholder"
    if not _IMAGE.fullmatch(image):
        return "is not the name of an image"
    return None


@_reads("mounts")
def _check_mounts(profile: Profile) -> Iterator[Finding]:
    for path in profile.mounts:
        if not path.startswith("/"):
            yield Finding("mounts", f"{path!r} is not an absolute path: start it with /")


@_reads("files", "mounts")
def _check_files(profile: Profile) -> Iterator[Finding]:
    for path in profile.files:
        if not _is_file_path(path):
            yield Finding(
                "files",
                f"{path!r} is not the path of a file in a pod: start it with /, without `:`, `.` and `..` in it",
            )
        elif path in profile.mounts:
            yield Finding("files", f"{path} is in `mounts` too: name it in one of them")


def _is_file_path(path: str) -> bool:
    """Whether this can be the path of a file in a pod."""
    return path.startswith("/") and ":" not in path and not {"", ".", ".."} & set(path[1:].split("/"))


@_reads("env")
def _check_env(profile: Profile) -> Iterator[Finding]:
    for name in profile.env:
        if not _VARIABLE.fullmatch(name):
            yield Finding("env", f"{name!r} is not the name of a variable: use letters, digits and _, no digit first")
        elif name in RANK_VARIABLES:
            yield Finding("env", f"{name} differs between processes and is set by the agent: remove it")


@_reads("job", "pod")
def _check_labels(profile: Profile) -> Iterator[Finding]:
    for key, labels in (("job", profile.job.labels), ("pod", profile.pod.labels)):
        for name in labels:
            if name.startswith(OWN_LABEL_PREFIX):
                yield Finding(f"{key}.labels", f"{name} begins like torchyard's own labels: choose another name")


@_reads("args")
def _check_placeholders(profile: Profile) -> Iterator[Finding]:
    """A misspelled placeholder. Other words in braces are the program's own."""
    for name in _list_words_in_braces(profile.args):
        close = difflib.get_close_matches(name, PLACEHOLDERS, n=1, cutoff=0.75)
        if name not in PLACEHOLDERS and close:
            yield Finding("args", f"{{{name}}} is not a placeholder: did you mean {{{close[0]}}}?")


def _list_words_in_braces(args: Iterable[str]) -> list[str]:
    """Each word once, in their order."""
    words: dict[str, None] = {}
    for arg in args:
        words.update(dict.fromkeys(re.findall(r"\{(\w+)\}", arg)))
    return list(words)
