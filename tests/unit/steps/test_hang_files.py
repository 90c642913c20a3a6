"""The files about a hang, in its attempt's folder."""

from pathlib import Path

from tests.hangs import HANG, LOADS, RECORDS, record
from tests.private_modes import open_to_others
from torchyard.model.hang import RankRecord
from torchyard.steps.hang_files import format_stacks, format_time, write_hang_files


def test_page_says_what_a_person_reads_first(tmp_path: Path) -> None:
    """The page begins with the sentence, and has the places of all ranks and the evidence."""
    lines = write_hang_files(tmp_path, HANG, RECORDS).read_text().splitlines()
    assert lines[0] == HANG.sentence
    assert "  3 ranks (0-1, 3): all_reduce (distributed.py:99)" in lines
    assert "  rank 2: read_shard (train.py:12)" in lines
    assert "  - rank 2 has called 6 collectives, the others 7" in lines
    assert "seen at 1970-01-01 00:16:40 UTC, by the nodes' clocks" in lines


def test_every_rank_has_its_record(tmp_path: Path) -> None:
    """A record is read back as it was, and none of an earlier hang is left."""
    write_hang_files(tmp_path, HANG, {9: record(9)})
    write_hang_files(tmp_path, HANG, RECORDS)
    record_paths = sorted(tmp_path.glob("hang/rank-*.json"))
    assert [RankRecord.model_validate_json(path.read_text()) for path in record_paths] == list(RECORDS.values())


def test_same_stack_is_written_once() -> None:
    """Ranks at the same place share a stack, as Python writes it; most ranks come first."""
    largest_group, other_group = format_stacks(RECORDS)
    assert largest_group.startswith("3 ranks (0-1, 3):\n")
    assert other_group.splitlines() == [
        *("rank 2:", '  File "/code/train.py", line 12, in read_shard', '  File "t.py", line 40, in main'),
    ]


def test_rank_without_a_stack_is_named() -> None:
    """A rank whose stack could not be read is not left out."""
    assert format_stacks({0: record(0, stack=())}) == ["rank 0:\n  no stack is known"]


def test_terminal_obeys_nothing_in_the_pages(tmp_path: Path) -> None:
    """A function's name comes from the job, and may hold anything."""
    frame = LOADS[0].model_copy(update={"function": "\x1b[2Jgone"})
    page = write_hang_files(
        tmp_path, HANG.model_copy(update={"location": "\x1b]0;x\x07"}), {0: record(0, stack=(frame,))}
    )
    assert "\x1b" not in page.read_text() + (page.parent / "stacks.txt").read_text()


def test_time_that_is_none_is_told() -> None:
    """A record's time comes from the job, and may be any number."""
    assert [format_time(timestamp, "%H:%M") for timestamp in (60.0, 1e300, float("nan"))] == ["00:01", "1e+300", "nan"]


def test_only_the_user_reads_them(tmp_path: Path) -> None:
    """Folder and files are private: stacks name the user's files."""
    folder = write_hang_files(tmp_path, HANG, RECORDS).parent
    assert open_to_others(folder) == []
