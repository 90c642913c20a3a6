"""What a fake API server holds: objects by kind, namespace and name, with the real server's rules."""

import copy
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
Place = tuple[str, str, str]  # api/plural, namespace (empty if cluster-scoped), name
# Kinds by API version; those marked with `/` have no namespace.
KINDS = {
    "v1": ("Pod", "Service", "ConfigMap", "Event", "Secret", "PersistentVolumeClaim", "/Node", "/Namespace"),
    "coordination.k8s.io/v1": ("Lease",),
    "batch/v1": ("Job",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "apps/v1": ("Deployment", "DaemonSet"),
    "storage.k8s.io/v1": ("/StorageClass",),
    "batch.volcano.sh/v1alpha1": ("Job",),
    "scheduling.volcano.sh/v1beta1": ("PodGroup", "/Queue"),
    "kubeflow.org/v1": ("PyTorchJob",),
    "workload.codeflare.dev/v1beta2": ("AppWrapper",),
    "jobset.x-k8s.io/v1alpha2": ("JobSet",),
}
BUILT_IN = ("v1", "coordination.k8s.io/v1", "batch/v1", "networking.k8s.io/v1", "apps/v1", "storage.k8s.io/v1")
MICRO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
SELECTOR = re.compile(r"([^=!]+?)(?:(=|==|!=)([^=]*))?")


class RefusedError(Exception):
    """A refusal, as the API server words it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(status, reason, message)
        self.status, self.reason, self.message = status, reason, message

    @property
    def body(self) -> Object:
        return {
            **{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"},
            **{"message": self.message, "reason": self.reason, "code": self.status},
        }


class Objects:
    """All objects and all changes to them, with one version number for both."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 100
        self.oldest = 0  # changes before this version are forgotten
        self.changes: list[tuple[int, str, Place, Object]] = []
        self._all: dict[Place, Object] = {}

    # --- reading

    def get(self, place: Place) -> Object:
        """One object, or a 404 like that of the API server."""
        with self.changed:
            if place not in self._all:
                raise RefusedError(404, "NotFound", f'{place[0].rpartition("/")[2]} "{place[2]}" not found')
            return copy.deepcopy(self._all[place])

    def select(self, what: str, namespace: str | None, query: Mapping[str, str]) -> list[Object]:
        """The objects of a kind in a namespace, or in all (None), that the selectors match."""
        with self.changed:
            found = [
                thing
                for (kind, where, _), thing in sorted(self._all.items())
                if kind == what and namespace in (None, where) and is_chosen(thing, query)
            ]
            return copy.deepcopy(found)

    def since(self, version: int, what: str) -> list[tuple[int, str, Place, Object]]:
        """The changes of a kind after a version, or a 410 if they are forgotten."""
        if version < self.oldest:
            raise RefusedError(410, "Expired", f"too old resource version: {version} ({self.oldest})")
        return [each for each in self.changes if each[0] > version and each[2][0] == what]

    # --- writing

    def create(self, what: str, namespace: str, thing: Object, dry_run: bool = False) -> Object:
        about = thing.get("metadata") or {}
        place = (what, namespace, str(about.get("name")))
        with self.changed:
            if place in self._all:
                raise RefusedError(409, "AlreadyExists", f'{what.rpartition("/")[2]} "{place[2]}" already exists')
            made = copy.deepcopy(thing)
            where = {"namespace": namespace} if namespace else {}
            made["metadata"] = {**about, **where, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
            validate(made)
            return made if dry_run else self._store("ADDED", place, made)

    def patch(self, place: Place, change: Object | list[Object]) -> Object:
        with self.changed:
            before = self.get(place)
            after = apply_json(before, change) if isinstance(change, list) else merge(before, change)
            validate(after)
            return self._store("MODIFIED", place, after)

    def delete(self, place: Place, options: Mapping[str, Any]) -> Object:
        """Delete an object and what it owns; one with a finalizer stays and gets a deletionTimestamp."""
        with self.changed:
            thing = self.get(place)
            wanted = (options.get("preconditions") or {}).get("uid")
            if wanted and wanted != thing["metadata"]["uid"]:
                said = f"UID in precondition: {wanted}, UID in object meta: {thing['metadata']['uid']}"
                raise RefusedError(409, "Conflict", f"Precondition failed: {said}")
            if thing["metadata"].get("finalizers"):
                thing["metadata"].setdefault("deletionTimestamp", now())
                return self._store("MODIFIED", place, thing)
            return self._drop(place, thing, options.get("propagationPolicy") != "Orphan")

    def put(self, what: str, namespace: str, thing: Object) -> Object:
        """Store an object for a test without checking any rule; it may replace another one."""
        with self.changed:
            place = (what, namespace, thing["metadata"]["name"])
            about = {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now(), **thing["metadata"]}
            event = "MODIFIED" if place in self._all else "ADDED"
            return self._store(event, place, {**copy.deepcopy(thing), "metadata": about})

    def forget(self) -> None:
        """Forget all changes so far: a watch that asks for them is answered with 410."""
        with self.changed:
            self.version += 1
            self.oldest, self.changes = self.version, []
            self.changed.notify_all()

    def _drop(self, place: Place, thing: Object, cascade: bool) -> Object:
        del self._all[place]
        self._note("DELETED", place, thing)
        owned = [each for each, other in self._all.items() if thing["metadata"]["uid"] in owners(other)]
        for each in owned if cascade else ():
            if each in self._all:
                self.delete(each, {})
        return thing

    def _store(self, event: str, place: Place, thing: Object) -> Object:
        self._all[place] = thing
        self._note(event, place, thing)
        if event == "MODIFIED" and "deletionTimestamp" in thing["metadata"] and not thing["metadata"].get("finalizers"):
            self._drop(place, thing, cascade=True)
        return copy.deepcopy(thing)

    def _note(self, event: str, place: Place, thing: Object) -> None:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.changes.append((self.version, event, place, copy.deepcopy(thing)))
        self.changed.notify_all()


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def owners(thing: Object) -> set[str]:
    return {str(each.get("uid")) for each in thing["metadata"].get("ownerReferences") or ()}


def validate(thing: Object) -> None:
    """Refuse what the real server refuses in a Lease: malformed times, and a duration that is not positive."""
    spec = thing.get("spec") or {}
    if thing.get("kind") != "Lease":
        return
    for key in ("renewTime", "acquireTime"):
        if spec.get(key) is not None and not (isinstance(spec[key], str) and MICRO.fullmatch(spec[key])):
            raise RefusedError(400, "BadRequest", f"Lease in version v1 cannot be handled: parsing time {spec[key]!r}")
    duration = spec.get("leaseDurationSeconds")
    if duration is not None and (not isinstance(duration, int) or duration <= 0):
        raise RefusedError(422, "Invalid", "spec.leaseDurationSeconds: Invalid value: must be greater than 0")


def is_chosen(thing: Object, query: Mapping[str, str]) -> bool:
    labels = thing["metadata"].get("labels") or {}
    return all(matches(labels, each) for each in split(query.get("labelSelector"))) and all(
        field(thing, each) for each in split(query.get("fieldSelector"))
    )


def split(selector: str | None) -> list[str]:
    return [each for each in (selector or "").split(",") if each]


def matches(labels: Mapping[str, str], rule: str) -> bool:
    found = SELECTOR.fullmatch(rule)
    if found is None:
        raise RefusedError(400, "BadRequest", f"unable to parse requirement: {rule}")
    key, how, value = found.groups()
    if how is None:
        return key in labels
    return (labels.get(key) == value) == (how != "!=")


def field(thing: Object, rule: str) -> bool:
    """Whether an object matches a field selector, such as `metadata.name=x` or `type=Warning`."""
    key, _, value = rule.partition("=")
    for part in key.split("."):
        thing = thing.get(part, {}) if isinstance(thing, dict) else {}
    return (thing or "") == value


def merge(thing: Any, change: Any) -> Any:
    """Apply a merge patch: null removes a key, a list replaces the previous one."""
    if not isinstance(change, dict):
        return change
    kept = dict(thing) if isinstance(thing, dict) else {}
    for key, value in change.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = merge(kept.get(key), value)
    return kept


def apply_json(thing: Object, steps: list[Object]) -> Object:
    """Apply a JSON patch as a whole or not at all; 422 if a step cannot be done or a test fails."""
    made: Object = copy.deepcopy(thing)
    for step in steps:
        *way, last = (each.replace("~1", "/").replace("~0", "~") for each in step["path"].split("/")[1:])
        at = made
        for key in way:
            at = at.get(key) if isinstance(at, dict) else None  # type: ignore[assignment]
        wrong = not isinstance(at, dict) or (step["op"] in ("remove", "replace") and last not in at)
        if wrong or (step["op"] == "test" and at.get(last) != step.get("value")):
            raise RefusedError(422, "Invalid", "the server rejected our request due to an error in our request")
        if step["op"] == "remove":
            del at[last]
        elif step["op"] in ("add", "replace"):
            at[last] = step["value"]
    return made


def known() -> Iterator[tuple[str, str, bool]]:
    """Yield the API version and name of each kind, and whether it has a namespace."""
    for api, names in KINDS.items():
        yield from ((api, name.removeprefix("/"), not name.startswith("/")) for name in names)
