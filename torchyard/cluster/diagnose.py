"""Queries the cluster for the reason why a job makes no progress: rarely, once for all runs, on a separate thread."""

import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from torchyard.cluster.checks.capacity import check_capacity
from torchyard.cluster.checks.cluster import query_queue
from torchyard.diagnosis.job_status import select_job_pods
from torchyard.diagnosis.no_progress import (
    ClusterContext,
    Diagnosis,
    explain_no_progress,
    find_required_capacity,
    find_unscheduled_pods,
    has_stalled_pods,
)
from torchyard.diagnosis.pod_facts import RUN_LABEL
from torchyard.kube.client import Client
from torchyard.kube.per_client import PerClient
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import OpenQueue
from torchyard.model.run import Observation

FIRST_QUERY_AFTER_S = 10.0  # seconds without progress before the first query: most late starters have started by then
QUERY_INTERVAL_S = 60.0  # seconds between two queries, and the maximum age of a response that runs share
_LAST_QUERY_TIMEOUT_S = 10.0  # seconds that the last query may take, when the job is given up
_LAST_QUERY_MAX_AGE_S = 2.0  # maximum age in seconds of the responses to a last query
_JOIN_INTERVAL_S = 0.5  # a run is ended by an exception in this thread, which a longer sleep would delay
ObservedObjects = Mapping[str, Mapping[str, Any]]
T = TypeVar("T")


class CachedResponse(NamedTuple):
    """A response of the API server and the monotonic time of its query; `result` is None if the query failed."""

    queried_at: float
    result: Any


class _QueryCache:
    """The responses to the queries of one API connection, shared by all runs of the process that use it.

    Threads: any thread may call `get`. A query holds the lock of its key, so that two runs that need the same response
    at the same time query once. `_lock` protects the dicts and is never held during a query.
    """

    def __init__(self) -> None:
        self._key_locks: dict[Hashable, threading.Lock] = {}
        self._responses: dict[Hashable, CachedResponse] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, query: Callable[[], Any], *, min_queried_at: float) -> CachedResponse:
        """The response to `query`, queried at `min_queried_at` (monotonic seconds) or later.

        A failed query is cached too: `result` is None.
        """
        with self._lock:
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            response = self._responses.get(key)
            if response is None or response.queried_at < min_queried_at:
                response = CachedResponse(time.monotonic(), _try_query(query))
            with self._lock:
                self._responses[key] = response
                self._drop_old()
        return response

    def _drop_old(self) -> None:
        """Drop the responses that are too old for any run: a list of nodes takes megabytes."""
        expired_before = time.monotonic() - QUERY_INTERVAL_S
        self._responses = {
            key: response for key, response in self._responses.items() if response.queried_at > expired_before
        }


_CACHES = PerClient(lambda _: _QueryCache())  # shared by all runs of this process


class ProgressMonitor:
    """Explain why a job makes no progress, from its own objects and from queries about the cluster around it.

    Threads. `diagnose` is called by the polling thread alone. The queries run on a separate daemon thread, at most one
    at a time, because a slow API server must not delay the next poll. That thread replaces `_context` and `_queried_at`
    with new values; nothing else writes them while it is alive, except `diagnose` of a job that makes progress again.

    Time. Monotonic seconds. The first query is sent after `FIRST_QUERY_AFTER_S` without progress, the next ones every
    `QUERY_INTERVAL_S`. A response to another run serves if it is from the time of this run's own stall.

    Errors. No error of the API server is raised. A query that is refused or fails leaves its part of the context
    empty: the diagnosis then lacks that part, and never concludes that no such object exists.
    """

    def __init__(self, client: Client, plan: ManifestPlan) -> None:
        self._client = client
        self._plan = plan
        self._context = ClusterContext()
        self._stalled_since = math.inf
        self._queried_at = -math.inf
        self._query_thread = threading.Thread()

    def diagnose(self, objects: ObservedObjects, *, is_last: bool = False) -> Diagnosis | None:
        """Why the job makes no progress; None while it does. `is_last`: query once more, and wait for the responses.

        The cluster is queried only while pods are stalled; other obstacles are in the pods themselves.
        """
        now = time.monotonic()
        observed = Observation(objects, frozenset(), self._client.now())
        if not has_stalled_pods(self._plan, select_job_pods(observed)):
            self._context = ClusterContext()
            self._stalled_since = math.inf
            return explain_no_progress(self._plan, observed, self._context)
        self._stalled_since = min(self._stalled_since, now)
        is_due = now - self._stalled_since > FIRST_QUERY_AFTER_S and now - self._queried_at > QUERY_INTERVAL_S
        if (is_due or is_last) and not self._query_thread.is_alive():
            self._queried_at = now
            # A response from before the stall describes what an earlier run waited for, perhaps on other nodes.
            oldest = max(now - (_LAST_QUERY_MAX_AGE_S if is_last else QUERY_INTERVAL_S), self._stalled_since)
            self._query_thread = threading.Thread(
                target=self._query, args=(dict(objects), oldest), daemon=True, name="diagnose"
            )
            self._query_thread.start()
        while is_last and self._query_thread.is_alive() and time.monotonic() < now + _LAST_QUERY_TIMEOUT_S:
            self._query_thread.join(_JOIN_INTERVAL_S)
        return explain_no_progress(self._plan, observed, self._context)

    def _query(self, objects: ObservedObjects, min_queried_at: float) -> None:
        """Query the cluster.

        The next interval starts at the oldest response, so that in time all runs query together and share responses.
        """
        self._context, self._queried_at = _query_cluster(
            self._client, self._plan, objects, min_queried_at=min_queried_at
        )


