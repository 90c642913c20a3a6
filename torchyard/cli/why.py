"""`torchyard why RUN`, while the run goes on or after it: which rank hangs, where, and why, or what each does.

`torchyard why FOLDER/` says the same of dumps that torch's flight recorder has written there.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from torchyard.cli.find import find_run
from torchyard.common.escaping import single_line, strip_control_codes
from torchyard.common.ranks import format_ranks
from torchyard.diagnosis.hang.flight_recorder import DumpError, read_dump, to_record
from torchyard.diagnosis.hang.judge import judge_hang
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.diagnosis.hang.stack_locations import describe_place
from torchyard.diagnosis.hang.stragglers import describe_straggler, find_straggler
from torchyard.model.errors import TorchyardError
from torchyard.model.hang import Hang, OnHang, RankRecord, Straggler
from torchyard.model.plan import Plan
from torchyard.model.run import LogLine, Outcome
from torchyard.pages.hang import tabulate_places
from torchyard.pages.text import align_columns, format_duration, select_ends
from torchyard.run.folder import RunFolder
from torchyard.steps.hang_files import HANG_FOLDER, HANG_PAGE, spell_time
from torchyard.steps.log_reader import read_records
from torchyard.steps.log_tail import LogTails

_MAX_ROWS, _MAX_GROUPS, _MAX_WORLD = 128, 4, 100_000  # of a table; of a rank; ranks that are looked for, at most
_MAX_CELL_CHARS, _MAX_TEXT_CHARS = 80, 1000


_DUMP_NAME = re.compile(r"(\d{1,6})(?:\.\w+)?$")


class Findings(NamedTuple):
    """What the records of a run say: each rank's last one, the number of ranks, and what follows from them."""

    records: Mapping[int, RankRecord]
    world: int
    hang: Hang | None = None
    straggler: Straggler | None = None


def explain_run(name: str, as_json: bool) -> int:
    """Print why a run hangs, or what its ranks do. ProfileError if there is no such run."""
    folder = find_run(name)
    number, plan = folder.attempts()[-1], folder.plans()[-1]
    outcome = folder.outcome(number)
    found = _judge(read_records(plan), _find_end(plan) if outcome else None)
    found = _prefer_known(found, outcome)
    failure = _read_failure(folder, number)
    if as_json:
        print(json.dumps({"run": name, "attempt": number, "failure": failure or None, **_dump(found)}, indent=1))
    else:
        said = _list_lines(found, plan.on_hang)
        said += [] if found.hang or found.records else _read_page(folder, number)
        print(strip_control_codes("\n".join([*([f"failed: {single_line(failure)}"] if failure else []), *said])))
    return 0


def explain_dumps(name: str, as_json: bool) -> int:
    """Print what the dumps of torch's flight recorder in a folder prove. TorchyardError if one of them is none."""
    folder, found = Path(name), dict[int, RankRecord]()
    files = {int(match[1]): path for path in sorted(folder.glob("*")) if (match := _DUMP_NAME.search(path.name))}
    if not files:
        raise TorchyardError(f"{folder}: no file there ends with a rank, as torch's dumps do: nccl_trace_rank_0")
    for rank, path in sorted(files.items()):
        try:
            found[rank] = to_record(read_dump(path.read_bytes()), rank, max(files) + 1)
        except (DumpError, OSError) as error:
            raise TorchyardError(f"{path}: {error}") from error
    told = Findings(found, max(files) + 1, judge_hang(found, max(files) + 1))
    print(json.dumps(_dump(told), indent=1) if as_json else strip_control_codes("\n".join(_list_lines(told, "report"))))
    return 0


def _judge(lines: Iterable[LogLine], ended_at: float | None) -> Findings:
    """Read the records, and judge them as of the last one, or of the end: nodes have other clocks."""
    last = ended_at or 0.0
    box = BlackBox(clock=lambda: last)
    for line in lines:
        last = max(last, line.timestamp)
        box.feed(line.node, f"{line.text}\n")
    late = find_straggler(box.windows, {rank: record.node for rank, record in box.latest.items()})
    return Findings(box.latest, box.world, judge_hang(box.latest, box.world, box.ages()), late)


def _find_end(plan: Plan) -> float:
    """When the job printed its last line."""
    logs = LogTails(plan.nodes)
    return max((line.timestamp for node in plan.nodes for line in logs.last(node, 1)), default=0.0)


