"""The profile of the next attempt: with `avoid_failed` it avoids the machines on which earlier attempts failed."""

from collections.abc import Iterable, Mapping
from typing import Any

from torchyard.launchers import registry
from torchyard.model.profile import Profile
from torchyard.model.resolved import resolve
from torchyard.model.run import Attempt

_HOSTNAME_LABEL = "kubernetes.io/hostname"


def list_failed_machines(attempts: Iterable[Attempt]) -> tuple[str, ...]:
    """The nodes and hosts on which earlier attempts failed, if they may be at fault."""
    machines: dict[str, None] = {}
    for attempt in attempts:
        failure = attempt.collected.failure
        if failure and failure.node and failure.cause.points_at_node:
            machines[attempt.outcome.machines.get(failure.node, "")] = None
    return tuple(machine for machine in machines if machine)


def avoid_failed_machines(profile: Profile, attempts: Iterable[Attempt]) -> Profile:
    """The profile of the next attempt, in which failed machines are avoided."""
    failed = list_failed_machines(attempts) if profile.avoid_failed else ()
    if not failed:
        return profile
    if "avoid" in registry.load_launcher(profile.launcher).Options.model_fields:
        options = dict(profile.options)
        options["avoid"] = _join_values(options, "avoid", failed)
        return profile.model_copy(update={"options": options})
    avoid = dict(resolve(profile).pod.avoid)
    avoid[_HOSTNAME_LABEL] = _join_values(avoid, _HOSTNAME_LABEL, failed)
    return profile.model_copy(update={"pod": profile.pod.model_copy(update={"avoid": avoid})})


def _join_values(settings: Mapping[str, Any], key: str, new_values: tuple[str, ...]) -> tuple[str, ...]:
    """The values of a setting and the new ones, each once, in order."""
    return tuple(dict.fromkeys((*settings.get(key, ()), *new_values)))
