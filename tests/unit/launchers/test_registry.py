"""All launchers: their format_plan plans, and the states that they read from format_plan jobs of real controllers."""

import copy
import difflib
import json
import os
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from tests.conftest import Planned, plan_of
from tests.doubles.installed_packages import LAUNCHER, InstalledPackages
from tests.inputs.observed_moments import (
    EACH_MOMENT,
    explain_wait,
    find_moments,
    get_phase,
    get_pod_group,
    get_pods,
    list_true_conditions,
    read_status,
)
from tests.inputs.recorded_jobs import FILES, damaged_observations
from tests.inputs.recording import OBSERVED, RecordedMoment
from torchyard.common.project_root import ROOT
from torchyard.diagnosis import job_status, pod_facts
from torchyard.launchers import appwrapper, baremetal, job, jobset, pytorchjob, registry, runai, volcano
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.errors import ExtensionError
from torchyard.model.plan import Plan
from torchyard.model.run import Observation
from torchyard.pods.files import summarize_files
from torchyard.testing import check_launcher, check_plan
from torchyard.testing.sample_observations import JUNK

# --- plans


def test_launcher_is_found_by_its_file() -> None:
    """The registry finds the launcher by the name of its file."""
    assert registry.load_launcher("appwrapper") is appwrapper


def test_launchers_keep_the_protocol() -> None:
    """Every launcher has Options, plan and read_status; the annotation is what mypy checks."""
    modules: list[registry.Launcher] = [appwrapper, baremetal, job, jobset, pytorchjob, runai, volcano]
    assert [registry.load_launcher(name) for name in registry.list_launchers()] == modules


# --- launchers of other packages

NOTHING = "[torchyard.launchers]\nnothing = ty_nothing\n"


def test_launcher_of_another_package_is_loaded(packages: InstalledPackages) -> None:
    """An entry point that names a module with the parts of a launcher is a launcher."""
    packages.install("ty-nothing", NOTHING, ty_nothing=LAUNCHER)
    assert registry.load_launcher("nothing").PROGRAM_IS_A_FILE
    assert "nothing" not in registry.list_launchers()


def test_unknown_launcher_is_an_error_with_the_choices(packages: InstalledPackages) -> None:
    """The error for an unknown name lists torchyard's launchers and those of packages."""
    packages.install("ty-nothing", NOTHING, ty_nothing=LAUNCHER)
    with pytest.raises(ExtensionError, match=r"launcher: slurm does not exist; use one of appwrapper, .*, nothing, or"):
        registry.load_launcher("slurm")


@pytest.mark.parametrize(
    ("part", "replacement", "missing"),
    [
        ("PROGRAM_IS_A_FILE = True", "PROGRAM_IS_A_FILE = 1", "PROGRAM_IS_A_FILE (True or False)"),
        ("class Options(BaseModel)", "class Options", "Options (a model of pydantic)"),
        ("def plan", "def make_plan", "plan (a function)"),
        ("def read_status", "def read", "read_status (a function)"),
    ],
)
def test_package_without_a_part_is_refused(
    packages: InstalledPackages, part: str, replacement: str, missing: str
) -> None:
    """A module that lacks a part of a launcher is an error that names the part and the package."""
    packages.install("ty-nothing", NOTHING, ty_nothing=LAUNCHER.replace(part, replacement))
    with pytest.raises(ExtensionError) as raised:
        registry.load_launcher("nothing")
    where = "launcher nothing of ty-nothing 1.0 (entry point nothing = ty_nothing in torchyard.launchers)"
    assert str(raised.value).startswith(f"{where} is not a launcher: it lacks {missing}; add it as ")


