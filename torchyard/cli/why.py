"""`torchyard why RUN`, during the run or after it: which rank hangs, where, and why, or the state of each rank.

`torchyard why FOLDER/` reads dumps of torch's flight recorder in the same way.
"""

import math
import os.path
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from torchyard.cli.documents import WhyDocument, find_failure, print_document
from torchyard.cli.exit_codes import ExitCode
from torchyard.cli.find import FoundRun, find_started_run, report_missing_logs
from torchyard.common.escaping import single_line, strip_control_codes
from torchyard.common.text import align_columns, format_duration, format_ranks, select_ends
from torchyard.diagnosis.hang.flight_recorder import DumpError, build_record, parse_dump
from torchyard.diagnosis.hang.judge import detect_hang
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.diagnosis.hang.stack_locations import describe_location
from torchyard.diagnosis.hang.stragglers import describe_straggler, find_straggler
from torchyard.model.errors import TorchyardError
from torchyard.model.hang import Hang, RankRecord, Straggler
from torchyard.model.run import Attempt, Failure, LogLine, Report
from torchyard.pages.hang import tabulate_locations
from torchyard.pods.lease_record import ENDING_ANNOTATION, read_annotation
from torchyard.run.folder import RunFolder
from torchyard.steps.hang_files import HANG_FOLDER, HANG_PAGE, format_time, read_hang
from torchyard.steps.log_reader import read_records

_NO_RECORDER = "the program has not started, or its torch is older or absent"
_MAX_ROWS = 128  # of a table
_MAX_GROUPS = 4  # of a rank
_MAX_WORLD = 100_000  # ranks that are listed as missing
_MAX_CELL_CHARS = 80
_MAX_TEXT_CHARS = 1000
_DUMP_NAME = re.compile(r"(\d{1,6})(?:\.\w+)?$")


class Findings(NamedTuple):
    """The last record of each rank of a run, the number of ranks, and the verdicts that follow."""

    records: Mapping[int, RankRecord]
    world: int
    hang: Hang | None = None
    straggler: Straggler | None = None


def explain_run(name: str, *, as_json: bool) -> int:
    """Print why a run hangs, or the state of its ranks. Errors as in `find_run`.

    The verdict of a job that ends or has ended is the last one from the time when it ran: the records of dying ranks
    prove nothing. A run that ended before its first attempt has no ranks: its report states why.
    """
    found_run = find_started_run(name)
    folder = found_run.folder
    report = folder.report()
    if report and not folder.attempts():
        return _explain_end_without_attempt(name, report, as_json=as_json)
    number = folder.attempts()[-1]
    ended = folder.ended(number)
    outcome = ended.outcome if ended else folder.outcome(number)
    findings = _evaluate_records(read_records(folder.plans()[-1].nodes))
    if outcome:
        findings = findings._replace(hang=outcome.hang, straggler=outcome.straggler or findings.straggler)
    elif folder.read_record().ending:
        findings = findings._replace(hang=read_hang(folder.attempt(number)))
    if as_json:
        report_missing_logs(found_run)
        failure = _find_failure(report, ended)
        fields = {
            "attempt": number,
            "end": report.end if report else None,
            "sentence": report.sentence if report else "",
            "failure": failure,
            "remedy": failure.cause.advice if failure else "",
            "bad_loss": outcome.bad_loss if outcome else None,
            "missing_logs": tuple(found_run.list_missing_logs()),
        }
        print_document(_build_document(name, findings).model_copy(update=fields))
        return ExitCode.SUCCESS
    lines: list[str] = []
    failure_sentence = _describe_failure(report, ended)
    if failure_sentence:
        lines.append(f"failed: {single_line(failure_sentence)}")
    lines += _list_run_lines(found_run, findings, failure_sentence)
    print(strip_control_codes("\n".join(lines)))
    return ExitCode.SUCCESS


def _explain_end_without_attempt(name: str, report: Report, *, as_json: bool) -> int:
    """Print why a run ended before it had started a job."""
    if as_json:
        document = _build_document(name, Findings({}, 0))
        print_document(document.model_copy(update={"end": report.end, "sentence": report.sentence}))
    else:
        print(strip_control_codes(f"{report.end} before the first attempt: {single_line(report.sentence)}"))
    return ExitCode.SUCCESS


