"""The only door to Kubernetes: the verbs of its API, plain dicts in and out, over the kubeconfig's own connection.

A verb builds a Request; `request` sends it and repeats it by the retry policy of kube/retry.py. `get_once` and the
streams do not repeat anything: their callers resume by themselves.
"""

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from kubernetes.utils import parse_quantity

from torchyard.kube.credentials import Credentials
from torchyard.kube.http import (
    Connection,
    Request,
    ServerClock,
    read_answer,
    split_chunks,
    split_lines,
)
from torchyard.kube.kubeconfig import load_settings, open_connection, renew_connection
from torchyard.kube.retry import BRIEF_TIMEOUT_S, TransientError, retry_request
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.model.requirements import plural_kind

_FOREGROUND_DELETION = {"propagationPolicy": "Foreground"}
_FORCED_DELETION = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
_ACCESS_RULES_TIMEOUT_S = 15.0  # seconds that a server which refuses even discovery may take to read its access rules
_UNREAD_ROLE_PATTERN = re.compile(r"RBAC: .*\bnot found")  # a binding was read before its role
KubeObject = dict[str, Any]
KubeObjects = list[KubeObject]


class Client:
    """One API server and one namespace, as a context of the kubeconfig (or a pod's own account) gives them.

    Every method raises ClusterError where the server refuses, in the server's own words.

        api = get_cluster_client(Cluster(context="lab", namespace="team-a"))
        pod = api.get("v1", "Pod", "train-worker-0")
        pods = api.list("v1", "Pod", {"labelSelector": "torchyard/run=ab12"})
    """

    def __init__(self, cluster: Cluster) -> None:
        """ClusterError if the context does not exist, or there is no kubeconfig at all."""
        loaded, found = load_settings(cluster.context)
        self.context = cluster.context or found.get("name")
        self.namespace = cluster.namespace or found.get("context", {}).get("namespace") or "default"
        first = open_connection(loaded, self.context)
        self._credentials = Credentials(first, lambda: renew_connection(first, self.context))
        self._clock = ServerClock()

    @property
    def host(self) -> str:
        return str(self._credentials.now.settings.host)

    @property
    def cluster(self) -> Cluster:
        """The context and namespace in full: what a plan keeps."""
        return Cluster(context=self.context, namespace=self.namespace)

    def path(self, api: str, kind: str, name: str = "", namespace: str | None = "") -> str:
        """The path of an object, or of all objects of a kind.

        `namespace=None` for kinds that have no namespace, or for all namespaces.
        """
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        place = f"/namespaces/{namespace or self.namespace}" if namespace is not None else ""
        return f"{root}{place}/{plural_kind(kind)}{f'/{name}' if name else ''}"

    # --- verbs

    def get(self, api: str, kind: str, name: str, namespace: str | None = "") -> KubeObject | None:
        """An object; None if there is none of this name."""
        try:
            return self.request("GET", self.path(api, kind, name, namespace))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self, api: str, kind: str, query: Mapping[str, str] | None = None, everywhere: bool = False
    ) -> KubeObjects:
        """All objects of a kind in the namespace, or everywhere; empty if the server does not know the kind.

        ClusterError if the list is refused or incomplete.
        """
        path, asked = self.path(api, kind, namespace=None if everywhere else ""), dict(query or {})
        items: KubeObjects = []
        while True:
            try:
                found = self.request("GET", path, asked)
            except ClusterError as error:
                if error.status == 404 and "continue" not in asked:
                    return []
                raise
            if "items" not in found:
                raise ClusterError(self.host, f"GET {path}", "the answer is no list", 0)
            items += found["items"] or []
            if not (rest := (found.get("metadata") or {}).get("continue")):
                return [{"apiVersion": api, "kind": kind, **item} for item in items]
            asked["continue"] = rest

    def create(self, thing: KubeObject, dry_run: bool = False) -> KubeObject:
        """Create an object; unknown fields are refused. ClusterError 409 if the name is taken."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        path = self.path(thing["apiVersion"], thing["kind"], namespace=thing["metadata"].get("namespace", ""))
        return self.request("POST", path, query, thing)

    def patch(self, thing: KubeObject, change: KubeObject | KubeObjects) -> KubeObject:
        """Merge a dict into an object, or apply a list as a JSON patch: all of it or nothing."""
        return self.request("PATCH", self._object_path(thing), body=change)

    def delete(self, api: str, kind: str, name: str, force: bool = False) -> bool:
        """Delete an object after everything that it owns; False if there was none.

        `force` deletes it at once, without waiting for its dependents or its node.
        """
        return self._delete(self.path(api, kind, name), _deletion_options(force), absent=(404,))

    def delete_exact(self, thing: KubeObject, force: bool = False) -> bool:
        """Delete this very object, by its uid; False if it is gone, or its name belongs to another object by now."""
        options = {**_deletion_options(force), "preconditions": {"uid": thing["metadata"]["uid"]}}
        return self._delete(self._object_path(thing), options, absent=(404, 409))

    def _delete(self, path: str, options: KubeObject, absent: tuple[int, ...]) -> bool:
        try:
            self.request("DELETE", path, body=options)
        except ClusterError as error:
            if error.status in absent:
                return False
            raise
        return True

    def _object_path(self, thing: KubeObject) -> str:
        return self.path(thing["apiVersion"], thing["kind"], thing["metadata"]["name"])

    @contextlib.contextmanager
    def watch(self, path: str, query: Mapping[str, Any], silence: float) -> Iterator[Iterator[bytes]]:
        """The lines of a watch, from the moment that the server has begun to answer. Not repeated: see stream_lines.

        The server has no more time to begin than for any other answer; after that, `silence` seconds between lines.
        """
        with self._open(Request("GET", _request_path(path, query))) as response:
            if sock := getattr(response.connection, "sock", None):
                sock.settimeout(silence)
            yield split_lines(response)

    # --- requests

    def now(self) -> float:
        """The API server's time. Leases are written and judged by this clock, whatever the clocks of machines say."""
        if not self._clock.is_set:
            self.ping()
        return self._clock.now()

    def ping(self) -> None:
        """ClusterError if the server does not answer within seconds, or does not know the user."""
        self.get_quick("/api")

    def get_quick(self, path: str) -> KubeObject:
        """One GET, repeated for a few seconds only."""
        return self._send(Request("GET", path), BRIEF_TIMEOUT_S)

    def get_once(self, path: str, query: Mapping[str, Any] | None = None) -> KubeObject:
        """One GET, not repeated. TransientError while the server is away or busy, ClusterError if it refuses."""
        return self._exchange(Request("GET", _request_path(path, query)))

    def request(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None) -> KubeObject:
        """One request, repeated while the server is away or busy. ClusterError with the server's own words."""
        return self._send(Request(method, _request_path(path, query), body))

    def _send(self, asked: Request, timeout_s: float | None = None) -> KubeObject:
        try:
            return retry_request(lambda: self._exchange(asked, repeatable=True), timeout_s)
        except TransientError as error:
            raise ClusterError(self.host, asked.without_query(), error.said, error.status) from error

    def stream_lines(self, path: str, query: Mapping[str, Any], silence: float) -> Iterator[bytes]:
        """The lines of an answer as they come, each with its line end; the last one may lack it.

        TransientError if the connection breaks or nothing comes for `silence` seconds, ClusterError if it is refused.
        """
        with self._open(Request("GET", _request_path(path, query), None, silence)) as response:
            yield from split_lines(response)

    def stream_chunks(self, path: str, query: Mapping[str, Any], silence: float) -> Iterator[bytes]:
        """The same answer in the chunks in which it comes: one chunk of a log may hold many lines."""
        with self._open(Request("GET", _request_path(path, query), None, silence)) as response:
            yield from split_chunks(response)

    # --- one exchange

    def _exchange(self, asked: Request, repeatable: bool = False) -> KubeObject:
        """Send a request once and read its answer."""
        try:
            with self._open(asked) as response:
                self._clock.learn(response.headers.get("Date"))
                answer: KubeObject = read_answer(response)
                return answer
        except ClusterError as error:
            if error.status != 401 or not repeatable:
                raise
            raise TransientError(
                error.message, 401
            ) from error  # a server that forgot its users may know them again soon

    def _open(self, asked: Request) -> Any:
        """The answer, unread. Refused credentials are loaded again, once each time that they expire."""
        link = self._credentials.now
        try:
            return link.send(asked)
        except ClusterError as error:
            if error.status == 403 and (start := _find_start(link, error.message)):
                raise start from error
            # What is ready now may not have been ready a moment ago: only the second refusal counts.
            if error.status != 403 and (error.status != 401 or not self._credentials.renew(link)):
                raise
        return self._credentials.now.send(asked)