def _prefer_known(found: Findings, outcome: Outcome | None) -> Findings:
    """What was seen while the job ran counts, not what its end looks like; a job that succeeded did not hang."""
    if outcome is None:
        return found
    done = outcome.status.state == "succeeded"
    hang, late = outcome.hang or (None if done else found.hang), outcome.straggler or found.straggler
    return found._replace(hang=hang, straggler=late)


def _read_failure(folder: RunFolder, attempt: int) -> str:
    """Why the run failed, or its last attempt did if the run still goes on; empty if neither has."""
    report = folder.report()
    if report:
        return report.sentence if report.end in ("failed", "gave-up", "swept") else ""
    ended = folder.ended(attempt)
    return ended.collected.failure.sentence if ended and ended.collected.failure else ""


def _read_page(folder: RunFolder, attempt: int) -> list[str]:
    """What was written of a hang, if the logs are not here: an archive has the page before it has the logs."""
    try:
        page = (folder.attempt(attempt) / HANG_FOLDER / HANG_PAGE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return ["but a hang has been seen:", *page.rstrip().split("\n")]


def _dump(found: Findings) -> dict[str, object]:
    return {
        "hang": found.hang.model_dump(mode="json") if found.hang else None,
        "straggler": found.straggler.model_dump(mode="json") if found.straggler else None,
        "world": found.world,
        "ranks": [record.model_dump(mode="json") for _, record in sorted(found.records.items())],
    }


# --- as text


def _list_lines(found: Findings, on_hang: OnHang) -> list[str]:
    late = [f"straggler: {describe_straggler(found.straggler)}"] if found.straggler else []
    if found.hang:
        return [*_describe_hang(found.hang), *late]
    if not found.records:
        why = "on_hang is off" if on_hang == "off" else "the program has not started, or its torch is older or absent"
        return [f"no rank of this run has reported: {why}", *late]
    return ["no rank is known to hang; what each has reported last:", *_tabulate_ranks(found), *late]


def _describe_hang(hang: Hang) -> list[str]:
    """The sentence, where the ranks are, and what proves it."""
    table = align_columns(tabulate_places(hang), str.ljust)
    return [
        single_line(hang.sentence, _MAX_TEXT_CHARS),
        *table,
        *(f"  - {single_line(each, _MAX_TEXT_CHARS)}" for each in hang.evidence),
    ]


def _tabulate_ranks(found: Findings) -> list[str]:
    """What each rank does, in columns; and which ranks have not reported."""
    head = ["rank", "node", "collectives done", "waits in", "place", "since", "seen (UTC)"]
    rows = [_describe_rank(record) for _, record in sorted(found.records.items())]
    lines = align_columns([head, *select_ends(rows, _MAX_ROWS)], str.ljust)
    if len(rows) > _MAX_ROWS:
        lines.insert(1 + _MAX_ROWS // 2, f"    ... {len(rows) - _MAX_ROWS:,} more: see --json")
    missing = format_ranks(set(range(min(found.world, _MAX_WORLD))) - found.records.keys())
    return [*lines, *([f"not reported: rank {single_line(missing, _MAX_TEXT_CHARS)}"] if missing else [])]


def _describe_rank(record: RankRecord) -> list[str]:
    waits = record.waits
    cells = [
        str(record.rank),
        record.node,
        _count_collectives(record),
        f"{waits.operation} {waits.sequence} of group {waits.group}" if waits else "",
        describe_place(record),
        format_duration(record.stalled_s) if math.isfinite(record.stalled_s) else "",
        spell_time(record.at, "%H:%M:%S"),
    ]
    return [single_line(cell, _MAX_CELL_CHARS) for cell in cells]


def _count_collectives(record: RankRecord) -> str:
    """`7`, or `0: 7, 1: 3` for several groups; empty if the rank is in none."""
    groups = [(name, progress.completed) for name, progress in record.groups.items()]
    if len(groups) == 1:
        return str(groups[0][1])
    more = [f"{len(groups) - _MAX_GROUPS} more"] if len(groups) > _MAX_GROUPS else []
    return ", ".join([*(f"{name}: {done}" for name, done in groups[:_MAX_GROUPS]), *more])
