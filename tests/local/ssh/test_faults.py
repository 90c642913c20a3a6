"""Faults of a host that ssh reaches, and how they are reported."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import sshd
from tests.processes.ssh_jobs import Planned, describe_failed_checks
from tests.processes.sshd import Hosts
from tests.support.waiting import wait_until
from torchyard.machines.job_watch import ProcessWatch
from torchyard.model.errors import HostError
from torchyard.model.profile import Deadlines
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown

SKIP_REASON = sshd.find_obstacle()
pytestmark = pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)


@pytest.mark.parametrize(("name", "message"), [
    ("down", "port 22: No route to host; `ssh down true` must work without a question"),
    ("wrong-key", "Permission denied (publickey"),
    ("stranger", "Host key verification failed.; `ssh stranger true` must work without a question"),
    ("no.such.host", "Could not resolve hostname no.such.host"),
])  # fmt: skip
def test_unreachable_host_is_reported_in_one_sentence(build_plan: Planned, name: str, message: str) -> None:
    """An unreachable host is reported with ssh's message and the command that must work, before any start."""
    (finding,) = describe_failed_checks(build_plan(nodes=1, options={"hosts": [name]})).splitlines()
    assert finding.startswith(f"{name}: reach it by ssh: ")
    assert message in finding


@pytest.mark.parametrize(("options", "message"), [
    ({"supervisor_python": "python9"}, "choose another interpreter with options.python, or options.supervisor_python"),
    ({"python": "/no/python"}, "/no/python: No such file or directory choose another"),
    ({"folder": "/proc/none"}, "run folder /proc/none/behind-ssh-a1b2c3d4-1 on host-a: No such file or directory"),
    ({"hosts": [{"host": "host-a", "address": "gpu-x"}, "host-b"]}, "route from host-b to gpu-x: "),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")  # fmt: skip
def test_host_that_lacks_something_is_reported(build_plan: Planned, options: dict[str, Any], message: str) -> None:
    """A missing interpreter, folder or route is reported with a remedy before anything is started."""
    plan = build_plan(options=options)
    assert message in describe_failed_checks(plan)


def test_full_disk_on_a_host_is_reported(build_plan: Planned, hosts: Hosts) -> None:
    """If a host has no room for the program and its supervisor, the error names the host and nothing remains there."""
    small_disk = hosts.folder / "small"
    small_disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", small_disk], check=True)
    try:
        plan = build_plan(options={"folder": str(small_disk)})
        with pytest.raises(HostError, match=r"host-[ab]: place behind-ssh-a1b2c3d4-1: No space left on device"):
            submit(plan, Deadlines())
        assert (teardown(plan), list(small_disk.iterdir())) == ((), [])
    finally:
        subprocess.run(["umount", small_disk], check=True)


def test_program_that_is_too_large_is_not_copied(build_plan: Planned, tmp_path: Path) -> None:
    """A source folder with large data is refused, with the alternatives, before anything is sent."""
    (tmp_path / "data").touch()
    os.truncate(tmp_path / "data", 300 * 2**20)
    with pytest.raises(HostError, match="it holds 300 MiB, and 200 MiB can be copied: see options"):
        submit(build_plan(options={"source": "."}), Deadlines())


def test_processes_end_after_their_folder_was_removed(plan_job: Planned, hosts: Hosts) -> None:
    """If the run's folder on a host was removed, teardown finds the processes by their label and ends them."""
    plan = plan_job(args=["60"])
    submit(plan, Deadlines())
    _remove(hosts.folder / "host-a" / ".torchyard")
    with ProcessWatch(plan.processes) as watch:
        wait_until(lambda: watch.poll(timeout_s=0.1) and all(watch.states.values()))
        assert {process_state["phase"] for process_state in watch.states.values()} <= {"running", "absent"}
    assert teardown(plan) == ()
    assert hosts.list_leftovers() == []


def test_remaining_files_of_a_host_are_fetched_and_removed(plan_job: Planned, hosts: Hosts) -> None:
    """If part of the run's folder on a host was removed, teardown fetches the other files and ends the processes."""
    plan = plan_job(args=["60"])
    submit(plan, Deadlines())
    (site,) = (hosts.folder / "host-a" / ".torchyard").iterdir()
    (site / "checkpoints" / "last.pt").write_text("step 100")
    _remove(site / "supervisor")
    assert teardown(plan) == ()
    assert hosts.list_leftovers() == []
    (fetched_files,) = {Path(plan_site.files) for plan_site in plan.sites if plan_site.host == "host-a"}
    assert (fetched_files / "checkpoints" / "last.pt").read_text() == "step 100"


def test_host_that_cannot_be_torn_down_is_reported(build_plan: Planned, hosts: Hosts) -> None:
    """Teardown reports a host that cannot be reached as a leftover."""
    (leftover,) = teardown(build_plan(options={"hosts": ["wrong-key", "host-b"]}))
    assert leftover.startswith("wrong-key: reach it by ssh: ")


def _remove(folder: Path) -> None:
    """Remove a folder; retry, because processes may write compiled modules into it at the same time."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_until(is_gone)
