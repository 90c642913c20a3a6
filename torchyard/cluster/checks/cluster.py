"""Is everything in the cluster that the plan needs? All requirements are asked at once; each makes one finding."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_never

from tenacity import stop_after_delay

from torchyard.cluster.checks.admission import check_admission
from torchyard.cluster.checks.capacity import check_room
from torchyard.cluster.checks.permissions import ROLE, check_rights
from torchyard.cluster.checks.references import check_object
from torchyard.kube import client
from torchyard.kube.client import Api
from torchyard.kube.outlasting import BEGIN, outlasting
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import (
    Admitted,
    Advice,
    Check,
    Controller,
    Object,
    OpenQueue,
    Right,
    Room,
    Served,
    WritableFolder,
    failed,
    ok,
    warning,
)

AT_ONCE = 8
Asked = Served | Controller | OpenQueue | Room | Object | Admitted | Advice


def check_cluster(plan: ManifestPlan) -> tuple[Check, ...]:
    """One check for all rights, and one a requirement; one in all where nothing can be asked, or by nobody known."""
    try:
        api = client.api(plan.cluster)
    except ClusterError as error:
        return (failed(error.host, f"{error.what}: {error.said}", ""),)
    if closed := check_door(api):
        return (closed,)
    missing = check_namespace(api)
    rights = [need for need in plan.requires if isinstance(need, Right)]
    needs = [need for need in plan.requires if not isinstance(need, WritableFolder | Right)]
    asked = [need for need in needs if not (missing and inside(need))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        granted = pool.submit(check_rights, api, rights)
        found = pool.map(lambda need: check_need(api, plan, need), asked)
        checks = (*granted.result(), *found)
    return (missing, *checks) if missing else checks


def inside(need: Asked) -> bool:
    """Whether a missing namespace is all that there is to say about this."""
    return isinstance(need, Admitted) or (isinstance(need, Object) and need.namespace is None)


def check_need(api: Api, plan: ManifestPlan, need: Asked) -> Check:
    """The finding of one requirement; what this user may not look at is a warning."""
    try:
        return look(api, plan, need)
    except ClusterError as error:
        if error.status == 403:
            return warning(describe(need), f"cannot be checked: {error.said}", f"{ROLE} gives the right to look")
        return failed(describe(need), f"cannot be checked: {error.what}: {error.said}", "")


def look(api: Api, plan: ManifestPlan, need: Asked) -> Check:
    """What the cluster says of one requirement. ClusterError where it does not say it."""
    name = describe(need)
    match need:
        case Served():
            found = check_served(api, need, name)
        case Controller():
            found = check_controller(api, need, name)
        case OpenQueue():
            found = check_queue(api, need, name)
        case Room():
            found = check_room(api, need, name)
        case Object():
            found = check_object(api, need, name, sum(plan.tasks.values()))
        case Admitted():
            found = check_admission(api, need, name, plan)
        case Advice():
            found = warning(name, need.detail)
        case _:
            assert_never(need)
    return found


def describe(need: Asked) -> str:
    """What a report calls a requirement."""
    match need:
        case Served():
            name = f"kind {need.crd} {need.version}"
        case Controller():
            name = f"controller {need.label}"
        case OpenQueue():
            name = f"queue {need.name}"
        case Room():
            name = f"room for {need.pods} {'pod' if need.pods == 1 else 'pods'}"
        case Object():
            name = f"{need.what} {need.namespace + '/' if need.namespace else ''}{need.name}"
        case Admitted():
            name = "admission of the job" if need.what == "objects" else "admission of its pods"
        case Advice():
            name = need.about
        case _:
            assert_never(need)
    return name


# --- the cluster itself


def await_door(plan: ManifestPlan) -> None:
    """Wait for an API server that is away, as every other step does; what it is in the end, its check tells."""
    with contextlib.suppress(ClusterError):
        api = client.api(plan.cluster)
        outlasting(api.knock).retry_with(stop=stop_after_delay(BEGIN))()


def check_door(api: Api) -> Check | None:
    """Why nothing can be asked at all, if so."""
    name = f"cluster {api.context or api.host}"
    try:
        api.knock()
    except ClusterError as error:
        flags = f" --context {api.context}" if api.context else ""
        if error.status == 0 or error.status >= 429:  # away, or busy
            return failed(name, f"{api.host} does not answer: {error.said}", f"see `kubectl{flags} cluster-info`")
        if error.status == 401 or "system:anonymous" in error.said:
            detail = f"{api.host} refuses the credentials of the kubeconfig: {error.said}"
            return failed(name, detail, f"log in again; `kubectl{flags} auth whoami` tells whether that helped")
    return None


def check_namespace(api: Api) -> Check | None:
    """The finding that there is no such namespace; None where it is there, or may not be looked at."""
    name, create = f"namespace {api.namespace}", f"`kubectl create namespace {api.namespace}`"
    try:
        found = api.read("v1", "Namespace", api.namespace, namespace=None)
    except ClusterError:
        return None
    if found is None:
        return failed(name, "there is no such namespace", create)
    if found.get("status", {}).get("phase") == "Terminating":
        return failed(name, "is being deleted", f"wait until it is gone, then {create}")
    return None


# --- kinds and their controllers


def check_served(api: Api, need: Served, name: str) -> Check:
    plural, _, group = need.crd.partition(".")
    if plural in resources(api, f"{group}/{need.version}"):
        return ok(name, "is served")
    served = discover(api, f"/apis/{group}").get("versions", [])
    versions = [each["version"] for each in served if plural in resources(api, each["groupVersion"])]
    if versions:
        return failed(
            name, f"is served as {', '.join(versions)} only", f"install a release that has it: {need.install}"
        )
    others = ", ".join(namesakes(api, plural, group))
    other = f"; {others} is another kind of the same name" if others else ""
    return failed(name, f"is not installed{other}", need.install)


def resources(api: Api, version: str) -> set[str]:
    """The plurals that the API server has in a group's version."""
    return {each["name"] for each in discover(api, f"/apis/{version}").get("resources", [])}


