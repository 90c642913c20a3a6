"""A fake API server for tests of faults that a real one cannot be made to have.

tests/api_contract.py makes sure that it behaves like the real one. It speaks HTTP on loopback, so tests use our real
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

from tests.fake_objects import BUILT_IN, Object, Objects, Place, RefusedError, is_chosen, known
from torchyard.model.requirements import plural_kind

PATHS = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))"
    r"(?:/namespaces/(?P<space>[^/]+)(?=/))?/(?P<rest>.+)"
)
BEAT_S = 0.05


class Asked(NamedTuple):
    """A request that has arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


class Fault(NamedTuple):
    """How some requests are answered; `times` counts down."""

    method: str
    path: re.Pattern[str]
    status: int
    times: list[int]


class FakeApi:
    """The server: `objects` is what it holds, `asked` are the requests so far, `fail` makes it refuse."""

    def __init__(self, folder: Path) -> None:
        self.objects, self.asked = Objects(), list[Asked]()
        self.logs: dict[str, bytes | Callable[[], Iterable[bytes]]] = {}  # by pod name; whole, or in pieces
        self.cuts = 0  # how often `cut` was called: a watch ends when this is no longer what it was at its request
        self.held_kinds: set[str] = set()  # whose changes no watch delivers
        self.kinds = {f"{api}/{plural_kind(kind)}": (api, kind, spaced) for api, kind, spaced in known()}
        self._faults: list[Fault] = []
        self.denied = set[tuple[str, str]]()  # verbs and resources that reviews deny, as in ("get", "pods/log")
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"server_of": self}))
        self._http.daemon_threads = True
        self.over = threading.Event()
        self.kubeconfig = folder / "fake.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(self._config()))
        threading.Thread(target=self._http.serve_forever, args=(BEAT_S,), daemon=True, name="fake-api").start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def _config(self) -> Object:
        return {
            **{"apiVersion": "v1", "kind": "Config", "current-context": "fake"},
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": "fake"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "default"}}],
        }

    def close(self) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()

    # --- for tests

    def hold_watch(self, kind: str) -> None:
        """Hold back the changes of a kind, such as `v1/pods`, from its watches, until `release_watches`."""
        self.held_kinds.add(kind)

    def release_watches(self) -> None:
        self.held_kinds.clear()

    def fail(self, method: str, path: str, status: int, times: int = 10**9) -> None:
        """Answer requests whose path and query match the pattern with a status; 0 breaks the connection."""
        self._faults.append(Fault(method, re.compile(path), status, [times]))

    def cut(self) -> None:
        """End every watch that is open."""
        self.cuts += 1

    def heal(self) -> None:
        self._faults.clear()

    def put(self, thing: Object, namespace: str = "default") -> Object:
        """Store an object as it is, even one that the real server would refuse."""
        spaced = self.kinds[what(thing)][2]
        return self.objects.put(what(thing), namespace if spaced else "", thing)

    def find(self, api: str, kind: str, name: str, namespace: str = "default") -> Object | None:
        try:
            return self.objects.get((f"{api}/{plural_kind(kind)}", namespace, name))
        except RefusedError:
            return None

    def requests(self, method: str, path: str) -> list[Asked]:
        """The requests so far with this method and a path that matches the pattern."""
        return [each for each in list(self.asked) if each.method == method and re.search(path, each.path)]

    # --- answering

    def fault(self, method: str, path: str) -> int | None:
        for each in self._faults:
            if each.method == method and each.path.search(path) and each.times[0] > 0:
                each.times[0] -= 1
                return each.status
        return None

    def answer(self, asked: Asked) -> Object | bytes | Callable[[], Iterable[bytes]]:
        """The answer to anything but a watch."""
        found = self.discover(asked.path)
        if found is None:
            found = self.review(asked)
        if found is not None:
            return found
        kind, namespace, name, part = self.read_path(asked.path)
        if not name and asked.method == "GET":
            return self.list(kind, namespace, asked.query)
        if part == "log":
            self.objects.get((kind, namespace or "", name))
            if asked.query.get("previous"):
                if f"{name}/previous" in self.logs:
                    return self.logs[f"{name}/previous"]
                raise RefusedError(400, "BadRequest", f'previous terminated container in pod "{name}" not found')
            return self.logs.get(name, b"")
        return self.change(asked, (kind, namespace or "", name))

    def change(self, asked: Asked, place: Place) -> Object:
        """Create, change, delete or read one object."""
        match asked.method:
            case "POST":
                return self.objects.create(place[0], place[1], asked.body, asked.query.get("dryRun") == "All")
            case "PATCH":
                return self.objects.patch(place, asked.body)
            case "DELETE":
                return self.objects.delete(place, asked.body or {})
            case _:
                return self.objects.get(place)

    def list(self, kind: str, namespace: str | None, query: Mapping[str, str]) -> Object:
        """A list, in pages if `limit` asks for them; items of built-in kinds do not name their kind."""
        api, name, _ = self.kinds[kind]
        found = self.objects.select(kind, namespace, query)
        about: Object = {"resourceVersion": str(self.objects.version)}
        begin, size = int(query.get("continue") or 0), int(query.get("limit") or 0)
        if size and begin + size < len(found):
            about |= {"continue": str(begin + size), "remainingItemCount": len(found) - begin - size}
        items = found[begin : begin + size] if size else found
        if api in BUILT_IN:
            items = [{key: each[key] for key in each if key not in ("apiVersion", "kind")} for each in items]
        return {"kind": f"{name}List", "apiVersion": api, "metadata": about, "items": items}

    def read_path(self, path: str) -> tuple[str, str | None, str, str]:
        """The kind, namespace (None: all), name and subresource."""
        found = PATHS.fullmatch(path)
        rest = found["rest"].split("/") if found else []
        kind = f"{found['core'] or found['group']}/{rest[0]}" if found else ""
        if found is None or kind not in self.kinds or len(rest) > 3:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        name, part = (*rest[1:], "", "")[:2]
        return kind, found["space"] if self.kinds[kind][2] else "", name, part

    def discover(self, path: str) -> Object | None:
        """The answer to discovery: the server's groups and their kinds."""
        versions = dict.fromkeys(api for api, _, _ in self.kinds.values())
        groups = [{"name": each.partition("/")[0], "preferredVersion": {"groupVersion": each}} for each in versions]
        fixed: dict[str, Object] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "groups": [each for each in groups if each["name"] != "v1"]},
            "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
            "/readyz": {},
        }
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version not in versions:
            return fixed.get(path)
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        return {
            **{"kind": "APIResourceList", "groupVersion": version},
            "resources": [
                {"name": plural_kind(kind), "kind": kind, "namespaced": spaced, "verbs": verbs}
                for api, kind, spaced in self.kinds.values()
                if api == version
            ],
        }

    def review(self, asked: Asked) -> Object | None:
        """The answer to a question about the user: its name, or whether it may do something."""
        match asked.path.rpartition("/")[2]:
            case "selfsubjectreviews":
                return {"status": {"userInfo": {"username": "fake-user"}}}
            case "selfsubjectaccessreviews":
                about = asked.body["spec"]["resourceAttributes"]
                resource = ".".join(filter(None, (about["resource"], about["group"])))
                whole = "/".join(filter(None, (resource, about["subresource"])))
                return {"status": {"allowed": (about["verb"], whole) not in self.denied}}
            case _:
                return None

    def watch(self, asked: Asked, cuts: int) -> Iterator[Object]:
        """Yield the changes after a version, then each new one, until the next cut after `cuts` of them."""
        kind, namespace, _, _ = self.read_path(asked.path)
        version = int(asked.query.get("resourceVersion") or self.objects.version)
        until = time.monotonic() + float(asked.query.get("timeoutSeconds") or 1e9)
        while not self.over.is_set() and time.monotonic() < until and cuts == self.cuts:
            with self.objects.changed:
                try:
                    found = self.objects.since(version, kind)
                except RefusedError as error:
                    yield {"type": "ERROR", "object": error.body}
                    return
                if not found or kind in self.held_kinds:
                    found = []
                    self.objects.changed.wait(BEAT_S)
            for number, event, place, thing in found:
                version = number
                if namespace in (None, place[1]) and is_chosen(thing, asked.query):
                    yield {"type": event, "object": thing}


