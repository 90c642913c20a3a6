"""What there is around a job that makes no progress: asked for rarely, once for all runs, and beside the wait."""

import math
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from torchyard.cluster.checks.capacity import check_room
from torchyard.cluster.checks.cluster import check_queue
from torchyard.diagnosis.job_status import job_pods
from torchyard.diagnosis.no_progress import RUN, Around, Why, explain, lacks_nodes, room_of, stands
from torchyard.kube.client import Api
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import OpenQueue
from torchyard.model.run import Observation

AFTER = 10.0  # seconds that a job stands before anything is asked: most that start late start by then
AGAIN = 60.0  # seconds between two looks, and the age that an answer to another run may have
LAST = 10.0  # seconds that the last look may take, when the job is given up
NEW = 2.0  # seconds that the answers to a last look may be old
SLICE = 0.5  # a run is ended by an exception in this thread, which a longer sleep would hold up
Seen = Mapping[str, Mapping[str, Any]]
Found = TypeVar("Found")


class Answer(NamedTuple):
    """What the API server said, and when; None where it did not say it."""

    at: float
    found: Any


class Looks:
    """What the runs of a process ask of one API connection: many wait for the same nodes, so one of them asks."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, threading.Lock] = {}
        self._answers: dict[Hashable, Answer] = {}
        self._lock = threading.Lock()

    def ask(self, key: Hashable, age: float, ask: Callable[[], Any]) -> Answer:
        """The answer to a question, at most `age` seconds old. Who asks the same meanwhile waits for it."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            known = self._answers.get(key)
            if known is None or time.monotonic() - known.at > age:
                known = Answer(time.monotonic(), asked(ask))
            with self._lock:
                self._answers[key] = known
                self._forget()
        return known

    def _forget(self) -> None:
        """Drop what is too old for anybody: a list of nodes takes megabytes."""
        oldest = time.monotonic() - AGAIN
        self._answers = {key: each for key, each in self._answers.items() if each.at > oldest}


_LOOKS: weakref.WeakKeyDictionary[Api, Looks] = weakref.WeakKeyDictionary()
_LOOKS_LOCK = threading.Lock()


def looks_of(api: Api) -> Looks:
    """The looks of a connection, shared by all the runs that use it."""
    with _LOOKS_LOCK:
        return _LOOKS.setdefault(api, Looks())


class Lookout:
    """Tells why a job makes no progress, from what is seen of it, and from looks around while it stands."""

    def __init__(self, server: Api, plan: ManifestPlan) -> None:
        self._api, self._plan = server, plan
        self._around, self._stands, self._asked = Around(), math.inf, -math.inf
        self._look = threading.Thread()

    def why(self, seen: Seen, last: bool = False) -> Why | None:
        """Why the job makes no progress; None while it does. `last`: look once more, and wait for the answer."""
        now, observed = time.monotonic(), Observation(seen, frozenset(), time.time())
        if not stands(self._plan, job_pods(observed)):
            self._around, self._stands = Around(), math.inf
            return None
        self._stands = min(self._stands, now)
        due = now - self._stands > AFTER and now - self._asked > AGAIN
        if (due or last) and not self._look.is_alive():
            self._asked = now
            what = (dict(seen), NEW if last else AGAIN)
            self._look = threading.Thread(target=self._go, args=what, daemon=True, name="lookout")
            self._look.start()
        while last and self._look.is_alive() and time.monotonic() < now + LAST:
            self._look.join(SLICE)
        return explain(self._plan, observed, self._around)

    def _go(self, seen: Seen, age: float) -> None:
        """Look, and look again when the oldest answer is due: so all runs come to ask at the same time."""
        self._around, self._asked = look(self._api, self._plan, seen, age)


def look(api: Api, plan: ManifestPlan, seen: Seen, age: float) -> tuple[Around, float]:
    """Ask for what may explain how the job is, and the time of the oldest answer.

    What this user may not see, or nobody answers, is left out.
    """
    pods = job_pods(Observation(seen, frozenset()))
    words = lacks_nodes(pods)
    room, queue = room_of(plan), next((need for need in plan.requires if isinstance(need, OpenQueue)), None)
    questions: dict[str, tuple[Hashable, Callable[[], Any]]] = {
        "events": (bool(pods), lambda: events(api, bool(pods))),
    }
    if room and (words or not pods):
        questions["room"] = (room.model_dump_json(), lambda: check_room(api, room, "room", nodes(api, age)))
    if queue and (words or not pods):
        questions["queue"] = (queue.name, lambda: check_queue(api, queue, f"queue {queue.name}"))
    if any(" free ports" in word.message for word in words.values()):
        questions["pods"] = ("", lambda: api.items("v1", "Pod", {"labelSelector": RUN}))
    answers = {what: looks_of(api).ask((what, key), age, ask) for what, (key, ask) in questions.items()}
    found = {what: answer.found for what, answer in answers.items() if answer.found is not None}
    return Around(**found), min(answer.at for answer in answers.values())


def nodes(api: Api, age: float) -> list[Any]:
    """All nodes; jobs that ask for different things still look at the same ones."""
    answer = looks_of(api).ask("nodes", age, lambda: api.items("v1", "Node", everywhere=True))
    if answer.found is None:
        raise ClusterError(api.host, "list Node", "it did not answer", 0)
    found: list[Any] = answer.found
    return found


def events(api: Api, pods: bool) -> list[Any]:
    """The warnings of the namespace; before there are pods also what Volcano says of a queue, which is no warning."""
    queries = ["type=Warning", *(["reason=Unschedulable,type=Normal"] if not pods else [])]
    return [each for query in queries for each in api.items("v1", "Event", {"fieldSelector": query})]


def asked(ask: Callable[[], Found]) -> Found | None:
    """An answer; None where there is none."""
    try:
        return ask()
    except ClusterError:
        return None
