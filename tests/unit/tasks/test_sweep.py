"""The sweep: which runs it finds and removes, and its final state."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.client.schemas.objects import State

from tests.conftest import RUN_ID
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.fake_prefect import FakePrefect
from tests.doubles.leases import RUN, OrphanedRun, build_lease
from tests.processes import removed_folders
from tests.processes.removed_folders import LABEL, Start, is_running
from tests.support.waiting import wait_until
from torchyard.cluster import orphans
from torchyard.host.processes import find_labelled
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.tasks import sweep
from torchyard.tasks.flow_run import ownership
from torchyard.tasks.sweep import (
    AbandonedRun,
    build_sweep_state,
    describe_refusals,
    find_cluster_runs,
    find_local_runs,
    find_orphan_process_runs,
    format_summary,
    remove_orphan,
    remove_run,
    sweep_machine,
)

CreateFolder = Callable[..., RunFolder]


@pytest.fixture
def folder() -> CreateFolder:
    """Create the folder of an abandoned run, with a lease of so many seconds."""

    def make(name: str, seconds: float) -> RunFolder:
        folder = RunFolder(Path(runs_folder(), name))
        folder.path.mkdir(parents=True)
        folder.record_event("start", run="1", entry="fresh")
        folder.renew(seconds)
        return folder

    return make


@pytest.fixture(autouse=True)
def isolated_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect has no run, and the sweep does not wait."""
    monkeypatch.setattr(sweep, "read_liveness", lambda _: None)
    monkeypatch.setattr(sweep, "read_liveness_by_name", lambda _: None)
    monkeypatch.setattr(orphans, "LEASE_OBSERVATION_S", 0.0)
    monkeypatch.setattr(ownership, "open_bounded_client", lambda: None)


# --- which runs


def list_local_names(requested_runs: frozenset[str] | None) -> list[str]:
    return [abandoned_run.run for abandoned_run in find_local_runs(requested_runs, [])]


def test_folder_goes_after_its_lease(folder: CreateFolder) -> None:
    """A run on this machine is swept once its lease has ended."""
    folder("old-00000001", -1)
    folder("new-00000002", 60)
    assert list_local_names(None) == ["old-00000001"]


def test_named_folder_goes_before_its_lease_has_ended(folder: CreateFolder) -> None:
    """A named run is swept before its lease ends, and no other one with it; an empty list sweeps none."""
    folder("old-00000001", -1)
    folder("new-00000002", 60)
    assert list_local_names(frozenset({"new-00000002"})) == ["new-00000002"]
    assert list_local_names(frozenset()) == []


def test_named_run_of_a_living_process_stays(folder: CreateFolder) -> None:
    """A named run that a living process owns is not swept, and the final state reports it."""
    folder_of_run = folder("mine-00000003", 60)
    with folder_of_run.owned():
        (abandoned_run,) = find_local_runs(frozenset({folder_of_run.name}), [])
        leftovers = remove_run(abandoned_run, dry_run=False)
    assert leftovers is None
    assert (
        "a living process owns it"
        in describe_refusals(frozenset({folder_of_run.name}), [abandoned_run], [leftovers])[0]
    )


def test_run_that_was_removed_in_one_location_is_not_refused() -> None:
    """A run that was refused in one place but swept in another, as after a move, is not reported as refused."""
    abandoned_runs = [AbandonedRun("moved-00000005", location, "", list) for location in ("here", "namespace ml")]
    assert describe_refusals(frozenset({"moved-00000005"}), abandoned_runs, [None, []]) == []
    assert len(describe_refusals(frozenset({"moved-00000005"}), abandoned_runs, [None, None])) == 2


def test_name_that_does_not_exist_is_an_error(folder: CreateFolder) -> None:
    """Naming a run that does not exist is an error; naming one that has ended here is not."""
    folder("over-00000006", 60).record_event("end", end="succeeded", by="flow", sentence="it went well")
    assert (
        list_local_names(frozenset({"over-00000006"})),
        describe_refusals(frozenset({"over-00000006"}), [], []),
    ) == ([], [])
    assert describe_refusals(frozenset({"gone-00000004"}), [], []) == [
        "there is no run gone-00000004 that this user may see"
    ]


