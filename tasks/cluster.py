"""The only door to Kubernetes: plain dicts in, plain dicts out, over the kubeconfig's own connection."""

import contextlib
import functools
import json
import os
import socket
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException
from kubernetes.utils import parse_quantity
from tenacity import (
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    wait_random_exponential,
)
from urllib3.connection import HTTPConnection

from tasks.errors import ClusterError
from tasks.spec import Cluster

PATIENCE = 30.0  # seconds that a request is repeated while the API server is away or busy
BRIEFLY = 3.0  # the same, for a first knock
CONNECTIONS = 600  # kept open at most: one a log that is followed
BUSY = (429, 502, 503, 504)
JSON = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "torchyard"}
IRREGULAR = {"NetworkAttachmentDefinition": "network-attachment-definitions"}
Object = dict[str, Any]


class BusyError(Exception):
    """The API server did not answer, or asked to come back later."""


def plural(kind: str) -> str:
    """`jobs` of Job, `networkpolicies` of NetworkPolicy: how the API server's paths spell a kind."""
    name = kind.lower()
    if kind in IRREGULAR:
        return IRREGULAR[kind]
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"


class Api:
    """One API server and one namespace, as a context of the kubeconfig (or a pod's own account) gives them."""

    def __init__(self, cluster: Cluster) -> None:
        """ClusterError where there is no such context, or no kubeconfig at all."""
        loaded, found = load(cluster.context)
        self.context = cluster.context or found.get("name")
        self.namespace = cluster.namespace or found.get("context", {}).get("namespace") or "default"
        self.host = str(loaded.host)
        loaded.connection_pool_maxsize = CONNECTIONS
        loaded.socket_options = [*HTTPConnection.default_socket_options, *alive()]
        self._settings = loaded
        self._http = client.ApiClient(loaded).rest_client.pool_manager

    @property
    def cluster(self) -> Cluster:
        """What this is, in full: what a plan keeps."""
        return Cluster(context=self.context, namespace=self.namespace)

    def path(self, api: str, kind: str, name: str = "", namespace: str | None = "") -> str:
        """The path of an object, or of all of a kind; `namespace=None` for what has none, or for all namespaces."""
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        place = f"/namespaces/{namespace or self.namespace}" if namespace is not None else ""
        return f"{root}{place}/{plural(kind)}{f'/{name}' if name else ''}"

    # --- objects

    def create(self, thing: Object, dry_run: bool = False) -> Object:
        """Create an object, unknown fields refused. ClusterError 409 where the name is taken."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        path = self.path(thing["apiVersion"], thing["kind"], namespace=thing["metadata"].get("namespace", ""))
        return self.ask("POST", path, query, thing)

    def read(self, api: str, kind: str, name: str, namespace: str | None = "") -> Object | None:
        """An object; None where there is none."""
        try:
            return self.ask("GET", self.path(api, kind, name, namespace))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def items(
        self, api: str, kind: str, query: Mapping[str, str] | None = None, everywhere: bool = False
    ) -> list[Object]:
        """All objects of a kind in the namespace, or everywhere; none where the server does not know the kind."""
        try:
            found = self.ask("GET", self.path(api, kind, namespace=None if everywhere else ""), query)
        except ClusterError as error:
            if error.status == 404:
                return []
            raise
        return [{"apiVersion": api, "kind": kind, **item} for item in found["items"]]

    def patch(self, thing: Object, change: Object) -> Object:
        """Merge a change into an object."""
        path = self.path(thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
        return self.ask("PATCH", path, body=change)

    def delete(self, api: str, kind: str, name: str) -> bool:
        """Delete an object, what it owns first; False where there was none."""
        try:
            self.ask("DELETE", self.path(api, kind, name), body={"propagationPolicy": "Foreground"})
        except ClusterError as error:
            if error.status == 404:
                return False
            raise
        return True

    # --- requests

    def knock(self) -> None:
        """ClusterError where nobody answers within seconds, or where the server does not know who asks."""
        self.glance("/api")

    def glance(self, path: str) -> Object:
        """One GET, given up within seconds."""
        briefly = self._patiently.retry_with(stop=stop_before_delay(BRIEFLY))
        try:
            found: Object = briefly(self, "GET", path, None)
        except BusyError as error:
            raise ClusterError(self.host, f"GET {path}", str(error), 0) from error
        return found

    def ask(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Object | None = None) -> Object:
        """One request, repeated while the server is away or busy. ClusterError with the server's own words."""
        try:
            return self._patiently(method, path + (f"?{urlencode(query)}" if query else ""), body)
        except BusyError as error:
            raise ClusterError(self.host, f"{method} {path}", str(error), 0) from error

    @retry(
        retry=retry_if_exception_type(BusyError),
        wait=wait_random_exponential(0.2, 5),
        stop=stop_after_delay(PATIENCE) & stop_after_attempt(2),
        reraise=True,
    )
    def _patiently(self, method: str, path: str, body: Object | None) -> Object:
        with self._open(method, path, body, 30.0) as response:
            try:
                answer: Object = json.loads(response.data or b"{}")
            except (urllib3.exceptions.HTTPError, ValueError) as error:
                raise BusyError(f"the answer broke off: {error}") from error
            return answer

    def stream(self, path: str, query: Mapping[str, Any], silence: float) -> Iterator[bytes]:
        """The lines of an answer that goes on, each with its end; the last one may lack it.

        BusyError where the connection breaks or nothing comes for `silence` s, ClusterError where it is refused.
        """
        with self._open("GET", f"{path}?{urlencode(query)}", None, silence) as response:
            rest: list[bytes] = []
            try:
                for part in response.stream(1 << 16, decode_content=True):
                    first, *lines = part.split(b"\n")
                    rest.append(first)
                    for line in lines:
                        yield b"".join(rest) + b"\n"
                        rest = [line]
            except urllib3.exceptions.HTTPError as error:
                raise BusyError(reason(error)) from error
            if last := b"".join(rest):
                yield last

    def _open(self, method: str, path: str, body: Object | None, silence: float) -> Any:
        url = f"{self.host}{path}"
        headers = {**JSON, **({"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {})}
        if token := self._settings.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        data = json.dumps(body) if body is not None else None
        timeout = urllib3.Timeout(connect=10.0, read=silence)
        try:
            response = self._http.request(
                method, url, body=data, headers=headers, timeout=timeout, preload_content=False, retries=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise BusyError(reason(error)) from error
        if response.status >= 400:
            self._refuse(f"{method} {path}", response)
        return response

    def _refuse(self, what: str, response: Any) -> None:
        """Raise the server's refusal, in its own words."""
        try:
            said = response.data.decode(errors="replace")
        except urllib3.exceptions.HTTPError as error:
            raise BusyError(f"the refusal broke off: {error}") from error
        finally:
            response.release_conn()
        if response.status in BUSY:
            raise BusyError(said[:500])
        try:
            message = json.loads(said)["message"]
        except (ValueError, KeyError, TypeError):
            message = said[:500]
        raise ClusterError(self.host, what, message, response.status)


def alive() -> list[tuple[int, int, int]]:
    """Socket options that keep a silent connection from being forgotten on the way, and tell of a dead one."""
    timing = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # not every system has them
    known = {getattr(socket, name): value for name, value in timing.items() if hasattr(socket, name)}
    on = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return [on, *((socket.IPPROTO_TCP, option, value) for option, value in known.items())]


def quantity(text: str) -> Decimal:
    """`500m`, `64` or `512Gi` as a number: what nodes and pods say of cpu, memory and devices."""
    return Decimal(parse_quantity(text))


@functools.cache
def api(cluster: Cluster) -> Api:
    """The connection of a cluster and namespace: made once a process."""
    return Api(cluster)


def load(context: str | None) -> tuple[Any, Object]:
    """The connection's settings and the context that they came from; in a pod without a kubeconfig, its account."""
    loaded = client.Configuration()
    try:
        known, active = config.list_kube_config_contexts(files())
        wanted = context or current() or active["name"]
        found = next((each for each in known if each["name"] == wanted), None)
        if found is None:
            names = ", ".join(sorted(each["name"] for each in known)) or "none"
            raise ClusterError("kubeconfig", f"context {wanted}", f"there is no such context; there are: {names}", 0)
        config.load_kube_config(files(), context=wanted, client_configuration=loaded)
        return loaded, found
    except ConfigException as error:
        return load_inside(loaded, str(error))


def files() -> str:
    """KUBECONFIG as it is now; the client library keeps what it was when that was imported."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def current() -> str | None:
    """The current context as kubectl understands it: the first file of KUBECONFIG that names one.

    The client library takes the last one, and would send the job to another cluster than kubectl shows.
    """
    for path in filter(None, files().split(os.pathsep)):
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
            document = yaml.safe_load(Path(path).expanduser().read_text())
            if isinstance(document, dict) and document.get("current-context"):
                return str(document["current-context"])
    return None


def load_inside(loaded: Any, why: str) -> tuple[Any, Object]:
    """The account of the pod that this runs in, or the reason why there is no kubeconfig."""
    try:
        config.load_incluster_config(client_configuration=loaded)
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
            return loaded, {"context": {"namespace": file.read().strip()}}
    except (ConfigException, OSError):
        remedy = "set KUBECONFIG to the file of your cluster; `make cluster-up` makes a cluster to try"
        raise ClusterError("kubeconfig", "read it", f"{why}; {remedy}", 0) from None


def reason(error: Exception) -> str:
    """The short cause inside urllib3's long sentence."""
    inner = getattr(error, "reason", None) or error
    return str(inner).rpartition(": ")[2] or type(error).__name__
