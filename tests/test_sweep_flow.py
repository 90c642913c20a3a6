"""The sweep as a person asks for it: what its words mean, and what its end says."""

from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.client.schemas.objects import State

from flows import sweep as flow
from flows.sweep import (
    AbandonedRun,
    _clear_orphan,
    _explain_refusals,
    _find_cluster_runs,
    _find_local_runs,
    _format_summary,
    _remove_run,
    _sweep_state,
    main,
)
from tasks import flow_runs
from tests.fake_api import FakeApi
from tests.leases import RUN, Cast, lease
from torchyard.cluster import orphans
from torchyard.run.folder import RunFolder, runs_folder

Folder = Callable[..., RunFolder]


@pytest.fixture
def folder() -> Folder:
    """Make the folder of a run that a process has left, with a lease of so many seconds."""

    def make(name: str, seconds: float) -> RunFolder:
        made = RunFolder(Path(runs_folder(), name))
        made.path.mkdir(parents=True)
        made.note("start", run="1", entry="fresh")
        made.renew(seconds)
        return made

    return make


@pytest.fixture(autouse=True)
def lonely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect knows no run, and nothing is waited for."""
    monkeypatch.setattr(flow, "read_liveness", lambda _: "")
    monkeypatch.setattr(flow, "read_liveness_by_name", lambda _: "")
    monkeypatch.setattr(orphans, "_LEASE_OBSERVATION_S", 0.0)
    monkeypatch.setattr(flow_runs, "_open_client", lambda: None)


# --- which runs


def names(named: frozenset[str] | None) -> list[str]:
    return [each.run for each in _find_local_runs(named, [])]


def test_folder_goes_after_its_lease(folder: Folder) -> None:
    """A run of this machine is taken once its lease has ended."""
    folder("old-00000001", -1)
    folder("new-00000002", 60)
    assert names(None) == ["old-00000001"]


def test_named_folder_goes_before_its_lease_has_ended(folder: Folder) -> None:
    """A run that is named goes earlier, and no other one goes with it; naming none takes none."""
    folder("old-00000001", -1)
    folder("new-00000002", 60)
    assert names(frozenset({"new-00000002"})) == ["new-00000002"]
    assert names(frozenset()) == []


def test_named_run_of_a_living_process_stays(folder: Folder) -> None:
    """A name does not take a run from the process that carries it, and the end says so."""
    mine = folder("mine-00000003", 60)
    with mine.owned():
        (due,) = _find_local_runs(frozenset({mine.name}), [])
        left = _remove_run(due, dry_run=False)
    assert left is None
    assert "a living process carries it" in _explain_refusals(frozenset({mine.name}), [due], [left])[0]


def test_run_that_went_in_one_place_is_not_refused() -> None:
    """A run that moved is nobody's here and goes where it is: that is what was asked for."""
    both = [AbandonedRun("moved-00000005", where, "", list) for where in ("here", "namespace ml")]
    assert _explain_refusals(frozenset({"moved-00000005"}), both, [None, []]) == []
    assert len(_explain_refusals(frozenset({"moved-00000005"}), both, [None, None])) == 2


def test_name_of_nothing_is_told(folder: Folder) -> None:
    """A run that is nowhere is a fault of whoever named it, and one that has ended here is none."""
    folder("over-00000006", 60).note("end", end="succeeded", by="flow", sentence="it went well")
    assert (names(frozenset({"over-00000006"})), _explain_refusals(frozenset({"over-00000006"}), [], [])) == ([], [])
    assert _explain_refusals(frozenset({"gone-00000004"}), [], []) == [
        "there is no run gone-00000004 that this user may see"
    ]


# --- in a cluster


def found(faults: list[str], without_lease: bool = False) -> list[AbandonedRun]:
    return list(_find_cluster_runs(None, None, without_lease, faults))


def test_refused_look_fails_the_sweep(fake_api: FakeApi) -> None:
    """A sweep that may not list Leases has removed nothing, ends Failed, and names the right and the role."""
    faults: list[str] = []
    run = Cast(fake_api, lease(ago=3))
    fake_api.fail("GET", r"/leases\?", 403)
    assert found(faults, without_lease=True) == []
    end = _sweep_state(_format_summary([], False, 0), faults)
    assert end.is_failed()
    assert "list leases" in str(end.message)
    assert "docs/rbac.yaml" in str(end.message)
    assert run.left == ["Lease", "Job", "Pod"]


def test_fault_of_one_look_leaves_the_others_work(fake_api: FakeApi) -> None:
    """Where objects without a Lease cannot be judged, the runs whose Lease has run out are found all the same."""
    faults: list[str] = []
    Cast(fake_api, lease(), "other")
    bare = Cast(fake_api, lease())
    fake_api.objects._all.pop(("coordination.k8s.io/v1/leases", "default", RUN))
    fake_api.fail("GET", f"namespaces/default/leases/{RUN}", 403)
    assert [each.where for each in found(faults)] == ["namespace other"]
    assert len(faults) == 1
    assert bare.left == ["Job", "Pod"]


def test_run_that_is_listed_stays(fake_api: FakeApi) -> None:
    """What has no Lease is shown with the reason why it stays, and the end counts it."""
    run = Cast(fake_api, lease())
    fake_api.objects._all.pop(("coordination.k8s.io/v1/leases", "default", RUN))
    due = found([])
    assert [_remove_run(each, dry_run=False) for each in due] == [()]
    assert _format_summary(due, False, 0) == "looked after 0 runs; 1 are listed and stay"
    assert run.left == ["Job", "Pod"]


def test_prefect_is_not_told_of_an_unproven_run(fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Lease may name anybody's flow run: only a confirmed one is told that its run was swept."""
    told: list[str] = []

    def tell(run_id: str, state: State[None]) -> None:
        told.append(f"{run_id}: {state.name}")

    monkeypatch.setattr(flow, "report_state", tell)
    for confirmed in ("", "0190c7f0"):
        monkeypatch.setattr(flow, "confirm_flow_run", lambda _, confirmed=confirmed: confirmed)
        run = Cast(fake_api, lease())
        (orphan,) = orphans.find_orphans(None, orphans.SweepScope(alive=lambda _: ""))
        assert (_clear_orphan(orphan), run.left) == ([], [])
    assert told == ["0190c7f0: Swept"]


def test_words_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--run`, `--without-lease` and `--context` reach the flow; `--now`, which took living leases, is gone."""
    asked: list[object] = []

    def sweep(*words: object, return_state: bool) -> State[None]:
        asked.extend(words)
        return _sweep_state("looked after 0 runs", [])

    monkeypatch.setattr(flow, "sweep", sweep)
    assert main(["--run", "a", "--run", "b", "--without-lease", "--context", "c"]) == 0
    assert asked == [False, ["a", "b"], True, ["c"]]
    with pytest.raises(SystemExit):
        main(["--now"])
