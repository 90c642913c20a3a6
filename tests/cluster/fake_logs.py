"""The logs of fake pods, served as a kubelet serves them: `kubectl logs`; a follow ends when the container does.

Started by cluster.py with the API server's port, the pki folder and the port to serve on. A container's lines come from
the file that its pod's annotation `torchyard.test/log` names, else from default.log: `{pod}` stands for the pod's name,
`{restart}` for how often the container had begun again. The file is plain text, whose lines get the time of the
container's start, a millisecond apart; or, told by its first line, it is in the form of a container runtime
(`TIME stdout F text`), whose times are kept and must rise. It may come late, and grow while it is followed.

`previous` is answered from the pod's status, as by a kubelet: tests write that. Where the earlier container's file is
gone, so are the kubelet's words.
"""

import bisect
import datetime
import functools
import json
import os
import re
import ssl
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cluster.api import Api, ApiError, Object

DEFAULT = Path(__file__).resolve().parent / "default.log"
ANNOTATION = "torchyard.test/log"
CRI = re.compile(rb"(?m)^(\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) [FP] (.*\n)")
STAMP = re.compile(rb"(?m)^\S+ ")
SECOND = "%Y-%m-%dT%H:%M:%S"
Place = tuple[str, str, str]  # namespace, pod, container


# --- pods ------------------------------------------------------------------------------------------------------------


class Pods:
    """Every pod of the cluster as it is now, kept by one watch."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.known: dict[tuple[str, str], Object] = {}
        self.changed = threading.Condition()
        threading.Thread(target=self.keep, daemon=True).start()

    def keep(self) -> None:
        while True:
            try:
                found = self.api.call("GET", "/api/v1/pods")
                with self.changed:
                    self.known = {key(pod): pod for pod in found["items"]}
                    self.changed.notify_all()
                self.watch(found["metadata"]["resourceVersion"])
            except (ApiError, OSError, ValueError):
                time.sleep(0.2)

    def watch(self, version: str) -> None:
        for line in self.api.stream(f"/api/v1/pods?watch=true&resourceVersion={version}"):
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            with self.changed:
                if event["type"] == "DELETED":
                    self.known.pop(key(event["object"]), None)
                else:
                    self.known[key(event["object"])] = event["object"]
                self.changed.notify_all()

    def find(self, namespace: str, name: str) -> Object | None:
        with self.changed:
            return self.known.get((namespace, name))

    def rest(self, seconds: float) -> None:
        """Wait until any pod has changed, or this long."""
        with self.changed:
            self.changed.wait(seconds)


def key(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def status_of(pod: Object | None, container: str) -> Object:
    """What the API server knows of a container; empty where that is nothing."""
    known = pod.get("status", {}).get("containerStatuses", []) if pod else []
    return next((one for one in known if one["name"] == container), {})


class Container(NamedTuple):
    """One life of a pod's container."""

    restart: int
    started: str

    def file(self, pod: Object) -> Path:
        named = pod["metadata"].get("annotations", {}).get(ANNOTATION, "")
        name = named.replace("{pod}", pod["metadata"]["name"]).replace("{restart}", str(self.restart))
        return Path(name) if name else DEFAULT


def lives(status: Object) -> tuple[Container | None, Container | None]:
    """Whose log a kubelet serves, and whose as the previous one: of a container that waits both are the last."""
    state, last = status.get("state", {}), status.get("lastState", {}).get("terminated")
    now, count = state.get("running") or state.get("terminated"), status.get("restartCount", 0)
    before = Container(count - 1 if now else count, last["startedAt"]) if last else None
    return (Container(count, now["startedAt"]) if now else before), before


# --- lines -----------------------------------------------------------------------------------------------------------


class LogFile:
    """The lines of a log file, stamped, new ones at each reading; a last line without its end is left for later."""

    def __init__(self, path: Path, started: str, since: bytes) -> None:
        """`since`: the second before which lines are left out; empty for none."""
        self.path, self.since = path, since
        self.began = datetime.datetime.fromisoformat(started)
        self.offset, self.count = 0, 0
        self.stamped: bool | None = None

    def read(self) -> bytes:
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            if self.stamped is None and (first := file.readline()).endswith(b"\n"):
                self.stamped = bool(CRI.match(first))
                self.offset = beginning(file, self.since) if self.stamped and self.since else 0
            file.seek(self.offset)
            content = file.read()
        block = content[: content.rfind(b"\n") + 1]
        self.offset += len(block)
        return CRI.sub(rb"\1 \2", block) if self.stamped else self.stamp(block)

    def stamp(self, block: bytes) -> bytes:
        """Lines with made-up times."""
        found = []
        for line in block.split(b"\n")[:-1]:
            self.count += 1
            seconds, milliseconds = divmod(self.count, 1000)
            second = clock(self.began, seconds)
            if second >= self.since:
                found.append(b"%s.%03d000000Z %s\n" % (second, milliseconds, line))
        return b"".join(found)


