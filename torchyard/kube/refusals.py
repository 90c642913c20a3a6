"""What a refusal of the API server means, which its discovery, its readiness and new credentials show."""

import re
from http import HTTPStatus
from typing import Any

from torchyard.common.json_text import parse_json
from torchyard.kube.absence import ResourcePath, parse_resource_path
from torchyard.kube.credentials import Credentials
from torchyard.kube.http import Connection, Request, build_foreign_error, read_body
from torchyard.kube.retry import REQUEST_TIMEOUT_S, TransientError, UnprovenNotFoundError
from torchyard.model.errors import ClusterError, NotFoundError

_UNREAD_ROLE_PATTERN = re.compile(r"RBAC: .*\bnot found")  # a binding was read before its role


def check_refusal(
    credentials: Credentials[Connection],
    connection: Connection,
    request: Request,
    error: ClusterError | TransientError,
) -> None:
    """Return if a request that `connection` sent and the server refused is to be sent once more.

    Otherwise raise `error`, NotFoundError for a kind that the server does not serve, or TransientError while the server
    is not ready. May block, for requests of its own and for the reload of
    credentials.
    """
    if isinstance(error, UnprovenNotFoundError):
        _check_served(connection, request)
    if isinstance(error, TransientError):
        raise error
    if error.status == HTTPStatus.FORBIDDEN:
        startup_error = _find_startup_error(connection, error.message)
        if startup_error:
            raise startup_error from error
        # Send it again: the server may have become ready since the refusal, so only a second one counts.
    elif error.status != HTTPStatus.UNAUTHORIZED or not credentials.renew(connection):
        raise error


def check_ready(connection: Connection) -> None:
    """Raise TransientError or ClusterError unless the API server reports that it is ready.

    Where /readyz is refused, readable discovery shows that the server has read its access rules.
    """
    try:
        _read_readiness(connection)
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        _read_discovery(connection, "/apis", "APIGroupList")


def _read_readiness(connection: Connection) -> None:
    """Raise TransientError or ClusterError unless the response to /readyz is that of a ready API server."""
    body = _read(connection, "/readyz")
    if body.strip() != b"ok":
        raise TransientError(f"the server is not ready: {body[:100]!r}")


def _check_served(connection: Connection, request: Request) -> None:
    """Raise NotFoundError if the API server's discovery lacks the kind of a request; return if that is not known."""
    resource = parse_resource_path(request.path)
    if resource and not _is_served(connection, resource):
        message = f"this API server does not serve {resource.plural} of {resource.version}"
        raise NotFoundError(str(connection.settings.host), str(request), message, HTTPStatus.NOT_FOUND)


def _is_served(connection: Connection, resource: ResourcePath) -> bool:
    """Whether the API server serves a kind; True if that cannot be read."""
    try:
        if resource.root == "/apis":
            groups = _read_discovery(connection, "/apis", "APIGroupList")["groups"]
            if not any(resource.version == served["groupVersion"] for group in groups for served in group["versions"]):
                return False
        path = f"{resource.root}/{resource.version}"
        served_resources = _read_discovery(connection, path, "APIResourceList")["resources"]
        return any(resource.plural == served["name"] for served in served_resources)
    except (TransientError, ClusterError, KeyError, TypeError):
        return True


def _read_discovery(connection: Connection, path: str, kind: str) -> dict[str, Any]:
    """A discovery document. TransientError if the response is not a document of this kind."""
    body = _read(connection, path)
    try:
        document = parse_json(body)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise build_foreign_error(f"GET {path}")
    return document


def _find_startup_error(connection: Connection, message: str) -> TransientError | None:
    """The error for a 403 with `message` from a server that has just started; None if the refusal counts.

    Until a server has read its access rules it refuses /readyz as well, and discovery, which every user may read. Some
    servers always refuse /readyz.
    """
    unready = f"the server is not ready: {message}"
    try:
        _read_readiness(connection)
    except TransientError:
        return TransientError(unready, HTTPStatus.FORBIDDEN)
    except ClusterError as error:
        if error.status == HTTPStatus.FORBIDDEN and (
            _UNREAD_ROLE_PATTERN.search(error.message) or not _is_discovery_allowed(connection)
        ):
            # Also for a caller with less patience: a loaded server needs more than 15 s to read its access rules.
            return TransientError(unready, HTTPStatus.FORBIDDEN, timeout_s=REQUEST_TIMEOUT_S)
    return None


def _is_discovery_allowed(connection: Connection) -> bool:
    try:
        _read_discovery(connection, "/apis", "APIGroupList")
    except (TransientError, ClusterError):
        return False
    return True


def _read(connection: Connection, path: str) -> bytes:
    """The body of the response to a GET."""
    return read_body(connection.send(Request("GET", path)))