def test_folders_that_cannot_be_listed_prove_no_absence() -> None:
    """If this machine's runs cannot be listed, that is the fault, and no run is said not to exist."""
    shutil.rmtree(runs_folder(), ignore_errors=True)
    runs_folder().write_text("not a folder")
    faults: list[str] = []
    assert list(find_local_runs(frozenset({"gone-00000004"}), faults)) == []
    assert len(faults) == 1
    assert "cannot be listed" in faults[0]
    assert describe_refusals(frozenset({"gone-00000004"}), [], []) == []


# --- processes here whose run folder was removed


@pytest.mark.parametrize("is_supervisor_killed", [False, True])
def test_sweep_ends_only_processes_without_a_supervisor(
    start: Start, caplog: pytest.LogCaptureFixture, is_supervisor_killed: bool
) -> None:
    """A sweep leaves orphan processes to their supervisor, and ends only those whose supervisor has exited."""
    state = start()
    if is_supervisor_killed:
        os.kill(state["supervisor"], signal.SIGKILL)
        wait_until(lambda: not is_running(state["supervisor"]))
    abandoned_runs = list(find_orphan_process_runs(None))
    assert [abandoned_run.run for abandoned_run in abandoned_runs] == (
        [removed_folders.RUN] if is_supervisor_killed else []
    )
    assert ("its supervisor ends it with its lease" in caplog.text) is not is_supervisor_killed
    assert [abandoned_run.remove() for abandoned_run in abandoned_runs] == ([()] if is_supervisor_killed else [])
    assert bool(find_labelled(LABEL)) is not is_supervisor_killed


# --- in a cluster


def list_cluster_runs(faults: list[str], without_lease: bool = False) -> list[AbandonedRun]:
    return list(find_cluster_runs(None, None, faults, without_lease=without_lease))


def test_refused_list_fails_the_sweep(fake_api: FakeApi) -> None:
    """A sweep that may not list Leases removes nothing, ends Failed, and names the right and the role."""
    faults: list[str] = []
    run = OrphanedRun(fake_api, build_lease(ago=3))
    fake_api.fail("GET", r"/leases\?", 403)
    assert list_cluster_runs(faults, without_lease=True) == []
    end = build_sweep_state(format_summary([], 0, dry_run=False), faults)
    assert end.is_failed()
    assert "list leases" in str(end.message)
    assert "deploy/kubernetes/rbac.yaml" in str(end.message)
    assert run.remaining_kinds == ["Lease", "Job", "Pod"]


def test_fault_of_one_query_does_not_affect_the_others(fake_api: FakeApi) -> None:
    """If objects without a Lease cannot be judged, runs with an expired Lease are still found."""
    faults: list[str] = []
    OrphanedRun(fake_api, build_lease(), "other")
    bare = OrphanedRun(fake_api, build_lease())
    fake_api.objects.stored.pop(ObjectKey("coordination.k8s.io/v1/leases", "default", RUN))
    fake_api.fail("GET", f"namespaces/default/leases/{RUN}", 403)
    assert [abandoned_run.location for abandoned_run in list_cluster_runs(faults)] == ["namespace other"]
    assert len(faults) == 1
    assert bare.remaining_kinds == ["Job", "Pod"]


def test_run_that_is_listed_stays(fake_api: FakeApi) -> None:
    """Objects without a Lease are listed with the reason why they stay, and the final state counts them."""
    run = OrphanedRun(fake_api, build_lease())
    fake_api.objects.stored.pop(ObjectKey("coordination.k8s.io/v1/leases", "default", RUN))
    abandoned_runs = list_cluster_runs([])
    assert [remove_run(abandoned_run, dry_run=False) for abandoned_run in abandoned_runs] == [()]
    assert format_summary(abandoned_runs, 0, dry_run=False) == "swept 0 runs; 1 listed and kept"
    assert run.remaining_kinds == ["Job", "Pod"]


