"""Responses that stay open, such as followed logs and WebSockets, on one event loop: no thread each."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx

from torchyard.kube.credentials import Credentials
from torchyard.kube.http import (
    CONNECT_TIMEOUT_S,
    READ_TIMEOUT_S,
    Connection,
    Request,
    build_error,
    build_headers,
    build_path,
)
from torchyard.kube.multiplexed import MultiplexedTransport
from torchyard.kube.refusals import check_refusal
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

if TYPE_CHECKING:  # few processes need the WebSockets
    from torchyard.kube.channels import Channels

_MAX_IDLE_CONNECTIONS = 16  # kept open for the next request


class StreamClient:
    """GET requests whose responses are read in chunks as they arrive or become WebSockets, by a Client's settings.

    It belongs to one event loop. A request is sent once, and once more after a refusal that may not count.

    Open responses share HTTP/2 connections where the API server is reached without a proxy and speaks HTTP/2. Elsewhere
    each has its own connection, because the API server does not start the response to a followed log before its first
    line; connections of complete responses are reused.
    """

    def __init__(self, credentials: Credentials[Connection]) -> None:
        self._credentials = credentials
        self._connection: Connection | None = None
        self._http: httpx.AsyncClient | None = None

    @property
    def host(self) -> str:
        """The server's URL."""
        return str(self._credentials.current.settings.host)

    async def stream_chunks(
        self, path: str, query: Mapping[str, Any], idle_timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """The chunks of a response as they arrive.

        TransientError if the connection breaks or nothing arrives for `idle_timeout_s`, ClusterError if it is refused.
        """
        response = await self._open(Request("GET", build_path(path, query), None, idle_timeout_s))
        try:
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx.HTTPError as error:
            raise TransientError(_describe(error)) from error
        finally:
            await response.aclose()

    async def open_channels(
        self, path: str, query: Sequence[tuple[str, str]], protocols: tuple[str, ...]
    ) -> "Channels":
        """A WebSocket that speaks the first of `protocols` that the server has; the caller enters it (`async with`).

        TransientError if there is no connection, ClusterError if it is refused.
        """
        from torchyard.kube.channels import Channels, build_upgrade_headers

        # A kubelet produces none of the usual types here, and would answer 406.
        headers = build_upgrade_headers(protocols)
        request = Request("GET", build_path(path, query), accept="*/*", extra_headers=headers)
        response = await self._open(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            await response.aclose()
            message = "no WebSocket was opened: a proxy before the API server may not forward the upgrade"
            raise ClusterError(self.host, request.without_query(), message, response.status_code)
        return Channels(response)

    async def _open(self, request: Request) -> httpx.Response:
        """The response, unread. A request is sent again after a refusal that may not count."""
        connection = self._credentials.current
        try:
            return await self._send(connection, request)
        except (ClusterError, TransientError) as error:
            await asyncio.to_thread(check_refusal, self._credentials, connection, request, error)
        return await self._send(self._credentials.current, request)

    async def _send(self, connection: Connection, request: Request) -> httpx.Response:
        """Send a request once; return its response with the body unread."""
        http = self._get_http(connection)
        timeout = httpx.Timeout(CONNECT_TIMEOUT_S, read=request.read_timeout_s or READ_TIMEOUT_S, pool=None)
        headers = build_headers(connection.settings, request) | {"Accept-Encoding": "identity"}
        built = http.build_request("GET", f"{self.host}{request.path}", headers=headers, timeout=timeout)
        if connection.settings.tls_server_name:
            built.extensions["sni_hostname"] = connection.settings.tls_server_name
        try:
            response = await http.send(built, stream=True)
            if response.status_code < HTTPStatus.MULTIPLE_CHOICES:
                return response
            with contextlib.suppress(httpx.HTTPError):  # what has arrived of the refusal serves
                await response.aread()
            await response.aclose()
        except httpx.HTTPError as error:
            raise TransientError(_describe(error)) from error
        body = response.content if response.is_stream_consumed else b""
        raise build_error(connection, request, response.status_code, body, response.headers.get("Retry-After"))

    def _get_http(self, connection: Connection) -> httpx.AsyncClient:
        """The client for a connection; responses that are open with earlier credentials remain open."""
        if self._http is None or connection is not self._connection:
            self._http = _open_http(connection)
            self._connection = connection
        return self._http


def _open_http(connection: Connection) -> httpx.AsyncClient:
    """An HTTP client with the server, TLS and proxy of a kubeconfig's context; variables like HTTPS_PROXY are not used.

    Its requests carry their own credentials and time limits.
    """
    settings = connection.settings
    proxy_url = connection.http.proxy  # None where `no_proxy` excludes the server
    transport: httpx.AsyncBaseTransport = httpx.AsyncHTTPTransport(
        verify=_build_ssl_context(settings),
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=_MAX_IDLE_CONNECTIONS),
        proxy=httpx.Proxy(proxy_url.url, headers=settings.proxy_headers) if proxy_url else None,
        socket_options=settings.socket_options,
    )
    if settings.host.startswith("https:") and not proxy_url:
        transport = MultiplexedTransport(_build_ssl_context(settings), transport, settings.socket_options)
    return httpx.AsyncClient(transport=transport, trust_env=False)


def _build_ssl_context(settings: Any) -> ssl.SSLContext:
    ca_data = getattr(settings, "ca_cert_data", None)  # clients before 36 know certificates in files only
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert, cadata=ca_data)
    if settings.assert_hostname is False or not settings.verify_ssl:
        context.check_hostname = False
    if not settings.verify_ssl:
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return context


def _describe(error: httpx.HTTPError) -> str:
    """The message of an error; its kind where it has none, as time-outs have."""
    return str(error) or type(error).__name__
