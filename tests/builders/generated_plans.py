"""The plans of generated profiles, and the values that tests read from them."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st

from tests.builders.generated_profiles import POD_LAUNCHERS, build_plan, profiles
from tests.doubles.kubelet import expand_variables
from torchyard.agents import process_env
from torchyard.diagnosis.pod_facts import find_main_container
from torchyard.model.plan import CommandPlan, ManifestPlan
from torchyard.model.profile import Profile
from torchyard.model.run import Run

POD_PROFILES = st.sampled_from(POD_LAUNCHERS).flatmap(profiles)
PROFILES = st.sampled_from([*POD_LAUNCHERS, "baremetal"]).flatmap(profiles)


def plan_pods(profile: Profile, run: Run) -> ManifestPlan:
    pod_plan = build_plan(profile, run)
    assert isinstance(pod_plan, ManifestPlan)
    return pod_plan


def walk_values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside a manifest, with the path of its keys, such as `spec.tasks.0.name`."""
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        child_path = f"{path}.{key}" if path else str(key)
        yield child_path, child
        yield from walk_values(child, child_path)


def find_values(plan: ManifestPlan, ending: str) -> list[Any]:
    """The values whose path ends with `ending` (a regular expression), in all objects of the plan."""
    matching = []
    for document in (*plan.store, *plan.objects):
        matching += [value for path, value in walk_values(document) if re.fullmatch(rf"(.*\.)?{ending}", path)]
    return matching


def list_pod_variables(plan: ManifestPlan) -> list[dict[str, str]]:
    """The variables that the controller sets in each pod of the job: the node's number and the rank."""
    indexes = [node.rpartition("-")[2] for node in plan.pods]
    return [{process_env.NODE_VARIABLE: index, "RANK": str(rank)} for rank, index in enumerate(indexes)]


def expand_command(plan: ManifestPlan, variables: dict[str, str]) -> list[str]:
    """The argv of the job's container, as the kubelet expands it."""
    containers = {container["name"]: container for container in plan.pod["spec"]["containers"]}
    return [expand_variables(arg, variables) for arg in containers[find_main_container(plan.pod)]["command"]]


def list_argvs(plan: CommandPlan) -> list[list[str]]:
    return [process.spec["argv"] for process in plan.processes if process.spec]
