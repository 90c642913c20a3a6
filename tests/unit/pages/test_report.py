"""A report has a bounded size for any run, and shows quoted text as plain text."""

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.reports import attempt, report, report_of, short_report
from tests.inputs.nccl_lines import list_rdma_lines, list_socket_lines
from tests.support.markdown import render_html
from torchyard.diagnosis.nccl.fabric import evaluate_fabric
from torchyard.diagnosis.nccl.log import parse_nccl_log
from torchyard.model.hardware import Expect
from torchyard.model.run import ContainerFailure, Failure, LogFile, Report, Row
from torchyard.pages.report import MAX_PAGE_BYTES, render_markdown, render_text

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m<img src=x onerror=alert(1)> [x](javascript:1) ``` | **a** \u202e\x00"
FORMS = [render_text, render_markdown]
Form = Callable[[Report], str]


def test_text_report_contains_the_facts_of_a_run() -> None:
    """The text contains state, time, steps, metrics and logs, and the value of a constant column once."""
    text = render_text(short_report())
    for part in (
        "succeeded in 12 min 41 s",
        "both joined",
        "/runs/x/node-0/log",
        "incomplete: 3 lines",
        "world_size   2",
    ):
        assert part in text
    assert text.count("world_size") == 1


def test_last_lines_are_shown_of_a_failure_only() -> None:
    """Only the report of a failed run shows the failing rank's last lines."""
    assert "| Boom: 1" in render_text(short_report("failed"))
    assert "Boom" not in render_text(short_report("cancelled"))


def test_markdown_contains_the_plot() -> None:
    """The artifact contains the plot, and stays small."""
    text = render_markdown(short_report())
    assert "data:image/svg+xml;base64," in text
    assert len(text) < 200_000


def test_report_is_read_back_from_disk(tmp_path: Path) -> None:
    """report.json is read back as the same report."""
    (tmp_path / "report.json").write_text(short_report("failed").model_dump_json())
    assert Report.model_validate_json((tmp_path / "report.json").read_text()) == short_report("failed")


def huge(letter: str, rows: int = 2_000) -> Report:
    """A report with the maximum of everything, written with one letter."""
    long = letter * 5_000
    row: Row = {f"{letter * 40}{key}": long for key in range(30)} | {"loss": 0.1, "accuracy": 0.2, "rate": 0.3}
    all_rows: tuple[Row, ...] = tuple(
        {"step": step, "loss": step % 7 / 7, "accuracy": step % 11, "rate": 1 / (step + 1)} for step in range(rows)
    )
    logs = tuple(
        LogFile(node=f"node-{index}", path=f"/{letter * 300}/{index}", lines=10**9, lost=long) for index in range(1_000)
    )
    return report(long, ({"step": 0} | row, *all_rows), attempts=20, logs=logs, tail=(long,) * 50)


@pytest.mark.parametrize("letter", ["|", "\U0001f600", "\n"])
def test_page_of_any_run_is_small(letter: str) -> None:
    """A page stays small even with huge tables, a thousand incomplete logs and twenty attempts."""
    huge_report = huge(letter)
    assert (
        len(render_markdown(huge_report).encode()) <= MAX_PAGE_BYTES,
        len(render_text(huge_report).encode()) <= MAX_PAGE_BYTES,
    ) == (True, True)


@pytest.mark.parametrize("form", FORMS)
def test_quoted_text_contains_no_control_codes_on_a_terminal(form: Form) -> None:
    """Control codes are removed from sentences, steps, log lines, leftovers, and names and values of metrics."""
    rows: tuple[Row, ...] = ({"step": 1, EVIL: 1, "b": EVIL}, {"step": 2, EVIL: 2, "b": 2})
    evil_report = report(EVIL, rows, attempts=2, tail=(EVIL,), logs=(LogFile(node="n", path=EVIL, lines=1, lost=EVIL),))
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]|owned", form(evil_report)) == []


def test_quoted_text_is_not_markup_on_a_page() -> None:
    """Quoted text adds no tag or link to a page, and does not break its tables, its plot or its code block."""
    rows: tuple[Row, ...] = ({"step": 1, EVIL: 1, "b": EVIL}, {"step": 2, EVIL: 2, "b": 2})
    evil_report = report(
        EVIL, rows, attempts=2, tail=("```", EVIL, "# big"), logs=(LogFile(node="n", path=EVIL, lines=1),)
    )
    text = render_markdown(evil_report)
    html = render_html(re.sub(r"base64,[\w+/=]+", "", text).replace("data:image/svg+xml;", "picture"))
    html = html.replace("<strong>failed</strong>", "")  # the page's own label
    assert re.findall(r"<(?:a|b|strong|em|h2|script)\b", html) == []
    assert (html.count("<img"), html.count("<pre>"), html.count("<h1>")) == (1, 1, 1)
    cells = {row.count("<td>") for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)}
    assert cells <= {0, 1, 2, 3}


