"""The only access to Kubernetes: the verbs of its API, with plain dicts, over the connection of a kubeconfig.

A verb builds a Request; `request` sends it and repeats it by the retry policy of kube/retry.py. `get_once` and the
streams do not repeat anything: their callers resume by themselves.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from decimal import Decimal
from http import HTTPStatus
from typing import Any

from kubernetes.utils import parse_quantity

from torchyard.kube.credentials import Credentials
from torchyard.kube.http import (
    Request,
    Response,
    ServerClock,
    build_path,
    read_json,
    split_lines,
)
from torchyard.kube.kubeconfig import load_settings, open_connection, renew_connection
from torchyard.kube.refusals import check_refusal
from torchyard.kube.retry import BRIEF_TIMEOUT_S, TransientError, retry_request
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.model.requirements import plural_kind

KubeObject = dict[str, Any]
KubeObjects = list[KubeObject]
_FOREGROUND_DELETION: KubeObject = {"propagationPolicy": "Foreground"}
_FORCED_DELETION: KubeObject = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}


class Client:
    """One API server and one namespace, as a context of the kubeconfig or a pod's service account gives them.

        client = get_cluster_client(Cluster(context="lab", namespace="team-a"))
        pod = client.get("v1", "Pod", "train-worker-0")
        pods = client.list("v1", "Pod", {"labelSelector": "torchyard/run=ab12"})

    Threads share one client: its connection pool, its credentials and its clock may be used at the same time.

    Retries. Verbs and `request` repeat a request while the server is away or busy (see kube/retry.py), `get_quick` for
    a few seconds only. `get_once`, `watch` and the streams send it once. Refused credentials are reloaded, once for all
    threads, and a 403 is checked again, because a server that has just started refuses everything.

    Errors. ClusterError with the server's own message if it refuses a request, or is still away after the retries.
    Requests that are sent once raise TransientError while the server is away or busy.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Raises ClusterError if the context does not exist or there is no kubeconfig at all."""
        settings, context = load_settings(cluster.context)
        self.context = cluster.context or context.get("name")
        self.namespace = cluster.namespace or context.get("context", {}).get("namespace") or "default"
        connection = open_connection(settings, self.context)
        self.credentials = Credentials(connection, lambda: renew_connection(connection, self.context))
        self._clock = ServerClock()

    @property
    def host(self) -> str:
        """The server's URL."""
        return str(self.credentials.current.settings.host)

    @property
    def cluster(self) -> Cluster:
        """The context and namespace, with their defaults filled in: what a plan keeps."""
        return Cluster(context=self.context, namespace=self.namespace)

    def path(self, api_version: str, kind: str, name: str = "", namespace: str | None = "") -> str:
        """The path of an object, or of all objects of a kind if `name` is empty.

        `namespace=None` for kinds that have no namespace, or for all namespaces; "" is the client's own.
        """
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if namespace is not None:
            path += f"/namespaces/{namespace or self.namespace}"
        path += f"/{plural_kind(kind)}"
        if name:
            path += f"/{name}"
        return path

    # --- verbs

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = "") -> KubeObject | None:
        """An object; None if there is none of this name."""
        try:
            return self.request("GET", self.path(api_version, kind, name, namespace))
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def list(
        self, api_version: str, kind: str, query: Mapping[str, str] | None = None, *, everywhere: bool = False
    ) -> KubeObjects:
        """All objects of a kind in the namespace, or everywhere; empty if the server does not serve the kind.

        Raises ClusterError if the list is refused or incomplete.
        """
        path = self.path(api_version, kind, namespace=None if everywhere else "")
        params = dict(query or {})
        items: KubeObjects = []
        while True:
            try:
                page = self.request("GET", path, params)
            except ClusterError as error:
                if error.status == HTTPStatus.NOT_FOUND and "continue" not in params:
                    return []
                raise
            if "items" not in page:
                raise ClusterError(self.host, f"GET {path}", "the response is not a list", 0)
            items += page["items"] or []
            next_page = (page.get("metadata") or {}).get("continue")
            if not next_page:
                type_fields = {"apiVersion": api_version, "kind": kind}  # a list leaves them out of its items
                return [type_fields | item for item in items]
            params["continue"] = next_page

    def create(self, obj: KubeObject, *, dry_run: bool = False) -> KubeObject:
        """Create an object; unknown fields are refused. ClusterError 409 if the name is taken."""
        query = {"fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        path = self.path(obj["apiVersion"], obj["kind"], namespace=obj["metadata"].get("namespace", ""))
        return self.request("POST", path, query, obj)

    def patch(self, obj: KubeObject, change: KubeObject | KubeObjects) -> KubeObject:
        """Merge a dict into an object, or apply a list as a JSON patch: all of it or nothing."""
        return self.request("PATCH", self._object_path(obj), body=change)

    def delete(self, api_version: str, kind: str, name: str, *, force: bool = False) -> bool:
        """Delete an object after everything that it owns; return False if there was none.

        `force` deletes it at once, without waiting for its dependents or its node.
        """
        return self._delete(self.path(api_version, kind, name), _deletion_options(force=force), absent=(404,))

    def delete_collection(self, api_version: str, kind: str, query: Mapping[str, str]) -> None:
        """Delete all objects of a kind in the namespace that a query selects, by one request. They may exist still."""
        self.request("DELETE", self.path(api_version, kind), query)

    def delete_exact(self, obj: KubeObject, *, force: bool = False) -> bool:
        """Delete this very object, by its uid; return False if it is gone or its name belongs to another object."""
        options = _deletion_options(force=force)
        options["preconditions"] = {"uid": obj["metadata"]["uid"]}
        return self._delete(self._object_path(obj), options, absent=(404, 409))

    def _delete(self, path: str, options: KubeObject, absent: tuple[int, ...]) -> bool:
        """Send a deletion; return False if its status is one of `absent`."""
        try:
            self.request("DELETE", path, body=options)
        except ClusterError as error:
            if error.status in absent:
                return False
            raise
        return True

    def _object_path(self, obj: KubeObject) -> str:
        return self.path(obj["apiVersion"], obj["kind"], obj["metadata"]["name"])

    @contextlib.contextmanager
    def watch(self, path: str, query: Mapping[str, Any], idle_timeout_s: float) -> Iterator[Iterator[bytes]]:
        """The lines of a watch, once the server has started to respond. Not repeated; errors as in `stream_lines`.

        The start of the response has the timeout of any request; after it, `idle_timeout_s` may pass between lines.
        """
        with self._open(Request("GET", build_path(path, query))) as response:
            sock = getattr(response.connection, "sock", None)
            if sock:
                sock.settimeout(idle_timeout_s)
            yield split_lines(response)

    # --- requests

    def now(self) -> float:
        """The API server's time in seconds since the epoch.

        Leases are written and judged by this clock: the clocks of two machines may differ by more than a lease.
        """
        if not self._clock.is_set:
            self.ping()
        return self._clock.now()

    def ping(self) -> None:
        """Raise ClusterError if the server does not respond within seconds, or does not accept the credentials."""
        self.get_quick("/api")

    def get_quick(self, path: str, *, accept: str = "application/json") -> KubeObject:
        """One GET, repeated for a few seconds only. `accept`: the media types of the response."""
        return self._send(Request("GET", path, accept=accept), BRIEF_TIMEOUT_S)

    def get_once(self, path: str, query: Mapping[str, Any] | None = None) -> KubeObject:
        """One GET, not repeated. TransientError while the server is away or busy, ClusterError if it refuses."""
        return self._exchange(Request("GET", build_path(path, query)))

    def request(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None) -> KubeObject:
        """One request, repeated while the server is away or busy. ClusterError with the server's own message."""
        return self._send(Request(method, build_path(path, query), body))

    def _send(self, request: Request, timeout_s: float | None = None) -> KubeObject:
        try:
            return retry_request(lambda: self._exchange(request, retry_unauthorized=True), timeout_s)
        except TransientError as error:
            raise ClusterError(self.host, request.without_query(), error.message, error.status) from error

    def stream_lines(self, path: str, query: Mapping[str, Any], idle_timeout_s: float) -> Iterator[bytes]:
        """The lines of a response as they arrive, each with its newline, which the last one may lack.

        TransientError if the connection breaks or nothing arrives for `idle_timeout_s`, ClusterError if it is refused.
        """
        with self._open(Request("GET", build_path(path, query), None, idle_timeout_s)) as response:
            yield from split_lines(response)

    # --- one exchange

    def _exchange(self, request: Request, *, retry_unauthorized: bool = False) -> KubeObject:
        """Send a request once and read its response. `retry_unauthorized`: a 401 is a TransientError."""
        try:
            with self._open(request) as response:
                self._clock.update(response.headers.get("Date"))
                data: KubeObject = read_json(response)
                return data
        except ClusterError as error:
            if error.status == HTTPStatus.UNAUTHORIZED and retry_unauthorized:
                # A server that restarts refuses its users for a moment.
                raise TransientError(error.message, HTTPStatus.UNAUTHORIZED) from error
            raise

    def _open(self, request: Request) -> Response:
        """The response, unread. Refused credentials are reloaded, once each time that they expire."""
        connection = self.credentials.current
        try:
            return connection.send(request)
        except ClusterError as error:
            check_refusal(self.credentials, connection, error)
        return self.credentials.current.send(request)


def _deletion_options(*, force: bool) -> KubeObject:
    return dict(_FORCED_DELETION if force else _FOREGROUND_DELETION)


def parse_decimal_quantity(text: str) -> Decimal:
    """`500m`, `64` or `512Gi` as a number: the form in which nodes and pods state cpu, memory and devices."""
    return Decimal(parse_quantity(text))


@functools.cache
def get_cluster_client(cluster: Cluster) -> Client:
    """The client of a cluster and namespace, created once per process."""
    return Client(cluster)
