"""The only access to Kubernetes: the verbs of its API, with plain dicts, over the connection of a kubeconfig.

A verb builds a Request; `request` sends it and repeats it by the retry policy of kube/retry.py. `get_once` and the
streams do not repeat anything: their callers resume by themselves.
"""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from http import HTTPStatus
from typing import Any, TypeVar

from kubernetes.utils import parse_quantity

from torchyard.kube import absence
from torchyard.kube.credentials import Credentials, load_first
from torchyard.kube.http import (
    Request,
    Response,
    ServerClock,
    build_path,
    discard_list,
    read_json,
    read_json_without_managers,
    split_lines,
)
from torchyard.kube.kubeconfig import describe_credentials, load_settings, open_connection, renew_connection
from torchyard.kube.refusals import check_ready, check_refusal
from torchyard.kube.retry import BRIEF_TIMEOUT_S, TransientError, retry_request
from torchyard.model.errors import ClusterError, NotFoundError
from torchyard.model.profile import Cluster
from torchyard.model.requirements import get_resource, is_cluster_scoped, plural_kind

KubeObject = dict[str, Any]
KubeObjects = list[KubeObject]
_METADATA_TYPES = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_FOREGROUND_DELETION: KubeObject = {"propagationPolicy": "Foreground"}
_BACKGROUND_DELETION: KubeObject = {"propagationPolicy": "Background"}
_LEAF_KINDS = ("ConfigMap", "Secret")  # they own nothing, for which the garbage collector would have to look first
_FORCED_DELETION: KubeObject = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
_PING_MAX_AGE_S = 1.0
_MAX_PARALLEL_READS = 8
T = TypeVar("T")