def test_lines_of_a_sentence_do_not_look_like_rows() -> None:
    """A program's sentence of several lines cannot fake the report's own row `succeeded`."""
    assert "\n  succeeded" not in render_text(report("x\n  succeeded    all is well"))


def test_locale_without_letters_is_not_an_error(tmp_path: Path) -> None:
    """Characters that the locale cannot encode are printed as escapes, while files are still UTF-8."""
    program = (
        "from pathlib import Path; import sys; from torchyard.common import escaping; "
        "escaping.escape_unencodable_output();"
        "from torchyard.run.folder import RunFolder; from tests.builders.reports import report;"
        "f = RunFolder(Path(sys.argv[1])); f.save_report(report('\\u6f22')); f.record_event('end', sentence='\\u6f22');"
        "assert f.report() == report('\\u6f22');"
        "assert f.events()[-1]['sentence'] == '\\u6f22'; print('\\u6f22')"
    )
    env = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    process = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "run"], env=env, capture_output=True, check=False
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, b"\\u6f22\n", b"")


@pytest.mark.parametrize("form", [render_text, render_markdown])
def test_report_lists_the_attempts(form: object) -> None:
    """Each attempt has its cause and the machine it failed on; a single attempt needs no list."""
    text = form(report_of(attempt(1, "node-lost"), attempt(2, "")))  # type: ignore[operator]
    assert "node-lost: it broke (on gpu-7)" in text
    assert "attempt 2" in text
    assert "attempt 1" not in form(report_of(attempt(1, "")))  # type: ignore[operator]


@pytest.mark.parametrize("form", FORMS)
def test_report_lists_the_tries_of_the_controller(form: Form) -> None:
    """If the job's own controller tried again, the report lists the failure of each try; else it lists none."""
    failed_attempt = attempt(1, "program-error")
    endings = (
        ContainerFailure(node="worker-1", failed_at=1.7e9, exit_code=7),
        ContainerFailure(node="worker-1", failed_at=1.7e9 + 61, exit_code=137),
    )
    status = failed_attempt.outcome.status.model_copy(update={"retries": 1})
    tried = failed_attempt.outcome.model_copy(update={"status": status, "container_failures": endings})
    text = form(report_of(failed_attempt.model_copy(update={"outcome": tried})))
    assert re.search(r"try\W+worker.?-1 ended with exit code 7 at 22:13:20 UTC", text)
    assert re.search(r"try\W+worker.?-1 was killed by signal 9 at 22:14:21 UTC", text)
    once = failed_attempt.outcome.model_copy(update={"container_failures": endings[:1]})
    assert "exit code 7" not in form(report_of(failed_attempt.model_copy(update={"outcome": once})))


