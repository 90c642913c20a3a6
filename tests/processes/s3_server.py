"""An S3 API that refuses unsigned, wrongly signed and expired requests for objects, as moto's does not."""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

ACCESS_KEY = "an-access-key"
SECRET_KEY = "a-secret-key"
REGION = "us-east-1"  # botocore signs URLs there by version 2, unless it is told otherwise
_DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"


class SignedS3:
    """moto's S3 API behind a check of the signature of each URL. Requests with a signed header are accepted.

    written: the path of each object that was written.
    clock_offset_s: how far the server's clock is ahead, in seconds.
    """

    def __init__(self) -> None:
        self.written: list[str] = []
        self.clock_offset_s = 0.0
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Respond to a request, as a WSGI application."""
        path = str(environ["PATH_INFO"])
        if "HTTP_AUTHORIZATION" not in environ and not self._has_valid_url(environ):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [_DENIED]
        if environ["REQUEST_METHOD"] == "PUT" and path.count("/") > 1:
            self.written.append(path)
        response: Iterable[bytes] = self._moto(environ, start_response)
        return response

    @contextmanager
    def serve(self) -> Iterator[str]:
        """The address of the API, on a free port of loopback, until the block ends."""
        server = make_server("127.0.0.1", 0, self, threaded=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def _has_valid_url(self, environ: dict[str, Any]) -> bool:
        """Whether the URL has a signature of `SECRET_KEY`, version 4, that has not expired."""
        params = dict(parse_qsl(environ["QUERY_STRING"]))
        signature = params.pop("X-Amz-Signature", "")
        if not signature:
            return False
        signed_at = datetime.strptime(params["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if time.time() + self.clock_offset_s > signed_at.timestamp() + int(params["X-Amz-Expires"]):
            return False
        return hmac.compare_digest(signature, _sign(environ, params))


def _sign(environ: dict[str, Any], params: dict[str, str]) -> str:
    """The signature of a request, as AWS documents it for URLs ("Authenticating Requests: Using Query Parameters")."""
    access_key, date, region, service, terminator = unquote(params["X-Amz-Credential"]).split("/")
    assert access_key == ACCESS_KEY
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(params.items()))
    headers = f"host:{environ['HTTP_HOST']}\n"
    request = (environ["REQUEST_METHOD"], quote(environ["PATH_INFO"]), query, headers, "host", "UNSIGNED-PAYLOAD")
    request_digest = hashlib.sha256("\n".join(request).encode()).hexdigest()
    scope = f"{date}/{region}/{service}/{terminator}"
    text = "\n".join(("AWS4-HMAC-SHA256", params["X-Amz-Date"], scope, request_digest))
    key = f"AWS4{SECRET_KEY}".encode()
    for part in (date, region, service, terminator, text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()
