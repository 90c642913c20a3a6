"""`--json`: the documents of all verbs, and that of an error, by their published schemas."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders.hang_examples import HANG, RECORDS, format_record_line
from tests.builders.histories import build_records
from tests.builders.reports import report, short_report
from tests.conftest import Write, command_plan_of
from tests.processes.lone_processes import build_lone_profile
from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.cli import run as run_verb
from torchyard.cli.documents import DOCUMENTS, WhyDocument, build_schema, describe_error, print_document
from torchyard.cli.main import JSON_VERBS, main
from torchyard.model.errors import DetachedError, PreflightError
from torchyard.model.finding import failed_check, passed_check
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines, Profile
from torchyard.model.run import Attempt, Collected, EndedRun, Metrics, Outcome, Report, Status
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder
from torchyard.trend.records import history_path, store_record

jsonschema = pytest.importorskip("jsonschema")
Read = Callable[..., Any]


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Read:
    """Run a verb with --json; return its document, which is all of stdout and fits the verb's schema."""

    def read_document(*argv: str, exit_code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*argv, "--json"]) == exit_code
        document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        jsonschema.validate(document, build_schema(argv[0]))
        return document

    return read_document


class EndedRunner:
    """A runner of a run that fails, without a job: it leaves a report, as a real one does."""

    def __init__(self, profile: Profile, run_id: str, _: object, rank_zero_output: object) -> None:
        self.profile = profile
        self.folder = RunFolder.of(profile, run_id)

    def run(self) -> EndedRun:
        failed_report = short_report("failed").model_copy(
            update={"run": self.folder.name, "folder": str(self.folder.path), "profile": self.profile.name}
        )
        self.folder.record_event("start", run=self.folder.name.rpartition("-")[2])
        self.folder.save_report(failed_report)
        return EndedRun("failed", failed_report.sentence, failed_report)


@pytest.fixture
def ended_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the command line fail immediately."""
    monkeypatch.setattr(run_verb, "create_runner", EndedRunner)


def save_run(plan: Plan, folder: RunFolder, final_report: Report | None) -> None:
    """A run with one attempt, which has failed and hung."""
    folder.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    outcome = Outcome(status=Status(state="failed", reason="it ended"), exit_codes={}, hang=HANG)
    folder.save_outcome(1, outcome)
    failure = short_report("failed").attempts[0].collected.failure
    folder.save_ended(
        Attempt(number=1, outcome=outcome, collected=Collected(logs=(), metrics=Metrics(), failure=failure))
    )
    if final_report:
        folder.save_report(final_report)
    (log,) = plan.nodes.values()
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    lines = ["epoch 1", *(format_record_line(record) for record in RECORDS.values())]
    Path(log).write_text("".join(f"2026-11-21T08:00:47.123Z node-0 | {line}\n" for line in lines))


@pytest.fixture
def run(write: Write) -> RunFolder:
    folder = RunFolder(runs_folder() / "sample-a1b2c3d4")
    save_run(command_plan_of(build_lone_profile(write), folder.path), folder, report())
    return folder


def test_every_verb_of_the_command_line_has_a_document() -> None:
    """The verbs with the option --json are those with a schema."""
    assert set(JSON_VERBS) == DOCUMENTS.keys()


@pytest.mark.parametrize("verb", DOCUMENTS)
def test_schema_is_printed(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`torchyard schema --of VERB` prints a valid JSON Schema."""
    assert main(["schema", "--of", verb]) == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))


def test_plan_and_checks(read: Read, write: Write) -> None:
    """A plan has its properties and its objects, also with `--as json`; preflight has a verdict for each check."""
    assert read("plan", "yolov5-volcano")["plan"]["kind"] == "manifests"
    assert read("plan", "digits-local")["properties"]["starts"] == "node-0 on localhost, node-1 on localhost"
    for form in ("json", "yaml"):
        assert read("plan", "digits-local", "--as", form)["plan"]["kind"] == "commands"
    checks = read("check", str(write()), "--set", "options.python=/no/python", exit_code=1)
    assert (checks["passed"], any(check["verdict"] == "failed" for check in checks["checks"])) == (False, True)


def test_run_that_preflight_prevents_has_the_failed_checks(read: Read, write: Write) -> None:
    """`findings` has each failed check, `remedy` their remedies in one line; `attach` and `stop` print the same."""
    path = write(options={"hosts": ["localhost"], "python": "/no/such/python"})
    document = read("run", str(path), exit_code=1)
    (finding,) = document["findings"]
    assert (finding["verdict"], finding["where"]) == ("failed", "/no/such/python on localhost")
    assert document["remedy"] == finding["remedy"] == "choose another interpreter with options.python"
    assert (document["failure"], document["attempts"]) == (None, 0)
    assert read("attach", document["run"], exit_code=1) == document
    assert read("stop", document["run"]) == document