def test_every_launcher_is_described(packages: InstalledPackages) -> None:
    """The list has every launcher, and the reason why one of a package cannot be used."""
    packages.install("ty-nothing", NOTHING, ty_nothing=LAUNCHER)
    packages.install("ty-broken", "[torchyard.launchers]\nbroken = ty_broken\nvolcano = ty_broken\n", ty_broken="1 / 0")
    launchers = registry.describe_launchers()
    own = [launcher for launcher in launchers if launcher.origin == "torchyard"]
    assert [launcher.name for launcher in own] == registry.list_launchers()
    assert all(launcher.description and launcher.problem is None for launcher in own)
    broken, nothing, second_volcano = launchers[len(own) :]
    assert (nothing.origin, nothing.description) == ("ty-nothing 1.0", "Runs nothing, anywhere.")
    assert nothing.problem is None
    assert "cannot be imported: ZeroDivisionError" in str(broken.problem)
    assert "has the name of one of torchyard's own launchers; rename the entry point" in str(second_volcano.problem)
    assert registry.load_launcher("volcano") is volcano


GOLDEN = ROOT / "tests" / "golden"


def format_plan(plan: Plan) -> str:
    """The plan as text, without what differs between machines."""
    text = json.dumps(summarize_files(plan.model_dump(mode="json", exclude_none=True)), indent=1) + "\n"
    text = re.sub(r'("torchyard-[\w.-]+\.py": )"[\d,]+ bytes, sha256 \w+"', r'\1"OUR FILE"', text)
    text = re.sub(r"(\\\"\$torchyard\\\" )[\w+/=]{1000,}", r"\1OUR_FILES", text)
    return text.replace(sys.executable, "PYTHON").replace(str(ROOT), "PROJECT")


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_plan_is_as_recorded(name: str) -> None:
    """A shipped profile's plan equals its golden file."""
    now = format_plan(plan_of(load_profile(name), Path("/runs/RUN")))
    file = GOLDEN / f"{name}.json"
    if not file.exists():
        assert not os.environ.get("CI"), (
            f"{file.relative_to(ROOT)} is missing: run this test without CI=, and commit it"
        )
        file.write_text(now)
    changes = list(difflib.unified_diff(file.read_text().splitlines(), now.splitlines(), lineterm="", n=0))
    assert not changes, "\n".join([*changes, f"to accept it: rm {file.relative_to(ROOT)} and test again"])


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_plan_keeps_the_contract(name: str) -> None:
    """The plan of a shipped profile keeps every rule of the contract, such as that equal profiles have equal plans."""
    profile = load_profile(name)
    launcher = registry.load_launcher(profile.launcher)
    assert check_plan(profile.launcher, launcher, profile, may_refuse=False) == []


# The keys without which a launcher plans nothing.
REQUIRED_KEYS: dict[str, dict[str, Any]] = {"runai": {"nodes": 2, "options": {"project": "vision"}}}


@pytest.mark.parametrize("name", registry.list_launchers())
def test_launcher_keeps_the_contract(name: str) -> None:
    """Every launcher keeps every rule that the launchers of other packages must keep."""
    broken_rules = check_launcher(name, registry.load_launcher(name), REQUIRED_KEYS.get(name))
    assert not broken_rules, "\n".join(map(str, broken_rules))


# --- every recording


@EACH_MOMENT
def test_state_is_as_recorded(moment: RecordedMoment) -> None:
    """State and reason at every moment of a format_plan job are the format_plan ones."""
    status = read_status(moment.case, moment.observed)
    assert (status.state, status.reason) == (moment.expected, moment.reason)


@pytest.fixture(scope="module")
def stated() -> dict[str, Any]:
    """The recorded cases of each launcher, with the states that they go through."""
    cases: dict[str, Any] = yaml.safe_load((OBSERVED / "cases.yaml").read_text())
    return cases


@pytest.mark.parametrize("case", FILES)
def test_states_are_those_stated(case: str, stated: dict[str, Any]) -> None:
    """A job goes through the states that cases.yaml lists for it, and no others."""
    launcher, _, name = case.partition("-")
    states = stated[launcher][name]["states"]
    assert [state for state, _ in groupby(moment.expected for moment in FILES[case])] == states


