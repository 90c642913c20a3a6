"""A network that is not the expected one, in a cluster: detected from the pods' logs while they run."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.train import train
from tests.cluster.complete_runs import read_report
from tests.cluster.jobs import ANNOTATION, until
from tests.cluster.test_logs import FakeLog
from tests.inputs.nccl_lines import list_socket_lines
from torchyard.run.folder import list_run_folders

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


def test_run_on_the_wrong_network_is_stopped_while_it_trains(
    fake_overrides: dict[str, Any], namespace: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Pods that log TCP where RDMA is expected are stopped at once; their own end would come ten minutes later."""
    log = FakeLog(tmp_path / "pod.log")
    written_at = list[float]()
    log.append("start")
    overrides = fake_overrides | {
        "cluster.namespace": namespace,
        "pod.annotations": {f"{ANNOTATION}log": str(log.path), f"{ANNOTATION}end-after": "600"},
        "on_fabric": "fail",
        "attempts": 1,
    }

    def has_log() -> bool:
        return any(list(folder.path.glob("attempt-1/*/log")) for folder in list_run_folders())

    def write_lines() -> None:
        until(has_log, timeout_s=60)
        time.sleep(1.0)
        log.append(*list_socket_lines("gpu-1"))
        written_at.append(time.time())

    writer = threading.Thread(target=write_lines)
    writer.start()
    state = train("yolov5-volcano", overrides, return_state=True)
    writer.join()
    (folder,) = list_run_folders()
    end_times = [event["at"] for event in folder.events() if event["event"] == "step-end" and event["name"] == "wait"]
    verdict_at = end_times[0]
    print(f"verdict after {verdict_at - written_at[0]:.2f} s")
    record_property("verdict_s", verdict_at - written_at[0])
    failure = read_report().attempts[0].collected.failure
    assert failure
    assert (state.name, failure.cause) == ("Failed", "fabric-not-rdma")
    assert "NET/Socket" in str(failure.line)
