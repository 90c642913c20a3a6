"""Where rank 0 of a user's manifest runs: its agents log that only at the level INFO, which they get from a run.

An agent is torchrun, or a program that starts its ranks through torchrun's agent. Without its log, rank 0 runs on the
first pod: that is certain without an agent and with static ranks, and likely with c10d, which sorts the names of its
nodes.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torchyard.agents.torchrun import LEVEL_VARIABLE, RANK_LEVELS
from torchyard.diagnosis import pod_facts
from torchyard.lint.workload import ManifestContainer
from torchyard.model.finding import Finding, passed_check, warning_check
from torchyard.model.plan import Ranks
from torchyard.pods.manifest_pods import LocatedPods
from torchyard.pods.volumes import Manifest

_LEVEL_PATTERN = re.compile(rf"(?<![\w-]){LEVEL_VARIABLE}=[\"']?(\w*)")
_UNKNOWN_LEVEL = ""


def add_log_level(job: Manifest, located_pods: Iterable[LocatedPods]) -> list[Finding]:
    """Add LOGLEVEL=INFO to each main container with an agent; return what was added, and where the log lacks the rank.

    `job`: the object that creates the pods. A level that the manifest sets stays as it is. It is a warning if it hides
    the rank, unless the ranks are static.
    """
    findings: dict[str, Finding] = {}  # by location: the Jobs of a JobSet share a template
    for pods in located_pods:
        location = f"{pods.container_location}.env"
        if location in findings or not pods.pod_set.pod_count or not pod_facts.runs_agent(pods.container):
            continue
        level = _find_level(pods.container)
        env = pods.container.get("env") or []
        if level is None and isinstance(env, list):
            pods.container["env"] = [{"name": LEVEL_VARIABLE, "value": RANK_LEVELS[0]}, *env]
            message = (
                f"{LEVEL_VARIABLE}={RANK_LEVELS[0]} is added: only at this level torchrun logs which pod has rank 0"
            )
            findings[location] = passed_check(location, message)
        elif level not in RANK_LEVELS and not _has_static_ranks(job, pods.container):
            findings[location] = _warn_of_level(location, level)
    return list(findings.values())


def _warn_of_level(location: str, level: str | None) -> Finding:
    """The warning that rank 0's node is assumed. `level`: of the agent's log, or `_UNKNOWN_LEVEL`."""
    problem = f"{LEVEL_VARIABLE} is {level}" if level else f"{LEVEL_VARIABLE} may come from envFrom or a script"
    problem += (
        ": only at INFO torchrun logs which pod has rank 0; without that the metrics and checkpoints of the first pod "
        "count as rank 0's"
    )
    return warning_check(location, problem, f"write {LEVEL_VARIABLE}: {RANK_LEVELS[0]} there")


def find_rank_source(pod: Mapping[str, Any]) -> Ranks:
    """How the log of a pod shows which rank printed a line. `pod` may be a pod's template."""
    name = pod_facts.find_main_container(pod)
    for container in pod_facts.get_mappings(pod, "spec", "containers"):
        if container.get("name") == name and pod_facts.runs_agent(container):
            if _find_level(container) not in RANK_LEVELS:
                return "placed"
            return "teed" if _is_teed(container) else "logged"
    return "placed"


def _is_teed(container: Mapping[str, Any]) -> bool:
    """Whether the agent in a container prefixes each line with its local rank."""
    manifest_container = ManifestContainer("", container)
    has_option = any(manifest_container.find_option(name) is not None for name in ("tee", "t"))
    return has_option or "--tee" in pod_facts.get_command_text(container)


def _find_level(container: Mapping[str, Any]) -> str | None:
    """The level of an agent's log; None if the container sets none, `_UNKNOWN_LEVEL` if it may set one."""
    assigned_levels = _LEVEL_PATTERN.findall(pod_facts.get_command_text(container))
    if assigned_levels:
        return str(assigned_levels[-1])
    for variable in pod_facts.get_mappings(container, "env"):
        if variable.get("name") == LEVEL_VARIABLE:
            return pod_facts.to_text(variable.get("value"))
    return _UNKNOWN_LEVEL if container.get("envFrom") else None


def _has_static_ranks(job: Manifest, container: Manifest) -> bool:
    """Whether the manifest itself ranks the nodes of an agent's job, so that the first one has rank 0."""
    backend = ManifestContainer("", container).find_option("rdzv-backend")
    return backend in (None, "static") and not pod_facts.get_mapping(job, "spec", "elasticPolicy")