def test_every_case_is_recorded(stated: dict[str, Any]) -> None:
    """Each case has a recording, and each recording has a case."""
    assert FILES.keys() == {f"{launcher}-{name}" for launcher, cases in stated.items() for name in cases}


@EACH_MOMENT
def test_success_is_that_of_every_pod(moment: RecordedMoment) -> None:
    """A job that succeeded has no pod that failed or still runs."""
    if moment.expected == "succeeded":
        assert {pod["status"]["phase"] for pod in get_pods(moment).values()} <= {"Succeeded"}


@EACH_MOMENT
def test_failure_has_evidence(moment: RecordedMoment) -> None:
    """A job that failed has a pod or a controller that reports the failure."""
    if moment.expected == "failed":
        statuses = str([obj["status"] for obj in moment.observed.states.values()])
        assert any(needle in statuses for needle in ("Fail", "BackOff", "Terminat", "Abort", "Evict"))


# --- where the controllers mislead


@pytest.mark.parametrize("case", ["volcano-image", "pytorchjob-image"])
def test_running_pod_group_does_not_mean_running_pods(case: str) -> None:
    """A PodGroup is Running as soon as its pods have nodes, even if their image cannot be pulled."""
    assert "Running" in [get_pod_group(moment)["status"].get("phase") for moment in find_moments(case, "pending")]


@pytest.mark.parametrize("case", ["volcano-image", "pytorchjob-image"])
def test_image_that_cannot_be_pulled_is_the_cause(case: str) -> None:
    """An ImagePullBackOff fails the job after a while, with a cause that no log shows."""
    failure = read_status(case, find_moments(case, "failed")[0].observed).failure
    assert failure is not None
    assert (failure.cause, failure.retry) == ("image-pull", False)


@pytest.mark.parametrize("case", ["volcano-image-late", "pytorchjob-image-late"])
def test_image_that_is_late_is_waited_for(planned: Planned, case: str) -> None:
    """One ErrImagePull does not fail the job, and explains the wait."""
    plan = planned(nodes=2, launcher=case.partition("-")[0])
    explanations = [explain_wait(plan, moment) for moment in find_moments(case, "pending")]
    assert "(ErrImagePull" in "".join(explanations)


@pytest.mark.parametrize("case", ["volcano-ok", "pytorchjob-ok"])
def test_warning_does_not_prove_a_failure(case: str) -> None:
    """A job that succeeds also has a warning that its gang cannot be scheduled."""
    events = json.loads((OBSERVED / f"{case}.json").read_text())["events"]
    assert any("Warning Unschedulable:" in event for event in events)


@pytest.mark.parametrize("case", ["volcano-elastic-one-does-not-fit", "pytorchjob-elastic-one-does-not-fit"])
def test_elastic_job_runs_with_fewer(case: str) -> None:
    """An elastic job has started once its minimum number of workers has."""
    assert "4 of 5 pods run" in find_moments(case, "running")[-1].reason


@pytest.mark.parametrize("case", ["volcano-ok", "pytorchjob-ok"])
def test_normal_start_is_not_alarming(case: str) -> None:
    """The reason of a healthy job never mentions scheduling."""
    assert all("chedul" not in moment.reason for moment in FILES[case])


@pytest.mark.parametrize("case", ["volcano-oom-zero", "pytorchjob-oom-zero"])
def test_out_of_memory_is_mentioned_after_a_success(case: str) -> None:
    """OOMKilled with exit code 0 is a success, and the reason mentions it."""
    assert (
        find_moments(case, "succeeded")[-1].reason == "2 of 2 pods succeeded; but worker-1 ran out of memory on the way"
    )


@pytest.mark.parametrize(
    ("case", "cause", "retry"),
    [("oom", "oom-pod", False), ("evicted", "evicted", True), ("drained", "evicted", True)],
)
@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
def test_cause_that_only_the_cluster_reports(launcher: str, case: str, cause: str, retry: bool) -> None:
    """A pod's death by the cluster is reported with its node, and whether a retry is worthwhile."""
    name = f"{launcher}-{case}"
    failure = read_status(name, find_moments(name, "failed")[0].observed).failure
    assert failure is not None
    assert (failure.cause, failure.retry, failure.node) == (cause, retry, "worker-1")


