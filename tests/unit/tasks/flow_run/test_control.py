"""A run and its Prefect server: cancels are found once Prefect responds, and an outage ends nothing."""

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
