"""What must not grow with the size of a job, held by counts: how often a pod is read, and how often a server asked."""

import threading
import time
from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.test_stuck import NOT_FOUND, NOW, stamp, unplaced
from torchyard.cluster import diagnose
from torchyard.cluster.diagnose import ProgressMonitor
from torchyard.diagnosis.no_progress import ClusterContext, explain_no_progress
from torchyard.kube.client import Client
from torchyard.launchers import registry
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Observation

PODS = 50
READS = 25  # of one pod, at most: for each explanation in turn
KINDS = {"volcano": "Job", "jobset": "JobSet"}


class Counted(dict[str, Any]):
    """A pod that counts how often it is read."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(key, default)


def standing(plan: ManifestPlan, warnings: int) -> tuple[Observation, ClusterContext, list[Counted]]:
    """A job of which no pod starts, for want of a volume."""
    names = [f"{plan.job}-{node}{'-x2x4z' if plan.suffixed else ''}" for node in plan.nodes]
    pods = [Counted({"metadata": {"uid": name}, "status": {"phase": "Pending"}}) for name in names]
    seen = {f"Pod/{node}": pod for node, pod in zip(plan.nodes, pods, strict=True)}
    things = ({"kind": "Pod", "name": name, "uid": name} for _ in range(warnings) for name in names)
    told = {"reason": "FailedMount", "message": NOT_FOUND, "firstTimestamp": stamp(9), "lastTimestamp": stamp(1)}
    events = [{**told, "involvedObject": thing} for thing in things]
    return Observation(seen, frozenset(), NOW), ClusterContext(events), pods


@pytest.mark.parametrize("launcher", KINDS)
def test_a_warning_costs_one_look_at_its_pod(planned: Planned, launcher: str) -> None:
    """A thousand warnings do not make every pod be read a thousand times."""
    plan = planned(nodes=PODS, launcher=launcher)
    few, many = standing(plan, 1), standing(plan, 3)
    for observed, around, _ in (few, many):
        found = explain_no_progress(plan, observed, around)
        assert found
        assert found.failure.cause == "volume-mount"
    reads = [max(pod.reads for pod in pods) for _, _, pods in (few, many)]
    assert reads[0] <= READS
    assert reads[1] - reads[0] <= 2 * 2 * 2  # two more warnings, each in two places


@pytest.mark.parametrize("launcher", KINDS)
def test_a_status_reads_each_pod_a_few_times(planned: Planned, launcher: str) -> None:
    """How a job is takes a bounded look at each of its pods."""
    plan = planned(nodes=PODS, launcher=launcher)
    observed, _, pods = standing(plan, 1)
    job: Any = {f"{KINDS[launcher]}/{plan.job}": plan.main}
    registry.load_launcher(launcher).read_status(observed._replace(seen={**job, **observed.seen}))
    assert max(pod.reads for pod in pods) <= READS


# --- many runs, one look around


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look is due at once."""
    monkeypatch.setattr(diagnose, "_FIRST_QUERY_AFTER_S", -1.0)


@pytest.fixture
def runs(planned: Planned, fake_api: FakeApi, fake_server: Client, at_once: None) -> list[ProgressMonitor]:
    """Twenty runs in one namespace, whose pods find no node; half of them ask for more than the others."""
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"}}
    fake_api.put({**queue, "status": {"state": "Open"}})
    plans = [planned(nodes=2, name=f"run-{at}", resources={"gpus": 1 + at % 2}) for at in range(20)]
    return [ProgressMonitor(fake_server, plan) for plan in plans]


def all_look(runs: list[ProgressMonitor], last: bool = False) -> list[Any]:
    """Every run asks why it makes no progress, in a thread of its own, until its look is over."""
    seen = {"Pod/worker-0": unplaced()}
    found: list[Any] = []

    def go(run: ProgressMonitor) -> None:
        run.why(seen, last)
        run._look.join(20)
        found.append(run.why(seen))

    threads = [threading.Thread(target=go, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def lists(server: FakeApi, kind: str) -> int:
    return len(server.requests("GET", f"/{kind}$"))


def test_pending_runs_share_one_look(fake_api: FakeApi, runs: list[ProgressMonitor]) -> None:
    """Twenty pending runs of a process list the nodes and the events once, whatever each of them asks for."""
    found = all_look(runs)
    assert [each.failure.cause for each in found] == ["unschedulable"] * len(runs)
    assert (lists(fake_api, "nodes"), lists(fake_api, "events")) == (1, 1)


def test_shared_look_grows_old(fake_api: FakeApi, runs: list[ProgressMonitor], monkeypatch: pytest.MonkeyPatch) -> None:
    """After its age the look is repeated, once for all runs again."""
    all_look(runs)
    later = time.monotonic() + diagnose._QUERY_INTERVAL_S + 1
    monkeypatch.setattr("torchyard.cluster.diagnose.time.monotonic", lambda: later)
    all_look(runs)
    assert (lists(fake_api, "nodes"), lists(fake_api, "events")) == (2, 2)


def test_refused_look_is_shared_too(fake_api: FakeApi, runs: list[ProgressMonitor]) -> None:
    """What may not be seen is asked for once, and is no answer: the scheduler's own words explain."""
    fake_api.fail("GET", "/nodes", 403)
    found = all_look(runs)
    assert lists(fake_api, "nodes") == 2  # a refusal counts when it is repeated
    assert all("0/9 nodes are available" in each.failure.sentence for each in found)
