"""Runs that version 0.1 started are resumed by this version: a run folder and a Lease that it wrote.

tests/recorded/version-0.1 holds them as they were written, with paths replaced by @PYTHON@, @ROOT@, @RUNS@ and @HERE@.
The job of `run` was an agentless process on this machine; the Lease and the plan beside it are of a Volcano job.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.fake_api import FakeApi
from torchyard.cluster import lease
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.pods import lease_record, seal
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.reporter import LocalReporter
from torchyard.run.runner import Runner
from torchyard.run.takeover import adopt_run

RECORDED = ROOT / "tests" / "recorded" / "version-0.1"
RUN_ID = "8a480382-acd5-436c-8983-39f3668066e3"
COUNTS = """
import json, time
for step in range(1, 16):
    print(json.dumps({"step": step, "steps": 15}), flush=True)
    time.sleep(0.1)
"""


def restore(name: str, here: Path) -> str:
    """The text of a recorded file, with this machine's paths."""
    places = {"PYTHON": sys.executable, "ROOT": ROOT, "RUNS": runs_folder(), "HERE": here}
    text = (RECORDED / name).read_text()
    for key, place in places.items():
        text = text.replace(f"@{key}@", str(place))
    return text


def restore_journal(here: Path) -> str:
    """The recorded journal, moved in time: its launcher was lost a minute ago, long before any deadline of the run."""
    events = [json.loads(line) for line in restore("run/journal", here).splitlines()]
    later_s = time.time() - 60 - events[-1]["at"]
    return "".join(json.dumps({**event, "at": event["at"] + later_s}) + "\n" for event in events)


def test_run_folder_is_resumed(write: Write, tmp_path: Path) -> None:
    """A process that version 0.1 started is attached to, by its own plan's commands: Completed, each line once."""
    alone: dict[str, Any] = {"agent": "none", "rendezvous": "env", "metrics": "json-lines", "attempts": 2}
    profile = load_profile(str(write("count", code=COUNTS, nodes=1, **alone)))
    folder = RunFolder.of(profile, RUN_ID)
    shutil.copytree(RECORDED / "run", folder.path)
    (folder.path / "journal").write_text(restore_journal(tmp_path))
    (folder.path / "attempt-1" / "plan.json").write_text(restore("run/attempt-1/plan.json", tmp_path))
    process = json.loads((folder.path / "attempt-1" / "plan.json").read_text())["plan"]["on"][0]
    submit = process["submit"]
    begun = subprocess.run(
        submit["argv"], input=json.dumps(submit["input"]), capture_output=True, text=True, check=True
    )
    assert json.loads(begun.stdout)["created"]

    end, _ = Runner(profile, RUN_ID, LocalReporter(2, asked_again=False)).run()
    report = folder.report()
    assert report
    lines = [line for line in Path(process["log"]).read_text().splitlines() if "{" in line]
    steps = [json.loads(line.partition(" | ")[2])["step"] for line in lines]
    assert (end, len(report.attempts), report.leftovers, steps) == ("succeeded", 1, (), list(range(1, 16)))


@pytest.fixture
def held(fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The recorded Lease in the fake cluster, last renewed 200 s ago by a launcher that was lost."""
    monkeypatch.setattr(seal, "get_run_key", lambda _: "a" * 64)
    thing: dict[str, Any] = json.loads((RECORDED / "lease.json").read_text())
    ago = datetime.fromtimestamp(datetime.now(UTC).timestamp() - 200, UTC)
    thing["spec"]["renewTime"] = ago.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return fake_api.put(thing)


def test_lease_is_taken_over(held: dict[str, Any], write: Write) -> None:
    """The attempt, the submission and the sealed outcome of a Lease that version 0.1 wrote count here."""
    profile = load_profile(str(write(launcher="volcano", image="train:v1", nodes=2)))
    run_id = held["metadata"]["annotations"]["torchyard/flow-run"]
    folder = RunFolder.of(profile, run_id)
    os.makedirs(folder.path)
    adopt_run(folder, profile, run_id)
    outcome = folder.outcome(1)
    assert outcome
    assert (folder.attempts(), outcome.status.reason) == ([1], "2 of 2 pods succeeded")
    assert lease_record.is_submitted(held)


def test_plan_is_read_and_its_lease_renewed(held: dict[str, Any], tmp_path: Path) -> None:
    """A recorded plan of objects is enough to own its Lease again."""
    plan = ManifestPlan.model_validate_json(restore("plan.json", tmp_path))
    owned = lease.acquire_lease(plan)
    assert lease_record.read_holder(owned) != lease_record.read_holder(held)
    lease.renew_lease(plan)
