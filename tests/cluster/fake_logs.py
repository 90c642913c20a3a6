"""The logs of fake pods, served as a kubelet serves them: `kubectl logs`, and a follow that ends when the pod does.

Started by cluster.py with the API server's port, the pki folder and the port to serve on. A pod's lines come from the
file that its annotation `torchyard.test/log` names, where `{pod}` stands for its name, else from default.log. The file
is plain text, whose lines get the time of the container's start, a millisecond apart; or it is in the form of a
container runtime (`TIME stdout F text`), whose times are kept. It may come late, and grow while it is followed.
"""

import datetime
import json
import re
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cluster.api import Api, ApiError, Object

DEFAULT = Path(__file__).resolve().parent / "default.log"
ANNOTATION = "torchyard.test/log"
CRI = re.compile(r"(\d{4}-\d\d-\d\dT\S+) (stdout|stderr) [FP] (.*)")
Line = tuple[str, str]  # time (RFC 3339), text


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


def state_of(pod: Object, container: str) -> tuple[str, Object]:
    """What a container does, as ("waiting" | "running" | "terminated", details)."""
    for one in pod.get("status", {}).get("containerStatuses", []):
        if one["name"] == container:
            return next(iter(one["state"].items()), ("waiting", {}))
    return "waiting", {}


def file_of(pod: Object) -> Path:
    named = pod["metadata"].get("annotations", {}).get(ANNOTATION, "")
    return Path(named.replace("{pod}", pod["metadata"]["name"])) if named else DEFAULT


# --- lines -----------------------------------------------------------------------------------------------------------


class LogFile:
    """The lines of a log file, new ones at each reading; a last line without its end is left for later."""

    def __init__(self, path: Path, started: str) -> None:
        self.path = path
        self.began = datetime.datetime.fromisoformat(started)
        self.offset = 0
        self.count = 0

    def read(self) -> Iterator[Line]:
        content = b""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.offset)
                content = file.read()
        for raw in content.split(b"\n")[:-1]:
            self.offset += len(raw) + 1
            yield self.parse(raw.decode(errors="replace"))

    def parse(self, line: str) -> Line:
        self.count += 1
        if found := CRI.fullmatch(line):
            return found[1], found[3]
        when = self.began + datetime.timedelta(milliseconds=self.count)
        return when.strftime("%Y-%m-%dT%H:%M:%S.%f000Z"), line


def since(query: dict[str, str]) -> datetime.datetime | None:
    """The instant before which lines are left out."""
    if seconds := query.get("sinceSeconds"):
        return datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=int(seconds))
    return datetime.datetime.fromisoformat(query["sinceTime"]) if query.get("sinceTime") else None


def chosen(lines: Iterator[Line], query: dict[str, str]) -> list[Line]:
    """Those lines that a request asks for by time and number."""
    start = since(query)
    kept = [line for line in lines if not start or datetime.datetime.fromisoformat(line[0][:26] + "+00:00") >= start]
    tail = int(query.get("tailLines") or -1)
    return kept if tail < 0 else kept[len(kept) - min(tail, len(kept)) :]


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

    def serve(self, of: tuple[str, str, str], query: dict[str, str]) -> None:
        namespace, name, container = of
        pod = self.pods.find(namespace, name)
        if pod is None:
            return self.answer(404, f'pod "{name}" not found')
        doing, details = state_of(pod, container)
        if doing == "waiting":
            reason = details.get("reason", "ContainerCreating")
            return self.answer(400, f'container "{container}" in pod "{name}" is waiting to start: {reason}')
        if query.get("previous") == "true":
            return self.answer(400, f'previous terminated container "{container}" in pod "{name}" not found')
        log = LogFile(file_of(pod), details["startedAt"])
        self.start(200)
        self.send(chosen(log.read(), query), query)
        if query.get("follow") == "true":
            self.follow(log, of, query)
        return None

    def follow(self, log: LogFile, of: tuple[str, str, str], query: dict[str, str]) -> None:
        """Send what is added until the pod has ended or is gone; what it wrote last is read after that is known."""
        uid = (self.pods.find(*of[:2]) or {"metadata": {"uid": ""}})["metadata"]["uid"]
        running = True
        while running:
            pod = self.pods.find(*of[:2])
            running = bool(pod and pod["metadata"]["uid"] == uid and state_of(pod, of[2])[0] == "running")
            self.send(list(log.read()), query)
            if running:
                self.pods.rest(0.1)

    def send(self, lines: list[Line], query: dict[str, str]) -> None:
        stamped = query.get("timestamps") == "true"
        text = "".join(f"{when} {line}\n" if stamped else f"{line}\n" for when, line in lines)
        self.wfile.write(text.encode())
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
