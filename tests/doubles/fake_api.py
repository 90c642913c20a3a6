"""A fake API server, for tests of faults that a real server cannot produce on request.

tests/contracts/api_server.py checks that it behaves like a real one. It serves HTTP on loopback, so tests use our real
client, including its retries.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.doubles.fake_objects import BUILT_IN, Object, ObjectKey, Objects, RefusedError, list_kinds, matches_selectors
from torchyard.model.requirements import plural_kind

OBJECT_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))"
    r"(?:/namespaces/(?P<space>[^/]+)(?=/))?/(?P<rest>.+)"
)
POLL_INTERVAL_S = 0.05
METADATA_LIST = "PartialObjectMetadataList"


class ReceivedRequest(NamedTuple):
    """A request that has arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    accept: str = ""


class ObjectPath(NamedTuple):
    """The path of a request: `kind` is `v1/pods`, a namespace of None means all, a name of "" a list."""

    kind: str
    namespace: str | None
    name: str
    subresource: str


class Fault(NamedTuple):
    """The status and the body that matching requests get; `remaining[0]` is how many requests will still get them."""

    method: str
    path: re.Pattern[str]
    status: int
    body: Object | bytes
    remaining: list[int]


class UnservedError(Exception):
    """A request for a path that the server does not serve: its response is not a Status."""