def test_unconfirmed_run_gets_no_state_in_prefect(fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect gets a final state only if the flow run is confirmed: a Lease may name another user's flow run."""
    reported_states: list[str] = []

    def report_state(run_id: str, state: State[None]) -> None:
        reported_states.append(f"{run_id}: {state.name}")

    monkeypatch.setattr(sweep, "report_state", report_state)
    for confirmed in (None, "0190c7f0"):
        monkeypatch.setattr(sweep, "confirm_flow_run", lambda _, confirmed=confirmed: confirmed)
        run = OrphanedRun(fake_api, build_lease())
        (orphan,) = orphans.find_orphans(None, orphans.SweepScope(check_alive=lambda _: None))
        assert (remove_orphan(orphan), run.remaining_kinds) == ([], [])
    assert reported_states == ["0190c7f0: Swept"]


def test_each_machine_sweeps_its_own_folders(folder: CreateFolder, fake_prefect: FakePrefect) -> None:
    """A machine's sweep ends its runs whose lease has ended, without a flow run in Prefect."""
    expired_folder = folder("old-00000001", -1)
    current_folder = folder("new-00000002", 60)
    state = sweep_machine()
    assert (state.is_completed(), state.message) == (True, "swept 1 run")
    assert (
        expired_folder.read_record().find_last("end").get("end"),
        current_folder.read_record().find_last("end").get("end"),
    ) == ("swept", None)
    assert not [path for path, _ in fake_prefect.posted if path == "/api/flow_runs/"]


def test_run_that_another_machine_has_ended_keeps_that_end(
    folder: CreateFolder, fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is back has an old journal: the end is that of Prefect, and is not reported again."""
    fake_prefect.state = "COMPLETED"
    expired_folder = folder("old-00000001", -1)
    expired_folder.record_event("start", run=RUN_ID, flow_run=RUN_ID)
    reported: list[str] = []
    monkeypatch.setattr(sweep, "report_end", lambda *_: reported.append("to Prefect"))
    monkeypatch.setattr("torchyard.assembly._send_swept_end", lambda *_: reported.append("to receivers"))
    assert sweep_machine().message == "swept 1 run"
    assert (expired_folder.read_record().find_last("end")["end"], reported) == ("succeeded", [])


def test_run_is_kept_while_prefect_does_not_answer(folder: CreateFolder, fake_prefect: FakePrefect) -> None:
    """Whether another machine has ended the run is then unknown, and the other runs are swept."""
    fake_prefect.responses[f"/flow_runs/{RUN_ID}"] = "log in first"
    kept_folder = folder("kept-00000001", -1)
    kept_folder.record_event("start", run=RUN_ID, flow_run=RUN_ID)
    other_folder = folder("old-00000002", -1)
    state = sweep_machine()
    assert "cannot find out from Prefect whether a run has ended elsewhere" in str(state.message)
    ends = [candidate.read_record().find_last("end").get("end") for candidate in (kept_folder, other_folder)]
    assert ends == [None, "swept"]


def test_fault_of_one_removal_does_not_end_the_sweep() -> None:
    """An error that no one expects is that run's fault, and is logged."""

    def fail() -> list[str]:
        raise OSError(5, "Input/output error")

    leftovers = remove_run(AbandonedRun("bad-00000007", "here", "", fail), dry_run=False)
    assert leftovers == ["bad-00000007, here: [Errno 5] Input/output error"]


def test_receiver_that_hangs_delays_no_recovery(
    folder: CreateFolder, fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended runs could not deliver is delivered once the abandoned runs are swept, as a receiver may hang."""
    expired_folder = folder("old-00000001", -1)
    ends: list[object] = []
    monkeypatch.setattr(
        sweep, "send_late_metrics", lambda: ends.append(expired_folder.read_record().find_last("end").get("end"))
    )
    sweep_machine()
    assert ends == ["swept"]