@pytest.mark.usefixtures("ended_runs")
def test_run_and_attach(read: Read, write: Write) -> None:
    """The document of a run has its end, the cause and the remedy; that of `attach` is the same."""
    document = read("run", str(write()), exit_code=1)
    assert (document["end"], document["failure"]["cause"]) == ("failed", "program-error")
    assert document["logs"] == {"node-0": "/runs/x/node-0/log"}
    assert read("attach", document["run"], exit_code=1) == document


@pytest.mark.usefixtures("ended_runs")
def test_demo_and_benchmark(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of the demo and the table of a benchmark are not on stdout."""
    monkeypatch.chdir(tmp_path)
    assert read("demo", "--fail")["end"] == "failed"
    assert "allreduce-local-" in read("benchmark", "allreduce-local", exit_code=1)["folder"]


def test_why_and_logs(read: Read, run: RunFolder) -> None:
    """`why` has the cause, the hang and every rank; `logs` has the lines of rank 0."""
    document = read("why", run.name)
    assert (document["failure"]["cause"], document["hang"]["kind"]) == ("program-error", "storage")
    assert (document["end"], [record["rank"] for record in document["ranks"]]) == ("failed", [0, 1, 2, 3])
    assert read("logs", run.name)["lines"] == ["epoch 1"]


def test_lists(read: Read) -> None:
    """Profiles, the file of one, and launchers are lists of objects."""
    assert "pi-local" in [entry["name"] for entry in read("profiles")["profiles"]]
    assert read("profiles", "--as", "table") == read("profiles")
    (entry,) = read("profiles", "hardware/oke/bm-gpu-h100-8")["profiles"]
    assert entry["text"].startswith("about:")
    assert "baremetal" in [entry["name"] for entry in read("profiles", "--launchers")["launchers"]]


def test_trend(read: Read) -> None:
    """A list of histories has no runs; one history has each run with its number and its usual range."""
    for record in build_records([200.0] * 12):
        path = history_path(runs_folder(), record.key)
        store_record(path, record)
    (listed,) = read("trend")["histories"]
    assert (listed["run_count"], listed["runs"]) == (12, [])
    (history,) = read("trend", "sample")["histories"]
    assert (history["runs"][-1]["value"], history["runs"][-1]["verdict"]) == (200.0, "usual")


def test_archive_and_service(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive has its URL; a unit that is not installed has no state."""
    os.environ[ARCHIVE_VARIABLE] = f"file://{tmp_path}/archive"
    assert read("archive", "init") == {"url": f"file://{tmp_path}/archive", "created": True}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read("service", "status", exit_code=1)["installed"] is False


# --- errors


def test_error_in_a_profile_has_file_and_line(read: Read, write: Write) -> None:
    """Each mistake is an object with the file, the line, the key and the message."""
    path = write(nodes=0, attempts="many")
    document = read("plan", str(path), exit_code=3)
    findings = document["error"]["findings"]
    lines = path.read_text().splitlines()
    assert {finding["where"] for finding in findings} == {"nodes", "attempts"}
    for finding in findings:
        assert (finding["file"], lines[finding["line"] - 1].split(":")[0]) == (str(path), finding["where"])
    assert document["exit_code"] == 3


@pytest.mark.parametrize(
    ("argv", "error_type", "exit_code"),
    [
        (["plan"], "UsageError", 2),
        (["run", "pi-local", "--no-such-option"], "UsageError", 2),
        (["run", "no-such-profile"], "ProfileError", 3),
        (["plan", "pi-local", "--set", "nodes"], "ProfileError", 3),
        (["archive", "init"], "SettingError", 3),
    ],
)
def test_error_is_a_document(read: Read, argv: list[str], error_type: str, exit_code: int) -> None:
    """A wrong command line, profile, name or setting is a document too; stderr has the message."""
    os.environ.pop(ARCHIVE_VARIABLE, None)
    assert read(*argv, exit_code=exit_code)["error"]["type"] == error_type


def test_internal_error_is_a_document(
    read: Read, run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error in torchyard itself is a document as well, and its stack is on stderr."""

    def fail(_: object) -> None:
        raise ZeroDivisionError("internal")

    monkeypatch.setattr(RunFolder, "plans", fail)
    assert read("why", run.name, exit_code=1)["error"]["type"] == "ZeroDivisionError"


def test_error_lists_failed_checks_and_remedies() -> None:
    """Of a preflight only failed checks are findings; a note of an error is its remedy."""
    document = describe_error(PreflightError((passed_check("a", "b"), failed_check("c", "d", "e"))), 1)
    assert [(finding.where, finding.remedy) for finding in document.error.findings] == [("c", "e")]
    error = DetachedError("the disk is full")
    error.add_note("to resume it: torchyard attach x-1")
    assert describe_error(error, 4).error.remedy == "to resume it: torchyard attach x-1"


def test_numbers_that_json_lacks_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    """nan and the infinities are null, as the schema allows: other readers refuse Python's `NaN`."""
    record = RECORDS[0].model_copy(update={"stalled_s": math.inf})
    print_document(WhyDocument(run="x", hang=None, straggler=None, world=1, ranks=(record,)))
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document["ranks"][0]["stalled_s"] is None
    jsonschema.validate(document, build_schema("why"))
