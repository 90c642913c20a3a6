"""What there is around a job that does not get on: asked for rarely, and beside whoever waits."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tasks.cluster import Api
from tasks.errors import ClusterError
from tasks.launchers._pod_status import job_pods
from tasks.model import Observation
from tasks.needs import OpenQueue
from tasks.plan import ManifestPlan
from tasks.preflight_cluster import check_queue
from tasks.room import check_room
from tasks.stuck import RUN, Around, Why, explain, lacks_nodes, room_of, stands

AFTER = 10.0  # seconds that a job stands before anything is asked: most that start late start by then
AGAIN = 60.0  # seconds between two looks
LAST = 10.0  # seconds that the last look may take, when the job is given up
SLICE = 0.5  # a run is ended by an exception in this thread, which a longer sleep would hold up
Seen = Mapping[str, Mapping[str, Any]]
Found = TypeVar("Found")


class Lookout:
    """Tells why a job does not get on, from what is seen of it, and from looks around while it stands."""

    def __init__(self, server: Api, plan: ManifestPlan) -> None:
        self._api, self._plan = server, plan
        self._around, self._stands, self._asked = Around(), math.inf, -math.inf
        self._look = threading.Thread()

    def why(self, seen: Seen, last: bool = False) -> Why | None:
        """Why the job does not get on; None while it does. `last`: look once more, and wait for the answer."""
        now, observed = time.monotonic(), Observation(seen, frozenset(), time.time())
        if not stands(self._plan, job_pods(observed)):
            self._around, self._stands = Around(), math.inf
            return None
        self._stands = min(self._stands, now)
        due = now - self._stands > AFTER and now - self._asked > AGAIN
        if (due or last) and not self._look.is_alive():
            self._asked = now
            self._look = threading.Thread(target=self._go, args=(dict(seen),), daemon=True, name="lookout")
            self._look.start()
        while last and self._look.is_alive() and time.monotonic() < now + LAST:
            self._look.join(SLICE)
        return explain(self._plan, observed, self._around)

    def _go(self, seen: Seen) -> None:
        self._around = look(self._api, self._plan, seen)


def look(api: Api, plan: ManifestPlan, seen: Seen) -> Around:
    """Ask for what may explain how the job is; what this user may not see, or nobody answers, is left out."""
    pods = job_pods(Observation(seen, frozenset()))
    words = lacks_nodes(pods)
    room, queue = room_of(plan), next((need for need in plan.requires if isinstance(need, OpenQueue)), None)
    waits = bool(words) or not pods
    ports = any(" free ports" in word.message for word in words.values())
    return Around(
        events=asked(lambda: events(api, bool(pods))) or [],
        room=asked(lambda: check_room(api, room, "room")) if room and waits else None,
        queue=asked(lambda: check_queue(api, queue, f"queue {queue.name}")) if queue and waits else None,
        pods=(asked(lambda: api.items("v1", "Pod", {"labelSelector": RUN})) or []) if ports else [],
    )


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
