"""Serves the logs of fake pods as a kubelet does (`kubectl logs`); a follow ends when the container does.

Started by cluster.py with the API server's port, the pki folder and the port to serve on. A container's lines come from
the file that its pod's annotation `torchyard.test/log` names, else from default.log: `{pod}` stands for the pod's name,
`{restart}` for the container's restart count. The file is either plain text, whose lines get times a millisecond apart
from the container's start; or, as its first line shows, in the form of a container runtime (`TIME stdout F text`),
whose times are kept and must rise. It may appear late, and grow while it is followed.

`previous` is answered from the pod's status, as by a kubelet; tests write that status. If the previous container's file
has been deleted, the answer is a kubelet's message for a deleted log.
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
    """The current state of every pod of the cluster, kept up to date by one watch."""

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
        """Wait until any pod changes, at most this long."""
        with self.changed:
            self.changed.wait(seconds)


def key(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def status_of(pod: Object | None, container: str) -> Object:
    """A container's status in the API server; empty if it has none."""
    known = pod.get("status", {}).get("containerStatuses", []) if pod else []
    return next((one for one in known if one["name"] == container), {})


class Container(NamedTuple):
    """One start of a pod's container."""

    restart: int
    started: str

    def file(self, pod: Object) -> Path:
        named = pod["metadata"].get("annotations", {}).get(ANNOTATION, "")
        name = named.replace("{pod}", pod["metadata"]["name"]).replace("{restart}", str(self.restart))
        return Path(name) if name else DEFAULT


def lives(status: Object) -> tuple[Container | None, Container | None]:
    """The containers whose log a kubelet serves as current and as previous; while one waits, both are the last."""
    state, last = status.get("state", {}), status.get("lastState", {}).get("terminated")
    now, count = state.get("running") or state.get("terminated"), status.get("restartCount", 0)
    before = Container(count - 1 if now else count, last["startedAt"]) if last else None
    return (Container(count, now["startedAt"]) if now else before), before


# --- lines -----------------------------------------------------------------------------------------------------------


class LogFile:
    """A log file with stamped lines; each read returns the new ones and leaves an unfinished line for later."""

    def __init__(self, path: Path, started: str, since: bytes) -> None:
        """`since`: lines before this second are left out; if it is empty, none are."""
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
        """The lines with made-up times."""
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
    """The offset of the first line from this second on, in a file whose times rise."""

    def line(at: int) -> bytes:
        """The first line that begins at this offset or later."""
        file.seek(max(at - 1, 0))
        if at:
            file.readline()
        return file.readline()

    size = file.seek(0, os.SEEK_END)
    found = line(bisect.bisect_left(range(size), since, key=lambda place: line(place)[:19] or b"~"))
    return file.tell() - len(found)


def since(query: dict[str, str]) -> bytes:
    """The second from which a request wants lines; empty for all lines."""
    if seconds := query.get("sinceSeconds"):
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=int(seconds))
        return begin.strftime(SECOND).encode()
    return query.get("sinceTime", "")[:19].encode()


def chosen(lines: bytes, query: dict[str, str]) -> bytes:
    """The lines that a request's `tailLines` selects."""
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
        """Send new lines until the container has ended; its last lines are read after its end was seen."""
        first, running = self.running(of), True
        while running:
            running = first is not None and self.running(of) == first
            self.send(log.read(), query)
            if running:
                self.pods.rest(0.1)

    def running(self, of: Place) -> tuple[str, int] | None:
        """The pod's uid and the restart count of its running container; None if it does not run."""
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
        """Log nothing: http.server would log every request."""


def main(api_port: int, pki: Path, port: int) -> None:
    Handler.pods = Pods(Api(api_port, pki / "ca.crt", pki / "admin"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "webhook.crt", pki / "webhook.key")
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    # Each connection's own thread does the handshake, so that a slow client does not delay the others.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
