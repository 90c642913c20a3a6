"""Real trainings on two real nodes: kubelets, containers, a network between them, torchrun and gloo."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.train import train
from tests.cluster.complete_runs import read_report, run_to_completion
from tests.cluster.jobs import require_real_nodes
from tests.cluster.objects import delete_by_name
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client
from torchyard.model.profile import Cluster
from torchyard.model.run import Report
from torchyard.run.folder import list_run_folders

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
PROFILES = ("yolov5-volcano", "yolov5-volcano-etcd", "yolov5-pytorchjob", "yolov5-pytorchjob-etcd", "yolov5-job")
SMALL: dict[str, Any] = json.loads((ROOT / "docs" / "small.json").read_text())


@pytest.fixture
def small_overrides(admin_client: Client, user_overrides: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Overrides that run a small form of a profile on the two real nodes."""
    require_real_nodes(admin_client)
    return SMALL | user_overrides | {"cluster.namespace": namespace}


def read_logs(report: Report, attempt: int = 1) -> dict[str, str]:
    """Each node's log, by node."""
    log_paths = Path(report.folder, f"attempt-{attempt}").glob("worker-*/log")
    return {path.parent.name: path.read_text() for path in log_paths}


@pytest.mark.parametrize("profile", PROFILES)
def test_two_nodes_train(
    small_overrides: dict[str, Any], record_property: Callable[[str, object], None], profile: str
) -> None:
    """Two pods on two hosts train with a world size of two, and the report has both complete logs."""
    record_property("cell", (profile, "real training"))
    report = run_to_completion(profile, small_overrides)
    assert report.collected
    accuracy = [float(str(row["accuracy"])) for row in report.collected.metrics.rows]
    assert (len(accuracy), accuracy[-1] > accuracy[0], accuracy[-1] > 0.9) == (6, True, True)
    logs = read_logs(report)
    hosts = {re.findall(r"rank \d+ of (\d+).* on (\S+)", text)[0] for text in logs.values()}
    assert (len(hosts), {world for world, _ in hosts}) == (2, {"2"})


def test_a_pod_that_is_killed_is_followed_by_a_new_attempt(
    small_overrides: dict[str, Any], namespace: str, record_property: Callable[[str, object], None]
) -> None:
    """If a user deletes a pod, the attempt fails with that as its cause, and the next one trains to the end."""
    record_property("cell", ("yolov5-volcano", "pod killed"))
    client = Client(Cluster(namespace=namespace))

    has_ended = threading.Event()  # the run; a loaded machine may need minutes for the first epochs

    def kill_one() -> None:
        while not has_ended.wait(0.1):
            logs: list[Path] = []
            for folder in list_run_folders():
                logs += folder.path.glob("attempt-1/*/log")
            if any('"epoch": 2' in path.read_text() for path in logs):
                pods = client.list("v1", "Pod", {"labelSelector": "torchyard/run,!torchyard/role"})
                delete_by_name(client, "v1", "Pod", pods[1]["metadata"]["name"])
                return

    killer = threading.Thread(target=kill_one)
    killer.start()
    state = train("yolov5-volcano", small_overrides | {"args": ["--epochs=15", "--pause=1"]}, return_state=True)
    has_ended.set()
    killer.join()
    report = read_report()
    assert (state.name, len(report.attempts)) == ("Completed", 2), report.sentence
    first, second = report.attempts
    assert first.collected.failure
    assert "deleted" in first.collected.failure.sentence
    assert second.outcome.status.state == "succeeded"
