"""A minimal client of the cluster's API server, for setting up a test cluster: create, get, patch, wait."""

import http.client
import json
import ssl
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Object = dict[str, Any]
IRREGULAR_PLURALS = {
    "NetworkAttachmentDefinition": "network-attachment-definitions",
    "NetworkPolicy": "networkpolicies",
}


class ApiError(Exception):
    """A request that the API server refused, with the HTTP status and the message of its response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"the API server responded with {self.status}: {self.message}"


class Api:
    """The API server as one user; usable from several threads, one connection each.

    `call` raises ApiError if the server refuses a request, and OSError if it does not answer. Nothing is retried.
    """

    def __init__(self, port: int, authority: Path, certificate: Path) -> None:
        self.port = port
        self.context = ssl.create_default_context(cafile=str(authority))
        self.context.load_cert_chain(certificate.with_suffix(".crt"), certificate.with_suffix(".key"))
        self.thread_local = threading.local()

    def call(self, method: str, path: str, body: Object | None = None, patch_type: str = "") -> Any:
        """Send one request; return the JSON or text of the response. Raises ApiError or OSError.

        patch_type: of a PATCH, such as "merge".
        """
        headers = {"Content-Type": f"application/{patch_type}-patch+json" if patch_type else "application/json"}
        connection = self.get_connection()
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise OSError(f"no response to {method} {path}: {error}") from error
        is_json = response.headers.get_content_type() == "application/json"
        content: Any = json.loads(data) if is_json else data.decode()
        if response.status >= 400:
            message = content.get("message", "") if isinstance(content, dict) else str(content).strip()
            raise ApiError(response.status, message)
        return content

    def get_connection(self) -> http.client.HTTPSConnection:
        """This thread's connection; http.client opens it again after a close."""
        if not hasattr(self.thread_local, "connection"):
            self.thread_local.connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, context=self.context, timeout=20
            )
        connection: http.client.HTTPSConnection = self.thread_local.connection
        return connection

    def stream(self, path: str) -> Iterator[bytes]:
        """The lines of a streaming response, such as a watch, over a separate connection."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context)
        connection.request("GET", path)
        try:
            yield from connection.getresponse()
        finally:
            connection.close()

    def create(self, obj: Object) -> Object:
        """Create an object, with its status if it has one, and return it; an existing object is returned unchanged."""
        try:
            created: Object = self.call("POST", get_collection_path(obj), obj)
        except ApiError as error:
            if error.status != 409:
                raise
            created = self.get(obj)
        return created

    def create_all(self, objects: Iterable[Object], thread_count: int = 4) -> None:
        """Create objects in parallel; they must not depend on each other."""
        with ThreadPoolExecutor(thread_count) as pool:
            list(pool.map(self.create, objects))

    def dry_run(self, obj: Object) -> None:
        """Submit an object as a dry run: it is admitted but not stored."""
        self.call("POST", f"{get_collection_path(obj)}?dryRun=All", obj)

    def get(self, obj: Object) -> Object:
        """The current state of an object; raises ApiError if it does not exist."""
        current: Object = self.call("GET", f"{get_collection_path(obj)}/{obj['metadata']['name']}")
        return current

    def is_ready(self) -> bool:
        """Whether the API server answers /readyz with 200."""
        try:
            self.call("GET", "/readyz")
        except (ApiError, OSError):
            return False
        return True


def get_collection_path(obj: Object) -> str:
    """The API path of an object's kind, within its namespace if it has one."""
    api_version = obj["apiVersion"]
    kind = obj["kind"]
    root = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
    plural = IRREGULAR_PLURALS.get(kind)
    if plural is None:
        plural = kind.lower() + ("es" if kind.endswith("s") else "s")
    namespace = obj["metadata"].get("namespace")
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
