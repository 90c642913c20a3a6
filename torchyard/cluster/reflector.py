"""Lists and watches one kind of a job's objects, through broken connections and refusals."""

import json
import random
import threading
import time
from collections.abc import Mapping
from typing import Any

from torchyard.kube.client import Client, KubeObject
from torchyard.kube.retry import Backoff, TransientError
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan, WatchedKind

_WATCH_SILENCE_S = 100.0  # a watch without a bookmark for so long counts as dead: the server sends one a minute
_MAX_RETRY_DELAY_S = 5.0  # seconds between two tries of a broken watch, at most
_REFUSED_RETRY_DELAY_S = 60.0  # the same, of a kind that is not served, or not to this user
# Seconds between two lists, at random: they correct a watch that missed changes. No proxy cuts a watch before 300.
_RESYNC_RANGE_S = (240.0, 290.0)
_GONE_STATUS = 410
ObjectChange = tuple[str, str, Mapping[str, Any] | None]


class Reflector(threading.Thread):
    """Keeps track of one kind: a list, then a watch for every change.

    It lists again every few minutes, and when the server has forgotten the version read so far (410). Without a `vital`
    kind nothing is known of a job; the others only add detail.
    """

    def __init__(self, server: Client, plan: ManifestPlan, watched: WatchedKind, *shared: Any) -> None:
        super().__init__(daemon=True, name=f"watch-{watched.kind}")
        self._api, self._watched = server, watched
        self._news, self._over = shared
        self.kind = watched.kind
        self._path = server.path(watched.api, watched.kind)
        labels = ",".join(f"{key}={value}" for key, value in plan.labels.items())
        self._which = {"fieldSelector": f"metadata.name={plan.job}"} if watched.by_name else {"labelSelector": labels}
        self._known: set[str] = set()
        self._version, self._until = "", 0.0
        self._pauses = Backoff()
        self.vital = watched.kind in (plan.main["kind"], "Pod")
        self.looked = threading.Event()
        self.refusal: ClusterError | None = None
        self.trouble: TransientError | ClusterError | None = None

    def run(self) -> None:
        while not self._over.is_set():
            try:
                if not self._version or self._is_due():
                    self._list()
                self._watch()
                rest = 0.0 if self._is_due() else self._pauses.next(_MAX_RETRY_DELAY_S)
            except ClusterError as error:
                rest = self._note_refusal(error)
            except TransientError as error:
                rest = self._note_outage(error)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                rest = self._note_outage(TransientError(f"its answer is not an API server's: {error!r}"))
            except Exception as error:  # this process's own trouble: without its watch nothing is known of the job
                rest = self._note_outage(TransientError(f"it cannot be queried from here: {error!r}"))
            self._over.wait(rest)

    def _is_due(self, late: float = -1.0) -> bool:
        """Whether it is time for a new list."""
        return time.monotonic() >= self._until + late

    # --- faults: each returns the seconds until the next try

    def _note_outage(self, error: TransientError) -> float:
        """The server is away or busy. One that answers with an error may have forgotten the version read so far."""
        if error.status:
            self._version = ""
        self.trouble = error
        return self._pauses.next(_MAX_RETRY_DELAY_S, error.retry_after_s)

    def _note_refusal(self, error: ClusterError) -> float:
        """401 and 403 may pass: a person can fix them. A 404 is believed if the server no longer knows the kind."""
        self._version = ""
        if error.status == _GONE_STATUS:
            return self._pauses.next(_MAX_RETRY_DELAY_S)
        absent = error.status == 404 and not self._is_served()
        if error.status in (403, 404) and not self.vital:
            self.looked.set()
            self.trouble = None
            return _REFUSED_RETRY_DELAY_S
        if (absent or error.status == 403) and not self.looked.is_set():
            self.refusal = error
            self.looked.set()
        if absent:
            self._replace_known({})
        self.trouble = error
        return self._pauses.next(_REFUSED_RETRY_DELAY_S if error.status in (401, 403, 404) else _MAX_RETRY_DELAY_S)

    def _is_served(self) -> bool:
        """Whether the API server knows the kind; True if it does not say."""
        root = "apis" if "/" in self._watched.api else "api"
        try:
            known = self._api.get_once(f"/{root}/{self._watched.api}")["resources"]
            return any(each["kind"] == self._watched.kind for each in known)
        except ClusterError as error:
            return error.status != 404
        except (TransientError, KeyError, TypeError):
            return True

    # --- list and watch

    def _list(self) -> None:
        found = self._api.get_once(self._path, self._which)
        self._replace_known({each["metadata"]["name"]: each for each in found["items"]})
        self.looked.set()
        self._until = time.monotonic() + random.uniform(*_RESYNC_RANGE_S)
        self._version = str(found["metadata"]["resourceVersion"])

    def _replace_known(self, there: Mapping[str, KubeObject]) -> None:
        """Publish all objects that exist now; known ones that are not among them have gone meanwhile."""
        for name in self._known - there.keys():
            self._publish(name, None)
        for name, thing in there.items():
            self._publish(name, thing)

    def _watch(self) -> None:
        """Follow the changes since the version read so far. Raises ClusterError if the server has forgotten it."""
        left = str(max(1, round(self._until - time.monotonic())))
        asked = {**self._which, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": left}
        with self._api.watch(self._path, {**asked, "resourceVersion": self._version}, _WATCH_SILENCE_S) as lines:
            self.trouble = None
            for line in lines:
                if self._over.is_set() or self._is_due(_MAX_RETRY_DELAY_S) or not line.endswith(b"\n"):
                    return
                self._read_event(json.loads(line))
                self._pauses.reset()

    def _read_event(self, event: Mapping[str, Any]) -> None:
        thing = event["object"]
        if event["type"] == "ERROR":
            said, code = str(thing.get("message")), int(thing.get("code") or _GONE_STATUS)
            raise (
                ClusterError(self._api.host, "watch", said, code)
                if code == _GONE_STATUS
                else TransientError(said, code)
            )
        if event["type"] != "BOOKMARK":
            self._publish(thing["metadata"]["name"], None if event["type"] == "DELETED" else thing)
        self._version = thing["metadata"]["resourceVersion"]

    def _publish(self, name: str, thing: KubeObject | None) -> None:
        self._known = self._known | {name} if thing else self._known - {name}
        if thing:
            thing["metadata"].pop("managedFields", None)  # half of a pod's size, and not used here
        self._news.put((self._watched.kind, name, thing))
