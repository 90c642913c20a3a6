"""What the API said last, as the run's folder keeps it."""

import json
from pathlib import Path

from tests.conftest import Planned
from tests.fake_api import FakeApi
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.kube.client import Client


def test_objects_are_kept_one_a_line(fake_api: FakeApi, fake_server: Client, planned: Planned) -> None:
    """The file is JSON, and a thousand pods are a thousand lines: nothing of them is held twice to be written."""
    plan = planned(nodes=2).model_copy(update={"cluster": fake_server.cluster})
    for node in plan.nodes:
        about = {"name": f"{plan.job}-{node}", "labels": plan.labels}
        fake_api.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": {"phase": "Pending"}})
    watch = ClusterWatch(plan)
    with watch:
        watch.settle(0.0)
    text = Path(plan.folder, "objects.json").read_text()
    assert json.loads(text) == watch.seen
    assert len(text.splitlines()) == len(plan.nodes) + 2
