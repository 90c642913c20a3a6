"""Decides whether a refused request is sent once more: with new credentials, or because the server has just started."""

import re
from http import HTTPStatus

from torchyard.kube.credentials import Credentials
from torchyard.kube.http import Connection, Request
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

_ACCESS_RULES_TIMEOUT_S = 15.0  # seconds that a server which refuses even discovery may take to read its access rules
_UNREAD_ROLE_PATTERN = re.compile(r"RBAC: .*\bnot found")  # a binding was read before its role


def check_refusal(credentials: Credentials[Connection], connection: Connection, error: ClusterError) -> None:
    """Return if a request that `connection` sent and the server refused is to be sent once more.

    Otherwise raise `error`, or TransientError while the server is not ready. May block, for requests of its own and for
    the reload of credentials.
    """
    if error.status == HTTPStatus.FORBIDDEN:
        startup_error = _find_startup_error(connection, error.message)
        if startup_error:
            raise startup_error from error
        # Send it again: the server may have become ready since the refusal, so only a second one counts.
    elif error.status != HTTPStatus.UNAUTHORIZED or not credentials.renew(connection):
        raise error


def _find_startup_error(connection: Connection, message: str) -> TransientError | None:
    """The error for a 403 with `message` from a server that has just started; None if the refusal counts.

    Until a server has read its access rules it refuses /readyz as well, and discovery, which every user may read. Some
    servers always refuse /readyz.
    """
    unready = f"the server is not ready: {message}"
    try:
        _probe(connection, "/readyz")
    except TransientError:
        return TransientError(unready, HTTPStatus.FORBIDDEN)
    except ClusterError as error:
        if error.status == HTTPStatus.FORBIDDEN and (
            _UNREAD_ROLE_PATTERN.search(error.message) or not _is_discovery_allowed(connection)
        ):
            return TransientError(unready, HTTPStatus.FORBIDDEN, timeout_s=_ACCESS_RULES_TIMEOUT_S)
    return None


def _is_discovery_allowed(connection: Connection) -> bool:
    try:
        _probe(connection, "/apis")
    except (TransientError, ClusterError):
        return False
    return True


def _probe(connection: Connection, path: str) -> None:
    """Send a GET and drop its response."""
    connection.send(Request("GET", path)).drain_conn()  # an unread body would precede the next response