def what(thing: Object) -> str:
    return f"{thing['apiVersion']}/{plural_kind(thing['kind'])}"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server_of: FakeApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        asked = Asked(self.command, parts.path, dict(parse_qsl(parts.query)), body)
        # A test acts once it sees the request in `asked`: what it does then must not change this request's answer.
        cuts, status = self.server_of.cuts, self.server_of.fault(self.command, self.path)
        self.server_of.asked.append(asked)
        if status == 0:
            self.close_connection = True
            return
        try:
            if status:
                raise RefusedError(status, "Faulty", f"a fault of the test: {status}")
            if asked.query.get("watch"):
                self._stream(asked, cuts)
                return
            answer = self.server_of.answer(asked)
        except RefusedError as error:
            self._reply(error.status, error.body)
            return
        if callable(answer):
            self._pour(answer())
        else:
            self._reply(201 if asked.method == "POST" else 200, answer)

    def _reply(self, status: int, answer: Object | bytes) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, asked: Asked, cuts: int) -> None:
        self._pour(json.dumps(event).encode() + b"\n" for event in self.server_of.watch(asked, cuts))

    def _pour(self, pieces: Iterable[bytes]) -> None:
        """Send an answer piece by piece."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            for piece in pieces:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client has closed the connection
            return

    def log_message(self, *_: Any) -> None:
        """Log nothing: tests read `asked`."""
