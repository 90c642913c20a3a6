"""Whole runs over hosts behind ssh: the flow, its metrics, and its launcher lost."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.sweep import sweep
from flows.train import train
from tasks.folder import all_runs
from tasks.profile import ROOT
from tests import sshd
from tests.conftest import Write
from tests.sshd import Hosts
from tests.test_lost import TICK, Carried, ticking

WHY = sshd.missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.usefixtures("api")]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts, which the user's ssh knows; no run outlives them."""
    made = Hosts(tmp_path / "ssh")
    try:
        made.start()
        os.environ["TORCHYARD_SSH"] = made.ssh
        yield made
        sweep(now=True, return_state=True)
    finally:
        made.stop()


def options(hosts: Hosts) -> dict[str, object]:
    named = [{"host": name, "address": address} for name, address in hosts.addresses.items()]
    return {"hosts": named, "python": sys.executable}


def test_digits_are_learned_over_two_hosts(hosts: Hosts, write: Write) -> None:
    """Two hosts train one network; its accuracy and its checkpoint come home, and nothing is left on either."""
    program = str(ROOT / "programs" / "digits.py")
    keys = {"nodes": 2, "metrics": "json-lines", "options": options(hosts)}
    state = train(str(write(program=program, args=["--epochs=2"], **keys)), return_state=True)
    assert state.is_completed(), state.message
    report = all_runs()[-1].report()
    assert report
    assert report.collected
    assert float(str(report.collected.metrics.rows[-1]["accuracy"])) > 0.8
    assert len(list(Path(report.folder).glob("attempt-1/node-*/files/checkpoints/*"))) == 1
    assert (report.left, hosts.left()) == ((), [])


def test_lost_launcher_finds_its_job_there(hosts: Hosts, write: Write, tmp_path: Path) -> None:
    """After a SIGKILL the same run, carried again, attaches to its hosts and keeps every line, none twice."""
    (tmp_path / "truth").mkdir()
    args = [f"--truth={tmp_path}/truth", "--ticks=60"]
    keys = {"rendezvous": "env", "agent": "none", "nodes": 2, "metrics": "json-lines"}
    run = Carried(write(program=TICK, args=args, options=options(hosts), **keys))
    run.lose(lambda: ticking(tmp_path))
    assert run.process().wait() == 0
    assert run.state().is_completed()
    logs = "".join(path.read_text() for path in run.folder.path.glob("attempt-1/node-*/log"))
    truths = [path.read_text().splitlines() for path in (tmp_path / "truth").glob("*")]
    assert len(truths) == 2
    assert all(logs.count(line) == 1 for truth in truths for line in truth)
    assert hosts.left() == []
