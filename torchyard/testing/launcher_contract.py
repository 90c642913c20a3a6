"""The contract of a launcher, as rules that can be checked without a scheduler.

    from torchyard.testing import check_launcher
    import torchyard_slurm.launcher

    def test_launcher_keeps_the_contract() -> None:
        assert check_launcher("slurm", torchyard_slurm.launcher) == []

The kit plans sample profiles and reads sample observations. It cannot know how the scheduler behaves: record real
statuses for that.
"""

import copy
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast, get_args

from pydantic import TypeAdapter

from torchyard.launchers.registry import Launcher, list_missing_parts
from torchyard.model.errors import ProfileError
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.profile import Profile
from torchyard.model.resolved import resolve
from torchyard.model.run import ENDED_STATES, State, Status
from torchyard.testing.sample_observations import (
    SampleObservation,
    list_empty_observations,
    list_malformed_observations,
    list_unknown_observations,
)
from torchyard.testing.sample_profiles import FIRST_RUN, MINIMAL, OTHER_RUN, SECOND_ATTEMPT, build_sample_profiles
from torchyard.testing.side_effects import record_side_effects

RULES = {
    "parts": "a launcher has PROGRAM_IS_A_FILE, Options, plan and read_status",
    "plans": "plan returns a CommandPlan or ManifestPlan, or raises ProfileError, but not for a minimal profile",
    "pure": "plan and read_status write nothing, start nothing and connect to nothing",
    "deterministic": "equal arguments give equal results, and are not changed",
    "printable": "a plan is the same after it was written as JSON and read again",
    "launcher": "a plan names its launcher as its entry point does",
    "names": "the names of a plan are valid DNS labels, and begin with the name of the run",
    "unique": "two runs, and two attempts of a run, share no name or label",
    "environment": "a plan contains no value of the launcher's environment, which may be a secret",
    "logs": "every node has a log of its own, in the folder of the run",
    "never-raises": "read_status returns a Status with a reason for every observation",
    "unknown": "an absent or unknown state is not an end of the job, except that a job without any object may be gone",
    "malformed": "a malformed state is never a success",
}
_PLANS: TypeAdapter[Plan] = TypeAdapter(Plan)
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SECRET_VARIABLE = "TORCHYARD_CONTRACT_SECRET"
_SECRET = "s3cret-of-the-contract"


class BrokenRule(NamedTuple):
    """A rule of RULES that a launcher breaks. case: the profile or observation; detail: what happened."""

    rule: str
    case: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule} ({RULES[self.rule]}): {self.case}: {self.detail}"


def check_launcher(name: str, launcher: object, keys: Mapping[str, Any] | None = None) -> list[BrokenRule]:
    """The rules that a launcher breaks; empty if it keeps all.

    `launcher`: the module, or the object that the entry point names. `keys`: keys of a profile without which it plans
    nothing, such as required options.
    """
    missing = list_missing_parts(launcher)
    if missing:
        return [BrokenRule("parts", name, f"it lacks {', '.join(missing)}")]
    checked = cast(Launcher, launcher)
    profiles = build_sample_profiles(name, keys or {}, program_is_a_file=checked.PROGRAM_IS_A_FILE)
    broken_rules: list[BrokenRule] = []
    for case, profile in profiles.items():
        broken_rules += check_plan(name, checked, profile, case, may_refuse=case != MINIMAL)
        broken_rules += _check_statuses(checked, profile, case)
    return broken_rules


def check_plan(
    name: str, launcher: Launcher, profile: Profile, case: str = "", *, may_refuse: bool = True
) -> list[BrokenRule]:
    """The rules that the plan of one profile breaks. `case`: the profile in messages; default: its name.

    `may_refuse`: whether the launcher may refuse the profile with a ProfileError.
    """
    case = case or profile.name
    try:
        plan = launcher.plan(resolve(profile), FIRST_RUN)
    except ProfileError as error:
        return [] if may_refuse else [BrokenRule("plans", case, f"it refused the profile: {error}")]
    except Exception as error:  # what a launcher raises against the rules is what is examined here
        return [BrokenRule("plans", case, f"plan raised {type(error).__name__}: {error}")]
    if not isinstance(plan, CommandPlan | ManifestPlan):
        return [BrokenRule("plans", case, f"plan returned {type(plan).__name__}")]
    return [BrokenRule(rule, case, detail) for rule, detail in _list_plan_problems(name, launcher, profile, plan)]


def _list_plan_problems(name: str, launcher: Launcher, profile: Profile, plan: Plan) -> Iterator[tuple[str, str]]:
    """Each rule that a plan breaks, with what is wrong."""
    yield from _check_repeated_plan(launcher, profile, plan)
    yield from _check_environment(launcher, profile)
    yield from _check_printed_plan(plan)
    if plan.launcher != name:
        yield "launcher", f"the plan names {plan.launcher}, and the launcher is {name}"
    yield from _check_names(profile, plan)
    yield from _check_logs(profile, plan)
    for run, description in ((SECOND_ATTEMPT, "the second attempt"), (OTHER_RUN, "another run")):
        other_plan = launcher.plan(resolve(profile), run)
        shared = _list_identities(plan) & _list_identities(other_plan)
        if shared:
            yield "unique", f"{', '.join(sorted(shared))} is also that of {description}"


