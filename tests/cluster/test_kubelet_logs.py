"""The kubelet's log API on a real and on a fake node: both must behave alike, or tests on fake pods are wrong."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.bare_pods import PRINT_SCRIPT, RESTART_SCRIPT, BarePod
from tests.cluster.jobs import Jobs, until
from torchyard.cluster.logs.pod_logs import PodLogs, has_container_terminated
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

NODES = ({"type": "kwok"}, {"torchyard/node": "real"})


@pytest.fixture(scope="module", params=NODES, ids=["fake", "real"])
def node(admin_client: Client, request: pytest.FixtureRequest) -> dict[str, str]:
    """The label of a fake node, and of a real one."""
    label: dict[str, str] = request.param
    selector = ",".join(f"{key}={value}" for key, value in label.items())
    if not admin_client.list("v1", "Node", {"labelSelector": selector}, everywhere=True):
        pytest.skip(f"this cluster has no node {selector}")
    return label


@pytest.fixture
def pod(node: dict[str, str], namespace: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BarePod]:
    """A pod that is not created yet."""
    pod_name = request.node.originalname.replace("_", "-")[:40].strip("-")
    node_kind = "fake" if "type" in node else "real"
    pod = BarePod(Client(Cluster(namespace=namespace)), f"{pod_name}-{node_kind}", node, tmp_path)
    yield pod
    pod.delete()


def run_once(pod: BarePod) -> None:
    """Let the pod print three lines and end."""
    pod.start(f"{PRINT_SCRIPT}; exit 0")
    if pod.is_fake:
        pod.append_log("one", "two", "three")
        pod.wait_for_phase("Running")
        pod.succeed()


def run_twice(pod: BarePod) -> None:
    """Let the container exit with code 1 and restart."""
    pod.start(RESTART_SCRIPT)
    if pod.is_fake:
        pod.append_log("one", "two", "three")
        pod.append_log("again", restart=1, first_second=10)
        pod.wait_for_phase("Running")
        pod.restart()
    until(lambda: pod.read_container_status().get("restartCount") and "running" in pod.read_container_status()["state"])


def read_lines(pod: BarePod, **query: str) -> list[bytes]:
    """The lines that the log API returns, with timestamps."""
    return list(pod.client.stream_lines(pod.log_path, {"timestamps": "true"} | query, 10))


def strip_timestamps(lines: list[bytes]) -> list[bytes]:
    """The texts of lines with timestamps."""
    return [line.partition(b" ")[2].strip() for line in lines]


def test_followed_log_ends_with_its_container(pod: BarePod) -> None:
    """A stream that is opened while a container runs contains all its lines, and ends with it."""
    pod.start("sleep 1; echo late; exit 0")
    until(lambda: "running" in pod.read_container_status()["state"])
    if pod.is_fake:
        pod.append_log("late")
        pod.succeed()
    assert strip_timestamps(read_lines(pod, follow="true")) == [b"late"]


def test_log_is_served_from_a_whole_second_on(pod: BarePod) -> None:
    """`sinceTime` has a resolution of a second, and every line of that second is returned."""
    run_once(pod)
    pod.wait_for_phase("Succeeded")
    lines = read_lines(pod)
    second = lines[1][:19]
    assert read_lines(pod, sinceTime=f"{second.decode()}Z") == [line for line in lines if line[:19] >= second]


def test_previous_container_that_never_existed_is_refused(pod: BarePod) -> None:
    """If no previous container existed, a request for its log gets status 400."""
    run_once(pod)
    pod.wait_for_phase("Succeeded")
    with pytest.raises(ClusterError, match=r"previous terminated container .* not found") as refused:
        read_lines(pod, previous="true")
    assert refused.value.status == 400


def test_previous_container_has_its_own_log(pod: BarePod) -> None:
    """While a restarted container runs, the previous one's log can still be read."""
    run_twice(pod)
    assert (strip_timestamps(read_lines(pod, previous="true")), strip_timestamps(read_lines(pod))) == (
        [b"one", b"two", b"three"],
        [b"again"],
    )


def test_previous_log_is_deleted_when_the_next_container_ends(pod: BarePod) -> None:
    """A kubelet keeps only the latest ended container's log: the previous one is deleted when the next one ends."""
    run_twice(pod)
    if pod.is_fake:
        pod.succeed()
    pod.wait_for_phase("Succeeded")

    def is_deleted() -> bool:
        try:
            read_lines(pod, previous="true")
        except ClusterError as error:
            return "previous terminated container" in error.message and "not found" in error.message
        return False

    until(is_deleted)  # the phase may be known before the log is deleted


def test_restarted_container_is_read_to_the_end(pod: BarePod, jobs: Jobs) -> None:
    """A container's lines before and after a restart are in one file, in order, and none is reported as lost."""
    plan = jobs.plan()
    pod_logs = PodLogs(pod.client, plan)
    path = Path(plan.nodes["worker-0"])

    def update_and_check(condition: Callable[[], object]) -> object:
        pod_logs.update_pod("worker-0", pod.name, pod.read())
        return condition()

    def is_complete() -> bool:
        return has_container_terminated(pod.read(), "main") and not pod_logs.is_unfinished()

    restarter = threading.Thread(target=run_twice, args=(pod,))
    restarter.start()
    until(lambda: pod.client.get("v1", "Pod", pod.name))
    until(lambda: update_and_check(lambda: path.exists() and b"again" in path.read_bytes()))
    restarter.join()
    if pod.is_fake:
        pod.succeed()
    until(lambda: update_and_check(is_complete))
    texts = [line.partition(b" | ")[2] for line in path.read_bytes().splitlines()]
    assert (texts, pod_logs.lost_logs()) == ([b"one", b"two", b"three", b"again"], {})
