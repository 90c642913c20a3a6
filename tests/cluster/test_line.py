"""The whole line, as a flow, on the real controllers with fake pods: every profile, every outcome."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.train import train
from tasks.cluster import Api
from tasks.folder import all_runs
from tasks.launchers import pytorchjob
from tasks.model import Report
from tasks.spec import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
PROFILES = ("yolov5-volcano", "yolov5-volcano-etcd", "yolov5-pytorchjob", "yolov5-pytorchjob-etcd")
ENDS = {"torchyard.test/end-after": "1"}
KINDS = (
    ("batch.volcano.sh/v1alpha1", "Job"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
)
Carry = Callable[..., tuple[State[Any], Report]]


@pytest.fixture
def carry(namespace: str, fake: dict[str, Any], record_property: Callable[[str, object], None]) -> Carry:
    """Carry a profile along the line with a pod's annotations and other overrides; its state and its report."""

    def carried(cell: tuple[str, str], annotations: dict[str, str], **overrides: Any) -> tuple[State[Any], Report]:
        record_property("cell", cell)
        here = {"cluster.namespace": namespace, "attempts": 1, **fake, "pod.annotations": annotations}
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        end = train(cell[0], {**here, **dotted}, return_state=True)
        (folder,) = all_runs()
        report = folder.report()
        assert report
        assert labelled(namespace, report) == []
        return end, report

    return carried


def labelled(namespace: str, report: Report) -> list[str]:
    """Every object of the namespace that still carries the run's label."""
    here = Api(Cluster(namespace=namespace))
    which = {"labelSelector": f"torchyard/run={report.run}"}
    return [thing["metadata"]["name"] for kind in KINDS for thing in here.items(*kind, which)]


@pytest.mark.parametrize("profile", PROFILES)
def test_success(carry: Carry, profile: str) -> None:
    """Pods that end with 0 make a Completed run, with every pod's log whole and nothing left."""
    end, report = carry((profile, "success"), ENDS)
    assert (end.name, report.left) == ("Completed", ()), report.sentence
    assert report.collected
    logs = [log for log in report.collected.logs if log.node != "etcd"]
    assert [(log.node, log.lost) for log in logs] == [("worker-0", ""), ("worker-1", "")]
    assert all("Rendezvous complete" in Path(log.path).read_text() for log in logs)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_pod_fails(carry: Carry, profile: str) -> None:
    """A pod that ends badly makes a Failed run that says so, and its peers do not run on."""
    end, report = carry((profile, "pod fails"), {**ENDS, "torchyard.test/exit": "7"})
    assert (end.name, report.left) == ("Failed", ())
    assert "exit code 7" in report.sentence


@pytest.mark.parametrize("profile", PROFILES)
def test_never_fits(carry: Carry, full_node: None, profile: str) -> None:
    """A gang that lacks one node starts no pod, and fails at its deadline with the scheduler's reason."""
    end, report = carry((profile, "never fits"), ENDS, nodes=4, resources__gpus=8, deadlines__start="4s")
    assert (end.name, report.left) == ("Failed", ())
    assert "0 of 4 pods run" in report.sentence
    assert "nvidia.com/gpu" in report.sentence


@pytest.fixture
def full_node(namespace: str, fake: dict[str, Any]) -> Iterator[None]:
    """One of the four nodes of the shape has no GPU left."""
    here = Api(Cluster(namespace=namespace))
    node = here.items("v1", "Node", {"labelSelector": "type=kwok,node.kubernetes.io/instance-type"}, everywhere=True)[0]
    takes = {"name": "all", "image": "none:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    name = f"full-{uuid.uuid4().hex[:8]}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    here.create({**pod, "spec": {"nodeName": node["metadata"]["name"], "containers": [takes]}})
    yield
    here.delete("v1", "Pod", name)


@pytest.mark.parametrize("profile", PROFILES)
def test_deleted_by_another(carry: Carry, namespace: str, profile: str) -> None:
    """A job that somebody else deletes ends the run, and is not taken for a failed pod."""
    here = Api(Cluster(namespace=namespace))
    api, kind = ("kubeflow.org/v1", "PyTorchJob") if "pytorchjob" in profile else ("batch.volcano.sh/v1alpha1", "Job")

    def delete_when_running() -> None:
        for _ in range(200):
            time.sleep(0.1)
            pods = here.items("v1", "Pod", {"labelSelector": "torchyard/run,!torchyard/role"})
            if pods and all(pod.get("status", {}).get("phase") == "Running" for pod in pods):
                for job in here.items(api, kind):
                    here.delete(api, kind, job["metadata"]["name"])
                return

    other = threading.Thread(target=delete_when_running)
    other.start()
    end, report = carry((profile, "deleted by another"), {})
    other.join()
    assert (end.name, report.left) == ("Failed", ())
    assert "was deleted by somebody else" in report.sentence


@pytest.mark.parametrize("profile", [name for name in PROFILES if "volcano" in name])
def test_refused_by_volcano(carry: Carry, profile: str) -> None:
    """What Volcano's webhook refuses is told in its own words, and nothing was made."""
    end, report = carry((profile, "refused"), ENDS, nodes=1, options__queue="root")
    assert (end.name, report.left, report.attempts) == ("Failed", (), ())
    assert "can not submit job to root queue" in report.sentence


@pytest.mark.parametrize("profile", [name for name in PROFILES if "pytorchjob" in name])
def test_refused_by_the_operator(carry: Carry, monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    """What the operator's webhook refuses is told in its own words, and nothing was made."""
    monkeypatch.setattr(pytorchjob, "CONTAINER", "trainer")
    end, report = carry((profile, "refused"), ENDS)
    assert (end.name, report.left, report.attempts) == ("Failed", (), ())
    assert "at least one container with name pytorch" in report.sentence
