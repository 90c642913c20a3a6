"""The store of a fake API server: objects by kind, namespace and name, with the real server's rules."""

import copy
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

Object = dict[str, Any]
# Kinds by API version; those marked with `/` have no namespace.
KINDS = {
    "v1": (
        "Pod",
        "Service",
        "ConfigMap",
        "Event",
        "Secret",
        "PersistentVolumeClaim",
        "/Node",
        "/Namespace",
        "/PersistentVolume",
    ),
    "coordination.k8s.io/v1": ("Lease",),
    "batch/v1": ("Job",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "apps/v1": ("Deployment", "DaemonSet"),
    "scheduling.k8s.io/v1": ("/PriorityClass",),
    "storage.k8s.io/v1": ("/StorageClass",),
    "batch.volcano.sh/v1alpha1": ("Job",),
    "scheduling.volcano.sh/v1beta1": ("PodGroup", "/Queue"),
    "kubeflow.org/v1": ("PyTorchJob",),
    "workload.codeflare.dev/v1beta2": ("AppWrapper",),
    "jobset.x-k8s.io/v1alpha2": ("JobSet",),
}
BUILT_IN = ("v1", "coordination.k8s.io/v1", "batch/v1", "networking.k8s.io/v1", "apps/v1", "storage.k8s.io/v1")
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
SELECTOR = re.compile(r"([^=!]+?)(?:(=|==|!=)([^=]*))?")


class RefusedError(Exception):
    """A refused request, with the status, reason and message of the API server, and the object that it names."""

    def __init__(self, status: int, reason: str, message: str, details: Mapping[str, str] | None = None) -> None:
        super().__init__(status, reason, message, details)
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}

    @property
    def body(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": dict(self.details),
            "code": self.status,
        }


class Kind(NamedTuple):
    """A kind of objects that the server has."""

    api_version: str
    name: str
    is_namespaced: bool


class ObjectKey(NamedTuple):
    """The identity of an object: its API version and plural (`v1/pods`), namespace (empty: none) and name."""

    kind: str
    namespace: str
    name: str


class Change(NamedTuple):
    """A change of an object: the server's version after it, ADDED, MODIFIED or DELETED, and the object then."""

    version: int
    event: str
    key: ObjectKey
    obj: Object


class Objects:
    """All objects and all changes to them, with one version number for both.

    Requests come from several threads. `changed` guards all attributes, and is notified of every change, so that a
    watch can wait on it.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 100
        self.oldest = 0  # changes before this version are forgotten
        self.changes: list[Change] = []
        self.stored: dict[ObjectKey, Object] = {}

    # --- reading

    def get(self, key: ObjectKey) -> Object:
        """A copy of one object; RefusedError (404) if it does not exist."""
        with self.changed:
            if key not in self.stored:
                plural = key.kind.rpartition("/")[2]
                details = {"name": key.name, "kind": plural}
                raise RefusedError(404, "NotFound", f'{plural} "{key.name}" not found', details)
            return copy.deepcopy(self.stored[key])

    def select(self, kind: str, namespace: str | None, query: Mapping[str, str]) -> list[Object]:
        """The objects of a kind in a namespace, or in all (None), that the selectors match."""
        with self.changed:
            objects = [
                obj
                for (obj_kind, obj_namespace, _), obj in sorted(self.stored.items())
                if obj_kind == kind and namespace in (None, obj_namespace) and matches_selectors(obj, query)
            ]
            return copy.deepcopy(objects)

    def list_changes(self, version: int, kind: str) -> list[Change]:
        """The changes of a kind after a version; RefusedError (410) if they are forgotten."""
        if version < self.oldest:
            raise RefusedError(410, "Expired", f"too old resource version: {version} ({self.oldest})")
        return [change for change in self.changes if change.version > version and change.key.kind == kind]

    # --- writing

    def create(self, kind: str, namespace: str, obj: Object, *, dry_run: bool = False) -> Object:
        """Create an object with a new uid, and return it; RefusedError (409) if it exists. A dry run stores nothing."""
        metadata = obj.get("metadata") or {}
        key = ObjectKey(kind, namespace, str(metadata.get("name")))
        with self.changed:
            if key in self.stored:
                raise RefusedError(409, "AlreadyExists", f'{kind.rpartition("/")[2]} "{key.name}" already exists')
            created = copy.deepcopy(obj)
            created["metadata"] = dict(metadata)
            if namespace:
                created["metadata"]["namespace"] = namespace
            created["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": format_now()}
            validate(created)
            return created if dry_run else self._store("ADDED", key, created)

    def patch(self, key: ObjectKey, change: Object | list[Object]) -> Object:
        """Apply a JSON patch (a list) or a merge patch, and return the object; RefusedError if the patch is invalid."""
        with self.changed:
            current = self.get(key)
            if isinstance(change, list):
                patched = apply_json_patch(current, change)
            else:
                patched = apply_merge_patch(current, change)
            validate(patched)
            return self._store("MODIFIED", key, patched)

    def delete(self, key: ObjectKey, options: Mapping[str, Any]) -> Object:
        """Delete an object and the objects that it owns; one with a finalizer only gets a deletionTimestamp."""
        with self.changed:
            obj = self.get(key)
            for field, expected in (options.get("preconditions") or {}).items():
                if expected != obj["metadata"][field]:
                    message = f"{field} in precondition: {expected}, {field} in object meta: {obj['metadata'][field]}"
                    raise RefusedError(409, "Conflict", f"Precondition failed: {message}")
            if obj["metadata"].get("finalizers"):
                obj["metadata"].setdefault("deletionTimestamp", format_now())
                return self._store("MODIFIED", key, obj)
            return self._remove(key, obj, cascade=options.get("propagationPolicy") != "Orphan")

    def put(self, kind: str, namespace: str, obj: Object) -> Object:
        """Store an object for a test without checking any rule; it may replace another one."""
        with self.changed:
            key = ObjectKey(kind, namespace, obj["metadata"]["name"])
            defaults = {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": format_now()}
            metadata = defaults | obj["metadata"]
            event = "MODIFIED" if key in self.stored else "ADDED"
            return self._store(event, key, copy.deepcopy(obj) | {"metadata": metadata})

    def forget_changes(self) -> None:
        """Forget all changes so far: a watch that requests them gets 410."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.changes = []
            self.changed.notify_all()

    def _remove(self, key: ObjectKey, obj: Object, *, cascade: bool) -> Object:
        del self.stored[key]
        self._record_change("DELETED", key, obj)
        owned_keys = [
            other_key
            for other_key, other_obj in self.stored.items()
            if obj["metadata"]["uid"] in list_owner_uids(other_obj)
        ]
        if cascade:
            for owned_key in owned_keys:
                if owned_key in self.stored:
                    self.delete(owned_key, {})
        return obj

    def _store(self, event: str, key: ObjectKey, obj: Object) -> Object:
        self.stored[key] = obj
        self._record_change(event, key, obj)
        if event == "MODIFIED" and "deletionTimestamp" in obj["metadata"] and not obj["metadata"].get("finalizers"):
            self._remove(key, obj, cascade=True)
        return copy.deepcopy(obj)

    def _record_change(self, event: str, key: ObjectKey, obj: Object) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.changes.append(Change(self.version, event, key, copy.deepcopy(obj)))
        self.changed.notify_all()