class FakeApi:
    """The server. `objects` are the objects that it stores, `received` the requests so far; `fail` adds a fault.

    It serves from its creation until `close`, in daemon threads: one accepts connections, and each connection has its
    own. `objects` has a lock, and a watch waits for its changes; the other attributes are set by the test and read by
    those threads.
    """

    def __init__(
        self, folder: Path, handler_class: "type[Handler] | None" = None, *, max_waiting_connections: int = 5
    ) -> None:
        """`handler_class` replaces the handler of all requests. `folder` gets the kubeconfig."""
        self.objects = Objects()
        self.received: list[ReceivedRequest] = []
        self.logs: dict[
            str, bytes | Callable[[], Iterable[bytes]]
        ] = {}  # by pod name; complete, or a function that yields it in chunks
        self.cuts = 0  # how often `cut` was called; a watch ends when this differs from its value at the request
        self.held_kinds: set[str] = set()  # watches do not deliver their changes
        self.kinds = {f"{kind.api_version}/{plural_kind(kind.name)}": kind for kind in list_kinds()}
        self.stale_versions: set[str] = set()  # API versions whose server does not respond to discovery
        self._faults: list[Fault] = []
        self.denied = set[tuple[str, str]]()  # verbs and resources that reviews deny, such as ("get", "pods/log")
        bound_class = type("Bound", (handler_class or Handler,), {"server_of": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), bound_class)
        self._http.daemon_threads = True
        self._http.socket.listen(max_waiting_connections)
        self.stop_event = threading.Event()
        self.kubeconfig = folder / "fake.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(self._build_kubeconfig()))
        threading.Thread(target=self._http.serve_forever, args=(POLL_INTERVAL_S,), daemon=True, name="fake-api").start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def _build_kubeconfig(self) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": "fake"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "default"}}],
        }

    def close(self) -> None:
        self.stop_event.set()
        self._http.shutdown()
        self._http.server_close()

    # --- for tests

    def hold_watch(self, kind: str) -> None:
        """Hold back the changes of a kind, such as `v1/pods`, from its watches, until `release_watches`."""
        self.held_kinds.add(kind)

    def release_watches(self) -> None:
        self.held_kinds.clear()

    def fail(self, method: str, path: str, status: int, times: int = 10**9) -> None:
        """Give the next `times` requests whose path and query match a pattern this status; 0 breaks the connection."""
        body = RefusedError(status, "Faulty", f"a fault of the test: {status}").body
        self.answer(method, path, status, body, times)

    def answer(self, method: str, path: str, status: int, body: Object | bytes, times: int = 10**9) -> None:
        """Give the next `times` requests whose path and query match a pattern this response, as a proxy may do."""
        self._faults.append(Fault(method, re.compile(path), status, body, [times]))

    def cut(self) -> None:
        """End every watch that is open."""
        self.cuts += 1

    def heal(self) -> None:
        self._faults.clear()

    def put(self, obj: Object, namespace: str = "default") -> Object:
        """Store an object unchecked, even one that the real server would refuse."""
        kind = get_kind_key(obj)
        return self.objects.put(kind, namespace if self.kinds[kind].is_namespaced else "", obj)

    def find(self, api: str, kind: str, name: str, namespace: str = "default") -> Object | None:
        try:
            return self.objects.get(ObjectKey(f"{api}/{plural_kind(kind)}", namespace, name))
        except RefusedError:
            return None

    def find_requests(self, method: str, path: str) -> list[ReceivedRequest]:
        """The requests so far with this method and a path that matches the pattern."""
        return [
            request for request in list(self.received) if request.method == method and re.search(path, request.path)
        ]

    # --- responses

    def take_fault(self, method: str, path: str) -> Fault | None:
        """The first matching fault, whose count falls by one; None if no fault matches."""
        for fault in self._faults:
            if fault.method == method and fault.path.search(path) and fault.remaining[0] > 0:
                fault.remaining[0] -= 1
                return fault
        return None

    def respond(self, request: ReceivedRequest) -> Object | bytes | Callable[[], Iterable[bytes]]:
        """The response to any request except a watch."""
        response = self.aggregate(request) or self.discover(request.path) or self.review(request)
        if response is not None:
            return response
        path = self.parse_path(request.path)
        if not path.name and request.method == "GET":
            response = self.list(path.kind, path.namespace, request.query)
            return build_metadata_list(response) if METADATA_LIST in request.accept else response
        if not path.name and request.method == "DELETE":
            return self.delete_collection(path, request.query)
        key = ObjectKey(path.kind, path.namespace or "", path.name)
        if path.subresource == "log":
            return self.read_log(key, request.query)
        return self.change(request, key)

    def read_log(self, key: ObjectKey, query: Mapping[str, str]) -> bytes | Callable[[], Iterable[bytes]]:
        """A pod's log, or that of its previous container; RefusedError if there is no such pod or container."""
        self.objects.get(key)
        if not query.get("previous"):
            return self.logs.get(key.name, b"")
        if f"{key.name}/previous" not in self.logs:
            message = f'previous terminated container in pod "{key.name}" not found'
            raise RefusedError(400, "BadRequest", message)
        return self.logs[f"{key.name}/previous"]

    def change(self, request: ReceivedRequest, key: ObjectKey) -> Object:
        """Create, change, delete or read one object."""
        match request.method:
            case "POST":
                return self.objects.create(
                    key.kind, key.namespace, request.body, dry_run=request.query.get("dryRun") == "All"
                )
            case "PATCH":
                return self.objects.patch(key, request.body)
            case "DELETE":
                return self.objects.delete(key, request.body or {})
            case _:
                return self.objects.get(key)

    def list(self, kind: str, namespace: str | None, query: Mapping[str, str]) -> Object:
        """A list, one page of it if `limit` is set; items of built-in kinds do not name their kind."""
        api = self.kinds[kind].api_version
        objects = self.objects.select(kind, namespace, query)
        metadata: Object = {"resourceVersion": str(self.objects.version)}
        start = int(query.get("continue") or 0)
        size = int(query.get("limit") or 0)
        if size and start + size < len(objects):
            metadata |= {"continue": str(start + size), "remainingItemCount": len(objects) - start - size}
        items = objects[start : start + size] if size else objects
        if api in BUILT_IN:
            items = [{key: obj[key] for key in obj if key not in ("apiVersion", "kind")} for obj in items]
        return {"kind": f"{self.kinds[kind].name}List", "apiVersion": api, "metadata": metadata, "items": items}

    def delete_collection(self, path: ObjectPath, query: Mapping[str, str]) -> Object:
        """Delete the objects that a query selects; the response lists them."""
        selected = self.list(path.kind, path.namespace, query)
        for obj in selected["items"]:
            self.objects.delete(ObjectKey(path.kind, obj["metadata"]["namespace"], obj["metadata"]["name"]), {})
        return selected

    def parse_path(self, path: str) -> ObjectPath:
        """The parts of a path; UnservedError if it is not a path of a known kind."""
        match = OBJECT_PATH.fullmatch(path)
        rest = match["rest"].split("/") if match else []
        kind = f"{match['core'] or match['group']}/{rest[0]}" if match else ""
        if match is None or kind not in self.kinds or len(rest) > 3:
            raise UnservedError(path)
        name = rest[1] if len(rest) > 1 else ""
        subresource = rest[2] if len(rest) > 2 else ""
        namespace = match["space"] if self.kinds[kind].is_namespaced else ""
        return ObjectPath(kind, namespace, name, subresource)

    def discover(self, path: str) -> Object | bytes | None:
        """The response to discovery: the server's groups and their kinds; None for any other path."""
        versions = dict.fromkeys(kind.api_version for kind in self.kinds.values())
        groups = [
            {
                "name": group_version.partition("/")[0],
                "versions": [{"groupVersion": group_version}],
                "preferredVersion": {"groupVersion": group_version},
            }
            for group_version in versions
        ]
        responses: dict[str, Object | bytes] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "groups": [group for group in groups if group["name"] != "v1"]},
            "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
            "/readyz": b"ok",
        }
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version not in versions:
            return responses.get(path)
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        return {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": [
                {
                    "name": plural_kind(kind.name),
                    "kind": kind.name,
                    "namespaced": kind.is_namespaced,
                    "verbs": verbs,
                }
                for kind in self.kinds.values()
                if kind.api_version == version
            ],
        }

    def aggregate(self, request: ReceivedRequest) -> Object | None:
        """The response to aggregated discovery; None for any other request."""
        if request.path not in ("/api", "/apis") or "g=apidiscovery.k8s.io;v=v2;" not in request.accept:
            return None
        versions: dict[str, list[Object]] = {}
        for kind in self.kinds.values():
            resource = {
                "resource": plural_kind(kind.name),
                "responseKind": {"kind": kind.name},
                "scope": "Namespaced" if kind.is_namespaced else "Cluster",
                "verbs": ["create", "delete", "get", "list", "patch", "watch"],
            }
            versions.setdefault(kind.api_version, []).append(resource)
        items = []
        for api_version, resources in versions.items():
            group, _, version = api_version.rpartition("/")
            if bool(group) == (request.path == "/apis"):
                freshness = "Stale" if api_version in self.stale_versions else "Current"
                known = [] if freshness == "Stale" else resources
                entry = {"version": version, "resources": known, "freshness": freshness}
                items.append({"metadata": {"name": group} if group else {}, "versions": [entry]})
        return {"kind": "APIGroupDiscoveryList", "items": items}

    def review(self, request: ReceivedRequest) -> Object | None:
        """A review of the user, with its status: the name, or whether it may do something; None for any other path."""
        match request.path.rpartition("/")[2]:
            case "selfsubjectreviews":
                return dict(request.body) | {"status": {"userInfo": {"username": "fake-user"}}}
            case "selfsubjectrulesreviews":  # complete only if all is granted
                everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
                rules = [] if self.denied else [everything]
                status = {"resourceRules": rules, "nonResourceRules": [], "incomplete": bool(self.denied)}
                return dict(request.body) | {"status": status}
            case "selfsubjectaccessreviews":
                attributes = request.body["spec"]["resourceAttributes"]
                resource = ".".join(filter(None, (attributes["resource"], attributes["group"])))
                resource_path = "/".join(filter(None, (resource, attributes["subresource"])))
                is_allowed = (attributes["verb"], resource_path) not in self.denied
                return dict(request.body) | {"status": {"allowed": is_allowed}}
            case _:
                return None

    def watch(self, request: ReceivedRequest, cuts: int) -> Iterator[Object]:
        """Yield the changes after a version, then each new one, until `cut` has been called more than `cuts` times."""
        path = self.parse_path(request.path)
        version = int(request.query.get("resourceVersion") or self.objects.version)
        deadline = time.monotonic() + float(request.query.get("timeoutSeconds") or 1e9)
        while not self.stop_event.is_set() and time.monotonic() < deadline and cuts == self.cuts:
            with self.objects.changed:
                try:
                    changes = self.objects.list_changes(version, path.kind)
                except RefusedError as error:
                    yield {"type": "ERROR", "object": error.body}
                    return
                if not changes or path.kind in self.held_kinds:
                    changes = []
                    self.objects.changed.wait(POLL_INTERVAL_S)
            for change in changes:
                version = change.version
                if path.namespace in (None, change.key.namespace) and matches_selectors(change.obj, request.query):
                    yield {"type": change.event, "object": change.obj}


