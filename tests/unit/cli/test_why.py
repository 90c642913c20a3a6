"""`torchyard why`: which rank of a run hangs, or the state of each rank."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.builders.archives import archive_run, create_archive
from tests.builders.hang_examples import (
    ALL_REDUCE,
    HANG,
    RECORDS,
    STRAGGLER,
    build_job_record,
    format_record_line,
)
from tests.builders.reports import report
from tests.conftest import Write, command_plan_of
from tests.doubles.fake_api import FakeApi
from tests.doubles.leases import RUN, build_lease, build_object
from tests.processes.lone_processes import build_lone_profile
from torchyard.cli.main import main
from torchyard.cli.why import format_collective_counts
from torchyard.common.project_root import ROOT
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.hang import Frame, GroupProgress, OnHang, RankRecord
from torchyard.model.profile import Deadlines
from torchyard.model.run import Attempt, Collected, Failure, Metrics, Outcome, State, Status
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder
from torchyard.steps.hang_files import write_hang_files

STAMP = "2026-11-21T08:00:47.123Z node-0 | "


@pytest.fixture
def run(write: Write) -> RunFolder:
    """A run of one node whose first attempt has a plan."""
    folder = RunFolder(runs_folder() / "sample-a1b2c3d4")
    plan = command_plan_of(build_lone_profile(write), folder.path)
    folder.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    folder.record_event("start", run="an-id", folder=str(folder.path))
    return folder


def report_ranks(run: RunFolder, *records: RankRecord) -> None:
    """Write records into the node's log, between lines of the program."""
    (log,) = run.plans()[-1].nodes.values()
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{STAMP}[default0]:epoch 1",
        *(STAMP + format_record_line(record) for record in records),
        f"{STAMP}epoch 2",
    ]
    Path(log).write_text("\n".join([*lines, ""]))


def save_outcome(run: RunFolder, state: State = "failed", **findings: Any) -> Outcome:
    outcome = Outcome(status=Status(state=state, reason="it ended"), exit_codes={}, **findings)
    run.save_outcome(1, outcome)
    return outcome