class Client:
    """One API server and one namespace, as a context of the kubeconfig or a pod's service account gives them.

        client = get_cluster_client(Cluster(context="lab", namespace="team-a"))
        pod = client.get("v1", "Pod", "train-worker-0")
        pods = client.list("v1", "Pod", {"labelSelector": "torchyard/run=ab12"})

    Threads share one client: its connection pool, its credentials and its clock may be used at the same time.

    Retries. Verbs and `request` repeat a request while the server is away or busy (see kube/retry.py), `get_quick` for
    a few seconds only. `get_once`, `watch` and the streams send it once. Refused credentials are reloaded, once for all
    threads, and a 403 is checked again, because a server that has just started refuses everything.

    Absence. `get`, `get_all` and `list` prove it by the rule of kube/absence.py, which takes seconds. `request` and
    `get_once` raise NotFoundError, which is one reading.

    Errors. ClusterError with the server's own message if it refuses a request, or is still away after the retries.
    Requests that are sent once raise TransientError while the server is away or busy.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Raises ClusterError if the context does not exist, there is no kubeconfig at all, or its plugin hangs."""
        settings, context = load_first(lambda: load_settings(cluster.context))
        context_name = cluster.context or context.get("name")
        self.context = context_name
        self.namespace = cluster.namespace or context.get("context", {}).get("namespace") or "default"
        connection = open_connection(settings, context_name)
        source = describe_credentials(context)
        self.credentials = Credentials(connection, lambda: renew_connection(connection, context_name), source)
        self._clock = ServerClock()
        self._pinged_at = -math.inf  # when the server last responded to a ping, in monotonic seconds
        self._ready_at = -math.inf  # when the server was last proven to be ready, in monotonic seconds
        self._ready_lock = threading.Lock()  # one proof at a time

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

        `namespace=None` for all namespaces; "" is the client's own. Known kinds that have no namespace get none.
        """
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if namespace is not None and not is_cluster_scoped(get_resource(api_version, kind)):
            path += f"/namespaces/{namespace or self.namespace}"
        path += f"/{plural_kind(kind)}"
        if name:
            path += f"/{name}"
        return path

    # --- verbs

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = "") -> KubeObject | None:
        """An object; None if it is proven that there is none of this name."""
        path = self.path(api_version, kind, name, namespace)
        try:
            return self._send_confirmed(lambda: self.request("GET", path))
        except NotFoundError:
            return None

    def get_all(
        self, api_version: str, kind: str, names: Iterable[str], deleted: Container[str] = ()
    ) -> dict[str, KubeObject]:
        """The objects of these names, by name; it is proven that the others do not exist.

        `deleted`: the names whose deletion the server has accepted. Their absence is expected: one reading proves it.
        """
        objects: dict[str, KubeObject] = {}
        missing = sorted(names)
        for is_confirmation in (False, True):
            if missing and is_confirmation:
                self.await_confirmation()
            with ThreadPoolExecutor(_MAX_PARALLEL_READS) as pool:
                responses = pool.map(lambda name: self._find_once(self.path(api_version, kind, name)), missing)
                objects |= {obj["metadata"]["name"]: obj for obj in responses if obj is not None}
            missing = [name for name in missing if name not in objects and name not in deleted]
        return objects

    def _find_once(self, path: str) -> KubeObject | None:
        """The object at a path; None if the server reports, once, that there is none."""
        try:
            return self.request("GET", path)
        except NotFoundError:
            return None

    def list(
        self,
        api_version: str,
        kind: str,
        query: Mapping[str, str] | None = None,
        *,
        everywhere: bool = False,
        is_metadata_enough: bool = False,
    ) -> KubeObjects:
        """All objects of a kind in the namespace, or everywhere; empty if it is proven that the kind is not served.

        They come without their `managedFields`.

        An object that the list lacks may exist nevertheless: only `get` proves an absence. Raises ClusterError if the
        list is refused or incomplete.

        is_metadata_enough: the objects may have only their metadata, a third of a pod's size.
        """
        accept = _METADATA_TYPES if is_metadata_enough else "application/json"
        path = self.path(api_version, kind, namespace=None if everywhere else "")
        params = dict(query or {})
        items: KubeObjects = []
        while True:
            try:
                request = Request("GET", build_path(path, params), accept=accept)
                page = self._send_confirmed(functools.partial(self._send, request, read=read_json_without_managers))
            except NotFoundError:
                if "continue" in params:
                    raise
                return []
            if "items" not in page:
                raise ClusterError(self.host, f"GET {path}", "the response is not a list", 0)
            items += page["items"] or []
            next_page = (page.get("metadata") or {}).get("continue")
            if not next_page:
                # A list leaves them out of its items; one of metadata has its own there.
                type_fields = {"apiVersion": api_version, "kind": kind}
                return [item | type_fields for item in items]
            params["continue"] = next_page

    def create(self, obj: KubeObject, *, dry_run: bool = False) -> KubeObject:
        """Create an object; unknown fields are refused.

        ClusterError 409 if the name is taken, NotFoundError if it is proven that its namespace or kind does not exist.
        """
        query = {"fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        path = self.path(obj["apiVersion"], obj["kind"], namespace=obj["metadata"].get("namespace", ""))
        return self._send_confirmed(lambda: self.request("POST", path, query, obj))

    def _send_confirmed(self, send: Callable[[], T]) -> T:
        """The result of `send`; NotFoundError only if it is raised twice, by a server that was ready in between."""
        try:
            return send()
        except NotFoundError:
            self.await_confirmation()
        return send()

    def await_confirmation(self) -> None:
        """Wait between two readings of an absence, and prove that the server is ready. ClusterError if it is not.

        Threads that wait at the same time share one proof, which each of them has waited for.
        """
        waiting_since = time.monotonic()
        time.sleep(absence.CONFIRMATION_DELAY_S)
        with self._ready_lock:
            if self._ready_at <= waiting_since:
                self._retry(self._check_ready, "GET /readyz")
                self._ready_at = time.monotonic()

    def _check_ready(self) -> None:
        """Raise TransientError or ClusterError unless the server is ready. Refused credentials are reloaded."""
        connection = self.credentials.current
        try:
            check_ready(connection)
        except ClusterError as error:
            if error.status != HTTPStatus.UNAUTHORIZED or not self.credentials.renew(connection):
                raise
            check_ready(self.credentials.current)

    def patch(self, obj: KubeObject, change: KubeObject | KubeObjects) -> KubeObject:
        """Merge a dict into an object, or apply a list as a JSON patch: all of it or nothing."""
        return self.request("PATCH", self._object_path(obj), body=change)

    def delete_collection(
        self, api_version: str, kind: str, query: Mapping[str, str], confirm_ownership: Callable[[], object]
    ) -> None:
        """Delete all objects of a kind in the namespace that a query selects, by one request. They may exist still.

        `confirm_ownership`: see `delete`. The server cannot check the uids of the objects.
        """
        request = Request("DELETE", build_path(self.path(api_version, kind), query))
        self._send_deletion(request, discard_list, confirm_ownership)

    def delete(
        self,
        obj: KubeObject,
        *,
        force: bool = False,
        grace_s: int | None = None,
        is_unchanged: bool = False,
        confirm_ownership: Callable[[], object] | None = None,
    ) -> bool:
        """Delete this very object, as it was read, after everything that it owns.

        The server checks its uid and, with `is_unchanged`, its resourceVersion. Returns False if the object is gone,
        its name belongs to another object, or it has changed.

        force: delete it at once, without waiting for its dependents or its node.
        grace_s: of a pod, also of one that is being deleted, in place of its own; at least 1, because 0 is `force`.
        confirm_ownership: called right before each try, since a try may follow an outage in which another process has
        taken the object over. It raises an error if that is so, or is not known.
        """
        preconditions = {"uid": obj["metadata"]["uid"]}
        if is_unchanged:
            preconditions["resourceVersion"] = obj["metadata"]["resourceVersion"]
        if force:
            options = dict(_FORCED_DELETION)
        elif obj["kind"] in _LEAF_KINDS:
            options = dict(_BACKGROUND_DELETION)
        else:
            options = dict(_FOREGROUND_DELETION)
        options["preconditions"] = preconditions
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return self._send_deletion(Request("DELETE", self._object_path(obj), options), read_json, confirm_ownership)

    def _send_deletion(
        self, request: Request, read: Callable[[Response], Any], confirm_ownership: Callable[[], object] | None
    ) -> bool:
        """Send a deletion; return False if there is nothing to delete, or a precondition fails."""

        def send() -> bool:
            if confirm_ownership:
                confirm_ownership()
            try:
                self._exchange(request, read, retry_unauthorized=True)
            except NotFoundError:
                return False
            except ClusterError as error:
                if error.status == HTTPStatus.CONFLICT:
                    return False
                raise
            return True

        return self._retry(send, request.without_query())

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
        """Raise ClusterError if the server does not respond within seconds, or does not accept the credentials.

        A ping that has succeeded less than `_PING_MAX_AGE_S` ago is not repeated.
        """
        if time.monotonic() - self._pinged_at > _PING_MAX_AGE_S:
            self.get_quick("/api")
            self._pinged_at = time.monotonic()

    def get_quick(self, path: str, *, accept: str = "application/json") -> KubeObject:
        """One GET, repeated for a few seconds only. `accept`: the media types of the response."""
        return self._send(Request("GET", path, accept=accept), BRIEF_TIMEOUT_S)

    def get_once(self, path: str, query: Mapping[str, Any] | None = None) -> KubeObject:
        """One GET, not repeated, of objects without their `managedFields`.

        TransientError while the server is away or busy, ClusterError if it refuses.
        """
        response: KubeObject = self._exchange(Request("GET", build_path(path, query)), read_json_without_managers)
        return response

    def request(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None) -> KubeObject:
        """One request, repeated while the server is away or busy. ClusterError with the server's own message."""
        return self._send(Request(method, build_path(path, query), body))

    def _send(
        self, request: Request, timeout_s: float | None = None, read: Callable[[Response], Any] = read_json
    ) -> KubeObject:
        operation = functools.partial(self._exchange, request, read, retry_unauthorized=True)
        return self._retry(operation, request.without_query(), timeout_s)

    def _retry(self, operation: Callable[[], T], action: str, timeout_s: float | None = None) -> T:
        """The result of an operation, which is repeated while the server is away or busy. `action`: for the error."""
        try:
            return retry_request(operation, timeout_s)
        except TransientError as error:
            raise ClusterError(self.host, action, error.message, error.status) from error

    def stream_lines(self, path: str, query: Mapping[str, Any], idle_timeout_s: float) -> Iterator[bytes]:
        """The lines of a response as they arrive, each with its newline, which the last one may lack.

        TransientError if the connection breaks or nothing arrives for `idle_timeout_s`, ClusterError if it is refused.
        """
        with self._open(Request("GET", build_path(path, query), None, idle_timeout_s)) as response:
            yield from split_lines(response)

    # --- one exchange

    def _exchange(
        self, request: Request, read: Callable[[Response], Any] = read_json, *, retry_unauthorized: bool = False
    ) -> Any:
        """What `read` returns of the response to a request, sent once. `retry_unauthorized`: 401 is transient."""
        try:
            with self._open(request) as response:
                self._clock.update(response.headers.get("Date"))
                return read(response)
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
        except (ClusterError, TransientError) as error:
            check_refusal(self.credentials, connection, request, error)
        return self.credentials.current.send(request)


def parse_decimal_quantity(text: str) -> Decimal:
    """`500m`, `64` or `512Gi` as a number: the form in which nodes and pods state cpu, memory and devices."""
    return Decimal(parse_quantity(text))


@functools.cache
def get_cluster_client(cluster: Cluster) -> Client:
    """The client of a cluster and namespace, created once per process."""
    return Client(cluster)