def explain_leased_run(name: str, context: str, *, as_json: bool) -> int:
    """Print what the records in the pods' logs of a run show that another machine started.

    context: of the cluster; "" for the current one.

    A hang is not judged once the run or a pod of its last attempt ends: the records of dying ranks prove nothing.
    Errors as in `find_leased_run`.
    """
    from torchyard.cli.leased_run import copy_logs, find_leased_run, report_losses, wait_for_copies

    leased = find_leased_run(name, context)
    with copy_logs(leased, is_following=False) as copies:
        copies.update()
        wait_for_copies(copies)
        findings = _evaluate_records(read_records(copies.paths))
        report_losses(copies)
    is_ending = copies.has_ending_pods or bool(read_annotation(leased.lease, ENDING_ANNOTATION))
    if is_ending:
        findings = findings._replace(hang=None)
    if as_json:
        fields = {"attempt": copies.attempt or None, "missing_logs": tuple(copies.list_losses())}
        print_document(_build_document(name, findings).model_copy(update=fields))
        return ExitCode.SUCCESS
    lines = _list_lines(findings, f"{_NO_RECORDER}, or on_hang is off") if copies.paths else [f"{name} has no pod yet"]
    if is_ending:
        lines.append(f"the job of attempt {copies.attempt} ends or has ended, so it is not judged whether a rank hangs")
    print(strip_control_codes("\n".join(lines)))
    return ExitCode.SUCCESS


def explain_dumps(name: str, *, as_json: bool) -> int:
    """Print the verdict from the dumps of torch's flight recorder in a folder.

    TorchyardError if there is no such folder, if it contains no dump, or a file that is not one.
    """
    folder = Path(name)
    if not os.path.isdir(folder):
        problem = "is not a folder" if os.path.exists(folder) else "does not exist"
        raise TorchyardError(f"{folder} {problem}: name a run, or the folder with the dumps of torch's flight recorder")
    files: dict[int, Path] = {}
    for path in sorted(folder.glob("*")):
        match = _DUMP_NAME.search(path.name)
        if match:
            files[int(match[1])] = path
    if not files:
        raise TorchyardError(f"{folder}: no file there ends with a rank, as torch's dumps do: nccl_trace_rank_0")
    world = max(files) + 1
    records: dict[int, RankRecord] = {}
    for rank, path in sorted(files.items()):
        try:
            records[rank] = build_record(parse_dump(path.read_bytes()), rank, world)
        except (DumpError, OSError) as error:
            raise TorchyardError(f"{path}: {error}") from error
    findings = Findings(records, world, detect_hang(records, world))
    if as_json:
        print_document(_build_document(name, findings))
    else:
        print(strip_control_codes("\n".join(_list_lines(findings, _NO_RECORDER))))
    return ExitCode.SUCCESS


def _evaluate_records(lines: Iterable[LogLine]) -> Findings:
    """Read the records, and detect a hang as of the last one, by the nodes' clocks."""
    last = 0.0
    box = BlackBox(clock=lambda: last)
    for line in lines:
        last = max(last, line.timestamp)
        box.process_text(line.node, f"{line.text}\n")
    straggler = find_straggler(box.windows, {rank: record.node for rank, record in box.latest.items()})
    return Findings(box.latest, box.world, detect_hang(box.latest, box.world, box.get_record_ages()), straggler)


def _find_failure(report: Report | None, ended: Attempt | None) -> Failure | None:
    """The cause of a run that failed, or of its last attempt if the run continues; None if neither has failed."""
    if report:
        return find_failure(report)
    return ended.collected.failure if ended else None


def _describe_failure(report: Report | None, ended: Attempt | None) -> str:
    """Why the run failed, or its last attempt if the run continues; empty if neither has failed."""
    if report:
        return report.sentence if report.end in ("failed", "gave-up", "swept") else ""
    failure = _find_failure(report, ended)
    return failure.sentence if failure else ""


