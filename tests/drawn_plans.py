"""The plans of drawn profiles, and what tests read from them."""

import re
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tests.drawn import PODS, plan, profiles
from tests.kubelet import kubelet
from torchyard.agents import process_env
from torchyard.model.plan import CommandPlan, ManifestPlan
from torchyard.model.profile import Profile
from torchyard.model.run import Run

IN_PODS = st.sampled_from(PODS).flatmap(profiles)
ANY = st.sampled_from([*PODS, "baremetal"]).flatmap(profiles)


def plan_pods(profile: Profile, run: Run) -> ManifestPlan:
    made = plan(profile, run)
    assert isinstance(made, ManifestPlan)
    return made


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside a manifest, with the keys that lead there."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in children:
        here = f"{path}.{key}" if path else str(key)
        yield here, each
        yield from parts(each, here)


def at(made: ManifestPlan, ending: str) -> list[Any]:
    """The values of all keys with this name, anywhere in the objects."""
    found = (each for document in (*made.store, *made.objects) for each in parts(document))
    return [value for path, value in found if re.fullmatch(rf"(.*\.)?{ending}", path)]


def pods(made: ManifestPlan) -> list[dict[str, str]]:
    """The variables that its controller gives each pod of the job: the node's number and the rank."""
    count = sum(made.tasks.values())
    indexes = [index for pods in made.tasks.values() for index in range(pods)]
    return [{process_env.NODE_VARIABLE: str(indexes[rank]), "RANK": str(rank)} for rank in range(count)]


def words(made: ManifestPlan, told: dict[str, str]) -> list[str]:
    container = next(each for each in made.pod["spec"]["containers"] if each["name"] == made.container)
    return [kubelet(word, told) for word in container["command"]]


def argvs(made: CommandPlan) -> list[list[str]]:
    return [block.submit.input["argv"] for block in made.processes if block.submit and block.submit.input]
