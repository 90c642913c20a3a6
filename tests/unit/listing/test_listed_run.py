"""The list of runs as data: its schema."""

from typing import get_args

from tests.builders.listed_runs import build_row
from torchyard.listing.listed_run import RunList, RunState
from torchyard.model.run import End, JobProgress


def test_every_end_of_a_run_is_a_state() -> None:
    """Whatever end a run can have, the list can show it."""
    assert set(get_args(End)) <= set(get_args(RunState))


def test_printed_list_can_be_read_again() -> None:
    """The JSON of a list, with every field, is valid by the schema."""
    progress = JobProgress(attempt=1, updated_at=1.0, done="epoch 1 of 4", percent=25.0, remaining_s=30.0)
    run_list = RunList(runs=(build_row(progress=progress),), problems=("the archive cannot be read",))
    assert RunList.model_validate_json(run_list.model_dump_json()) == run_list