def _request_path(path: str, query: Mapping[str, Any] | None) -> str:
    return path + (f"?{urlencode(query)}" if query else "")


def _deletion_options(force: bool) -> KubeObject:
    return _FORCED_DELETION if force else _FOREGROUND_DELETION


def _find_start(link: Connection, said: str) -> TransientError | None:
    """The reason to ask again later if the server has only just started: it refuses all until it knows its users.

    Until then it refuses /readyz as well, and discovery, which is for everybody. Some servers always refuse /readyz.
    """
    unready = f"the server is not ready: {said}"
    try:
        _probe(link, "/readyz")
    except TransientError:
        return TransientError(unready, 403)
    except ClusterError as error:
        if error.status == 403 and (_UNREAD_ROLE_PATTERN.search(error.message) or not _may_discover(link)):
            return TransientError(unready, 403, timeout_s=_ACCESS_RULES_TIMEOUT_S)
    return None


def _may_discover(link: Connection) -> bool:
    try:
        _probe(link, "/apis")
    except (TransientError, ClusterError):
        return False
    return True


def _probe(link: Connection, path: str) -> None:
    link.send(Request("GET", path)).drain_conn()  # an unread body would precede the next answer


def decimal_quantity(text: str) -> Decimal:
    """`500m`, `64` or `512Gi` as a number: how nodes and pods give cpu, memory and devices."""
    return Decimal(parse_quantity(text))


@functools.cache
def get_cluster_client(cluster: Cluster) -> Client:
    """The client of a cluster and namespace, made once per process."""
    return Client(cluster)
