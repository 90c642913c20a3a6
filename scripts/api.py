"""Prefect's API, through Prefect's own client, which handles passwords, API keys and Prefect Cloud."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


class YardError(Exception):
    """A command of scripts/ cannot continue; the message is for the user, and no traceback is printed."""


@contextmanager
def open_prefect_client(*, timeout_s: float = 30) -> Iterator["SyncPrefectClient"]:
    """Open a client of the API at PREFECT_API_URL.

    Raises YardError, also from the `with` block, if the variable is not set, or if the API does not respond or refuses
    a request. Prefect reads the environment when it is imported, so it is imported only here, once the address is set.
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
            f"no Prefect API responds at {_get_api_url()} ({error}): start it, or {_OWN_SERVER_HINT}"
        ) from error


_OWN_SERVER_HINT = "unset PREFECT_API_URL to use this folder's own server"


def _get_api_url() -> str:
    return os.environ["PREFECT_API_URL"]


def _describe_refusal(status: int, message: str) -> str:
    if status in (401, 403):
        return (
            f"the Prefect API at {_get_api_url()} rejects the credentials ({status}): "
            "set PREFECT_API_AUTH_STRING (or PREFECT_API_KEY for Prefect Cloud) to valid ones, "
            f"or {_OWN_SERVER_HINT}"
        )
    return f"the Prefect API at {_get_api_url()} responds with {status}: {message[:300]}"
