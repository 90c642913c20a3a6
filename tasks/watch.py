"""A job in a cluster while it goes: its objects by watches, never by asking again, and every pod's log to disk."""

import contextlib
import json
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tasks import shell
from tasks.cluster import Api, BusyError, api
from tasks.errors import ClusterError
from tasks.launchers import _pod_status
from tasks.model import ManifestPlan, Watched
from tasks.pump import Pump, settle

QUIET = 150.0  # a watch without a bookmark for so long is taken for dead: the server sends one a minute
PAUSE = 1.0  # between two tries of a watch that broke
FULL = 600  # seconds that the server keeps one watch open
News = tuple[str, str, Mapping[str, Any] | None]


class ClusterWatch:
    """What the API server says of a plan's objects: `seen` is current after each `changes`."""

    def __init__(self, plan: ManifestPlan) -> None:
        self.seen: dict[str, Mapping[str, Any]] = {}
        self._plan, self._api = plan, api(plan.cluster)
        self._news: queue.Queue[News] = queue.Queue()
        self._over = threading.Event()
        self._pumps: dict[str, Pump] = {}
        self._ready = threading.Semaphore(0)
        for watched in plan.watch:
            Watcher(self._api, plan, watched, self._news, self._over, self._ready).start()

    def __enter__(self) -> Self:
        """Everything is listed once before anything is said: an object that is not seen is not there."""
        for _ in self._plan.watch:
            self._ready.acquire(timeout=60)
        self._drain(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def changes(self, timeout: float) -> bool:
        """Wait for news, at most `timeout` seconds; True where `seen` has changed."""
        return self._drain(timeout)

    def _drain(self, timeout: float) -> bool:
        news = False
        with contextlib.suppress(queue.Empty):
            self._take(*self._news.get(timeout=timeout) if timeout else self._news.get_nowait())
            news = True
            while True:
                self._take(*self._news.get_nowait())
        return news

    def _take(self, kind: str, name: str, thing: Mapping[str, Any] | None) -> None:
        key = f"{kind}/{name.removeprefix(self._plan.job + '-')}" if kind == "Pod" else f"{kind}/{name}"
        if thing is None:
            self.seen.pop(key, None)
            return
        self.seen[key] = thing
        if kind == "Pod":
            self._follow(key.partition("/")[2], thing)

    def _follow(self, node: str, pod: Mapping[str, Any]) -> None:
        """Begin a pod's log as soon as its container has run at all; a pod made anew goes on in the same file."""
        uid = pod["metadata"]["uid"]
        beside = _pod_status.ROLE in pod["metadata"].get("labels", {})
        container = pod["spec"]["containers"][0]["name"] if beside else self._plan.container
        states = [each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses") or ()]
        begun = any("running" in state or "terminated" in state for state in states)
        if begun and uid not in self._pumps:
            path = Path(self._plan.logs.get(node) or f"{self._plan.folder}/{node}/log")
            self._pumps[uid] = Pump(self._api, pod["metadata"]["name"], container, path)
            self._pumps[uid].start()
        if uid in self._pumps and _pod_status.phase(pod) in ("Succeeded", "Failed"):
            self._pumps[uid].ended()

    # --- how it ended

    def exits(self) -> dict[str, int | None]:
        """Exit code by node; negative is a signal."""
        codes = _pod_status.exits(self._pods())
        return {name: 128 - code if code and code > 128 else code for name, code in codes.items()}

    def ended_at(self) -> float | None:
        """When the last container exited, by its node's clock."""
        ends = [_pod_status.ended(pod) for pod in self._pods().values() if _pod_status.exit_code(pod) is not None]
        return max((end for end in ends if end < float("inf")), default=None)

    def started_at(self) -> float:
        """When the job was made, by the API server's clock; 0 where it was not seen."""
        main = self.seen.get(f"{self._plan.main['kind']}/{self._plan.job}")
        return _pod_status.seconds(main["metadata"]["creationTimestamp"]) if main else 0.0

    def lost(self) -> dict[str, str]:
        """What a log lacks for good, by node."""
        return {pump.node: pump.lost for pump in self._pumps.values() if pump.lost}

    def running_at(self) -> float:
        """When the last of the containers began, by its node's clock; 0 where none has."""
        return max((_pod_status.began(pod) for pod in self._pods().values()), default=0.0)

    def last_line(self, node: str) -> str:
        """The last thing that a pod said."""
        lines = [line for line, _ in shell.follow(Path(self._plan.folder, node, "log"), 0)]
        return lines[-1].partition(" | ")[2] if lines else "nothing"

    def hints(self) -> str:
        """What the controllers said last about the plan's objects: where no object holds a reason, an event may."""
        with contextlib.suppress(ClusterError):  # a user without the right to read events loses only this
            events = self._api.items("v1", "Event")
            mine = [each for each in events if each["involvedObject"].get("name", "").startswith(self._plan.job)]
            bad = [each for each in mine if each.get("type") == "Warning" or each.get("reason") == "Unschedulable"]
            if bad:
                last = max(
                    bad, key=lambda each: str(each.get("lastTimestamp") or each["metadata"]["creationTimestamp"])
                )
                return f"; {last['involvedObject']['kind']}: {last.get('reason')}: {last.get('message', '')[:500]}"
        return ""

    def settle(self, seconds: float) -> None:
        """Wait until every log of a pod that has ended is whole, and keep what the API said last."""
        settle(self._plan.folder, self._plan.nodes, seconds)
        said = json.dumps(self.seen, indent=1)
        with contextlib.suppress(OSError):
            Path(self._plan.folder).mkdir(parents=True, exist_ok=True)
            Path(self._plan.folder, "objects.json").write_text(said + "\n")

    def _pods(self) -> _pod_status.Pods:
        return {name.partition("/")[2]: pod for name, pod in self.seen.items() if name.startswith("Pod/")}


class Watcher(threading.Thread):
    """One watch: list, then every change; listed again where the server has forgotten how far it was read."""

    def __init__(self, server: Api, plan: ManifestPlan, watched: Watched, *shared: Any) -> None:
        super().__init__(daemon=True, name=f"watch-{watched.kind}")
        self._api, self._watched = server, watched
        self._news, self._over, self._ready = shared
        self._path = server.path(watched.api, watched.kind)
        labels = ",".join(f"{key}={value}" for key, value in plan.labels.items())
        self._which = {"fieldSelector": f"metadata.name={plan.job}"} if watched.by_name else {"labelSelector": labels}
        self._known: set[str] = set()
        self._listed = False

    def run(self) -> None:
        version = ""
        while not self._over.is_set():
            try:
                version = self._watch(version or self._list())
            except ClusterError as error:
                version = ""
                if error.status in (403, 404):  # no such kind here, or not for us: preflight has said so
                    self._said()
                    return
                self._over.wait(PAUSE)
            except BusyError:
                self._over.wait(PAUSE)

    def _said(self) -> None:
        if not self._listed:
            self._listed = True
            self._ready.release()

    def _list(self) -> str:
        """Everything there is now; what was known and is not there any more has gone meanwhile."""
        found = self._api.ask("GET", self._path, self._which)
        names = {each["metadata"]["name"]: each for each in found["items"]}
        for name in self._known - names.keys():
            self._tell(name, None)
        for name, thing in names.items():
            self._tell(name, thing)
        self._said()
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Follow the changes since `version`; the version to go on from, or nothing where it is too old."""
        asked = {**self._which, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(FULL)}
        for line in self._api.stream(self._path, {**asked, "resourceVersion": version}, QUIET):
            if self._over.is_set():
                return version
            event = json.loads(line)
            thing = event["object"]
            if event["type"] == "ERROR":
                return ""
            version = thing["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._tell(thing["metadata"]["name"], None if event["type"] == "DELETED" else thing)
        return version

    def _tell(self, name: str, thing: Mapping[str, Any] | None) -> None:
        self._known = self._known | {name} if thing else self._known - {name}
        self._news.put((self._watched.kind, name, thing))