def _read_page(folder: RunFolder, attempt: int) -> list[str]:
    """The page of a hang that was detected during the run: an archive has it before it has the logs; [] without one."""
    try:
        page = (folder.attempt(attempt) / HANG_FOLDER / HANG_PAGE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return ["but a hang was detected:", *page.rstrip().split("\n")]


def _build_document(name: str, findings: Findings) -> WhyDocument:
    """What the records of the ranks show, as a document. `name`: of the run, or the folder of dumps."""
    return WhyDocument(
        run=name,
        hang=findings.hang,
        straggler=findings.straggler,
        world=findings.world,
        ranks=_sort_records(findings),
    )


def _sort_records(findings: Findings) -> tuple[RankRecord, ...]:
    return tuple(record for _, record in sorted(findings.records.items()))


# --- as text


def _list_run_lines(found_run: FoundRun, findings: Findings, failure_sentence: str) -> list[str]:
    """The hang, or the state of each rank, and the logs that could not be read; also the page of a hang without them.

    Only complete logs without a record prove that no rank has reported.

    `failure_sentence`: is printed above these lines; a hang's sentence that it contains is not repeated.
    """
    lines: list[str] = []
    missing_logs = found_run.describe_missing_logs()
    if missing_logs:
        lines.append(f"the records of ranks are in their logs, and {missing_logs}")
    if findings.hang or findings.records or not missing_logs:
        on_hang = found_run.folder.plans()[-1].on_hang
        finding_lines = _list_lines(findings, "on_hang is off" if on_hang == "off" else _NO_RECORDER)
        if findings.hang and findings.hang.sentence in failure_sentence:
            del finding_lines[0]
        lines += finding_lines
    if not findings.hang and not findings.records:
        lines += _read_page(found_run.folder, found_run.folder.attempts()[-1])
    return lines


def _list_lines(findings: Findings, no_record_reason: str) -> list[str]:
    """The hang, or the state of each rank; `no_record_reason`: why there may be no record."""
    if findings.hang:
        lines = _describe_hang(findings.hang)
    elif findings.records:
        lines = ["no rank is known to hang; the last report of each:", *_tabulate_ranks(findings)]
    else:
        lines = [f"no rank of this run has reported: {no_record_reason}"]
    if findings.straggler:
        lines.append(f"straggler: {describe_straggler(findings.straggler)}")
    return lines


def _describe_hang(hang: Hang) -> list[str]:
    """The sentence, the locations of the ranks, and the evidence."""
    lines = [single_line(hang.sentence, _MAX_TEXT_CHARS)]
    lines += align_columns(tabulate_locations(hang))
    lines += [f"  - {single_line(evidence, _MAX_TEXT_CHARS)}" for evidence in hang.evidence]
    return lines


def _tabulate_ranks(findings: Findings) -> list[str]:
    """The state of each rank in columns, and the ranks that have not reported."""
    header = ["rank", "node", "collectives done", "waits in", "place", "since", "seen (UTC)"]
    rows = [_describe_rank(record) for _, record in sorted(findings.records.items())]
    lines = align_columns([header, *select_ends(rows, _MAX_ROWS)])
    if len(rows) > _MAX_ROWS:
        lines.insert(1 + _MAX_ROWS // 2, f"    ... {len(rows) - _MAX_ROWS:,} more: see --json")
    missing = format_ranks(set(range(min(findings.world, _MAX_WORLD))) - findings.records.keys())
    if missing:
        lines.append(f"not reported: rank {single_line(missing, _MAX_TEXT_CHARS)}")
    return lines


def _describe_rank(record: RankRecord) -> list[str]:
    pending = record.pending
    cells = [
        str(record.rank),
        record.node,
        format_collective_counts(record),
        f"{pending.operation} {pending.sequence} of group {pending.group}" if pending else "",
        describe_location(record),
        format_duration(record.stalled_s) if math.isfinite(record.stalled_s) else "",
        format_time(record.timestamp, "%H:%M:%S"),
    ]
    return [single_line(cell, _MAX_CELL_CHARS) for cell in cells]


def format_collective_counts(record: RankRecord) -> str:
    """`7`, or `0: 7, 1: 3` for several groups; empty if the rank is in none."""
    groups = [(name, progress.completed) for name, progress in record.groups.items()]
    if len(groups) == 1:
        return str(groups[0][1])
    texts = [f"{name}: {completed}" for name, completed in groups[:_MAX_GROUPS]]
    if len(groups) > _MAX_GROUPS:
        texts.append(f"{len(groups) - _MAX_GROUPS} more")
    return ", ".join(texts)
