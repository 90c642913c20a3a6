"""Another machine takes over a job on hosts behind ssh; its own folder stands for its own disk."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import sshd
from tests.conftest import RUN_ID, Write, load
from tests.ssh_jobs import Planned, failures, texts, told
from tests.sshd import Hosts, until
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.staging import find_last_attempt
from torchyard.model.errors import RunInUseError
from torchyard.model.profile import Deadlines
from torchyard.run.folder import RunFolder
from torchyard.run.takeover import adopt_run
from torchyard.steps.submit import submit
from torchyard.steps.wait import wait

WHY = sshd.missing()
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)
SERVE = """
import os, socket, sys, time
if os.environ["RANK"] == "0":
    kept = socket.create_server(("", int(os.environ["MASTER_PORT"])))
print("serves")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""


def test_run_goes_on_from_another_machine(planned: Planned, thought: Planned, hosts: Hosts, tmp_path: Path) -> None:
    """Once no launcher renews a job, another machine attaches to it, accepts its port and gets its whole log."""
    keys = {"code": SERVE, "args": [str(tmp_path / "enough")]}
    first, second = planned(**keys), thought(**keys, run="elsewhere")
    submit(first, Deadlines())
    until(lambda: "is held by this run" in told(second), 30)
    hosts.forget()
    assert (failures(second), find_last_attempt(second)) == ("", 1)
    handle = submit(second, Deadlines())
    (tmp_path / "enough").touch()
    assert (handle.created, wait(handle).status.state, texts(second, 0)) == (False, "succeeded", ["serves"])


def test_machine_that_knows_nothing_finds_the_attempt(planned: Planned, write: Write, tmp_path: Path) -> None:
    """A run whose second attempt is on its hosts continues with that one, and keeps its count of attempts."""
    plan = planned(attempt=2, args=["60"])
    submit(plan, Deadlines())
    options = {"hosts": [block.host for block in plan.processes]}
    folder = RunFolder(tmp_path / "elsewhere")
    folder.path.mkdir()
    adopt_run(folder, load(write(nodes=2, attempts=3, options=options)), RUN_ID)
    assert (folder.attempts(), folder.last("start")["first"]) == ([2], 1)


@pytest.mark.parametrize("attempt", [1, 2])
def test_job_that_is_looked_after_is_left_alone(planned: Planned, thought: Planned, attempt: int) -> None:
    """While one machine owns a run, another one is refused, with the owner's name, for this and the next attempt."""
    plan = planned(args=["60"])
    submit(plan, Deadlines())
    with ProcessWatch(plan.processes) as watch, ThreadPoolExecutor(1) as pool:
        second = pool.submit(submit, thought(attempt, run="elsewhere"), Deadlines())
        until(lambda: watch.poll(0.1) is None or second.done(), 30)
        with pytest.raises(RunInUseError, match=rf"is owned by {socket.gethostname()}:.*/run#\w+; this process exits"):
            second.result()


def test_carrier_that_was_away_too_long_leaves(planned: Planned, thought: Planned, hosts: Hosts) -> None:
    """A machine whose run another one has taken over in the meantime is told so, and leaves."""
    first = submit(planned(args=["60"]), Deadlines())
    hosts.forget()
    submit(thought(args=["60"], run="elsewhere"), Deadlines())
    with pytest.raises(RunInUseError, match=r"/elsewhere#\w+; this process exits"):
        wait(first)