def _query_cluster(
    client: Client, plan: ManifestPlan, objects: ObservedObjects, *, min_queried_at: float
) -> tuple[ClusterContext, float]:
    """The facts about the cluster that may explain the job's state, and the monotonic time of the oldest response.

    `min_queried_at`: monotonic seconds; an older response of another run does not serve. A part that this user may not
    read, or whose query fails, keeps its default.
    """
    cache = _CACHES.get(client)
    pods = select_job_pods(Observation(objects, frozenset()))
    unscheduled = find_unscheduled_pods(pods, objects)
    events = cache.get(
        ("events", bool(pods)), lambda: _list_events(client, has_pods=bool(pods)), min_queried_at=min_queried_at
    )
    context = ClusterContext(events=events.result or ())
    responses = [events]
    if unscheduled or not pods:
        capacity = find_required_capacity(plan)
        if capacity:
            response = cache.get(
                ("capacity", capacity.model_dump_json()),
                lambda: check_capacity(client, capacity, "room", _list_nodes(client, min_queried_at=min_queried_at)),
                min_queried_at=min_queried_at,
            )
            responses.append(response)
            context = context._replace(capacity=response.result)
        queues = [requirement for requirement in plan.requires if isinstance(requirement, OpenQueue)]
        if queues:
            queue = queues[0]
            response = cache.get(
                ("queue", queue.name), lambda: query_queue(client, queue.name), min_queried_at=min_queried_at
            )
            responses.append(response)
            context = context._replace(queue=response.result)
    if any(" free ports" in reason.message for reason in unscheduled.values()):
        params = {"labelSelector": RUN_LABEL}
        response = cache.get("other_pods", lambda: client.list("v1", "Pod", params), min_queried_at=min_queried_at)
        responses.append(response)
        context = context._replace(other_pods=response.result or ())
    return context, min(response.queried_at for response in responses)


def _list_nodes(client: Client, *, min_queried_at: float) -> list[Any]:
    """All nodes; jobs with different requests share the same list. Raises ClusterError if the query fails."""
    cache = _CACHES.get(client)
    response = cache.get("nodes", lambda: client.list("v1", "Node", everywhere=True), min_queried_at=min_queried_at)
    if response.result is None:
        raise ClusterError(client.host, "list Node", "the query failed", 0)
    nodes: list[Any] = response.result
    return nodes


def _list_events(client: Client, *, has_pods: bool) -> list[Any]:
    """The namespace's warnings; without pods also Volcano's events about a queue, which have type Normal."""
    events = client.list("v1", "Event", {"fieldSelector": "type=Warning"})
    if not has_pods:
        events += client.list("v1", "Event", {"fieldSelector": "reason=Unschedulable,type=Normal"})
    return events


def _try_query(query: Callable[[], T]) -> T | None:
    """The response; None if the query fails."""
    try:
        return query()
    except ClusterError:
        return None
