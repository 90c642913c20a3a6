"""A connection to the API server, and one request over it: its response, or the error that the server reports."""

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

import urllib3
from urllib3.connection import HTTPConnection

from torchyard.common.json_text import parse_json
from torchyard.host.identity import read_uptime
from torchyard.kube.absence import is_reported_absent
from torchyard.kube.retry import BRIEF_TIMEOUT_S, TransientError, UnprovenNotFoundError, parse_retry_after
from torchyard.model.errors import ClusterError, NotFoundError

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0  # until a response starts, and between its chunks
_CLOCK_JITTER_S = 2.0  # a difference of clocks within the error of Date, which has no fractions and arrives late
_TRANSIENT_STATUSES = (429, 500, 502, 503, 504)  # 500 is the response while etcd or a webhook is away
_JSON_HEADERS = {"Content-Type": "application/json", "User-Agent": "torchyard"}
_PATCH_CONTENT_TYPES: dict[type, str] = {dict: "application/merge-patch+json", list: "application/json-patch+json"}
# They keep a silent connection open across firewalls and detect a dead one; not every system has all of them.
_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
_START_SIZE = 100  # bytes of a response that is not kept, or is shown in a message
_OBJECT_START = re.compile(rb"""\s*\{\s*"(kind|apiVersion)"\s*:""")  # Go writes these fields first

Response = urllib3.BaseHTTPResponse


class Request(NamedTuple):
    """A request.

    read_timeout_s: seconds between two chunks of its response; None for `READ_TIMEOUT_S`.
    accept: the media types of its response.
    extra_headers: besides those of every request.
    """

    method: str
    path: str
    body: Any = None
    read_timeout_s: float | None = None
    accept: str = "application/json"
    extra_headers: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def without_query(self) -> str:
        """Method and path, for messages: a query may be long."""
        return str(self).partition("?")[0]


class Connection(NamedTuple):
    """A pool of connections to the API server, with its settings and credentials."""

    name: str
    settings: Any
    http: Any

    def send(self, request: Request) -> Response:
        """Send a request; return its response with the body unread.

        Raises TransientError if the same request may succeed later, ClusterError if the server refuses it.
        """
        body = json.dumps(request.body) if request.body is not None else None
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=request.read_timeout_s or READ_TIMEOUT_S)
        try:
            response: Response = self.http.request(
                request.method,
                f"{self.settings.host}{request.path}",
                headers=build_headers(self.settings, request),
                body=body,
                timeout=timeout,
                preload_content=False,
                retries=False,
            )
        except urllib3.exceptions.TimeoutError as error:
            self.http.clear()  # the pool's other connections are dead as well
            raise TransientError(_short_message(error)) from error
        except urllib3.exceptions.HTTPError as error:
            raise TransientError(_short_message(error)) from error
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise self._read_error(request, response)
        return response

    def _read_error(self, request: Request, response: Response) -> TransientError | ClusterError:
        """The error that a response reports."""
        try:
            return build_error(self, request, response.status, response.data, response.headers.get("Retry-After"))
        except urllib3.exceptions.HTTPError as error:
            return TransientError(f"the refusal broke off: {error}", response.status)
        finally:
            response.release_conn()


def build_path(path: str, query: Mapping[str, Any] | Sequence[tuple[str, str]] | None) -> str:
    """A path with its query. A sequence of pairs may have a key more than once."""
    return f"{path}?{urlencode(query)}" if query else path


def build_headers(settings: Any, request: Request) -> dict[str, str]:
    """The headers of a request, with the credentials of a connection's settings."""
    headers = _JSON_HEADERS | {"Accept": request.accept} | dict(request.extra_headers)
    if request.method == "PATCH":
        headers["Content-Type"] = _PATCH_CONTENT_TYPES[type(request.body)]
    token = settings.get_api_key_with_prefix("BearerToken", alias="authorization")
    if token:
        headers["Authorization"] = token
    return headers


def build_error(
    connection: Connection, request: Request, status: int, body: bytes, retry_after: str | None
) -> TransientError | ClusterError:
    """The error of a response with a status of 300 or more.

    Its message is that of the Status object in `body`, or the start of `body`. A 404 that is not the API server's own
    report of an absence is an UnprovenNotFoundError. `retry_after`: the header of that name.
    """
    if status < HTTPStatus.BAD_REQUEST:  # a redirect, such as that of a proxy to its login page
        return build_foreign_error(f"status {status}")
    text = body.decode(errors="replace")
    data = _parse_object(text)
    message = str(data.get("message") or text[:500])
    if status == HTTPStatus.NOT_FOUND:
        if is_reported_absent(data, request.method, request.path):
            return NotFoundError(str(connection.settings.host), str(request), message, status)
        return UnprovenNotFoundError(f"404, but not from an API server: {message}")
    if status in _TRANSIENT_STATUSES:
        is_webhook_timeout = status == 500 and "dryRun=All" in request.path
        timeout_s = BRIEF_TIMEOUT_S if is_webhook_timeout else None  # a dry run is meant to find it
        return TransientError(message, status, parse_retry_after(retry_after), timeout_s)
    if status == 401:
        message += f"; the credentials of {connection.name} are refused, also after a reload: log in again"
    return ClusterError(str(connection.settings.host), str(request), message, status)


