"""A broken promise of the network in a cluster: told from the pods' logs while they run."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.train import train
from tests.cluster.carried import reported
from tests.cluster.jobs import ANNOTATION, until
from tests.cluster.test_logs import Said
from tests.nccl_lines import socket_node
from torchyard.run.folder import list_run_folders

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


def test_run_on_the_wrong_network_is_ended_while_it_trains(
    fake: dict[str, Any], namespace: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Pods that log TCP where RDMA was promised are ended at once; their own end would come ten minutes later."""
    said, spoken = Said(tmp_path / "said.log"), list[float]()
    said.say("start")
    overrides = {
        **fake,
        "cluster.namespace": namespace,
        "pod.annotations": {f"{ANNOTATION}log": str(said.path), f"{ANNOTATION}end-after": "600"},
        "on_fabric": "fail",
        "attempts": 1,
    }

    def speak() -> None:
        until(lambda: [path for each in list_run_folders() for path in each.path.glob("attempt-1/*/log")], 60)
        time.sleep(1.0)
        said.say(*socket_node("gpu-1"))
        spoken.append(time.time())

    speaker = threading.Thread(target=speak)
    speaker.start()
    end = train("yolov5-volcano", overrides, return_state=True)
    speaker.join()
    (folder,) = list_run_folders()
    told = next(each["at"] for each in folder.events() if each["event"] == "did" and each["name"] == "wait")
    print(f"verdict after {told - spoken[0]:.2f} s")
    record_property("verdict_s", told - spoken[0])
    failure = reported().attempts[0].collected.failure
    assert failure
    assert (end.name, failure.cause) == ("Failed", "fabric-not-rdma")
    assert "NET/Socket" in str(failure.line)
