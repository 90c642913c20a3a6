"""What is kept of a hang: attempt-N/hang/ with every rank's record, the stacks, and the page to read first."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from torchyard.common.escaping import single_line
from torchyard.common.private_files import make_private_folder, write_private_text
from torchyard.common.ranks import format_ranks
from torchyard.model.hang import Frame, Hang, RankRecord

HANG_FOLDER, HANG_PAGE, STACKS_PAGE = "hang", "hang.txt", "stacks.txt"


def write_hang(folder: str | Path, hang: Hang, records: Mapping[int, RankRecord]) -> Path:
    """Write what is known of a hang into an attempt's folder; returns the page to read first. OSError.

    What an earlier hang of the attempt has left there is replaced.
    """
    place = Path(folder) / HANG_FOLDER
    make_private_folder(place)
    for path in place.glob("rank-*.json"):
        path.unlink(missing_ok=True)
    for rank, record in sorted(records.items()):
        write_private_text(place / f"rank-{rank}.json", record.model_dump_json(indent=1) + "\n")
    write_private_text(place / STACKS_PAGE, "\n\n".join(list_stacks(records)) + "\n")
    write_private_text(place / HANG_PAGE, "\n".join(_write_page(hang, records)) + "\n")
    return place / HANG_PAGE


def list_stacks(records: Mapping[int, RankRecord]) -> list[str]:
    """The ranks' stacks as text, innermost frame first, the one that most ranks have first."""
    same: dict[tuple[Frame, ...], list[int]] = {}
    for rank, record in records.items():
        same.setdefault(record.stack, []).append(rank)
    found = sorted(same.items(), key=lambda each: (-len(each[1]), min(each[1])))
    return ["\n".join([f"{count_ranks(ranks)}:", *_list_frames(stack)]) for stack, ranks in found]


def count_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, or `3 ranks (0-2)`."""
    known = sorted(set(ranks))
    return f"rank {known[0]}" if len(known) == 1 else f"{len(known)} ranks ({format_ranks(known)})"


def spell_time(at: float, form: str) -> str:
    """A time by a node's clock in UTC; what is no time, as it is."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):{form}}"
    except (ValueError, OverflowError, OSError):
        return f"{at:g}"


def _list_frames(stack: Iterable[Frame]) -> list[str]:
    told = [f'  File "{each.file}", line {each.line}, in {each.function}' for each in stack]
    return [single_line(each) for each in told] or ["  no stack is known"]


def _write_page(hang: Hang, records: Mapping[int, RankRecord]) -> list[str]:
    """The page that a person reads first."""
    at = max((record.at for record in records.values()), default=0.0)
    seen = [f"seen at {spell_time(at, '%Y-%m-%d %H:%M:%S')} UTC, by the nodes' clocks"] if at else []
    where = [f"where: {hang.location}"] if hang.location else []
    lines = [hang.sentence, "", f"kind: {hang.kind}", *where, *seen]
    lines += ["", "Where the ranks are:"] if hang.rank_groups else []
    lines += [f"  {count_ranks(each.ranks)}: {each.location}" for each in hang.rank_groups]
    lines += ["", "What proves it:"] if hang.evidence else []
    lines += [f"  - {each}" for each in hang.evidence]
    more = f"{STACKS_PAGE} has the Python stacks, rank-N.json what each rank has reported last."
    return [*map(single_line, lines), "", more]
