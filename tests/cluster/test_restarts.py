"""Containers that restart, and logs that are rotated, while no process reads them: the lines that are read or lost."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.bare_pods import BarePod, write_restart
from tests.cluster.jobs import Jobs, until
from torchyard.cluster.logs.log_follower import RESTARTED_LOSS, ROTATED_LOSS
from torchyard.cluster.logs.pod_logs import PodLogs
from torchyard.kube.client import Client
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster

LOST_RESTART = RESTARTED_LOSS.format(1)


@pytest.fixture
def pods(fake_overrides: object, namespace: str, tmp_path: Path) -> Iterator[list[BarePod]]:
    """Two fake pods whose containers a test can restart."""
    client = Client(Cluster(namespace=namespace))
    bare_pods = [BarePod(client, f"bare-{uuid.uuid4().hex[:8]}", {"type": "kwok"}, tmp_path) for _ in range(2)]
    yield bare_pods
    for pod in bare_pods:
        pod.delete()


@pytest.fixture
def pod(pods: list[BarePod]) -> BarePod:
    """One of the two fake pods."""
    return pods[0]


@pytest.fixture
def plan(jobs: Jobs) -> ManifestPlan:
    """The plan of the pods' job."""
    return jobs.plan()


def read_texts(plan: ManifestPlan) -> list[str]:
    """The lines in the log file of worker-0, without timestamps."""
    log_path = Path(plan.nodes["worker-0"])
    return [line.partition(" | ")[2] for line in log_path.read_text().splitlines()] if log_path.exists() else []


def write_earlier_lines(plan: ManifestPlan, *lines: str) -> None:
    """Write the lines of an earlier process to the log file."""
    log_path = Path(plan.nodes["worker-0"])
    line_format = "2026-01-01T00:00:{:02d}.500000000Z worker-0 | {}\n"
    log_path.parent.mkdir(parents=True)
    log_path.write_text("".join(line_format.format(second, line) for second, line in enumerate(lines)))


def follow_to_end(pod: BarePod, plan: ManifestPlan, count: int) -> PodLogs:
    """Follow the logs as a new process, until this many lines are on disk and the pod has ended."""
    pod_logs = PodLogs(pod.client, plan)
    pod_logs.update_pod("worker-0", pod.name, pod.read())
    until(lambda: len(read_texts(plan)) >= count)
    pod.succeed()
    pod.wait_for_phase("Succeeded")
    pod_logs.update_pod("worker-0", pod.name, pod.read())
    until(lambda: not pod_logs.is_unfinished())
    return pod_logs


class Case(NamedTuple):
    """The file before, the lines of each start of the container, the file afterwards, and what is reported as lost."""

    earlier: str
    starts: tuple[str, ...]
    expected: str
    lost: str = ""


CASES = (
    Case("", ("one two", "three"), "one two three"),
    Case("", ("one", "two", "three"), "two three", LOST_RESTART),
    Case("", ("", "two"), "two", LOST_RESTART),
    Case("one", ("one two", "three"), "one two three"),
    Case("one", ("one", "two", "three"), "one two three", LOST_RESTART),
    Case("one", ("", "three"), "one three", LOST_RESTART),
    Case("one two", ("", "one two three"), "one two three"),
    Case("one", ("one two",), "one two"),
    Case("one", ("two three",), "one two three", ROTATED_LOSS),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.earlier} of {' + '.join(case.starts)}")
def test_lines_written_meanwhile_are_read(pod: BarePod, plan: ManifestPlan, case: Case) -> None:
    """A process that attaches after restarts reads the remaining lines in order, and reports what may be missing."""
    for restart, text in enumerate(case.starts):
        if text:  # else the kubelet has deleted this log
            first_second = 0 if text.startswith("one") else 10 + 10 * restart
            pod.append_log(*text.split(), restart=restart, first_second=first_second)
    write_earlier_lines(plan, *case.earlier.split())
    pod.start("")
    pod.wait_for_phase("Running")
    if len(case.starts) > 1:
        write_restart(pod.client, pod.read(), len(case.starts) - 1)
    pod_logs = follow_to_end(pod, plan, len(case.expected.split()))
    assert (read_texts(plan), pod_logs.lost_logs().get("worker-0", "")) == (case.expected.split(), case.lost)


def test_lines_of_a_replacement_pod_follow_its_predecessors(pods: list[BarePod], plan: ManifestPlan) -> None:
    """All lines of a pod precede those of the pod that replaces it, even if their clocks differ."""
    pod_logs = PodLogs(pods[0].client, plan)
    pod_names = [pod.name for pod in pods]
    pods[0].append_log("one", "two", first_second=30)
    pods[1].append_log("three", first_second=10)
    for pod in pods:
        pod.start("")
        pod.wait_for_phase("Running")
        pod_logs.update_pod("worker-0", pod.name, pod.read())
    pod_logs.update_pod("worker-0", pod_names[0], None)
    until(lambda: len(read_texts(plan)) == 3)
    pods[1].succeed()
    pods[1].wait_for_phase("Succeeded")
    pod_logs.update_pod("worker-0", pod_names[1], pods[1].read())
    until(lambda: not pod_logs.is_unfinished())
    assert (read_texts(plan), pod_logs.lost_logs()) == (["one", "two", "three"], {})