def build_foreign_error(description: str) -> TransientError:
    """The error for a response that the API server never gives: a proxy or a load balancer has answered in its place.

    It proves nothing, neither that an object exists nor that it does not, and the request is repeated.
    """
    return TransientError(f"the response is not that of an API server: {description}")


def _parse_object(text: str) -> dict[str, Any]:
    """A JSON object; empty if the text is something else."""
    try:
        data = parse_json(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


class ServerClock:
    """The API server's time, from the Date header of its responses.

    Every thread that reads a response calls `update`; differences within `_CLOCK_JITTER_S` are ignored, so that `now`
    does not jump with each response. Between two responses the time advances with this machine's clock since boot: a
    correction of its wall clock changes nothing, and a suspend is counted.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._offset_s = time.time() - read_uptime()  # the server's clock minus this machine's clock since boot

    def update(self, date: str | None) -> None:
        """Take the time from a Date header; one that is missing or malformed changes nothing."""
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            offset_s = parsedate_to_datetime(date or "").timestamp() - read_uptime()
            if abs(offset_s - self._offset_s) > _CLOCK_JITTER_S:
                self._offset_s = offset_s
            self.is_set = True

    def now(self) -> float:
        """The server's time in seconds since the epoch; this machine's until the first `update`."""
        return read_uptime() + self._offset_s


def build_keepalive_options() -> list[Any]:
    """Socket options of a connection that stays open for hours."""
    options = list(HTTPConnection.default_socket_options)
    options.append((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))
    for name, value in _KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def read_json(response: Response, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
    """Read a response to its end and parse it: a JSON object with its kind, which an API server returns for each verb.

    That is an object, a list, a Status or a document of the discovery. TransientError if it breaks off or is not one.

    object_hook: changes each object as soon as it is parsed (see `json.loads`).
    """
    body = read_body(response)
    try:
        document = json.loads(body, object_hook=object_hook)  # `parse_json` is slow for a list of thousands of pods
    except RecursionError as error:
        raise build_foreign_error(f"it has too many levels: {_describe_body(body)}") from error
    except ValueError as error:
        if body.lstrip().startswith(b"{"):
            raise TransientError(f"the response broke off: {error}") from error
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise build_foreign_error(_describe_body(body))
    return document


def read_json_without_managers(response: Response) -> dict[str, Any]:
    """As `read_json`, without the `managedFields` of objects, each dropped before the next object is parsed."""
    return read_json(response, _drop_managers)


def _drop_managers(obj: dict[str, Any]) -> dict[str, Any]:
    obj.pop("managedFields", None)
    return obj


def discard_list(response: Response) -> None:
    """Read the response to the deletion of several objects to its end, and keep nothing: it contains all of them.

    TransientError if it breaks off, or does not start as a JSON object with its kind or version.
    """
    start = b""
    for chunk in split_chunks(response):
        start += chunk[: max(_START_SIZE - len(start), 0)]
    if not _OBJECT_START.match(start):
        raise build_foreign_error(_describe_body(start))


def _describe_body(body: bytes) -> str:
    """The start of a response, for messages."""
    return repr(body[:_START_SIZE].decode(errors="replace")) if body else "it is empty"


def read_body(response: Response) -> bytes:
    """Read a response to its end. TransientError if it breaks off."""
    try:
        return bytes(response.data)
    except urllib3.exceptions.HTTPError as error:
        raise TransientError(f"the response broke off: {error}") from error


def split_lines(response: Response) -> Iterator[bytes]:
    """The lines of a response as they arrive, each with its newline, which the last one may lack.

    TransientError if the response breaks off.
    """
    pieces: list[bytes] = []  # of the unfinished line; joined once, because a line may span many chunks
    for chunk in split_chunks(response):
        line_end, *next_lines = chunk.split(b"\n")
        pieces.append(line_end)
        for line in next_lines:
            yield b"".join(pieces) + b"\n"
            pieces = [line]
    last_line = b"".join(pieces)
    if last_line:
        yield last_line


def split_chunks(response: Response) -> Iterator[bytes]:
    """A response in chunks as they arrive. TransientError if it breaks off."""
    try:
        yield from response.stream(1 << 16, decode_content=True)
    except urllib3.exceptions.HTTPError as error:
        raise TransientError(_short_message(error)) from error


def _short_message(error: Exception) -> str:
    """The short cause inside urllib3's long sentence."""
    cause = getattr(error, "reason", None) or error
    return str(cause).rpartition(": ")[2] or type(error).__name__
