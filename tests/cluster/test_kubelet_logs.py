"""The kubelet's log API on a real and on a fake node: both must behave alike, or tests on fake pods are wrong."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.jobs import Jobs, until
from tests.cluster.lives import SAYS, TWICE, Bare
from torchyard.cluster.pod_logs import PodLogs, _has_terminated
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

NODES = ({"type": "kwok"}, {"torchyard/node": "real"})


@pytest.fixture(scope="module", params=NODES, ids=["fake", "real"])
def node(plane: Client, request: pytest.FixtureRequest) -> dict[str, str]:
    """The label of a fake node, and of a real one."""
    label: dict[str, str] = request.param
    selector = ",".join(f"{key}={value}" for key, value in label.items())
    if not plane.list("v1", "Node", {"labelSelector": selector}, everywhere=True):
        pytest.skip(f"this cluster has no node {selector}")
    return label


@pytest.fixture
def bare(node: dict[str, str], namespace: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bare]:
    """A pod that is not created yet."""
    name = request.node.originalname.replace("_", "-")[:40].strip("-")
    made = Bare(Client(Cluster(namespace=namespace)), f"{name}-{'fake' if 'type' in node else 'real'}", node, tmp_path)
    yield made
    made.delete()


def once(bare: Bare) -> None:
    """Let the pod print three lines and end."""
    bare.start(f"{SAYS}; exit 0")
    if bare.fake:
        bare.say("one", "two", "three")
        bare.until("Running")
        bare.end()


def twice(bare: Bare) -> None:
    """Let the container end with exit code 1 and restart."""
    bare.start(TWICE)
    if bare.fake:
        bare.say("one", "two", "three")
        bare.say("again", restart=1, at=10)
        bare.until("Running")
        bare.restart()
    until(lambda: bare.status().get("restartCount") and "running" in bare.status()["state"])


def read(bare: Bare, **query: str) -> list[bytes]:
    return list(bare.server.stream_lines(bare.log, {"timestamps": "true", **query}, 10))


def texts(lines: list[bytes]) -> list[bytes]:
    return [line.partition(b" ")[2].strip() for line in lines]


def test_followed_log_ends_with_its_container(bare: Bare) -> None:
    """A stream that is opened while a container runs gives all its lines, and ends with it."""
    bare.start("sleep 1; echo late; exit 0")
    until(lambda: "running" in bare.status()["state"])
    if bare.fake:
        bare.say("late")
        bare.end()
    assert texts(read(bare, follow="true")) == [b"late"]


def test_log_is_given_from_a_whole_second_on(bare: Bare) -> None:
    """`sinceTime` has a resolution of a second, and every line of that second is returned."""
    once(bare)
    bare.until("Succeeded")
    lines = read(bare)
    second = lines[1][:19]
    assert read(bare, sinceTime=f"{second.decode()}Z") == [line for line in lines if line[:19] >= second]


def test_earlier_container_that_never_was_is_refused(bare: Bare) -> None:
    """If no previous container existed, a request for its log gets status 400."""
    once(bare)
    bare.until("Succeeded")
    with pytest.raises(ClusterError, match=r"previous terminated container .* not found") as refused:
        read(bare, previous="true")
    assert refused.value.status == 400


def test_earlier_container_has_its_own_log(bare: Bare) -> None:
    """While a restarted container runs, the previous one's log can still be read."""
    twice(bare)
    assert (texts(read(bare, previous="true")), texts(read(bare))) == ([b"one", b"two", b"three"], [b"again"])


def test_earlier_log_goes_when_the_next_container_ends(bare: Bare) -> None:
    """A kubelet keeps only the latest ended container's log, so the previous one is gone when the next one ends."""
    twice(bare)
    if bare.fake:
        bare.end()
    bare.until("Succeeded")
    with pytest.raises(ClusterError, match=r"previous terminated container .* not found"):
        read(bare, previous="true")


def test_restarted_container_is_read_to_the_end(bare: Bare, jobs: Jobs) -> None:
    """A container's lines before and after a restart are in one file, in order, and none is reported as lost."""
    plan = jobs.plan().model_copy(update={"container": "main"})
    pumps, path = PodLogs(bare.server, plan), Path(plan.nodes["worker-0"])

    def told(found: Callable[[], object]) -> object:
        pumps.update_pod("worker-0", bare.name, bare.now())
        return found()

    other = threading.Thread(target=twice, args=(bare,))
    other.start()
    until(lambda: bare.server.get("v1", "Pod", bare.name))
    until(lambda: told(lambda: path.exists() and b"again" in path.read_bytes()))
    other.join()
    if bare.fake:
        bare.end()
    until(lambda: told(lambda: _has_terminated(bare.now(), "main") and not pumps.is_unfinished()))
    said = [line.partition(b" | ")[2] for line in path.read_bytes().splitlines()]
    assert (said, pumps.lost_logs()) == ([b"one", b"two", b"three", b"again"], {})
