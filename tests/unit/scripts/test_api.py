"""A Prefect API that is missing, does not respond or refuses: one message each, with a remedy."""

import os
from uuid import UUID

import pytest
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.settings import PREFECT_API_URL, temporary_settings

from scripts.api import YardError, open_prefect_client
from scripts.server import find_free_port
from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect


def list_pools() -> None:
    with open_prefect_client() as client:
        client.read_work_pools(limit=1)


def test_api_that_no_variable_names_is_an_error() -> None:
    """Without an address no request is made, for which Prefect would start a temporary server."""
    os.environ.pop("PREFECT_API_URL", None)
    with pytest.raises(YardError, match=r"^PREFECT_API_URL is not set$"):
        list_pools()


def test_api_that_does_not_respond_is_named() -> None:
    """The error names the address that does not respond, and how to use this folder's own server."""
    os.environ["PREFECT_API_URL"] = api = f"http://127.0.0.1:{find_free_port()}/api"
    with (
        temporary_settings({PREFECT_API_URL: api}),
        pytest.raises(YardError, match=rf"^no Prefect API responds at {api} .* unset PREFECT_API_URL to use this"),
    ):
        list_pools()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"rejects the credentials \(401\): set PREFECT_API_AUTH_STRING"),
        (403, r"rejects the credentials \(403\)"),
        (500, "responds with 500: "),
    ],
)
def test_refusal_names_the_setting(fake_prefect: FakePrefect, status: int, message: str) -> None:
    """Rejected credentials and a broken server have different messages."""
    fake_prefect.status = status
    with pytest.raises(YardError, match=f"^the Prefect API at {fake_prefect.url} {message}"):
        list_pools()


def test_request_to_a_busy_server_is_sent_again(fake_prefect: FakePrefect) -> None:
    """A server that is busy for a moment does not leave an installation half made."""
    fake_prefect.refusals = 1
    with open_prefect_client() as client:
        client.update_deployment(UUID(RUN_ID), DeploymentUpdate(paused=True))
    assert [update["paused"] for update in fake_prefect.updates] == [True]
