"""Serves the logs of fake pods as a kubelet does (`kubectl logs`); a follow ends when the container does.

cluster.py starts it with the API server's port, the pki folder and the port to serve on. A container's lines come from
the file in its pod's annotation `torchyard.test/log`, else from default.log: `{pod}` stands for the pod's name,
`{restart}` for the container's restart count. The file is either plain text, whose lines get times a millisecond apart
from the container's start; or, if its first line has it, in the format of a container runtime (`TIME stdout F text`),
whose times are kept and must rise. It may be created late, and grow while it is followed.

`previous` is answered from the pod's status, as by a kubelet; tests write that status. If the previous container's file
has been deleted, the response is a kubelet's message for a deleted log.
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

DEFAULT_LOG = Path(__file__).resolve().parent / "default.log"
ANNOTATION = "torchyard.test/log"
CRI_LINE = re.compile(rb"(?m)^(\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) [FP] (.*\n)")
TIMESTAMP = re.compile(rb"(?m)^\S+ ")
SECOND_FORMAT = "%Y-%m-%dT%H:%M:%S"
ContainerKey = tuple[str, str, str]  # namespace, pod, container


# --- pods ------------------------------------------------------------------------------------------------------------


class Pods:
    """The current state of every pod of the cluster.

    A daemon thread lists and watches all pods, and lists them again when the watch ends. `changed` guards
    `pods_by_key` and is notified of every change.
    """

    def __init__(self, api: Api) -> None:
        self.api = api
        self.pods_by_key: dict[tuple[str, str], Object] = {}
        self.changed = threading.Condition()
        threading.Thread(target=self.keep_current, daemon=True).start()

    def keep_current(self) -> None:
        """List and watch all pods, without end; errors of the API server are retried."""
        while True:
            try:
                response = self.api.call("GET", "/api/v1/pods")
                with self.changed:
                    self.pods_by_key = {get_pod_key(pod): pod for pod in response["items"]}
                    self.changed.notify_all()
                self.watch(response["metadata"]["resourceVersion"])
            except (ApiError, OSError, ValueError):
                time.sleep(0.2)

    def watch(self, version: str) -> None:
        """Apply the changes since a resource version, until the watch ends or that version has expired."""
        for line in self.api.stream(f"/api/v1/pods?watch=true&resourceVersion={version}"):
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            with self.changed:
                if event["type"] == "DELETED":
                    self.pods_by_key.pop(get_pod_key(event["object"]), None)
                else:
                    self.pods_by_key[get_pod_key(event["object"])] = event["object"]
                self.changed.notify_all()

    def find(self, namespace: str, name: str) -> Object | None:
        """A pod, or None if it does not exist."""
        with self.changed:
            return self.pods_by_key.get((namespace, name))

    def wait_for_change(self, *, timeout_s: float) -> None:
        """Wait until any pod changes, but not longer than `timeout_s`."""
        with self.changed:
            self.changed.wait(timeout_s)


def get_pod_key(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def get_container_status(pod: Object | None, container: str) -> Object:
    """A container's status in the API server; empty if it has none."""
    statuses: list[Object] = pod.get("status", {}).get("containerStatuses", []) if pod else []
    for status in statuses:
        if status["name"] == container:
            return status
    return {}


class ContainerStart(NamedTuple):
    """One start of a pod's container."""

    restart: int
    started_at: str

    def get_log_path(self, pod: Object) -> Path:
        """The file with the log of this start."""
        template = pod["metadata"].get("annotations", {}).get(ANNOTATION, "")
        name = template.replace("{pod}", pod["metadata"]["name"]).replace("{restart}", str(self.restart))
        return Path(name) if name else DEFAULT_LOG


def find_container_starts(status: Object) -> tuple[ContainerStart | None, ContainerStart | None]:
    """The starts whose logs a kubelet serves as current and as previous, each None if there is none.

    While a container waits to restart, both are its last start.
    """
    state = status.get("state", {})
    current = state.get("running") or state.get("terminated")
    terminated = status.get("lastState", {}).get("terminated")
    restart_count = status.get("restartCount", 0)
    previous = None
    if terminated:
        previous_count = restart_count - 1 if current else restart_count
        previous = ContainerStart(previous_count, terminated["startedAt"])
    if current:
        return ContainerStart(restart_count, current["startedAt"]), previous
    return previous, previous


# --- lines -----------------------------------------------------------------------------------------------------------


class LogFile:
    """A log file, read as lines with timestamps.

    Each read returns the new lines and leaves an unfinished one for later.
    """

    def __init__(self, path: Path, started_at: str, since: bytes) -> None:
        """`since`: lines before this second are left out; if it is empty, none are."""
        self.path = path
        self.since = since
        self.started_at = datetime.datetime.fromisoformat(started_at)
        self.offset = 0
        self.line_count = 0
        self.has_timestamps: bool | None = None

    def read(self) -> bytes:
        """The complete lines since the last read, each with its timestamp."""
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            if self.has_timestamps is None:
                first_line = file.readline()
                if first_line.endswith(b"\n"):
                    self.has_timestamps = bool(CRI_LINE.match(first_line))
                    self.offset = find_offset(file, self.since) if self.has_timestamps and self.since else 0
            file.seek(self.offset)
            content = file.read()
        complete_lines = content[: content.rfind(b"\n") + 1]
        self.offset += len(complete_lines)
        return CRI_LINE.sub(rb"\1 \2", complete_lines) if self.has_timestamps else self.add_timestamps(complete_lines)

    def add_timestamps(self, text: bytes) -> bytes:
        """The lines with timestamps a millisecond apart, without those before `since`."""
        stamped_lines = []
        for line in text.split(b"\n")[:-1]:
            self.line_count += 1
            seconds, milliseconds = divmod(self.line_count, 1000)
            second = format_second(self.started_at, seconds)
            if second >= self.since:
                stamped_lines.append(b"%s.%03d000000Z %s\n" % (second, milliseconds, line))
        return b"".join(stamped_lines)


