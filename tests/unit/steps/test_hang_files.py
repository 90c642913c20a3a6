"""The files about a hang, in its attempt's folder."""

from pathlib import Path

from tests.builders.hang_examples import HANG, LOADING_STACK, RECORDS, build_job_record
from tests.support.private_modes import list_accessible_to_others
from torchyard.model.hang import RankRecord
from torchyard.steps.hang_files import format_stacks, format_time, write_hang_files


def test_page_has_sentence_locations_and_evidence(tmp_path: Path) -> None:
    """The page begins with the sentence, and contains the locations of all ranks and the evidence."""
    lines = write_hang_files(tmp_path, HANG, RECORDS).read_text().splitlines()
    assert lines[0] == HANG.sentence
    assert "  3 ranks (0-1, 3): all_reduce (distributed.py:99)" in lines
    assert "  rank 2: read_shard (train.py:12)" in lines
    assert "  - rank 2 has called 6 collectives, the others 7" in lines
    assert "seen at 1970-01-01 00:16:40 UTC, by the nodes' clocks" in lines


def test_every_rank_has_its_record(tmp_path: Path) -> None:
    """The record files are complete, and those of an earlier hang are removed."""
    write_hang_files(tmp_path, HANG, {9: build_job_record(9)})
    write_hang_files(tmp_path, HANG, RECORDS)
    record_paths = sorted(tmp_path.glob("hang/rank-*.json"))
    assert [RankRecord.model_validate_json(path.read_text()) for path in record_paths] == list(RECORDS.values())


def test_same_stack_is_written_once() -> None:
    """Ranks with the same stack share its text, and the stack of most ranks comes first."""
    largest_group, other_group = format_stacks(RECORDS)
    assert largest_group.startswith("3 ranks (0-1, 3):\n")
    assert other_group.splitlines() == [
        *("rank 2:", '  File "/code/train.py", line 12, in read_shard', '  File "t.py", line 40, in main'),
    ]


def test_rank_without_a_stack_is_named() -> None:
    """A rank whose stack could not be read is listed too."""
    assert format_stacks({0: build_job_record(0, stack=())}) == ["rank 0:\n  no stack is known"]


def test_control_codes_are_removed_from_the_pages(tmp_path: Path) -> None:
    """Control codes in a function's name, which comes from the job, are removed."""
    frame = LOADING_STACK[0].model_copy(update={"function": "\x1b[2Jgone"})
    page = write_hang_files(
        tmp_path, HANG.model_copy(update={"location": "\x1b]0;x\x07"}), {0: build_job_record(0, stack=(frame,))}
    )
    assert "\x1b" not in page.read_text() + (page.parent / "stacks.txt").read_text()


def test_invalid_time_is_formatted_as_a_number() -> None:
    """The time of a record, which comes from the job and may be any number, is formatted without an error."""
    assert [format_time(timestamp, "%H:%M") for timestamp in (60.0, 1e300, float("nan"))] == ["00:01", "1e+300", "nan"]


def test_files_are_private(tmp_path: Path) -> None:
    """Only the user can read the folder and its files, because stacks contain the user's paths."""
    folder = write_hang_files(tmp_path, HANG, RECORDS).parent
    assert list_accessible_to_others(folder) == []
