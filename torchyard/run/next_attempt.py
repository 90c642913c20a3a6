"""Whether another attempt follows, and its profile: with `avoid_failed` it avoids the machines that failed earlier."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchyard.common.log import get_log
from torchyard.launchers import registry
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.profile import Profile
from torchyard.model.resolved import resolve
from torchyard.model.run import Attempt

_HOSTNAME_LABEL = "kubernetes.io/hostname"


def may_try_again(attempts: Sequence[Attempt], profile: Profile) -> bool:
    """Whether another attempt follows the last one, which has ended; that is logged.

    It failed from a cause that another attempt may not meet, and the budget for such causes is not used up: `requeues`
    if the platform took the machines away, else `attempts`. `attempts`: all of the budget, none of which succeeded.
    """
    last = attempts[-1]
    failure = last.collected.failure
    if last.outcome.status.state == "succeeded" or failure is None or not failure.retry:
        return False
    if failure.cause is LauncherCause.RANK_HANGS and profile.on_hang == "fail":
        return False
    requeue_count = sum(_is_requeued(attempt) for attempt in attempts)
    if failure.requeue:
        if requeue_count > profile.requeues:
            return False
        message = "attempt %d lost its machines, and starts again (requeue %d of %d): %s"
        get_log().warning(message, last.number, requeue_count, profile.requeues, failure.sentence)
        return True
    if len(attempts) - requeue_count >= profile.attempts:
        return False
    get_log().warning("attempt %d failed, and its cause is worth another attempt: %s", last.number, failure.sentence)
    return True


def _is_requeued(attempt: Attempt) -> bool:
    """Whether the platform took the machines of an attempt away."""
    failure = attempt.collected.failure
    return failure is not None and failure.requeue


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
