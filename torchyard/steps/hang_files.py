"""The files of a hang: attempt-N/hang/ with the record of each rank, the stacks, and the page to read first.

hang.json is the verdict while it stands, so that it is known after the job was stopped, whoever stopped it.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from torchyard.common.escaping import single_line
from torchyard.common.private_files import make_private_folder, write_private_text
from torchyard.common.text import format_ranks
from torchyard.model.hang import Frame, Hang, RankRecord

HANG_FOLDER = "hang"
HANG_PAGE = "hang.txt"
STACKS_PAGE = "stacks.txt"
_VERDICT = "hang.json"


def write_hang_files(folder: str | Path, hang: Hang, records: Mapping[int, RankRecord]) -> Path:
    """Write the files of a hang into an attempt's folder; return the page to read first. OSError if that fails.

    The files of an earlier hang of the attempt are replaced.
    """
    hang_folder = Path(folder) / HANG_FOLDER
    make_private_folder(hang_folder)
    for path in hang_folder.glob("rank-*.json"):
        path.unlink(missing_ok=True)
    for rank, record in sorted(records.items()):
        write_private_text(hang_folder / f"rank-{rank}.json", record.model_dump_json(indent=1) + "\n")
    write_private_text(hang_folder / STACKS_PAGE, "\n\n".join(format_stacks(records)) + "\n")
    write_private_text(hang_folder / HANG_PAGE, "\n".join(_render_page(hang, records)) + "\n")
    write_private_text(hang_folder / _VERDICT, hang.model_dump_json(indent=1) + "\n")
    return hang_folder / HANG_PAGE


def remove_hang(folder: str | Path) -> None:
    """Remove the verdict of an attempt, because it no longer stands; the pages stay. OSError if that fails."""
    (Path(folder) / HANG_FOLDER / _VERDICT).unlink(missing_ok=True)


def read_hang(folder: str | Path) -> Hang | None:
    """The last verdict on an attempt; None if none stood at its end, or if it cannot be read."""
    try:
        text = (Path(folder) / HANG_FOLDER / _VERDICT).read_text(encoding="utf-8")
        return Hang.model_validate_json(text)
    except (OSError, ValueError):
        return None


def format_stacks(records: Mapping[int, RankRecord]) -> list[str]:
    """The ranks' stacks as text, innermost frame first; the stack of most ranks comes first."""
    by_stack: dict[tuple[Frame, ...], list[int]] = {}
    for rank, record in records.items():
        by_stack.setdefault(record.stack, []).append(rank)
    groups = sorted(by_stack.items(), key=lambda group: (-len(group[1]), min(group[1])))
    return ["\n".join([f"{describe_ranks(ranks)}:", *_format_frames(stack)]) for stack, ranks in groups]


def describe_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, or `3 ranks (0-2)`."""
    unique_ranks = sorted(set(ranks))
    if len(unique_ranks) == 1:
        return f"rank {unique_ranks[0]}"
    return f"{len(unique_ranks)} ranks ({format_ranks(unique_ranks)})"


def format_time(timestamp: float, date_format: str) -> str:
    """Format seconds since the epoch in UTC; a number that is not a valid time is formatted as a number."""
    try:
        return f"{datetime.fromtimestamp(timestamp, UTC):{date_format}}"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp:g}"


def _format_frames(stack: Iterable[Frame]) -> list[str]:
    lines = [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in stack]
    return [single_line(line) for line in lines] or ["  no stack is known"]


def _render_page(hang: Hang, records: Mapping[int, RankRecord]) -> list[str]:
    """The lines of the page that a user reads first."""
    newest_at = max((record.timestamp for record in records.values()), default=0.0)
    time_lines = (
        [f"seen at {format_time(newest_at, '%Y-%m-%d %H:%M:%S')} UTC, by the nodes' clocks"] if newest_at else []
    )
    location_lines = [f"where: {hang.location}"] if hang.location else []
    lines = [hang.sentence, "", f"kind: {hang.kind}", *location_lines, *time_lines]
    lines += ["", "Where the ranks are:"] if hang.rank_groups else []
    lines += [f"  {describe_ranks(group.ranks)}: {group.location}" for group in hang.rank_groups]
    lines += ["", "What proves it:"] if hang.evidence else []
    lines += [f"  - {evidence}" for evidence in hang.evidence]
    footer = f"{STACKS_PAGE} contains the Python stacks, rank-N.json the last record of each rank."
    return [*map(single_line, lines), "", footer]