def build_metadata_list(full_list: Object) -> Object:
    """A list of the metadata of objects, whose items name their kind."""
    type_fields = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    items = [type_fields | {"metadata": obj["metadata"]} for obj in full_list["items"]]
    return full_list | {"kind": METADATA_LIST, "apiVersion": "meta.k8s.io/v1", "items": items}


def get_kind_key(obj: Object) -> str:
    return f"{obj['apiVersion']}/{plural_kind(obj['kind'])}"


class Handler(BaseHTTPRequestHandler):
    """Serves the requests of one connection."""

    server_of: FakeApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def do_PATCH(self) -> None:
        self.serve()

    def do_DELETE(self) -> None:
        self.serve()

    def serve(self) -> None:
        url = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        accept = self.headers.get("Accept") or ""
        request = ReceivedRequest(self.command, url.path, dict(parse_qsl(url.query)), body, accept)
        # A test may act as soon as `received` has the request, and its act must not change this request's response.
        cuts = self.server_of.cuts
        fault = self.server_of.take_fault(self.command, self.path)
        self.server_of.received.append(request)
        if fault and fault.status == 0:
            self.close_connection = True
            return
        if fault:
            self._reply(fault.status, fault.body)
            return
        try:
            if request.query.get("watch"):
                self.server_of.parse_path(request.path)
                self._send_watch(request, cuts)
                return
            response = self.server_of.respond(request)
        except RefusedError as error:
            self._reply(error.status, error.body)
            return
        except UnservedError:
            self._reply(404, b"404 page not found\n")
            return
        if callable(response):
            self._send_chunks(response())
        else:
            self._reply(201 if request.method == "POST" else 200, response)

    def _reply(self, status: int, body: Object | bytes) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(body, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_watch(self, request: ReceivedRequest, cuts: int) -> None:
        self._send_chunks(json.dumps(event).encode() + b"\n" for event in self.server_of.watch(request, cuts))

    def _send_chunks(self, chunks: Iterable[bytes]) -> None:
        """Send a response chunk by chunk, then close the connection."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            for chunk in chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client has closed the connection
            return

    def log_message(self, *_: Any) -> None:
        """Log nothing: tests read `received`."""
