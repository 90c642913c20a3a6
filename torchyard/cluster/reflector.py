"""Lists and watches one kind of a job's objects, and continues after broken connections and refusals."""

import json
import queue
import random
import threading
import time
from collections.abc import Mapping, Set
from http import HTTPStatus
from typing import Any, NamedTuple

from torchyard.cluster.listing import format_selector, is_own_object
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client, KubeObject
from torchyard.kube.retry import Backoff, TransientError
from torchyard.model.errors import ClusterError, NotFoundError
from torchyard.model.plan import ManifestPlan, WatchedKind

# A watch without a bookmark for so long counts as dead: the server sends one a minute.
WATCH_IDLE_TIMEOUT_S = 100.0
_MAX_RETRY_DELAY_S = 5.0  # seconds between two tries of a broken watch, at most
_REFUSED_RETRY_DELAY_S = 60.0  # the same, of a kind that is not served, or that this user may not read
# Seconds between two lists, at random: they correct a watch that missed changes. No proxy cuts a watch before 300.
RESYNC_RANGE_S = (240.0, 290.0)
_DOUBTED_RANGE_S = (5.0, 10.0)  # the same after a list without any object, or that lacked an existing one
# Large fields of a pod's spec, and of its containers, from which no status is read.
_UNREAD_FIELDS = (
    "affinity",
    "args",
    "command",
    "env",
    "envFrom",
    "securityContext",
    "tolerations",
    "volumeMounts",
    "volumes",
)
_LIST_LEAD_S = 1.0  # a list that is due within so long is made now: a watch of whole seconds ends a little early


class ObjectChange(NamedTuple):
    """An object that was created or changed; `obj` is None if it is gone."""

    kind: str
    name: str
    obj: Mapping[str, Any] | None


