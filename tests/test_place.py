"""Which place carries a run: told on a run's Lease and to its keepers, also by the version before."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Write, command_plan_of, load, manifest_plan_of
from torchyard.cluster import lease
from torchyard.common.identity import _former_identity, holder_identity
from torchyard.kube.client import Client
from torchyard.machines.job_watch import ProcessWatch
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import CommandPlan, ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.pods import lease_record
from torchyard.run.folder import runs_folder
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown

FOLDER = "sample-a1b2c3d4"


@pytest.fixture
def pods(write: Write, fake_server: Client) -> ManifestPlan:
    runs_folder().mkdir()
    return manifest_plan_of(load(write(launcher="volcano", image="train:v1")), runs_folder() / FOLDER)


def hold(server: Client, plan: ManifestPlan, who: str) -> None:
    """A Lease that was renewed a moment ago."""
    server.create(
        lease._fill_lease(plan, server) | {"spec": {**lease._fill_lease(plan, server)["spec"], "holderIdentity": who}}
    )


def test_lease_of_the_version_before_is_taken_over_at_once(pods: ManifestPlan, fake_server: Client) -> None:
    """What this folder held as `host:folder` is its own: nothing is waited for, and it is held under the new name."""
    hold(fake_server, pods, _former_identity(str(runs_folder() / FOLDER)))
    began = time.monotonic()
    assert lease_record.read_holder(lease.acquire_lease(pods)) == holder_identity(str(runs_folder() / FOLDER))
    assert time.monotonic() - began < lease._HOLDER_POLL_INTERVAL_S


def test_lease_of_another_container_is_not_ours(pods: ManifestPlan, fake_server: Client) -> None:
    """The same host name and folder with another id is another place, which lives."""
    hold(fake_server, pods, _former_identity(str(runs_folder() / FOLDER)) + "#0190c7f0aaaa")
    with pytest.raises(RunInUseError, match="#0190c7f0aaaa"):
        lease.refuse_held_lease(pods)


@pytest.fixture
def job(write: Write) -> Iterator[CommandPlan]:
    """A job of one process, submitted."""
    profile = load(write(code="import time; time.sleep(60)", agent="none", rendezvous="env"))
    plan = command_plan_of(profile, runs_folder() / FOLDER)
    submit(plan, Deadlines())
    yield plan
    teardown(plan)


def say(plan: CommandPlan, who: str) -> Path:
    """Somebody looked after the job a moment ago."""
    looked = Path(plan.on[0].log).parents[1] / "looked"
    looked.write_text(who.ljust(511) + "\n")
    return looked


def test_job_of_the_version_before_is_looked_after(job: CommandPlan) -> None:
    """A keeper that knows this folder as `host:folder` is told under that name that the run is looked after."""
    looked = say(job, _former_identity(str(runs_folder() / FOLDER)))
    before, until = looked.stat().st_mtime_ns, time.monotonic() + 30
    with ProcessWatch(job.on) as watch:
        while looked.stat().st_mtime_ns == before and time.monotonic() < until:
            watch.changes(0.2)
    assert looked.stat().st_mtime_ns > before
    assert looked.read_text().strip() == _former_identity(str(runs_folder() / FOLDER))


def look(watch: ProcessWatch, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watch.changes(0.2)


def test_job_of_another_container_is_not_looked_after(job: CommandPlan) -> None:
    """A keeper that another place looks after makes this process leave."""
    say(job, _former_identity(str(runs_folder() / FOLDER)) + "#0190c7f0aaaa")
    with ProcessWatch(job.on) as watch, pytest.raises(RunInUseError, match="#0190c7f0aaaa"):
        look(watch, 30)
