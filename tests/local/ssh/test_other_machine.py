"""Another machine takes over a job on hosts that ssh reaches; a separate runs folder acts as its disk."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import RUN_ID, Write, load
from tests.processes import sshd
from tests.processes.ssh_jobs import Planned, describe_checks, describe_failed_checks, read_log_texts
from tests.processes.sshd import Hosts
from tests.support.waiting import wait_until
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.staging import find_last_attempt
from torchyard.model.errors import RunInUseError
from torchyard.model.profile import Deadlines
from torchyard.run.folder import RunFolder
from torchyard.run.takeover import adopt_run
from torchyard.steps.submit import submit
from torchyard.steps.wait import wait

SKIP_REASON = sshd.find_obstacle()
pytestmark = pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)
SERVE = """
import os, socket, sys, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
print("serves")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""


def test_run_continues_from_another_machine(
    plan_job: Planned, build_plan: Planned, hosts: Hosts, tmp_path: Path
) -> None:
    """Once no launcher renews a job, another machine accepts its used port, attaches and gets the complete log."""
    keys = {"code": SERVE, "args": [str(tmp_path / "enough")]}
    first = plan_job(**keys)
    second = build_plan(**keys, run="elsewhere")
    submit(first, Deadlines())
    wait_until(lambda: "is held by this run" in describe_checks(second), 30)
    hosts.age_renewals()
    assert (describe_failed_checks(second), find_last_attempt(second)) == ("", (1, 0))
    handle = submit(second, Deadlines())
    (tmp_path / "enough").touch()
    assert (handle.created, wait(handle).status.state, read_log_texts(second, 0)) == (False, "succeeded", ["serves"])


def test_machine_without_files_of_the_run_finds_the_attempt(plan_job: Planned, write: Write, tmp_path: Path) -> None:
    """A run whose second attempt is on its hosts continues with that attempt, and keeps its count of attempts."""
    plan = plan_job(attempt=2, args=["60"])
    submit(plan, Deadlines())
    options = {"hosts": [process.host for process in plan.processes]}
    folder = RunFolder(tmp_path / "elsewhere")
    folder.path.mkdir()
    adopt_run(folder, load(write("behind-ssh", nodes=2, attempts=3, options=options)), RUN_ID)
    assert (folder.attempts(), folder.read_record().last_start["first"]) == ([2], 1)


@pytest.mark.parametrize("attempt", [1, 2])
def test_owned_job_is_not_taken_over(plan_job: Planned, build_plan: Planned, attempt: int) -> None:
    """While one machine owns a run, another one is refused for this attempt and the next; the error names the owner."""
    plan = plan_job(args=["60"])
    submit(plan, Deadlines())
    with ProcessWatch(plan.processes) as watch, ThreadPoolExecutor(1) as pool:
        second = pool.submit(submit, build_plan(attempt, run="elsewhere"), Deadlines())
        wait_until(lambda: watch.poll(timeout_s=0.1) is None or second.done(), 30)
        with pytest.raises(RunInUseError, match=rf"is owned by {socket.gethostname()}:.*/run#\w+; this process exits"):
            second.result()


def test_launcher_whose_run_was_taken_over_exits(plan_job: Planned, build_plan: Planned, hosts: Hosts) -> None:
    """A launcher whose run was taken over by another machine reports that machine and exits."""
    first = submit(plan_job(args=["60"]), Deadlines())
    hosts.age_renewals()
    submit(build_plan(args=["60"], run="elsewhere"), Deadlines())
    with pytest.raises(RunInUseError, match=r"/elsewhere#\w+; this process exits"):
        wait(first)
    hosts.age_renewals()  # else the teardown waits for a minute for the other owner
