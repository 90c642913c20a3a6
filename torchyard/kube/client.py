"""The only door to Kubernetes: plain dicts in, plain dicts out, over the kubeconfig's own connection."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from kubernetes.utils import parse_quantity
from tenacity import stop_before_delay

from torchyard.kube.credentials import Credentials
from torchyard.kube.http import (
    Connection,
    Request,
    ServerClock,
    read_answer,
    stream_chunks,
    stream_lines,
)
from torchyard.kube.kubeconfig import load_settings, open_connection, renew_connection
from torchyard.kube.retry import BRIEF_TIMEOUT_S, TransientError, retry_transient
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.model.requirements import plural_kind

_FOREGROUND_DELETION = {"propagationPolicy": "Foreground"}
_FORCED_DELETION = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
KubeObject = dict[str, Any]


class Client:
    """One API server and one namespace, as a context of the kubeconfig (or a pod's own account) gives them."""

    def __init__(self, cluster: Cluster) -> None:
        """ClusterError where there is no such context, or no kubeconfig at all."""
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
        """What this is, in full: what a plan keeps."""
        return Cluster(context=self.context, namespace=self.namespace)

    def path(self, api: str, kind: str, name: str = "", namespace: str | None = "") -> str:
        """The path of an object, or of all of a kind; `namespace=None` for what has none, or for all namespaces."""
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        place = f"/namespaces/{namespace or self.namespace}" if namespace is not None else ""
        return f"{root}{place}/{plural_kind(kind)}{f'/{name}' if name else ''}"

    # --- objects

    def create(self, thing: KubeObject, dry_run: bool = False) -> KubeObject:
        """Create an object, unknown fields refused. ClusterError 409 where the name is taken."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        path = self.path(thing["apiVersion"], thing["kind"], namespace=thing["metadata"].get("namespace", ""))
        return self.ask("POST", path, query, thing)

    def read(self, api: str, kind: str, name: str, namespace: str | None = "") -> KubeObject | None:
        """An object; None where there is none."""
        try:
            return self.ask("GET", self.path(api, kind, name, namespace))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def items(
        self, api: str, kind: str, query: Mapping[str, str] | None = None, everywhere: bool = False
    ) -> list[KubeObject]:
        """All objects of a kind in the namespace, or everywhere; none where the server does not know the kind.

        ClusterError where the list is refused, or is not whole.
        """
        path, asked, items = (
            self.path(api, kind, namespace=None if everywhere else ""),
            dict(query or {}),
            list[KubeObject](),
        )
        while True:
            try:
                found = self.ask("GET", path, asked)
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

    def patch(self, thing: KubeObject, change: KubeObject | list[KubeObject]) -> KubeObject:
        """Merge a change into an object, or carry out a JSON patch: a list, all of it or nothing."""
        path = self.path(thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
        return self.ask("PATCH", path, body=change)

    def delete(self, api: str, kind: str, name: str, force: bool = False) -> bool:
        """Delete an object, what it owns first; False where there was none. By force nobody's word is waited for."""
        try:
            self.ask("DELETE", self.path(api, kind, name), body=_FORCED_DELETION if force else _FOREGROUND_DELETION)
        except ClusterError as error:
            if error.status == 404:
                return False
            raise
        return True

    def delete_same(self, thing: KubeObject, force: bool = False) -> bool:
        """Delete this very object; False where it is gone, or another one has its name by now."""
        path = self.path(thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
        how = {
            **(_FORCED_DELETION if force else _FOREGROUND_DELETION),
            "preconditions": {"uid": thing["metadata"]["uid"]},
        }
        try:
            self.ask("DELETE", path, body=how)
        except ClusterError as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    # --- requests

    def now(self) -> float:
        """The API server's time: Leases are written and judged by this one clock, however machines' own differ."""
        if not self._clock.is_set:
            self.knock()
        return self._clock.now()

    def knock(self) -> None:
        """ClusterError where nobody answers within seconds, or where the server does not know who asks."""
        self.glance("/api")

    def glance(self, path: str) -> KubeObject:
        """One GET, given up within seconds."""
        briefly = self._answer.retry_with(stop=stop_before_delay(BRIEF_TIMEOUT_S))
        try:
            found: KubeObject = briefly(self, Request("GET", path))
        except TransientError as error:
            raise ClusterError(self.host, f"GET {path}", error.said, error.status) from error
        return found

    def ask(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None) -> KubeObject:
        """One request, repeated while the server is away or busy. ClusterError with the server's own words."""
        try:
            return self._answer(Request(method, _request_path(path, query), body))
        except TransientError as error:
            raise ClusterError(self.host, f"{method} {path}", error.said, error.status) from error

    @retry_transient
    def _answer(self, asked: Request) -> KubeObject:
        try:
            return self._once(asked)
        except ClusterError as error:
            if error.status != 401:
                raise
            raise TransientError(error.said, 401) from error  # a server that lost its memory of us may find it again

    def look(self, path: str, query: Mapping[str, Any] | None = None) -> KubeObject:
        """One GET, tried once. TransientError where the server is away or busy, ClusterError where it refuses."""
        return self._once(Request("GET", _request_path(path, query)))

    def _once(self, asked: Request) -> KubeObject:
        with self._open(asked) as response:
            self._clock.learn(response.headers.get("Date"))
            answer: KubeObject = read_answer(response)
            return answer

    def stream(self, path: str, query: Mapping[str, Any], silence: float) -> Iterator[bytes]:
        """The lines of an answer that goes on, each with its end; the last one may lack it.

        TransientError where the connection breaks or nothing comes for `silence` s, ClusterError where it is refused.
        """
        with self._open(Request("GET", _request_path(path, query), None, silence)) as response:
            yield from stream_lines(response)

    def parts(self, path: str, query: Mapping[str, Any], silence: float) -> Iterator[bytes]:
        """The same in the parts in which it comes: of a log there may be many lines in one."""
        with self._open(Request("GET", _request_path(path, query), None, silence)) as response:
            yield from stream_chunks(response)

    @contextlib.contextmanager
    def opened(self, path: str, query: Mapping[str, Any], silence: float) -> Iterator[Iterator[bytes]]:
        """The same, once the server has begun to answer: it has no longer for that than for any answer."""
        with self._open(Request("GET", _request_path(path, query))) as response:
            if sock := getattr(response.connection, "sock", None):
                sock.settimeout(silence)
            yield stream_lines(response)

    def _open(self, asked: Request) -> Any:
        """The answer. Credentials that are refused are loaded anew, once each time that they expire."""
        link = self._credentials.now
        try:
            return link.send(asked)
        except ClusterError as error:
            if error.status == 403 and _is_starting(link):
                raise TransientError(f"the server is not ready: {error.said}", 403) from error
            # What is ready by now may not have been a moment ago: only its second refusal counts.
            if error.status != 403 and (error.status != 401 or not self._credentials.renew(link)):
                raise
        return self._credentials.now.send(asked)


def _request_path(path: str, query: Mapping[str, Any] | None) -> str:
    return path + (f"?{urlencode(query)}" if query else "")


def _is_starting(link: Connection) -> bool:
    """Whether the server has only just started: it refuses everything before it has read who may do what."""
    try:
        link.send(Request("GET", "/readyz")).drain_conn()  # what is not read would stand before the next answer
    except TransientError:
        return True
    except ClusterError:
        pass
    return False


def decimal_quantity(text: str) -> Decimal:
    """`500m`, `64` or `512Gi` as a number: what nodes and pods say of cpu, memory and devices."""
    return Decimal(parse_quantity(text))


@functools.cache
def get_cluster_client(cluster: Cluster) -> Client:
    """The connection of a cluster and namespace: made once a process."""
    return Client(cluster)