@pytest.mark.parametrize("form", FORMS)
def test_verdict_on_the_network_is_shown(form: Form) -> None:
    """The report has the verdict, its sentence, and the first line that proves it."""
    reading = parse_nccl_log([*list_rdma_lines("a"), *list_socket_lines("b", 8)])
    verdict = evaluate_fabric(reading, Expect(transport="roce"), 2)
    finished = short_report()
    (only,) = finished.attempts
    collected = only.collected.model_copy(update={"fabric": verdict})
    text = form(finished.model_copy(update={"attempts": (only.model_copy(update={"collected": collected}),)}))
    assert re.search(r"fabric\W+not-rdma: TCP over eth0 on b, not roce", text)
    assert "NET/Socket/0" in text
    assert re.search(
        r"node\W+transport\W+GPUDirect\W+devices\W[\W-]*b\W+NET/Socket\W+no\W+eth0\W+a\W+NET/IB\W+yes", text
    )
    assert "fabric" not in form(finished)
    assert "GPUDirect" not in form(finished)


@pytest.mark.parametrize("form", FORMS)
def test_cause_and_proof_of_a_failure_are_shown(form: Form) -> None:
    """A failed run shows the slug of its cause, whether another attempt may work, and the line that proves it."""
    failure_fields = {
        "cause": "oom-gpu",
        "sentence": "it broke",
        "line": "[rank0]: OutOfMemoryError: CUDA out of memory",
    }
    failed = short_report("failed")
    (only,) = failed.attempts
    collected = only.collected.model_copy(update={"failure": Failure.model_validate(failure_fields)})
    text = form(failed.model_copy(update={"attempts": (only.model_copy(update={"collected": collected}),)}))
    assert re.search(r"cause\W+oom.?-gpu, another attempt would not help", text)
    assert re.search(r"proof\W+rank0\W+OutOfMemoryError", text)
    assert "another attempt" not in form(short_report("cancelled"))
    unknown = Failure.model_validate(failure_fields | {"cause": "unknown"})
    collected = only.collected.model_copy(update={"failure": unknown})
    text = form(failed.model_copy(update={"attempts": (only.model_copy(update={"collected": collected}),)}))
    assert re.search(r"unknown, which does not show whether another attempt would help", text)


@pytest.mark.parametrize("form", FORMS)
def test_two_collectives_make_one_readable_table(form: Form) -> None:
    """Rows of two collectives with the same size are separate lines; a single collective is not a column."""
    rows: list[Row] = [
        {"step": step, "steps": 4, "collective": name, "size": size, "busbw": step / 8, "wrong": 0}
        for step, (name, size) in enumerate(itertools.product(("all_reduce", "all_gather"), (1024, 2048)), 1)
    ]
    lines = [_strip_marks(line) for line in form(report(rows=tuple(rows))).splitlines()]
    assert "3 all_gather 1024 0.375" in lines
    single = form(report(rows=tuple(rows[:2])))
    assert "1 1024 0.125" in [_strip_marks(line) for line in single.splitlines()]


def _strip_marks(line: str) -> str:
    """The words of a line, without the characters of Markdown."""
    return " ".join(re.sub(r"[|\\]", "", line).split())


def test_report_names_the_archive() -> None:
    """The report names the archive, or what is missing there; without an archive it has no such row."""
    report = short_report().model_copy(update={"archive": "incomplete: 1 of its logs"})
    assert "archive      incomplete: 1 of its logs" in render_text(report)
    assert "incomplete: 1 of its logs" in render_markdown(report)
    assert "archive" not in render_text(short_report())


def test_message_that_did_not_arrive_is_a_row() -> None:
    """The report lists undelivered messages in the terminal and on its page."""
    lost = short_report().model_copy(update={"unsent": ("json://… has not got 'x: failed': refused",)})
    assert "  unsent       json://… has not got 'x: failed': refused\n" in render_text(lost)
    assert "| unsent | json" in render_markdown(lost)


@pytest.mark.parametrize("form", [render_text, render_markdown])
def test_warnings_are_findings(form: Form) -> None:
    """The warnings of the last attempt are in the report of a run that succeeded."""
    ended = attempt(1, "")
    collected = ended.collected.model_copy(update={"warnings": ("loss is nan", "no rank called a collective")})
    text = form(report_of(ended.model_copy(update={"collected": collected})))
    assert ("loss is nan" in text, "no rank called a collective" in text, text.count("warning")) == (True, True, 2)
