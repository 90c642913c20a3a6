"""Queries the cluster around a job that makes no progress: rarely, once for all runs, and beside the wait."""

import math
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from torchyard.cluster.checks.capacity import check_capacity
from torchyard.cluster.checks.cluster import check_queue
from torchyard.diagnosis.job_status import select_job_pods
from torchyard.diagnosis.no_progress import (
    RUN_LABEL,
    ClusterContext,
    Diagnosis,
    explain_no_progress,
    find_required_capacity,
    find_unscheduled_pods,
    has_stalled_pods,
)
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import OpenQueue
from torchyard.model.run import Observation

_FIRST_QUERY_AFTER_S = 10.0  # seconds without progress before the first query: most late starters have started by then
_QUERY_INTERVAL_S = 60.0  # seconds between two queries, and the maximum age of an answer to another run
_LAST_QUERY_TIMEOUT_S = 10.0  # seconds that the last query may take, when the job is given up
_LAST_QUERY_MAX_AGE_S = 2.0  # maximum age in seconds of the answers to a last query
_JOIN_INTERVAL_S = 0.5  # a run is ended by an exception in this thread, which a longer sleep would delay
SeenObjects = Mapping[str, Mapping[str, Any]]
T = TypeVar("T")


class CachedAnswer(NamedTuple):
    """What the API server answered, and when; `found` is None if it did not."""

    at: float
    found: Any


class _QueryCache:
    """Shares one API connection's answers among a process's runs: many wait for the same nodes, so one asks."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, threading.Lock] = {}
        self._answers: dict[Hashable, CachedAnswer] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, age: float, ask: Callable[[], Any]) -> CachedAnswer:
        """The answer to a query, at most `age` seconds old. A thread that asks the same meanwhile waits for it."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            known = self._answers.get(key)
            if known is None or time.monotonic() - known.at > age:
                known = CachedAnswer(time.monotonic(), _try_query(ask))
            with self._lock:
                self._answers[key] = known
                self._forget()
        return known

    def _forget(self) -> None:
        """Drop answers that are too old for any run: a list of nodes takes megabytes."""
        oldest = time.monotonic() - _QUERY_INTERVAL_S
        self._answers = {key: each for key, each in self._answers.items() if each.at > oldest}


_CACHES: weakref.WeakKeyDictionary[Client, _QueryCache] = weakref.WeakKeyDictionary()
_CACHES_LOCK = threading.Lock()


def _get_cache(api: Client) -> _QueryCache:
    """The cache of a connection, shared by all runs that use it."""
    with _CACHES_LOCK:
        return _CACHES.setdefault(api, _QueryCache())


class ProgressMonitor:
    """Says why a job makes no progress, from its own objects and from queries about the cluster around it."""

    def __init__(self, server: Client, plan: ManifestPlan) -> None:
        self._api, self._plan = server, plan
        self._around, self._stands, self._asked = ClusterContext(), math.inf, -math.inf
        self._look = threading.Thread()

    def diagnose(self, seen: SeenObjects, last: bool = False) -> Diagnosis | None:
        """Why the job makes no progress; None while it does. `last`: query once more, and wait for the answer."""
        now, observed = time.monotonic(), Observation(seen, frozenset(), time.time())
        if not has_stalled_pods(self._plan, select_job_pods(observed)):
            self._around, self._stands = ClusterContext(), math.inf
            return None
        self._stands = min(self._stands, now)
        due = now - self._stands > _FIRST_QUERY_AFTER_S and now - self._asked > _QUERY_INTERVAL_S
        if (due or last) and not self._look.is_alive():
            self._asked = now
            what = (dict(seen), _LAST_QUERY_MAX_AGE_S if last else _QUERY_INTERVAL_S)
            self._look = threading.Thread(target=self._go, args=what, daemon=True, name="diagnose")
            self._look.start()
        while last and self._look.is_alive() and time.monotonic() < now + _LAST_QUERY_TIMEOUT_S:
            self._look.join(_JOIN_INTERVAL_S)
        return explain_no_progress(self._plan, observed, self._around)

    def _go(self, seen: SeenObjects, age: float) -> None:
        """Query; the next interval counts from the oldest answer, so that all runs come to query together."""
        self._around, self._asked = _query_cluster(self._api, self._plan, seen, age)


def _query_cluster(api: Client, plan: ManifestPlan, seen: SeenObjects, age: float) -> tuple[ClusterContext, float]:
    """What in the cluster may explain the job's state, and the time of the oldest answer.

    What this user may not see, and what gets no answer, is left out.
    """
    pods = select_job_pods(Observation(seen, frozenset()))
    words = find_unscheduled_pods(pods)
    room, queue = (
        find_required_capacity(plan),
        next((need for need in plan.requires if isinstance(need, OpenQueue)), None),
    )
    questions: dict[str, tuple[Hashable, Callable[[], Any]]] = {
        "events": (bool(pods), lambda: _list_events(api, bool(pods))),
    }
    if room and (words or not pods):
        questions["capacity"] = (room.model_dump_json(), lambda: check_capacity(api, room, "room", _list_nodes(api, age)))
    if queue and (words or not pods):
        questions["queue"] = (queue.name, lambda: check_queue(api, queue, f"queue {queue.name}"))
    if any(" free ports" in word.message for word in words.values()):
        questions["other_pods"] = ("", lambda: api.list("v1", "Pod", {"labelSelector": RUN_LABEL}))
    answers = {what: _get_cache(api).get((what, key), age, ask) for what, (key, ask) in questions.items()}
    found = {what: answer.found for what, answer in answers.items() if answer.found is not None}
    return ClusterContext(**found), min(answer.at for answer in answers.values())


def _list_nodes(api: Client, age: float) -> list[Any]:
    """All nodes; jobs with different requests share the same list."""
    answer = _get_cache(api).get("nodes", age, lambda: api.list("v1", "Node", everywhere=True))
    if answer.found is None:
        raise ClusterError(api.host, "list Node", "it did not answer", 0)
    found: list[Any] = answer.found
    return found


def _list_events(api: Client, pods: bool) -> list[Any]:
    """The namespace's warnings; before there are pods also Volcano's events about a queue, which are no warnings."""
    queries = ["type=Warning", *(["reason=Unschedulable,type=Normal"] if not pods else [])]
    return [each for query in queries for each in api.list("v1", "Event", {"fieldSelector": query})]


def _try_query(ask: Callable[[], T]) -> T | None:
    """The answer; None if there is none."""
    try:
        return ask()
    except ClusterError:
        return None