def explain(run: RunFolder, capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """The lines that the command prints."""
    assert main(["why", run.name, *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_ranks_of_a_living_run_are_shown(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """While no hang is detected, a table shows each rank's last record: that of a healthy rank has no place."""
    healthy = [build_job_record(rank, kind="pulse", pending=None, stack=(), state="") for rank in (1, 2, 3)]
    report_ranks(run, build_job_record(0, stalled_s=240.0), *healthy)
    title, columns, first, _, third, last = explain(run, capsys)
    assert title == "no rank is known to hang; the last report of each:"
    assert columns.split() == ["rank", "node", "collectives", "done", "waits", "in", "place", "since", "seen", "(UTC)"]
    assert first.split() == [
        *("0", "node-0", "6", "all_reduce", "7", "of", "group", "0"),
        *("main", "(t.py:40),", "in", "distributed.all_reduce", "4", "min", "00", "s", "00:16:40"),
    ]
    assert third.split()[:5] == ["2", "node-0", "6", "made", "progress"]
    assert last.split()[0] == "3"


def test_rank_that_has_not_reported_is_listed(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks without a record are listed."""
    report_ranks(run, build_job_record(1, world=6))
    assert explain(run, capsys)[-1] == "not reported: rank 0, 2-5"


def test_hang_of_the_outcome_is_explained(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """After the run, the sentence, the locations and the evidence are those of the outcome."""
    report_ranks(run, *RECORDS.values())
    save_outcome(run, hang=HANG, straggler=STRAGGLER)
    lines = explain(run, capsys)
    assert lines[0] == HANG.sentence
    assert "    2 (hangs)  read_shard (train.py:12)" in lines
    assert f"  - {HANG.evidence[0]}" in lines
    assert lines[-1].startswith("straggler: rank 3 on node-1 arrives last")


def test_failure_comes_first(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """The failure in the report of a run is printed first."""
    run.save_report(report("rank 2 hangs"))
    assert explain(run, capsys)[0] == "failed: rank 2 hangs"


def test_sentence_of_a_hang_is_printed_once(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """If the failure quotes the hang, the locations of its ranks follow at once."""
    run.save_report(report(f"{HANG.sentence} (on_hang: fail)"))
    save_outcome(run, hang=HANG)
    first, second, *_ = explain(run, capsys)
    assert first == f"failed: {HANG.sentence} (on_hang: fail)"
    assert second.split() == ["ranks", "place"]


def test_failed_attempt_of_a_run_that_continues_is_printed(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Between two attempts there is no report yet, and the last attempt's failure counts."""
    failure = Failure(cause="rank-hangs", sentence="rank 2 hangs")
    collected = Collected(logs=(), metrics=Metrics(), failure=failure)
    run.save_ended(Attempt(number=1, outcome=save_outcome(run), collected=collected))
    assert explain(run, capsys)[0] == "failed: rank 2 hangs"


@pytest.mark.parametrize(("on_hang", "reason"), [("off", "on_hang is off"), ("report", "the program has not started")])
def test_run_without_records_says_why(
    run: RunFolder, capsys: pytest.CaptureFixture[str], on_hang: OnHang, reason: str
) -> None:
    """No record is no proof that all is well."""
    intent = run.attempt_plan(1)
    assert intent
    run.save_attempt_plan(1, intent.model_copy(update={"plan": intent.plan.model_copy(update={"on_hang": on_hang})}))
    (line,) = explain(run, capsys)
    assert line.startswith(f"no rank of this run has reported: {reason}")


def test_json_has_every_record(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the hang, and the last record of each rank."""
    report_ranks(run, *RECORDS.values())
    save_outcome(run, hang=HANG)
    document = json.loads("\n".join(explain(run, capsys, "--json")))
    assert (document["hang"]["kind"], document["world"], document["failure"]) == ("storage", 4, None)
    assert [record["rank"] for record in document["ranks"]] == [0, 1, 2, 3]


def test_run_of_the_archive_is_explained(run: RunFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A run that is only in the archive is read from there."""
    report_ranks(run, *RECORDS.values())
    save_outcome(run, hang=HANG)
    create_archive(tmp_path / "archive")
    archive_run(tmp_path / "archive", run)
    shutil.rmtree(run.path)
    assert explain(run, capsys)[0] == HANG.sentence


def test_dying_ranks_are_not_judged(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run that a user stops or has stopped, the verdict from before the stop counts, not its last records."""
    dying = [build_job_record(rank, kind="end", state="") for rank in (0, 1)]
    report_ranks(run, *RECORDS.values(), *dying)
    run.record_event("ending", end="stopped", sentence="stopped by Ctrl-C")
    assert not explain(run, capsys)[0].startswith("rank")
    write_hang_files(run.attempt(1), HANG, RECORDS)
    assert explain(run, capsys)[0] == HANG.sentence
    save_outcome(run, cause=LauncherCause.STOPPED)
    assert not explain(run, capsys)[0].startswith("rank")


def test_page_of_a_hang_is_shown_without_logs(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """The page of a hang is shown if an archive has no logs yet, because the job still runs."""
    write_hang_files(run.attempt(1), HANG, RECORDS)
    assert explain(run, capsys)[1:3] == ["but a hang was detected:", HANG.sentence]


def test_logs_that_an_archive_lacks_are_not_a_program_that_has_not_started(
    run: RunFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """While the job runs, its logs are not archived: nothing is known of its ranks, in the text and in JSON."""
    create_archive(tmp_path / "archive")
    archive_run(tmp_path / "archive", run)
    shutil.rmtree(run.path)
    (line,) = explain(run, capsys)
    assert line.startswith(
        f"the records of ranks are in their logs, and file://{tmp_path}/archive has no log of node-0"
    )
    document = json.loads("\n".join(explain(run, capsys, "--json")))
    assert (document["ranks"], document["missing_logs"]) == ([], ["node-0"])


def test_malformed_record_is_ignored(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """A record with control codes and invalid numbers, as the job may print, is ignored."""
    malicious_frame = Frame(function="\x1b[2Jx\n0  all is well", file="a.py", line=1)
    report_ranks(run, build_job_record(0, stack=(malicious_frame,), timestamp=1e300, stalled_s=12345.0, world=10**15))
    (log,) = run.plans()[-1].nodes.values()
    Path(log).write_text(Path(log).read_text().replace("12345.0", "Infinity"))
    lines = explain(run, capsys)
    assert "\x1b" not in "".join(lines)
    assert len(lines) == 1


def test_thousand_ranks_are_shortened(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Of many ranks the first and the last are shown, and `--json` is named for the others."""
    report_ranks(run, *(build_job_record(rank, world=1000, kind="pulse") for rank in range(1000)))
    lines = explain(run, capsys)
    assert len(lines) == 131
    assert "    ... 872 more: see --json" in lines


def test_collectives_are_counted_by_group() -> None:
    """One group is shown without its name, several with theirs, and at most four are listed."""
    progress = GroupProgress(enqueued=7, completed=6)
    texts: list[str] = []
    for names in ("", "0", "01", "012345"):
        texts.append(format_collective_counts(build_job_record(0, groups=dict.fromkeys(names, progress))))
    assert texts == ["", "6", "0: 6, 1: 6", "0: 6, 1: 6, 2: 6, 3: 6, 2 more"]
    assert ALL_REDUCE.group == "0"


def test_dumps_of_torch_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two real dumps show the rank that did not call the collective, by the number in its file's name."""
    for rank in (0, 1):
        shutil.copy(
            ROOT / f"tests/logs/flight_recorder/gloo-torch-2.13-rank{rank}.json", tmp_path / f"trace_rank_{rank}"
        )
    assert main(["why", f"{tmp_path}/"]) == 0
    assert capsys.readouterr().out.startswith("rank 1")


@pytest.mark.parametrize(("name", "problem"), [("none", "does not exist"), ("train.log", "is not a folder")])
def test_path_that_is_not_a_folder_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, problem: str
) -> None:
    """A path is the folder of dumps: a missing one, and a file, are reported as such."""
    (tmp_path / "train.log").touch()
    assert main(["why", str(tmp_path / name)]) == 1
    assert f"{name} {problem}: name a run, or the folder with the dumps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"), [("notes.txt", "no file there ends with a rank"), ("trace_rank_0", "the dump is refused")]
)
def test_folder_without_dumps_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    """A file that is not a dump, and a folder without any, are errors."""
    (tmp_path / name).write_text("hello")
    assert main(["why", f"{tmp_path}/"]) == 1
    assert message in capsys.readouterr().err


# --- a run that another machine started


def put_pod(fake_api: FakeApi, records: Iterable[RankRecord], phase: str = "Running") -> None:
    """The pod of a run's only node, whose log has the records."""
    name = f"{RUN}-1-node-0"
    lines = [f"2026-11-21T08:00:47Z {format_record_line(record)}\n" for record in records]
    fake_api.logs[name] = "".join(lines).encode()
    pod = build_object("v1", "Pod", name)
    state = (
        {"running": {"startedAt": "2026-01-01T00:00:00Z"}} if phase == "Running" else {"terminated": {"exitCode": 1}}
    )
    status = {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}
    fake_api.put(pod | {"spec": {"containers": [{"name": "main"}]}, "status": status})


def explain_leased(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert main(["why", RUN, "--cluster", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_hang_of_another_machines_run_is_explained(fake_api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--cluster` the records are read from the pods' logs, for the text and for JSON."""
    fake_api.put(build_lease(ago=10))
    put_pod(fake_api, RECORDS.values())
    assert explain_leased(capsys)[0].startswith("rank 2 on node-0 hangs in read_shard (train.py:12)")
    document = json.loads("\n".join(explain_leased(capsys, "--json")))
    assert (document["attempt"], document["hang"]["kind"], len(document["ranks"])) == (1, "storage", 4)


def test_ending_of_another_machines_run_is_not_judged(fake_api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    """The records of dying ranks prove no hang: once a pod or the run ends, only their state is shown."""
    fake_api.put(build_lease(ago=10))
    put_pod(fake_api, RECORDS.values(), phase="Failed")
    lines = explain_leased(capsys)
    assert lines[0] == "no rank is known to hang; the last report of each:"
    assert lines[-1] == "the job of attempt 1 ends or has ended, so it is not judged whether a rank hangs"
    put_pod(fake_api, RECORDS.values())
    fake_api.put(build_lease(ago=10, annotations={"torchyard/ending": "{}"}))
    assert explain_leased(capsys)[0] == "no rank is known to hang; the last report of each:"


def test_another_machines_run_without_records_says_why(fake_api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without a pod has no logs; a log without records has several possible reasons."""
    fake_api.put(build_lease(ago=10))
    assert explain_leased(capsys) == [f"{RUN} has no pod yet"]
    put_pod(fake_api, [])
    (line,) = explain_leased(capsys)
    assert line.endswith("its torch is older or absent, or on_hang is off")


def test_dumps_are_not_in_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder and `--cluster` exclude each other."""
    assert main(["why", f"{tmp_path}/", "--cluster"]) == 2
    assert "use it without FOLDER/" in capsys.readouterr().err


def test_end_before_the_first_attempt_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """A run whose preflight failed has no ranks: the sentence of its report is printed, also as JSON."""
    folder = RunFolder(runs_folder() / "sample-a1b2c3d5")
    folder.path.mkdir(parents=True)
    folder.record_event("start", run="an-id")
    folder.save_report(report("there is no kubeconfig", attempts=0))
    assert explain(folder, capsys) == ["failed before the first attempt: there is no kubeconfig"]
    document = json.loads("".join(explain(folder, capsys, "--json")))
    assert (document["attempt"], document["end"], document["sentence"]) == (None, "failed", "there is no kubeconfig")
