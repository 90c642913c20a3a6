"""`torchyard logs --cluster`: the output of a run that another machine started, from its pods."""

import time
from types import SimpleNamespace

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.leases import RUN, build_lease
from tests.doubles.pod_jobs import TIMESTAMP, Job
from torchyard.cli import logs, pod_logs
from torchyard.cli.main import main
from torchyard.cluster.leased_runs import name_node
from torchyard.model.hang import RECORD_PREFIX

LEASE_KEY = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)


def format_log(*texts: str) -> bytes:
    return b"".join(TIMESTAMP % number + text.encode() + b"\n" for number, text in enumerate(texts))


@pytest.fixture
def job(fake_api: FakeApi, planned: Planned) -> Job:
    """A run of two pods that another machine started, whose workers print one line each."""
    job = Job(fake_api, planned(nodes=2))
    fake_api.put(build_lease(ago=10))
    for rank, node in enumerate(("worker-0", "worker-1")):
        pod = job.build_pod(node, f"uid-{node}")
        (container,) = pod["spec"]["containers"]
        container["command"] = ["torchrun", "--tee=3", "--nproc_per_node=1"]
        container["env"] = [{"name": "LOGLEVEL", "value": "INFO"}]
        fake_api.put(pod)
        lines = ["x   local_ranks=[0]", f"x   global_ranks=[{rank}]", f"[default0]:rank {rank}", f"{RECORD_PREFIX}{{}}"]
        fake_api.logs[job.get_pod_name(node)] = format_log(*lines)
    return job


@pytest.mark.parametrize(
    ("options", "lines"),
    [([], ["rank 0"]), (["--rank", "1"], ["rank 1"]), (["--node", "worker-1"], ["[default0]:rank 1"])],
)
def test_lines_are_read_from_the_pods(
    job: Job, capsys: pytest.CaptureFixture[str], options: list[str], lines: list[str]
) -> None:
    """A running job's logs are read as far as they are now, without the recorder's records."""
    assert main(["logs", RUN, "--cluster", *options]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line for line in output if "ranks=" not in line] == lines


def test_following_ends_when_the_lease_is_deleted(
    job: Job, fake_api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher deletes the Lease last: all lines that its pods have printed until then are printed."""
    pauses = iter(range(10_000))

    def end_the_run() -> None:
        fake_api.logs[job.get_pod_name("worker-1")] = format_log(
            "x   local_ranks=[0]", "x   global_ranks=[1]", "[default0]:rank 1", "[default0]:last"
        )
        job.end()
        fake_api.objects.delete(LEASE_KEY, {})

    def pause(seconds: float) -> None:
        if next(pauses) == 3:
            end_the_run()
        time.sleep(min(seconds, 0.02))

    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=pause))
    monkeypatch.setattr(pod_logs, "_STATE_INTERVAL_S", 0.0)
    assert main(["logs", RUN, "--cluster", "--rank", "1", "-f"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["rank 1", "last"]
    assert captured.err == f"{RUN} has ended\n"


def test_node_that_the_job_does_not_have_is_an_error(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the nodes by their pods."""
    assert main(["logs", RUN, "--cluster", "--node", "worker-7"]) == 3
    assert "its nodes are worker-0, worker-1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("metadata", "node"),
    [
        ({"name": "a-1-worker-0"}, "worker-0"),
        ({"name": "a-1-node-0-0-x7k2p", "generateName": "a-1-node-0-0-"}, "node-0-0"),
        ({"name": "unrelated"}, "unrelated"),
    ],
)
def test_node_is_named_without_its_plan(metadata: dict[str, str], node: str) -> None:
    """A random suffix is not a part of the node's name."""
    assert name_node({"metadata": metadata}, "a-1") == node