@functools.lru_cache(maxsize=1000)
def clock(began: datetime.datetime, seconds: int) -> bytes:
    return (began + datetime.timedelta(seconds=seconds)).strftime(SECOND).encode()


def beginning(file: BinaryIO, since: bytes) -> int:
    """Where the first line of a second or of a later one begins, in a file whose times rise."""

    def line(at: int) -> bytes:
        """The first line that begins there or later."""
        file.seek(max(at - 1, 0))
        if at:
            file.readline()
        return file.readline()

    size = file.seek(0, os.SEEK_END)
    found = line(bisect.bisect_left(range(size), since, key=lambda place: line(place)[:19] or b"~"))
    return file.tell() - len(found)


def since(query: dict[str, str]) -> bytes:
    """The second before which lines are left out."""
    if seconds := query.get("sinceSeconds"):
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=int(seconds))
        return begin.strftime(SECOND).encode()
    return query.get("sinceTime", "")[:19].encode()


def chosen(lines: bytes, query: dict[str, str]) -> bytes:
    """Those lines that a request asks for by number."""
    tail = int(query.get("tailLines") or -1)
    return lines if tail < 0 else b"".join(lines.splitlines(keepends=True)[-tail or len(lines) :])


# --- serving ---------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """GET /containerLogs/<namespace>/<pod>/<container>, closed at the end of the log."""

    pods: Pods

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        match path.strip("/").split("/"):
            case ["containerLogs", namespace, name, container]:
                self.serve((namespace, name, container), dict(urllib.parse.parse_qsl(query)))
            case ["healthz"]:
                self.answer(200, "ok")
            case _:
                self.answer(404, "fake pods have logs and nothing else")

    def serve(self, of: Place, query: dict[str, str]) -> None:
        namespace, name, container = of
        pod = self.pods.find(namespace, name)
        if pod is None:
            return self.answer(404, f'pod "{name}" not found')
        previous = query.get("previous") == "true"
        life = lives(status_of(pod, container))[previous]
        if previous and not life:
            return self.answer(400, f'previous terminated container "{container}" in pod "{name}" not found')
        if life is None:
            reason = status_of(pod, container).get("state", {}).get("waiting", {}).get("reason", "ContainerCreating")
            return self.answer(400, f'container "{container}" in pod "{name}" is waiting to start: {reason}')
        if previous and not life.file(pod).exists():
            return self.answer(200, f"unable to retrieve container logs for kwok://{life.restart}")
        log = LogFile(life.file(pod), life.started, since(query))
        self.start(200)
        self.send(chosen(log.read(), query), query)
        if query.get("follow") == "true" and not previous:
            self.follow(log, of, query)
        return None

    def follow(self, log: LogFile, of: Place, query: dict[str, str]) -> None:
        """Send what is added until the container has ended; what it wrote last is read after that is known."""
        first, running = self.running(of), True
        while running:
            running = first is not None and self.running(of) == first
            self.send(log.read(), query)
            if running:
                self.pods.rest(0.1)

    def running(self, of: Place) -> tuple[str, int] | None:
        """Which life of which container runs; None where none does."""
        pod = self.pods.find(*of[:2])
        status = status_of(pod, of[2])
        runs = pod and "running" in status.get("state", {})
        return (pod["metadata"]["uid"], status.get("restartCount", 0)) if pod and runs else None

    def send(self, lines: bytes, query: dict[str, str]) -> None:
        stamped = query.get("timestamps") == "true"
        self.wfile.write(lines if stamped else STAMP.sub(b"", lines))
        self.wfile.flush()

    def answer(self, status: int, text: str) -> None:
        self.start(status)
        self.wfile.write(text.encode())

    def start(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Say nothing: http.server would write a line for each request."""


def main(api_port: int, pki: Path, port: int) -> None:
    Handler.pods = Pods(Api(api_port, pki / "ca.crt", pki / "admin"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "webhook.crt", pki / "webhook.key")
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    # The handshake is left to each connection's own thread: nobody who is slow at it holds up the others.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
