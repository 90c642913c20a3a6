"""A rank that hangs on a host that ssh reaches, which has only those files of torchyard that were copied to it."""

import pytest

from tests.processes import sshd
from tests.processes.hanging_program import NAME, PROGRAM, check_hang
from tests.processes.ssh_jobs import Planned, run_steps
from torchyard.model.run import Attempt

SKIP_REASON = sshd.find_obstacle()
pytestmark = pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)


def test_hanging_rank_on_another_host_is_named(plan_job: Planned) -> None:
    """The host's log names the rank and its line, and the recorder is removed with the other files."""
    agents = {"agent": "torchrun", "rendezvous": "c10d"}
    plan = plan_job(name=NAME, code=PROGRAM, args=[], on_hang="fail", **agents)
    outcome, collected = run_steps(plan)
    check_hang(Attempt(number=1, outcome=outcome, collected=collected))
