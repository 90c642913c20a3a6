"""A job in a cluster while it goes: its objects by watches, never by asking again, and every pod's log to disk."""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tasks import shell
from tasks.cluster import Api, BusyError, api
from tasks.errors import ClusterError
from tasks.launchers import _pod_facts
from tasks.plan import ManifestPlan, Watched
from tasks.pump import Pump, Source, follow

QUIET = 150.0  # a watch without a bookmark for so long is taken for dead: the server sends one a minute
PAUSE = 1.0  # between two tries of a watch that broke
REFUSED = 60.0  # the same, of a kind that is not served, or not to us
FULL = 600  # seconds that the server keeps one watch open
FIRST = 300.0  # seconds that the first look at everything may take
SLICE = 0.5  # a run is ended by an exception in this thread, which a longer sleep would hold up
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
        shared = (self._news, self._over, self._ready)
        self._watchers = [Watcher(self._api, plan, watched, *shared) for watched in plan.watch]
        for watcher in self._watchers:
            watcher.start()

    def __enter__(self) -> Self:
        """Everything is listed once before anything is said: an object that is not seen is not there."""
        until = time.monotonic() + FIRST
        for watched in self._plan.watch:
            while not self._ready.acquire(timeout=SLICE):
                if time.monotonic() > until:
                    self._over.set()
                    said = f"no answer for {FIRST:.0f} s"
                    raise ClusterError(self._api.host, f"list {watched.kind}", said, 0)
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
        key = f"{kind}/{self._plan.node(name)}" if kind == "Pod" else f"{kind}/{name}"
        if thing is None and self.seen.get(key, {}).get("metadata", {}).get("name") != name:
            return  # another pod is that node by now
        before = self.seen.pop(key, None) if thing is None else thing
        if thing is not None:
            self.seen[key] = thing
        if kind == "Pod":
            node = key.partition("/")[2]
            if before and (thing is None or _pod_facts.leaving(thing)):
                # Kept: the first one that goes may be why the others fail, and is gone by then.
                self.seen.setdefault(f"Removed/{node}", before)
            self._follow(node, name, thing)

    def _follow(self, node: str, name: str, pod: Mapping[str, Any] | None) -> None:
        """Begin a pod's log as soon as its container has run at all; a pod made anew goes on in the same file."""
        uid = pod["metadata"]["uid"] if pod else ""
        for pump in self._pumps.values():
            if pump.source.pod == name and pump.source.uid != uid:
                pump.tell(over=True)
        if pod is None:
            return
        container = self._container(pod)
        if uid not in self._pumps and has_begun(pod, container):
            path = Path(self._plan.logs.get(node) or f"{self._plan.folder}/{node}/log")
            self._pumps[uid] = follow(self._api, Source(name, uid, container), path)
        if uid in self._pumps:
            self._pumps[uid].tell(is_over(pod, container))

    def _container(self, pod: Mapping[str, Any]) -> str:
        """The one whose log counts: the plan's, or where a pod has none of that name, its first."""
        names = [str(each["name"]) for each in pod["spec"]["containers"]]
        return self._plan.container if self._plan.container in names else names[0]

    def deaf(self) -> bool:
        """Whether the API server does not answer: logs may grow unseen."""
        return any(watcher.deaf for watcher in self._watchers)

    # --- how it ended

    def exits(self) -> dict[str, int | None]:
        """Exit code by node; negative is a signal."""
        codes = _pod_facts.exits(self._pods())
        return {name: 128 - code if code and code > 128 else code for name, code in codes.items()}

    def ended_at(self) -> float | None:
        """When the last container exited, by its node's clock."""
        ends = [_pod_facts.ended(pod) for pod in self._pods().values() if _pod_facts.exit_code(pod) is not None]
        return max((end for end in ends if end < float("inf")), default=None)

    def losing(self) -> dict[str, str]:
        """What could not be written so far, by node."""
        return {pump.node: pump.unwritten for pump in self._pumps.values() if pump.unwritten}

    def lost(self) -> dict[str, str]:
        """What a log lacks for good, by node: whoever attaches may find a log begun, and its pod gone."""
        followed = {pump.node for pump in self._pumps.values()}
        begun = [node for node, path in self._plan.logs.items() if Path(path).exists()]
        gone = {node: "perhaps its end: its pod is gone" for node in begun if node not in followed}
        # The store's log goes on until teardown.
        over = [pump for pump in self._pumps.values() if pump.whole.is_set() or pump.node in self._plan.nodes]
        return gone | {pump.node: pump.lost for pump in over if pump.lost}

    def running_at(self) -> float:
        """When the last of the containers began, by its node's clock; 0 where none has."""
        return max((_pod_facts.began(pod) for pod in self._pods().values()), default=0.0)

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
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(pump.node in self._plan.nodes for pump in self._unfinished()):
            self._drain(0.05)
        said = json.dumps(self.seen, indent=1)
        with contextlib.suppress(OSError):
            Path(self._plan.folder).mkdir(parents=True, exist_ok=True)
            Path(self._plan.folder, "objects.json").write_text(said + "\n")

    def _unfinished(self) -> list[Pump]:
        return [pump for pump in self._pumps.values() if not pump.whole.is_set()]

    def _pods(self) -> _pod_facts.Pods:
        return {name.partition("/")[2]: pod for name, pod in self.seen.items() if name.startswith("Pod/")}


