"""Prefect's API, through Prefect's own client: it knows passwords, API keys and Prefect Cloud."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


class YardError(Exception):
    """Something outside of the run went wrong; the message is a sentence for the user."""


@contextmanager
def open_prefect_client(timeout_s: float = 30) -> Iterator["SyncPrefectClient"]:
    """A client of the API that PREFECT_API_URL names; YardError if that does not answer, or refuses us.

    Prefect reads the environment when it is imported: nothing here imports it before the address is known.
    """
    import httpx
    from prefect import get_client

    if not os.environ.get("PREFECT_API_URL"):
        raise YardError("PREFECT_API_URL is not set")  # Prefect would start a temporary server
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": timeout_s}) as client:
            yield client
    except httpx.HTTPStatusError as error:
        raise YardError(_describe_refusal(error.response.status_code, str(error))) from error
    except httpx.HTTPError as error:
        raise YardError(
            f"no Prefect API answers at {_get_api_url()} ({error}): start it, or {_OWN_SERVER_HINT}"
        ) from error


_OWN_SERVER_HINT = "unset PREFECT_API_URL to have a server of this folder's own"


def _get_api_url() -> str:
    return os.environ["PREFECT_API_URL"]


def _describe_refusal(status: int, message: str) -> str:
    if status in (401, 403):
        return (
            f"the Prefect API at {_get_api_url()} refuses us ({status}): "
            "set PREFECT_API_AUTH_STRING (or PREFECT_API_KEY for Prefect Cloud) to what it asks for, "
            f"or {_OWN_SERVER_HINT}"
        )
    return f"the Prefect API at {_get_api_url()} answers {status}: {message[:300]}"