@pytest.mark.parametrize("case", ["volcano-deleted", "pytorchjob-deleted"])
def test_pods_of_a_deleted_job_fail(case: str) -> None:
    """A deleted job is gone, although its pods end as Failed."""
    assert any("'Failed'" in str(get_pods(moment)) for moment in find_moments(case, "gone"))


@pytest.mark.parametrize("case", ["volcano-crash-loop", "pytorchjob-crash-loop"])
def test_crash_loop_is_a_failure(case: str) -> None:
    """A crash loop is a failure, although with restartPolicy OnFailure every controller reports Running forever."""
    last = find_moments(case, "failed")[-1]
    assert ("Running" in (get_phase(last), *list_true_conditions(last)), "CrashLoopBackOff" in last.reason) == (
        True,
        True,
    )


@pytest.mark.parametrize("case", ["pytorchjob-clean-running", "pytorchjob-clean-all", "volcano-completes"])
def test_pods_that_a_controller_removes_do_not_fail(case: str) -> None:
    """Pods that a controller kills because the job has finished are not failures."""
    assert "'exitCode': 137" in "".join(str(get_pods(moment)) for moment in FILES[case])


# --- made-up statuses


@settings(max_examples=1000)
@given(damaged_observations())
def test_damaged_status_is_read(damage: tuple[str, Observation]) -> None:
    """A state can be read from any damaged status, and is never success if a pod has failed."""
    status = read_status(*damage)
    pods = job_status.select_job_pods(damage[1]).values()
    failed = any(pod_facts.get_pod_phase(pod) == "Failed" and not pod_facts.is_being_deleted(pod) for pod in pods)
    assert not (failed and status.state == "succeeded")


PODS = pytest.mark.parametrize("case", ["volcano-ok", "pytorchjob-ok", "appwrapper-ok", "jobset-ok", "job-ok"])


@PODS
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_unknown_phase_is_not_a_success(case: str, junk: Any) -> None:
    """A finished job has not succeeded if the phase of a pod is anything but Succeeded."""
    moment = find_moments(case, "succeeded")[-1]
    states = copy.deepcopy(dict(moment.observed.states))
    next(obj for name, obj in states.items() if name.startswith("Pod/"))["status"]["phase"] = junk
    assert read_status(case, Observation(states, frozenset(), moment.observed.observed_at)).state != "succeeded"


@PODS
@pytest.mark.parametrize("junk", [value for value in JUNK if value is not None and value != 0], ids=repr)
def test_unknown_exit_code_is_not_a_success(case: str, junk: Any) -> None:
    """An exit code that is not the number 0 is not a success."""
    moment = find_moments(case, "succeeded")[-1]
    states = copy.deepcopy(dict(moment.observed.states))
    pod = next(obj for name, obj in states.items() if name.startswith("Pod/"))
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] = junk
    assert read_status(case, Observation(states, frozenset(), moment.observed.observed_at)).state != "succeeded"


def list_damaged_types() -> set[str]:
    """The types that `damaged` has put in place of objects and their parts."""
    kinds: set[str] = set()

    @settings(max_examples=1000, database=None, derandomize=True)
    @given(damaged_observations())
    def draw(damage: tuple[str, Observation]) -> None:
        for obj in damage[1].states.values():
            parts = {"object": obj} | (obj if isinstance(obj, dict) else {})
            kinds.update(f"{key}: {type(value).__name__}" for key, value in parts.items())

    draw()
    return kinds


def test_damage_is_of_any_kind() -> None:
    """The damage covers strings, numbers, lists and null, so that the properties above are tested with each."""
    kinds = list_damaged_types()
    expected = {
        f"{key}: {kind}" for key in ("object", "metadata", "status") for kind in ("str", "int", "list", "NoneType")
    }
    assert expected <= kinds
