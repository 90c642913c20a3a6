"""The runs of a cluster by their Leases, with the rights that a user has."""

from pathlib import Path

import pytest

from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.leases import RUN, Make, build_lease, build_object, format_time
from tests.support.waiting import wait_until
from torchyard.cluster.leased_runs import PodLogCopies, list_leased_runs
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

LEASE_KEY = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)


def test_runs_of_all_namespaces_are_listed(cast: Make) -> None:
    """Each run has the pods of its own namespace; a name selects one run."""
    cast("team-a", ago=10)
    cast("team-b", ago=10)
    leased_runs = list_leased_runs(None)
    assert [(leased.client.namespace, leased.name, len(leased.pods or ())) for leased in leased_runs.runs] == [
        ("team-a", RUN, 1),
        ("team-b", RUN, 1),
    ]
    assert leased_runs.problems == []
    assert list_leased_runs(None, "other").runs == []


def test_recreated_pod_continues_the_copy_of_its_node(fake_api: FakeApi, tmp_path: Path) -> None:
    """A controller gives the next pod of a node another random suffix: the older pod's log comes first."""
    fake_api.put(build_lease(ago=10))
    for name, started_ago, text in ((f"{RUN}-1-node-0-zz9", 60.0, "first"), (f"{RUN}-1-node-0-aa1", 30.0, "second")):
        pod = build_object("v1", "Pod", name)
        pod["metadata"] |= {"generateName": f"{RUN}-1-node-0-", "creationTimestamp": format_time(started_ago)}
        status = {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}
        fake_api.put(pod | {"spec": {"containers": [{"name": "main"}]}, "status": status | {"phase": "Succeeded"}})
        fake_api.logs[name] = f"2026-01-01T00:00:00Z {text}\n".encode()
    copies = PodLogCopies(get_cluster_client(Cluster()), RUN, tmp_path, is_following=False)
    copies.update()
    wait_until(copies.is_complete)
    assert list(copies.paths) == ["node-0"]
    assert [line.split()[-1] for line in Path(copies.paths["node-0"]).read_text().splitlines()] == ["first", "second"]


def test_refused_kinds_are_listed_in_the_own_namespace(cast: Make, fake_api: FakeApi) -> None:
    """Without rights in all namespaces the runs of the context's own are listed, and that is reported."""
    cast(ago=10)
    cast("team-b", ago=10)
    fake_api.fail("GET", r"/apis/coordination.k8s.io/v1/leases", 403)
    leased_runs = list_leased_runs(None)
    assert [leased.client.namespace for leased in leased_runs.runs] == ["default"]
    (problem,) = leased_runs.problems
    assert "leases are listed only in namespace default: a fault of the test: 403" in problem


def test_pods_that_may_not_be_listed_are_unknown(cast: Make, fake_api: FakeApi) -> None:
    """A refused list of pods does not mean that a run has none."""
    cast(ago=10)
    fake_api.fail("GET", r".*/pods", 403)
    leased_runs = list_leased_runs(None)
    assert [leased.pods for leased in leased_runs.runs] == [None]
    assert "pods: a fault of the test: 403" in leased_runs.problems[0]


def test_leases_that_may_not_be_listed_are_an_error(cast: Make, fake_api: FakeApi) -> None:
    """Without the right to list Leases nothing is known about the cluster's runs."""
    cast(ago=10)
    fake_api.fail("GET", r".*/leases", 403)
    with pytest.raises(ClusterError, match="a fault of the test: 403"):
        list_leased_runs(None)


@pytest.mark.parametrize(
    ("ago", "phase", "is_over"),
    [(10, "Running", False), (10, "Succeeded", False), (4000, "Running", False), (4000, "Failed", True)],
)
def test_run_is_over_once_nobody_continues_it(
    cast: Make, fake_api: FakeApi, tmp_path: Path, ago: float, phase: str, is_over: bool
) -> None:
    """While a launcher may hold the Lease, a job without living pods may get another attempt."""
    run = cast(ago=ago)
    fake_api.put(run.pod | {"status": {"phase": phase}})
    copies = PodLogCopies(get_cluster_client(Cluster()), RUN, tmp_path, is_following=True)
    copies.update()
    assert (copies.is_over, list(copies.paths)) == (is_over, ["worker-0"])
    fake_api.objects.delete(LEASE_KEY, {})
    copies.update()
    assert copies.is_over