def namesakes(api: Api, plural: str, group: str) -> list[str]:
    """The same plural in other groups that Kubernetes does not bring itself."""
    known = discover(api, "/apis").get("groups", [])
    others = [each for each in known if "." in each["name"] and not each["name"].endswith((".k8s.io", group))]
    holding = [each for each in others if plural in resources(api, each["preferredVersion"]["groupVersion"])]
    return [f"{plural}.{each['name']}" for each in holding]


def discover(api: Api, path: str) -> dict[str, Any]:
    """What the API server says of its own kinds; this needs no right to read CRDs."""
    try:
        return api.ask("GET", path)
    except ClusterError as error:
        if error.status == 404:
            return {}
        raise


def check_controller(api: Api, need: Controller, name: str) -> Check:
    found = api.items("apps/v1", "Deployment", {"labelSelector": need.label}, everywhere=True)
    if not found and need.deployment:
        found = api.items(
            "apps/v1", "Deployment", {"fieldSelector": f"metadata.name={need.deployment}"}, everywhere=True
        )
    if not found:
        return failed(
            name, "no namespace has a Deployment with this label", "install it, or see `kubectl get deploy -A`"
        )
    ready = [each for each in found if each.get("status", {}).get("availableReplicas", 0)]
    if not ready:
        meta = found[0]["metadata"]
        remedy = f"see `kubectl -n {meta['namespace']} describe deployment {meta['name']}`"
        return failed(name, f"{tell(found[0])} has no pod that is available", remedy)
    if need.gang and not any(started_with(each, need.gang) for each in ready):
        detail = f"{tell(ready[0])} runs without {need.gang}: pods may start one by one and wait for each other"
        return warning(name, detail, f"add {need.gang} to the arguments of its container")
    return ok(name, tell(ready[0]))


def containers(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return found


def tell(deployment: dict[str, Any]) -> str:
    """Namespace, name and the image's tag."""
    image = containers(deployment)[0].get("image", "").partition("@")[0].rpartition("/")[2]
    meta, tag = deployment["metadata"], image.partition(":")[2]
    return f"{meta['namespace']}/{meta['name']}" + (f" {tag}" if tag else "")


def started_with(deployment: dict[str, Any], flag: str) -> bool:
    """Whether a container has the flag, as one word (--a=b) or as two; `none` is as good as no flag."""
    words = [word for each in containers(deployment) for word in (*each.get("command", ()), *each.get("args", ()))]
    given, wanted = f" {' '.join(words)} ".replace("=", " "), f" {flag} ".replace("=", " ")
    return wanted in given and f"{wanted}none " not in given


def check_queue(api: Api, need: OpenQueue, name: str) -> Check:
    version = "scheduling.volcano.sh/v1beta1"
    found = api.read(version, "Queue", need.name, namespace=None)
    state = found.get("status", {}).get("state") if found else None
    if state == "Open":
        return ok(name, "is open")
    queues = api.items(version, "Queue", everywhere=True)
    others = [each["metadata"]["name"] for each in queues if each.get("status", {}).get("state") == "Open"]
    detail = "there is no such queue" if found is None else f"is {state}" if state else "has no state yet"
    remedy = "choose one with options.queue" if others else "see that Volcano's controller and scheduler run"
    return failed(name, f"{detail}; open are: {', '.join(sorted(others)) or 'none'}", remedy)
