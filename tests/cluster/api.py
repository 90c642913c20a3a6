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
IRREGULAR = {"NetworkAttachmentDefinition": "network-attachment-definitions", "NetworkPolicy": "networkpolicies"}


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

    def __init__(self, port: int, authority: Path, client: Path) -> None:
        self.port = port
        self.context = ssl.create_default_context(cafile=str(authority))
        self.context.load_cert_chain(client.with_suffix(".crt"), client.with_suffix(".key"))
        self.connections = threading.local()

    def call(self, method: str, path: str, body: Object | None = None, patch: str = "") -> Any:
        """Send one request and return JSON or text; raises ApiError, or OSError if the server does not answer."""
        headers = {"Content-Type": f"application/{patch}-patch+json" if patch else "application/json"}
        connection = self.connection()
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise OSError(f"no answer to {method} {path}: {error}") from error
        if answer.headers.get_content_type() != "application/json":
            found: Any = content.decode()
        else:
            found = json.loads(content)
        if answer.status >= 400:
            raise ApiError(answer.status, found.get("message", "") if isinstance(found, dict) else str(found).strip())
        return found

    def connection(self) -> http.client.HTTPSConnection:
        """This thread's connection; http.client opens it again after a close."""
        if not hasattr(self.connections, "mine"):
            self.connections.mine = http.client.HTTPSConnection(
                "127.0.0.1", self.port, context=self.context, timeout=20
            )
        mine: http.client.HTTPSConnection = self.connections.mine
        return mine

    def stream(self, path: str) -> Iterator[bytes]:
        """The lines of a streaming answer, such as a watch, over a separate connection."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context)
        connection.request("GET", path)
        try:
            yield from connection.getresponse()
        finally:
            connection.close()

    def create(self, thing: Object) -> Object:
        """Create an object, with its status if it has one; an existing object is left as it is."""
        try:
            created: Object = self.call("POST", collection(thing), thing)
        except ApiError as error:
            if error.status != 409:
                raise
            created = self.get(thing)
        return created

    def create_all(self, things: Iterable[Object], threads: int = 4) -> None:
        """Create objects in parallel; they must not depend on each other."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self.create, things))

    def dry_run(self, thing: Object) -> None:
        """Submit an object as a dry run: it is admitted but not stored."""
        self.call("POST", f"{collection(thing)}?dryRun=All", thing)

    def get(self, thing: Object) -> Object:
        found: Object = self.call("GET", f"{collection(thing)}/{thing['metadata']['name']}")
        return found

    def ready(self) -> bool:
        try:
            self.call("GET", "/readyz")
        except (ApiError, OSError):
            return False
        return True


def collection(thing: Object) -> str:
    """The API path of an object's kind, within its namespace if it has one."""
    group, kind = thing["apiVersion"], thing["kind"]
    root = "/api/v1" if group == "v1" else f"/apis/{group}"
    namespace = thing["metadata"].get("namespace")
    plural = IRREGULAR.get(kind) or (kind.lower() + ("es" if kind.endswith("s") else "s"))
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
