"""Containers that restart, and logs that are rotated, while no process reads them: what is read and what is lost."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.jobs import Jobs, until
from tests.cluster.lives import Bare, begin_again
from torchyard.cluster.log_follower import _RESTARTED, _ROTATED
from torchyard.cluster.pod_logs import PodLogs
from torchyard.kube.client import Client
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster

LOST = _RESTARTED.format(1)


@pytest.fixture
def bares(fake: object, namespace: str, tmp_path: Path) -> Iterator[list[Bare]]:
    """Two fake pods whose containers a test can restart."""
    server = Client(Cluster(namespace=namespace))
    made = [Bare(server, f"bare-{uuid.uuid4().hex[:8]}", {"type": "kwok"}, tmp_path) for _ in range(2)]
    yield made
    for each in made:
        each.delete()


@pytest.fixture
def bare(bares: list[Bare]) -> Bare:
    return bares[0]


@pytest.fixture
def plan(jobs: Jobs) -> ManifestPlan:
    return jobs.plan().model_copy(update={"container": "main"})


def texts(plan: ManifestPlan) -> list[str]:
    path = Path(plan.nodes["worker-0"])
    return [line.partition(" | ")[2] for line in path.read_text().splitlines()] if path.exists() else []


def known(plan: ManifestPlan, *lines: str) -> None:
    """Write the lines of an earlier process to the log file."""
    path = Path(plan.nodes["worker-0"])
    stamp = "2026-01-01T00:00:{:02d}.500000000Z worker-0 | {}\n"
    path.parent.mkdir(parents=True)
    path.write_text("".join(stamp.format(number, line) for number, line in enumerate(lines)))


def followed(bare: Bare, plan: ManifestPlan, count: int) -> PodLogs:
    """Follow the logs as a new process, until this many lines are on disk and the pod has ended."""
    pumps = PodLogs(bare.server, plan)
    pumps.update_pod("worker-0", bare.name, bare.now())
    until(lambda: len(texts(plan)) >= count)
    bare.end()
    bare.until("Succeeded")
    pumps.update_pod("worker-0", bare.name, bare.now())
    until(lambda: not pumps.is_unfinished())
    return pumps


class Case(NamedTuple):
    """The file before, the lines of each start of the container, the file afterwards, and what is reported as lost."""

    written: str
    lives: tuple[str, ...]
    found: str
    lost: str = ""


CASES = (
    Case("", ("one two", "three"), "one two three"),
    Case("", ("one", "two", "three"), "two three", LOST),
    Case("", ("", "two"), "two", LOST),
    Case("one", ("one two", "three"), "one two three"),
    Case("one", ("one", "two", "three"), "one two three", LOST),
    Case("one", ("", "three"), "one three", LOST),
    Case("one two", ("", "one two three"), "one two three"),
    Case("one", ("one two",), "one two"),
    Case("one", ("two three",), "one two three", _ROTATED),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.written} of {' + '.join(case.lives)}")
def test_what_was_said_meanwhile(bare: Bare, plan: ManifestPlan, case: Case) -> None:
    """A process that attaches after restarts reads the remaining lines in order, and reports what may be missing."""
    for restart, said in enumerate(case.lives):
        if said:  # else the kubelet has removed it
            bare.say(*said.split(), restart=restart, at=0 if said.startswith("one") else 10 + 10 * restart)
    known(plan, *case.written.split())
    bare.start("")
    bare.until("Running")
    if len(case.lives) > 1:
        begin_again(bare.server, bare.now(), len(case.lives) - 1)
    pumps = followed(bare, plan, len(case.found.split()))
    assert (texts(plan), pumps.lost_logs().get("worker-0", "")) == (case.found.split(), case.lost)


def test_pod_made_anew_goes_on_behind_the_one_before(bares: list[Bare], plan: ManifestPlan) -> None:
    """All lines of a pod come before those of the pod that replaces it, even if their clocks differ."""
    pumps, names = PodLogs(bares[0].server, plan), [bare.name for bare in bares]
    bares[0].say("one", "two", at=30)
    bares[1].say("three", at=10)
    for bare in bares:
        bare.start("")
        bare.until("Running")
        pumps.update_pod("worker-0", bare.name, bare.now())
    pumps.update_pod("worker-0", names[0], None)
    until(lambda: len(texts(plan)) == 3)
    bares[1].end()
    bares[1].until("Succeeded")
    pumps.update_pod("worker-0", names[1], bares[1].now())
    until(lambda: not pumps.is_unfinished())
    assert (texts(plan), pumps.lost_logs()) == (["one", "two", "three"], {})
