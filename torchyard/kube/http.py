"""A connection to the API server, and one request over it: an answer, a refusal in its own words, or no answer."""

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

_CONNECT_TIMEOUT_S = 10.0  # seconds that a connection may take to be made
_ANSWER_TIMEOUT_S = 30.0  # seconds that a server may take to answer
_CLOCK_JITTER_S = 2.0  # that the server's clock may seem to differ: its Date has no fractions, an answer takes a while
# 500 is what the API server says while etcd or a webhook is away.
_TRANSIENT_STATUSES = (429, 500, 502, 503, 504)
_JSON_HEADERS = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "torchyard"}
_PATCH_CONTENT_TYPES: dict[type, str] = {dict: "application/merge-patch+json", list: "application/json-patch+json"}
# What keeps a silent connection from being forgotten on the way, and tells of a dead one; not every system has them.
_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


class Request(NamedTuple):
    """A request; `silence` is how many seconds nothing may come, where it is not an answer's own."""

    method: str
    path: str
    body: Any = None
    silence: float | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Connection(NamedTuple):
    """The way to the API server: settings with credentials, and the connections made of them."""

    name: str
    settings: Any
    http: Any

    @property
    def known(self) -> bool:
        """Whether it says who asks."""
        return bool(self.settings.api_key or self.settings.cert_file)

    def send(self, asked: Request) -> Any:
        """The answer, its body unread. TransientError where it may be asked again, ClusterError where it is no."""
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
                self.http.clear()  # what else is kept open has been forgotten as well
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
            # A dry run is there to find the webhook that does not answer.
            patience = BRIEF_TIMEOUT_S if response.status == 500 and "dryRun=All" in asked.path else None
            return TransientError(
                message, response.status, read_retry_after(response.headers.get("Retry-After")), patience
            )
        if response.status == 401:
            message += f"; the credentials of {self.name} are refused, also loaded anew: log in again"
        return ClusterError(str(self.settings.host), str(asked), message, response.status)


class ServerClock:
    """The API server's time, as far as its answers tell it."""

    def __init__(self) -> None:
        self.is_set = False
        self._ahead = 0.0

    def learn(self, date: str | None) -> None:
        """Take the Date of an answer in."""
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
    """An answer as a whole, from JSON."""
    try:
        return json.loads(response.data or b"{}")
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise TransientError(f"the answer broke off: {error}") from error


def stream_lines(response: Any) -> Iterator[bytes]:
    """The lines of an answer as they come, each with its end; the last one may lack it."""
    rest: list[bytes] = []
    for part in stream_chunks(response):
        first, *others = part.split(b"\n")
        rest.append(first)
        for line in others:
            yield b"".join(rest) + b"\n"
            rest = [line]
    if last := b"".join(rest):
        yield last


def stream_chunks(response: Any) -> Iterator[bytes]:
    """An answer as it comes. TransientError where it breaks off."""
    try:
        yield from response.stream(1 << 16, decode_content=True)
    except urllib3.exceptions.HTTPError as error:
        raise TransientError(_short_reason(error)) from error


def _short_reason(error: Exception) -> str:
    """The short cause inside urllib3's long sentence."""
    inner = getattr(error, "reason", None) or error
    return str(inner).rpartition(": ")[2] or type(error).__name__