class Reflector(threading.Thread):
    """Publish the objects of one kind: list them, then watch for every change.

    Threads. `run` is this thread; it is a daemon and ends soon after `stop_event` is set. It puts every change into
    `changes`, in order. `has_listed`, `refusal` and `error` are read by the polling thread without a lock.

    Resuming. A watch continues from the version read so far (`_version`). It lists again every few minutes, because a
    watch may miss changes, and when the server has forgotten that version (410) or may have. A list publishes all
    objects that exist, and None for each that has disappeared.

    Absence. A list proves nothing: a known object that it lacks, and the job itself in the first list, is read by name
    (`Client.get_all`). So is the job after the event of its deletion, since the end of the run follows from it. A list
    that is empty is repeated soon.

    Errors. Nothing is raised. `error` is the current fault, None while the kind is observed. `refusal` is set if the
    first list is refused or the kind is not served. A failed read publishes nothing: it does not prove absence. The
    state of a job is unknown without an `is_required` kind; the others only add detail, and their refusal is ignored.
    """

    def __init__(
        self,
        client: Client,
        plan: ManifestPlan,
        watched: WatchedKind,
        changes: "queue.Queue[ObjectChange]",
        stop_event: threading.Event,
    ) -> None:
        super().__init__(daemon=True, name=f"watch-{watched.kind}")
        self.kind = watched.kind
        self.is_required = watched.kind in (plan.main["kind"], "Pod")
        self._is_job = watched.kind == plan.main["kind"]
        self.has_listed = threading.Event()  # the first list has arrived, or is refused
        self.refusal: ClusterError | None = None
        self.error: TransientError | ClusterError | None = None
        self._client = client
        self._plan = plan
        self._watched = watched
        self._changes = changes
        self._stop_event = stop_event
        self._path = client.path(watched.api, watched.kind)
        self._selector: dict[str, str] = {}  # the query that selects the objects; empty until the first list
        self._names: set[str] = set()  # of the objects published as existing
        self._version = ""  # the resourceVersion read so far; empty: list again
        self._next_list_at = 0.0  # monotonic seconds
        self._doubted_lists = 0  # lists in a row that were empty or lacked an existing object
        self._was_empty = False  # the last list, and nothing else
        self._backoff = Backoff()

    def run(self) -> None:
        """List and watch until `stop_event` is set."""
        while not self._stop_event.is_set():
            try:
                if not self._version or self._is_list_due():
                    self._list()
                self._watch()
                delay_s = 0.0 if self._is_list_due() else self._backoff.next(_MAX_RETRY_DELAY_S)
            except ClusterError as error:
                delay_s = self._record_refusal(error)
            except TransientError as error:
                delay_s = self._record_outage(error)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                delay_s = self._record_outage(TransientError(f"the response is not that of an API server: {error!r}"))
            except Exception as error:  # a fault of this process must not end the watch: the job would be unobserved
                delay_s = self._record_outage(TransientError(f"this process cannot query it: {error!r}"))
            self._stop_event.wait(delay_s)

    def _is_list_due(self) -> bool:
        """Whether to list again now: not after an empty list, which was doubted, if the watch has brought objects."""
        if self._seconds_until_list() > _LIST_LEAD_S:
            return False
        if self._was_empty and self._names:
            self._was_empty = False
            self._doubted_lists = 0
            self._next_list_at = time.monotonic() + self._choose_interval()
            return False
        return True

    def _seconds_until_list(self) -> float:
        """The seconds until the next list is due; negative if it is late."""
        return self._next_list_at - time.monotonic()

    # --- faults: each returns the seconds until the next try

    def _record_outage(self, error: TransientError) -> float:
        """Record that the server is away or busy. If it responded with an error, it may have forgotten the version."""
        if error.status:
            self._version = ""
        self.error = error
        return self._backoff.next(_MAX_RETRY_DELAY_S, error.retry_after_s)

    def _record_refusal(self, error: ClusterError) -> float:
        """Record a refusal. 401 and 403 are retried, because a person can fix them."""
        self._version = ""
        if error.status == HTTPStatus.GONE:
            return self._backoff.next(_MAX_RETRY_DELAY_S)
        if error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND) and not self.is_required:
            self.has_listed.set()
            self.error = None
            return _REFUSED_RETRY_DELAY_S
        is_unserved = isinstance(error, NotFoundError) and self._publish_unserved()
        if (is_unserved or error.status == HTTPStatus.FORBIDDEN) and not self.has_listed.is_set():
            self.refusal = error
            self.has_listed.set()
        self.error = error
        is_permanent = is_unserved or error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        return self._backoff.next(_REFUSED_RETRY_DELAY_S if is_permanent else _MAX_RETRY_DELAY_S)

    def _publish_unserved(self) -> bool:
        """Publish that no object of the kind exists, if that is proven; return whether it is."""
        try:
            if self._client.get_all(self._watched.api, self._watched.kind, self._names | {self._plan.job}):
                return False
        except ClusterError:
            return False
        self._publish_list({})
        return True

    # --- list and watch

    def _list(self) -> None:
        """Publish all objects, and set the version from which the next watch continues."""
        if not self._selector:
            self._selector = self._build_selector()
        response = self._client.get_once(self._path, self._selector)
        objects = {obj["metadata"]["name"]: obj for obj in response["items"]}
        version = str(response["metadata"]["resourceVersion"])
        expected_names = self._names | {self._plan.job} if self._is_job else self._names
        unlisted = self._read_unlisted(expected_names - objects.keys())
        self._publish_list(objects | unlisted)
        self.has_listed.set()
        self._was_empty = not (objects or unlisted)
        self._doubted_lists = 0 if objects and not unlisted else self._doubted_lists + 1
        self._next_list_at = time.monotonic() + self._choose_interval()
        self._version = version

    def _choose_interval(self) -> float:
        """The seconds until the next list: longer after each one that is doubted, up to the usual interval."""
        if not self._doubted_lists:
            return random.uniform(*RESYNC_RANGE_S)
        factor = 1 << min(self._doubted_lists - 1, 20)
        return min(factor * random.uniform(*_DOUBTED_RANGE_S), random.uniform(*RESYNC_RANGE_S))

    def _read_unlisted(self, names: Set[str]) -> dict[str, KubeObject]:
        """Those of the objects which a list lacks that exist nevertheless, by name.

        One without the labels that select it has the name of a deleted one, and is another owner's. A user who may not
        read them by name needs a second list of a ready server.
        """
        try:
            objects = self._client.get_all(self._watched.api, self._watched.kind, names)
            return {name: obj for name, obj in objects.items() if self._is_selected(obj)}
        except ClusterError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
        self._client.await_confirmation()
        response = self._client.get_once(self._path, self._selector)
        return {obj["metadata"]["name"]: obj for obj in response["items"] if obj["metadata"]["name"] in names}

    def _is_selected(self, obj: KubeObject) -> bool:
        """Whether an object has the labels of the job; True for a kind that is selected otherwise."""
        is_selected_otherwise = self._watched.by_name or bool(self._watched.owner_label)
        return is_selected_otherwise or is_own_object(self._plan, obj)

    def _build_selector(self) -> dict[str, str]:
        """The query that selects the objects of the job.

        Raises ClusterError if it contains the job's uid, and the job does not exist or may not be read.
        """
        if self._watched.by_name:
            return {"fieldSelector": f"metadata.name={self._plan.job}"}
        if self._watched.owner_label:
            main = self._plan.main
            job = self._client.get_once(self._client.path(main["apiVersion"], main["kind"], self._plan.job))
            return {"labelSelector": f"{self._watched.owner_label}={job['metadata']['uid']}"}
        return {"labelSelector": format_selector(self._plan.labels)}

    def _publish_list(self, objects: Mapping[str, KubeObject]) -> None:
        """Publish all objects that exist now, by name; published ones that are not among them have disappeared.

        The oldest one comes first, as in a watch: a controller may have replaced a pod that still exists.
        """
        for name in self._names - objects.keys():
            self._publish(name, None)
        for name in sorted(objects, key=lambda name: pod_facts.get_creation_time(objects[name])):
            self._publish(name, objects[name])

    def _watch(self) -> None:
        """Follow the changes since the version read so far. Raises ClusterError if the server has forgotten it."""
        remaining_s = max(1, round(self._seconds_until_list()))
        params = self._selector | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(remaining_s),
            "resourceVersion": self._version,
        }
        with self._client.watch(self._path, params, WATCH_IDLE_TIMEOUT_S) as lines:
            self.error = None
            for line in lines:
                is_late = self._seconds_until_list() <= -_MAX_RETRY_DELAY_S  # this server ignores `timeoutSeconds`
                if self._stop_event.is_set() or is_late or not line.endswith(b"\n"):
                    return
                self._apply_event(json.loads(line))
                self._backoff.reset()

    def _apply_event(self, event: Mapping[str, Any]) -> None:
        """Publish a change, and advance the version.

        Raises ClusterError with status 410 if the server has forgotten the version, TransientError for other errors.
        """
        obj = event["object"]
        if event["type"] == "ERROR":
            message = str(obj.get("message"))
            status = int(obj.get("code") or HTTPStatus.GONE)
            if status == HTTPStatus.GONE:
                raise ClusterError(self._client.host, "watch", message, status)
            raise TransientError(message, status)
        name = obj["metadata"].get("name", "")
        if event["type"] == "DELETED":
            self._publish(name, self._read_unlisted({name}).get(name) if self._is_job else None)
        elif event["type"] != "BOOKMARK":
            self._publish(name, obj)
        self._version = obj["metadata"]["resourceVersion"]

    def _publish(self, name: str, obj: KubeObject | None) -> None:
        if obj:
            self._names.add(name)
            obj["metadata"].pop("managedFields", None)  # half of a pod's size, and not used here
            if self.kind == "Pod":
                _drop_unread_fields(obj)
        else:
            self._names.discard(name)
        self._changes.put(ObjectChange(self._watched.kind, name, obj))


def _drop_unread_fields(pod: KubeObject) -> None:
    """Delete large fields of a pod from which no status is read, so that many pods need little memory."""
    spec = pod.get("spec", {})
    for owner in (spec, *spec.get("containers", ()), *spec.get("initContainers", ())):
        for field in _UNREAD_FIELDS:
            owner.pop(field, None)