def has_begun(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container has run at all: from then on it has a log."""
    return any("running" in state or "terminated" in state for state in states(pod, container))


def is_over(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container will not run any more; in a pod with others it may end before them."""
    if _pod_facts.phase(pod) in ("Succeeded", "Failed"):
        return True
    return pod["spec"].get("restartPolicy") == "Never" and any("terminated" in each for each in states(pod, container))


def states(pod: Mapping[str, Any], container: str) -> list[Mapping[str, Any]]:
    """The states of the containers of a name: one, or none so far."""
    known = pod.get("status", {}).get("containerStatuses") or ()
    return [each.get("state", {}) for each in known if each["name"] == container]


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
        self._listed, self._version = False, ""
        self.deaf = False

    def run(self) -> None:
        while not self._over.is_set():
            try:
                if not self._version:
                    self._list()
                self.deaf = False
                self._watch()
            except ClusterError as error:
                self._version = ""
                absent = error.status in (403, 404)  # no such kind here, or not for us: preflight has said so
                if absent:
                    self._said()
                self.deaf = not absent
                self._over.wait(REFUSED if absent else PAUSE)
            except (BusyError, ValueError, KeyError):  # broken off, or not what the API server says
                self.deaf = True
                self._over.wait(PAUSE)

    def _said(self) -> None:
        if not self._listed:
            self._listed = True
            self._ready.release()

    def _list(self) -> None:
        """Everything there is now; what was known and is not there any more has gone meanwhile."""
        found = self._api.ask("GET", self._path, self._which)
        names = {each["metadata"]["name"]: each for each in found["items"]}
        for name in self._known - names.keys():
            self._tell(name, None)
        for name, thing in names.items():
            self._tell(name, thing)
        self._said()
        self._version = str(found["metadata"]["resourceVersion"])

    def _watch(self) -> None:
        """Follow the changes from where it was; ClusterError where that is too old for the API server."""
        asked = {**self._which, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(FULL)}
        for line in self._api.stream(self._path, {**asked, "resourceVersion": self._version}, QUIET):
            if self._over.is_set() or not line.endswith(b"\n"):
                return
            event = json.loads(line)
            thing = event["object"]
            if event["type"] == "ERROR":
                raise ClusterError(self._api.host, "watch", str(thing.get("message")), int(thing.get("code") or 0))
            if event["type"] != "BOOKMARK":
                self._tell(thing["metadata"]["name"], None if event["type"] == "DELETED" else thing)
            self._version = thing["metadata"]["resourceVersion"]

    def _tell(self, name: str, thing: Mapping[str, Any] | None) -> None:
        self._known = self._known | {name} if thing else self._known - {name}
        self._news.put((self._watched.kind, name, thing))
