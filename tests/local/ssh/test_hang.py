"""A rank that hangs on a host behind ssh, which has nothing of torchyard but what was copied there."""

import pytest

from tests import sshd
from tests.hanging import NAME, PROGRAM, check_hang
from tests.ssh_jobs import Planned, carry
from torchyard.model.run import Attempt

SKIP_REASON = sshd.missing()
pytestmark = pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)


def test_hanging_rank_on_another_host_is_named(plan_job: Planned) -> None:
    """The rank and its line are told from the host's log; the recorder is removed with the rest."""
    agents = {"agent": "torchrun", "rendezvous": "c10d"}
    plan = plan_job(name=NAME, code=PROGRAM, args=[], on_hang="fail", **agents)
    outcome, collected = carry(plan)
    check_hang(Attempt(number=1, outcome=outcome, collected=collected))
