"""The contract of launchers: each rule fails for a launcher that breaks it."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchyard.launchers import baremetal, volcano
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Observation, Run, Status
from torchyard.testing import check_launcher
from torchyard.testing.sample_profiles import FIRST_RUN

MakePlan = Callable[[ResolvedProfile, Run], Any]
ReadStatus = Callable[[Observation], Any]


def list_broken_rules(plan: MakePlan = baremetal.plan, read_status: ReadStatus = baremetal.read_status) -> set[str]:
    """The rules that a launcher breaks which differs from baremetal in these functions."""
    launcher = SimpleNamespace(PROGRAM_IS_A_FILE=True, Options=baremetal.Options, plan=plan, read_status=read_status)
    return {broken.rule for broken in check_launcher("baremetal", launcher)}


def change_plan(**fields: Any) -> MakePlan:
    """A function that plans as baremetal does, with these fields."""

    def plan(profile: ResolvedProfile, run: Run) -> Plan:
        return baremetal.plan(profile, run).model_copy(update=fields)

    return plan


def refuse(profile: ResolvedProfile, run: Run) -> Plan:
    raise ProfileError(profile.name, (Finding("nodes", "is refused"),))


def plan_on_disk(profile: ResolvedProfile, run: Run) -> Plan:
    Path(os.devnull).write_text("x")
    return baremetal.plan(profile, run)


def plan_with_time(profile: ResolvedProfile, run: Run) -> Plan:
    return baremetal.plan(profile, run).model_copy(
        update={"label": f"{run.name(profile)}/{run.attempt}/{time.time_ns()}"}
    )


def plan_and_change(profile: ResolvedProfile, run: Run) -> Plan:
    plan = baremetal.plan(profile, run)
    profile.env["ADDED"] = "1"
    return plan


def plan_with_environment(profile: ResolvedProfile, run: Run) -> Plan:
    plan = baremetal.plan(profile, run)
    process = plan.processes[0].model_copy(update={"spec": {"env": dict(os.environ)}})
    return plan.model_copy(update={"processes": (process, *plan.processes[1:])})


def plan_with_one_log(profile: ResolvedProfile, run: Run) -> Plan:
    plan = baremetal.plan(profile, run)
    processes = tuple(process.model_copy(update={"log": "/runs/first/log"}) for process in plan.processes)
    return plan.model_copy(update={"processes": processes})


def plan_one_node(profile: ResolvedProfile, run: Run) -> Plan:
    plan = baremetal.plan(profile, run)
    return plan.model_copy(update={"processes": plan.processes[:1]})


def plan_with_long_node(profile: ResolvedProfile, run: Run) -> Plan:
    plan = baremetal.plan(profile, run)
    process = plan.processes[0].model_copy(update={"name": "Node_0"})
    return plan.model_copy(update={"processes": (process, *plan.processes[1:])})


@pytest.mark.parametrize(
    ("rule", "plan"),
    [
        pytest.param("plans", refuse, id="refuses everything"),
        pytest.param("plans", lambda profile, run: {}, id="returns a dict"),
        pytest.param("plans", lambda profile, run: profile.nothing, id="raises"),
        pytest.param("pure", plan_on_disk, id="writes a file"),
        pytest.param("deterministic", plan_with_time, id="contains the time"),
        pytest.param("deterministic", plan_and_change, id="changes the profile"),
        pytest.param("printable", change_plan(requires=(), expect={"transport": "tcp"}), id="holds a dict"),
        pytest.param("launcher", change_plan(launcher="other"), id="names another launcher"),
        pytest.param("names", change_plan(job="Job_1"), id="invalid name"),
        pytest.param("names", change_plan(job="job-1"), id="name without the run"),
        pytest.param("names", change_plan(label="x"), id="label without the run"),
        pytest.param("names", plan_with_long_node, id="invalid node"),
        pytest.param("unique", change_plan(label=FIRST_RUN.short), id="the same label for all"),
        pytest.param("environment", plan_with_environment, id="copies the environment"),
        pytest.param("logs", plan_with_one_log, id="one log for all"),
        pytest.param("logs", plan_one_node, id="no log for a node"),
    ],
)
def test_plan_that_breaks_a_rule_is_found(rule: str, plan: MakePlan) -> None:
    """A launcher whose plan breaks a rule is reported with that rule."""
    assert rule in list_broken_rules(plan)


def read_by_key(observed: Observation) -> Status:
    return Status(state="running", reason=str(observed.states["node-0"]["phase"]))


def read_absent_as_a_success(observed: Observation) -> Status:
    is_absent = all(state == {} for state in observed.states.values())
    return Status(state="succeeded" if is_absent else "pending", reason="nothing runs any more")


def read_pessimistically(observed: Observation) -> Status:
    return Status(state="failed", reason="the phase is unknown")


def read_junk_as_a_success(observed: Observation) -> Status:
    is_valid = all(isinstance(state, dict) for state in observed.states.values())
    return Status(state="pending" if is_valid else "succeeded", reason="a state is malformed")


def read_and_change(observed: Observation) -> Status:
    for state in observed.states.values():
        if isinstance(state, dict):
            state["seen"] = True
    return Status(state="pending", reason="is new")


def read_with_a_counter(observed: Observation) -> Status:
    return Status(state="pending", reason=f"at {time.time_ns()}")


@pytest.mark.parametrize(
    ("rule", "read_status"),
    [
        ("never-raises", read_by_key),
        ("never-raises", lambda observed: None),
        ("never-raises", lambda observed: Status(state="pending", reason="")),
        ("unknown", read_pessimistically),
        ("malformed", read_junk_as_a_success),
        ("deterministic", read_and_change),
        ("deterministic", read_with_a_counter),
        ("pure", lambda observed: Status(state="pending", reason=str(Path(os.devnull).write_text("x")))),
    ],
)
def test_status_that_breaks_a_rule_is_found(rule: str, read_status: ReadStatus) -> None:
    """A launcher whose status breaks a rule is reported with that rule."""
    assert list_broken_rules(read_status=read_status) == {rule}


def test_absent_state_that_counts_as_a_success_is_found() -> None:
    """A launcher for which a process without a state has succeeded breaks two rules: {} is also a malformed state."""
    assert list_broken_rules(read_status=read_absent_as_a_success) == {"unknown", "malformed"}


def test_missing_part_is_found() -> None:
    """An object that lacks a part of a launcher breaks one rule, and the others are not checked."""
    (broken,) = check_launcher("empty", SimpleNamespace())
    assert broken.rule == "parts"
    assert "PROGRAM_IS_A_FILE (True or False), Options (a model of pydantic), plan (a function)" in str(broken)


def test_attempts_of_a_cluster_have_different_objects() -> None:
    """In a cluster two attempts must not share the name of an object, as the first may still be terminating."""

    def plan(profile: ResolvedProfile, run: Run) -> ManifestPlan:
        return volcano.plan(profile, run.model_copy(update={"attempt": 1}))

    launcher = SimpleNamespace(
        PROGRAM_IS_A_FILE=False, Options=volcano.Options, plan=plan, read_status=volcano.read_status
    )
    broken_rules = check_launcher("volcano", launcher)
    assert {broken.rule for broken in broken_rules} == {"unique"}
    assert "sample-a1b2c3d4-1, sample-a1b2c3d4-1-files is also that of the second attempt" in str(broken_rules[0])


def test_launcher_without_a_fault_breaks_no_rule() -> None:
    """The launcher that these tests change keeps the contract."""
    assert list_broken_rules() == set()