def _check_repeated_plan(launcher: Launcher, profile: Profile, plan: Plan) -> Iterator[tuple[str, str]]:
    """Plan the same profile again: nothing else happens, the plan is equal, and the profile is unchanged."""
    resolved = resolve(profile)
    before = resolved.model_copy(deep=True)
    with record_side_effects() as effects:
        repeated_plan = launcher.plan(resolved, FIRST_RUN)
    for effect in dict.fromkeys(effects):
        yield "pure", f"plan: {effect}"
    if repeated_plan != plan:
        yield "deterministic", "a second plan of the same profile is different"
    if resolved != before:
        yield "deterministic", "plan has changed the profile"


def _check_printed_plan(plan: Plan) -> Iterator[tuple[str, str]]:
    try:
        printed_plan = _PLANS.validate_json(plan.model_dump_json(warnings="error"))
    except ValueError as error:  # of pydantic: a value that JSON cannot hold, or that the model does not allow
        yield "printable", f"{type(error).__name__}: {error}"
        return
    if printed_plan != plan:
        yield "printable", "the plan is different after it was written as JSON and read again"


def _check_environment(launcher: Launcher, profile: Profile) -> Iterator[tuple[str, str]]:
    """Plan while this process has a secret in its environment."""
    os.environ[_SECRET_VARIABLE] = _SECRET
    try:
        text = str(launcher.plan(resolve(profile), FIRST_RUN))
    finally:
        del os.environ[_SECRET_VARIABLE]
    if _SECRET in text:
        yield "environment", f"the plan contains the value of the variable {_SECRET_VARIABLE}"


def _check_names(profile: Profile, plan: Plan) -> Iterator[tuple[str, str]]:
    run_name = FIRST_RUN.name(profile)
    names = [plan.job]
    if isinstance(plan, ManifestPlan):
        names += [obj["metadata"]["name"] for obj in (plan.lease, *plan.store, *plan.objects)]
        names += plan.pods.values()
    for name in names:
        if not _DNS_LABEL.fullmatch(name):
            yield "names", f"{name!r} is not a DNS label of at most 63 characters"
        elif not name.startswith(run_name):
            yield "names", f"{name!r} does not begin with {run_name}"
    for node in plan.nodes:
        if not _DNS_LABEL.fullmatch(node):
            yield "names", f"the node {node!r} is not a DNS label"
    if isinstance(plan, CommandPlan) and not plan.label.startswith(run_name):
        yield "names", f"the label {plan.label!r} does not begin with {run_name}"


def _check_logs(profile: Profile, plan: Plan) -> Iterator[tuple[str, str]]:
    if len(plan.nodes) != profile.nodes.max:
        yield "logs", f"{len(plan.nodes)} logs for {profile.nodes.max} nodes"
    paths = list(plan.logs.values())
    if len(set(paths)) != len(paths):
        yield "logs", "two logs have the same path"
    for path in paths:
        if not path.startswith(f"{FIRST_RUN.folder}/"):
            yield "logs", f"{path} is not in the run's folder {FIRST_RUN.folder}"


def _list_identities(plan: Plan) -> set[str]:
    """What distinguishes an attempt's processes or objects from those of others."""
    if isinstance(plan, CommandPlan):
        return {plan.label, *(f"{process.host}:{process.folder}" for process in plan.all_processes)}
    return {obj["metadata"]["name"] for obj in plan.objects}


# --- statuses


def _check_statuses(launcher: Launcher, profile: Profile, case: str) -> Iterator[BrokenRule]:
    """The rules that the statuses of a job of this profile break. Nothing is checked if it cannot be planned."""
    try:
        plan = launcher.plan(resolve(profile), FIRST_RUN)
    except Exception:  # check_plan reports it
        return
    if not isinstance(plan, CommandPlan | ManifestPlan):
        return
    not_ended = frozenset(get_args(State)) - ENDED_STATES
    for sample in list_empty_observations(plan):
        # A cluster's watch reports objects only after a complete list, so there an absent job is one that is gone.
        allowed = not_ended if sample.observed.states else not_ended | {"gone"}
        yield from _check_status(launcher, case, sample, "unknown", allowed)
    for sample in list_unknown_observations(plan):
        yield from _check_status(launcher, case, sample, "unknown", not_ended)
    for sample in list_malformed_observations(plan):
        yield from _check_status(launcher, case, sample, "malformed", frozenset(get_args(State)) - {"succeeded"})


def _check_status(
    launcher: Launcher, case: str, sample: SampleObservation, rule: str, allowed: frozenset[str]
) -> Iterator[BrokenRule]:
    """Read the status of one observation, twice."""
    case = f"{case}, {sample.description}"
    before = copy.deepcopy(dict(sample.observed.states))
    try:
        with record_side_effects() as effects:
            status = launcher.read_status(sample.observed)
            repeated_status = launcher.read_status(sample.observed)
    except Exception as error:  # what a launcher raises against the rules is what is examined here
        yield BrokenRule("never-raises", case, f"read_status raised {type(error).__name__}: {error}")
        return
    if effects:
        yield BrokenRule("pure", case, f"read_status: {', '.join(dict.fromkeys(effects))}")
    if not isinstance(status, Status) or not status.reason:
        yield BrokenRule("never-raises", case, f"read_status returned {status!r}")
        return
    if repeated_status != status or dict(sample.observed.states) != before:
        yield BrokenRule("deterministic", case, "a second status is different, or the observation was changed")
    if status.state not in allowed:
        yield BrokenRule(rule, case, f"the state is {status.state}: {status.reason}")
