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
    """A request that the API server refused, with the HTTP status of its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"the API server answered {self.status}: {self.message}"


class Api:
    """The API server as one user; usable from several threads, one connection each."""

    def __init__(self, port: int, authority: Path, certificate: Path) -> None:
        self.port = port
        self.context = ssl.create_default_context(cafile=str(authority))
        self.context.load_cert_chain(certificate.with_suffix(".crt"), certificate.with_suffix(".key"))
        self.thread_local = threading.local()

    def call(self, method: str, path: str, body: Object | None = None, patch_type: str = "") -> Any:
        """Send one request and return JSON or text; raises ApiError, or OSError if the server does not answer."""
        headers = {"Content-Type": f"application/{patch_type}-patch+json" if patch_type else "application/json"}
        connection = self.get_connection()
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise OSError(f"no answer to {method} {path}: {error}") from error
        if response.headers.get_content_type() != "application/json":
            body_of_response: Any = data.decode()
        else:
            body_of_response = json.loads(data)
        if response.status >= 400:
            raise ApiError(
                response.status,
                body_of_response.get("message", "")
                if isinstance(body_of_response, dict)
                else str(body_of_response).strip(),
            )
        return body_of_response

    def get_connection(self) -> http.client.HTTPSConnection:
        """This thread's connection; http.client opens it again after a close."""
        if not hasattr(self.thread_local, "mine"):
            self.thread_local.mine = http.client.HTTPSConnection(
                "127.0.0.1", self.port, context=self.context, timeout=20
            )
        connection: http.client.HTTPSConnection = self.thread_local.mine
        return connection

    def stream(self, path: str) -> Iterator[bytes]:
        """The lines of a streaming answer, such as a watch, over a separate connection."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context)
        connection.request("GET", path)
        try:
            yield from connection.getresponse()
        finally:
            connection.close()

    def create(self, obj: Object) -> Object:
        """Create an object, with its status if it has one; an existing object is left as it is."""
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
        current: Object = self.call("GET", f"{get_collection_path(obj)}/{obj['metadata']['name']}")
        return current

    def is_ready(self) -> bool:
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
    namespace = obj["metadata"].get("namespace")
    plural = IRREGULAR_PLURALS.get(kind) or (kind.lower() + ("es" if kind.endswith("s") else "s"))
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
