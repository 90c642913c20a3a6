"""A connection to the API server, and one request over it: an answer, a refusal in the server's words, or neither."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import urllib3
from urllib3.connection import HTTPConnection

from torchyard.kube.retry import BRIEF_TIMEOUT_S, TransientError, read_retry_after
from torchyard.model.errors import ClusterError

_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 30.0  # until an answer begins
_CLOCK_JITTER_S = 2.0  # an apparent difference of clocks that means nothing: Date has no fractions, answers take time
# 500 is what the API server says while etcd or a webhook is away.
_TRANSIENT_STATUSES = (429, 500, 502, 503, 504)
_JSON_HEADERS = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "torchyard"}
_PATCH_CONTENT_TYPES: dict[type, str] = {dict: "application/merge-patch+json", list: "application/json-patch+json"}
# They keep a silent connection open across firewalls and detect a dead one; not every system has all of them.
_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


class Request(NamedTuple):
    """A request; `silence`: how many seconds nothing may come, if not the limit of any answer."""

    method: str
    path: str
    body: Any = None
    silence: float | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def without_query(self) -> str:
        return str(self).partition("?")[0]


class Connection(NamedTuple):
    """A pool of connections to the API server, with its settings and credentials."""

    name: str
    settings: Any
    http: Any

    @property
    def has_credentials(self) -> bool:
        return bool(self.settings.api_key or self.settings.cert_file)

    def send(self, asked: Request) -> Any:
        """The answer, its body unread. TransientError if the request may be repeated, ClusterError if it is refused."""
        headers = {
            **_JSON_HEADERS,
            **({"Content-Type": _PATCH_CONTENT_TYPES[type(asked.body)]} if asked.method == "PATCH" else {}),
        }
        if token := self.settings.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        data = json.dumps(asked.body) if asked.body is not None else None
        how = {
            "body": data,
            "headers": headers,
            "timeout": urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=asked.silence or _ANSWER_TIMEOUT_S),
        }
        try:
            url = f"{self.settings.host}{asked.path}"
            response = self.http.request(asked.method, url, preload_content=False, retries=False, **how)
        except urllib3.exceptions.HTTPError as error:
            if isinstance(error, urllib3.exceptions.TimeoutError):
                self.http.clear()  # other open connections to it are dead as well
            raise TransientError(_short_reason(error)) from error
        if response.status >= 400:
            raise self._refusal(asked, response)
        return response

    def _refusal(self, asked: Request, response: Any) -> TransientError | ClusterError:
        """The server's refusal, in its own words."""
        try:
            said = response.data.decode(errors="replace")
        except urllib3.exceptions.HTTPError as error:
            return TransientError(f"the refusal broke off: {error}", response.status)
        finally:
            response.release_conn()
        try:
            message = str(json.loads(said)["message"])
        except (ValueError, KeyError, TypeError):
            message = said[:500]
        if response.status in _TRANSIENT_STATUSES:
            # A dry run is meant to find the webhook that does not answer.
            timeout_s = BRIEF_TIMEOUT_S if response.status == 500 and "dryRun=All" in asked.path else None
            after = read_retry_after(response.headers.get("Retry-After"))
            return TransientError(message, response.status, after, timeout_s)
        if response.status == 401:
            message += f"; the credentials of {self.name} are refused, also after a reload: log in again"
        return ClusterError(str(self.settings.host), str(asked), message, response.status)


class ServerClock:
    """The API server's time, learned from the Date of its answers."""

    def __init__(self) -> None:
        self.is_set = False
        self._ahead = 0.0

    def learn(self, date: str | None) -> None:
        """Read the Date of an answer."""
        self.is_set = True
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            ahead = parsedate_to_datetime(date or "").timestamp() - time.time()
            if abs(ahead - self._ahead) > _CLOCK_JITTER_S:
                self._ahead = ahead

    def now(self) -> float:
        return time.time() + self._ahead


def keepalive_options() -> list[Any]:
    """Socket options of a connection that stays open for hours."""
    known = {getattr(socket, name): value for name, value in _KEEPALIVE_OPTIONS.items() if hasattr(socket, name)}
    on = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return [
        *HTTPConnection.default_socket_options,
        on,
        *((socket.IPPROTO_TCP, option, value) for option, value in known.items()),
    ]


def read_answer(response: Any) -> Any:
    """The whole answer, parsed from JSON."""
    try:
        return json.loads(response.data or b"{}")
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise TransientError(f"the answer broke off: {error}") from error


def split_lines(response: Any) -> Iterator[bytes]:
    """The lines of an answer as they come, each with its line end; the last one may lack it."""
    rest: list[bytes] = []
    for part in split_chunks(response):
        first, *others = part.split(b"\n")
        rest.append(first)
        for line in others:
            yield b"".join(rest) + b"\n"
            rest = [line]
    if last := b"".join(rest):
        yield last


def split_chunks(response: Any) -> Iterator[bytes]:
    """An answer in chunks as they come. TransientError if it breaks off."""
    try:
        yield from response.stream(1 << 16, decode_content=True)
    except urllib3.exceptions.HTTPError as error:
        raise TransientError(_short_reason(error)) from error


def _short_reason(error: Exception) -> str:
    """The short cause inside urllib3's long sentence."""
    inner = getattr(error, "reason", None) or error
    return str(inner).rpartition(": ")[2] or type(error).__name__
