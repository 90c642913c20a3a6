"""Continues the job of a user's manifest from a checkpoint: its main containers get TORCHYARD_RESUME."""

from collections.abc import Iterable, Mapping
from typing import Any

from torchyard.agents.process_env import escape_dollars
from torchyard.model.checkpoint import RESUME_VARIABLE, ResumePoint
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding, passed_check, warning_check
from torchyard.model.profile import Profile
from torchyard.pods.manifest_pods import LocatedPods


def add_resume_variable(
    profile: Profile, resume: ResumePoint | None, located_pods: Iterable[LocatedPods]
) -> list[Finding]:
    """Add the variable to the main container of each set of pods; return what was added, and where it cannot be.

    A variable of that name in the manifest stays as it is, and is a warning. Nothing happens without a resume point.
    ProfileError if a container's `env` is not a list, or if the profile's `resume` reaches no container.
    """
    if resume is None:
        return []
    additions: dict[str, Finding] = {}  # by location: the Jobs of a JobSet share a template
    own_variables: dict[str, Finding] = {}
    faults: dict[str, Finding] = {}
    for pods in located_pods:
        where = f"{pods.container_location}.env"
        if where in additions:
            continue
        env = pods.container.get("env") or []
        if not isinstance(env, list):
            problem = "must be a list of variables, each with name and value: the API server refuses the object"
            faults[where] = Finding(where, problem, "write `- {name: NAME, value: TEXT}` for each")
        elif any(_is_resume_variable(variable) for variable in env):
            problem = f"sets {RESUME_VARIABLE} itself, which stays: these pods do not continue from {resume.path}"
            own_variables[where] = warning_check(where, problem, "remove it from the manifest")
        else:
            # First, so that variables of the manifest may refer to it.
            pods.container["env"] = [{"name": RESUME_VARIABLE, "value": escape_dollars(resume.path)}, *env]
            additions[where] = passed_check(where, f"{RESUME_VARIABLE}={resume.path} is added")
    if profile.resume and not additions and not faults:
        problem = f"cannot reach the pods: the manifest sets {RESUME_VARIABLE} itself ({', '.join(own_variables)})"
        faults["resume"] = Finding("resume", problem, "remove it there, or do not resume")
    if faults:
        raise ProfileError(profile.name, tuple(faults.values()))
    return [*additions.values(), *own_variables.values()]


def _is_resume_variable(variable: Any) -> bool:
    return isinstance(variable, Mapping) and variable.get("name") == RESUME_VARIABLE