def format_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_owner_uids(obj: Object) -> set[str]:
    return {str(owner.get("uid")) for owner in obj["metadata"].get("ownerReferences") or ()}


def validate(obj: Object) -> None:
    """Refuse what the real server refuses in a Lease: malformed times, and a duration that is not positive."""
    spec = obj.get("spec") or {}
    if obj.get("kind") != "Lease":
        return
    for key in ("renewTime", "acquireTime"):
        if spec.get(key) is not None and not (isinstance(spec[key], str) and MICRO_TIME.fullmatch(spec[key])):
            raise RefusedError(400, "BadRequest", f"Lease in version v1 cannot be handled: parsing time {spec[key]!r}")
    duration = spec.get("leaseDurationSeconds")
    if duration is not None and (not isinstance(duration, int) or duration <= 0):
        raise RefusedError(422, "Invalid", "spec.leaseDurationSeconds: Invalid value: must be greater than 0")


def matches_selectors(obj: Object, query: Mapping[str, str]) -> bool:
    """Whether an object matches the label and field selectors of a query; RefusedError if one is invalid."""
    labels = obj["metadata"].get("labels") or {}
    for rule in split_selector(query.get("labelSelector")):
        if not matches_labels(labels, rule):
            return False
    return all(matches_field(obj, rule) for rule in split_selector(query.get("fieldSelector")))


def split_selector(selector: str | None) -> list[str]:
    return [rule for rule in re.split(r",(?![^(]*\))", selector or "") if rule]


def matches_labels(labels: Mapping[str, str], rule: str) -> bool:
    if re.fullmatch("![^=!]+", rule):
        return rule[1:] not in labels
    set_match = re.fullmatch(r"(\S+) (in|notin) \(([^)]*)\)", rule)
    if set_match:
        key, operator, values = set_match.groups()
        return (labels.get(key) in values.split(",")) == (operator == "in")
    match = SELECTOR.fullmatch(rule)
    if match is None:
        raise RefusedError(400, "BadRequest", f"unable to parse requirement: {rule}")
    key, operator, value = match.groups()
    if operator is None:
        return key in labels
    return (labels.get(key) == value) == (operator != "!=")


def matches_field(obj: Object, rule: str) -> bool:
    """Whether an object matches a field selector, such as `metadata.name=x` or `type=Warning`."""
    key, _, value = rule.partition("=")
    for name in key.split("."):
        obj = obj.get(name, {}) if isinstance(obj, dict) else {}
    return (obj or "") == value


def apply_merge_patch(original: Any, change: Any) -> Any:
    """Apply a merge patch: null removes a key, a list replaces the previous one."""
    if not isinstance(change, dict):
        return change
    merged = dict(original) if isinstance(original, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = apply_merge_patch(merged.get(key), value)
    return merged


def apply_json_patch(obj: Object, steps: list[Object]) -> Object:
    """Apply all steps of a JSON patch to a copy; RefusedError (422) if a step is not possible or a test fails."""
    patched: Object = copy.deepcopy(obj)
    for step in steps:
        *parents, last = (segment.replace("~1", "/").replace("~0", "~") for segment in step["path"].split("/")[1:])
        target = patched
        for key in parents:
            target = target.get(key) if isinstance(target, dict) else None  # type: ignore[assignment]
        is_invalid = not isinstance(target, dict) or (step["op"] in ("remove", "replace") and last not in target)
        if is_invalid or (step["op"] == "test" and target.get(last) != step.get("value")):
            raise RefusedError(422, "Invalid", "the server rejected our request due to an error in our request")
        if step["op"] == "remove":
            del target[last]
        elif step["op"] in ("add", "replace"):
            target[last] = step["value"]
    return patched


def list_kinds() -> Iterator[Kind]:
    """Yield each kind of KINDS."""
    for api, names in KINDS.items():
        yield from (Kind(api, name.removeprefix("/"), not name.startswith("/")) for name in names)