@functools.lru_cache(maxsize=1000)
def format_second(start: datetime.datetime, seconds: int) -> bytes:
    return (start + datetime.timedelta(seconds=seconds)).strftime(SECOND_FORMAT).encode()


def find_offset(file: BinaryIO, since: bytes) -> int:
    """The offset of the first line of this second or a later one, in a file whose times rise."""

    def read_line_at(offset: int) -> bytes:
        """The first line that begins at this offset or later; empty if there is none."""
        file.seek(max(offset - 1, 0))
        if offset:
            file.readline()
        return file.readline()

    def read_second_at(offset: int) -> bytes:
        return read_line_at(offset)[:19] or b"~"  # the end of the file is later than every line

    size = file.seek(0, os.SEEK_END)
    first_line = read_line_at(bisect.bisect_left(range(size), since, key=read_second_at))
    return file.tell() - len(first_line)


def parse_since(query: dict[str, str]) -> bytes:
    """The second of a request's first lines; empty for all lines."""
    seconds = query.get("sinceSeconds")
    if seconds:
        start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=int(seconds))
        return start.strftime(SECOND_FORMAT).encode()
    return query.get("sinceTime", "")[:19].encode()


def select_tail(lines: bytes, query: dict[str, str]) -> bytes:
    """The lines that a request's `tailLines` selects."""
    line_count = int(query.get("tailLines") or -1)
    return lines if line_count < 0 else b"".join(lines.splitlines(keepends=True)[-line_count or len(lines) :])


# --- serving ---------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """GET /containerLogs/<namespace>/<pod>/<container>, closed at the end of the log."""

    pods: Pods

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        match path.strip("/").split("/"):
            case ["containerLogs", namespace, name, container]:
                self.send_log((namespace, name, container), dict(urllib.parse.parse_qsl(query)))
            case ["healthz"]:
                self.send_text(200, "ok")
            case _:
                self.send_text(404, "fake pods serve only logs")

    def send_log(self, container_key: ContainerKey, query: dict[str, str]) -> None:
        """Send a container's log, or a kubelet's error for a log that does not exist."""
        namespace, name, container = container_key
        pod = self.pods.find(namespace, name)
        if pod is None:
            return self.send_text(404, f'pod "{name}" not found')
        previous = query.get("previous") == "true"
        start = find_container_starts(get_container_status(pod, container))[previous]
        if previous and not start:
            return self.send_text(400, f'previous terminated container "{container}" in pod "{name}" not found')
        if start is None:
            waiting = get_container_status(pod, container).get("state", {}).get("waiting", {})
            reason = waiting.get("reason", "ContainerCreating")
            return self.send_text(400, f'container "{container}" in pod "{name}" is waiting to start: {reason}')
        if previous and not start.get_log_path(pod).exists():
            return self.send_text(200, f"unable to retrieve container logs for kwok://{start.restart}")
        log = LogFile(start.get_log_path(pod), start.started_at, parse_since(query))
        self.send_headers(200)
        self.send_lines(select_tail(log.read(), query), query)
        if query.get("follow") == "true" and not previous:
            self.follow(log, container_key, query)
        return None

    def follow(self, log: LogFile, container_key: ContainerKey, query: dict[str, str]) -> None:
        """Send new lines until the container has ended; the last lines are read after its end is in the API server."""
        followed = self.read_running_start(container_key)
        is_running = True
        while is_running:
            is_running = followed is not None and self.read_running_start(container_key) == followed
            self.send_lines(log.read(), query)
            if is_running:
                self.pods.wait_for_change(timeout_s=0.1)

    def read_running_start(self, container_key: ContainerKey) -> tuple[str, int] | None:
        """The pod's uid and the restart count of its running container; None if it is not running."""
        pod = self.pods.find(*container_key[:2])
        status = get_container_status(pod, container_key[2])
        is_running = pod and "running" in status.get("state", {})
        return (pod["metadata"]["uid"], status.get("restartCount", 0)) if pod and is_running else None

    def send_lines(self, lines: bytes, query: dict[str, str]) -> None:
        keep_timestamps = query.get("timestamps") == "true"
        self.wfile.write(lines if keep_timestamps else TIMESTAMP.sub(b"", lines))
        self.wfile.flush()

    def send_text(self, status: int, text: str) -> None:
        self.send_headers(status)
        self.wfile.write(text.encode())

    def send_headers(self, status: int) -> None:
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
