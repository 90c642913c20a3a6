"""A run and its Prefect server: cancels are found once Prefect responds, and an outage ends nothing."""

from typing import Any
from uuid import UUID

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL, temporary_settings

from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect
from tests.support.waiting import wait_until
from torchyard.run.signals import CancelRequested
from torchyard.tasks.flow_run.control import PrefectControl


def test_unreachable_prefect_cancels_nothing(server: FakePrefect) -> None:
    """A poll without a response does not count as a cancel, and the run continues."""
    with PrefectControl(RUN_ID) as control:
        wait_until(lambda: server.request_count > 2)
        control.check_cancelled()
        assert not control.is_cancelled()


def test_cancel_is_found_once_prefect_answers(server: FakePrefect) -> None:
    """A cancel during an outage of the server ends the run as soon as the server responds."""
    server.state = "CANCELLING"
    with PrefectControl(RUN_ID) as control:
        wait_until(lambda: server.request_count > 2)
        control.check_cancelled()
        server.answering.set()
        wait_until(control.is_cancelled)
        with pytest.raises(CancelRequested):
            wait_until(control.check_cancelled)


def test_link_leads_to_the_page_of_the_run() -> None:
    """Messages and experiments contain the address of the run's page; without a UI it is empty."""
    with temporary_settings({PREFECT_UI_URL: "http://prefect:4200"}):
        assert PrefectControl(RUN_ID).link == f"http://prefect:4200/runs/flow-run/{RUN_ID}"
    with temporary_settings({PREFECT_UI_URL: None, PREFECT_API_URL: None}):
        assert PrefectControl(RUN_ID).link == ""


def build_task_run(number: int, flow_run_run_count: int) -> dict[str, Any]:
    """An unfinished task run, as Prefect lists it."""
    return {
        "id": str(UUID(int=number)),
        "flow_run_id": RUN_ID,
        "task_key": "wait",
        "dynamic_key": str(number),
        "flow_run_run_count": flow_run_run_count,
        "state": {"type": "RUNNING"},
    }


def list_crashed_tasks(server: FakePrefect, count: int) -> list[int]:
    """The numbers of the task runs that the process with this count sets to Crashed."""
    server.answering.set()
    server.responses = {"/task_runs/filter": [build_task_run(number, number) for number in range(3)]}
    with PrefectControl(RUN_ID, count) as control:
        assert not control.is_cancelled()  # all calls before it are made
    paths = [path for path, _ in server.posted if path.endswith("/set_state")]
    return [UUID(path.split("/")[-2]).int for path in paths]


@pytest.mark.parametrize(("count", "crashed"), [(1, []), (2, [1]), (3, [1, 2])])
def test_only_tasks_of_earlier_processes_are_lost(server: FakePrefect, count: int, crashed: list[int]) -> None:
    """A task of this process, which Prefect may have recorded only as created (count 0), was not lost."""
    assert list_crashed_tasks(server, count) == crashed
