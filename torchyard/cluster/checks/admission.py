"""Would the API server take it? A dry run meets schema, webhooks, quotas and pod security, and leaves nothing."""

import re
from typing import Any

from torchyard.cluster.checks.permissions import ROLE, is_asked
from torchyard.kube.client import Api
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Admitted, Check, Verdict, failed, ok, warning
from torchyard.pods.etcd import is_companion, is_optional

WORST: tuple[Verdict, ...] = ("failed", "warning", "ok")


def check_admission(api: Api, need: Admitted, name: str, plan: ManifestPlan) -> Check:
    """A dry run of the job's objects, or of a pod as the job will make it."""
    if need.what == "pod":
        return try_pod(api, name, plan.pod)
    found = [try_object(api, thing, plan) for thing in plan.parts]
    worst = next((each for each in WORST if any(check.verdict == each for check in found)), "ok")
    told = [check for check in found if check.verdict == worst]
    detail = "; ".join(f"{check.need} {check.detail}" for check in told)
    return Check(need=name, verdict=worst, detail=detail, remedy="; ".join(dict.fromkeys(c.remedy for c in told)))


def title(thing: dict[str, Any]) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


def try_object(api: Api, thing: dict[str, Any], plan: ManifestPlan) -> Check:
    """Whether it could be created, or is this run's already."""
    try:
        api.create(thing, dry_run=True)
    except ClusterError as error:
        if error.status == 409:
            return try_taken(api, thing, plan.labels)
        if is_optional(thing) and error.status == 403:
            return warning(title(thing), f"cannot be made: {error.said}", f"{ROLE} has role torchyard-policy for it")
        if is_asked(plan, error.said):
            return warning(title(thing), "cannot be tried without the right to create it")
        return refusal(api, title(thing), error)
    return ok(title(thing), "is accepted")


def try_taken(api: Api, thing: dict[str, Any], labels: dict[str, str]) -> Check:
    """Whose the object is that has the name."""
    meta = thing["metadata"]
    there = api.read(thing["apiVersion"], thing["kind"], meta["name"], meta.get("namespace", ""))
    if there is None:
        return ok(title(thing), "was there and has gone")
    if labels.items() <= there["metadata"].get("labels", {}).items():
        return ok(title(thing), "is there already, and is this run's")
    if is_companion(thing):
        return ok(title(thing), "is there already, and is used as it is")
    remedy = (
        f"give the profile another name, or see `kubectl -n {api.namespace} get {thing['kind'].lower()} {meta['name']}`"
    )
    return failed(title(thing), f"is there already, and {owner(there['metadata'])}", remedy)


def owner(meta: dict[str, Any]) -> str:
    """Who made an object, as far as it tells."""
    if run := meta.get("labels", {}).get("torchyard/run"):
        return f"belongs to the run {run}"
    if owners := meta.get("ownerReferences"):
        return f"belongs to {owners[0]['kind']} {owners[0]['name']}"
    managers = [each["manager"] for each in meta.get("managedFields", ()) if "manager" in each]
    return f"is not this run's: {managers[0]} made it" if managers else "is not this run's"


def try_pod(api: Api, name: str, pod: dict[str, Any]) -> Check:
    """Whether a pod of the job could be created; the controller makes it, so that this user need not be allowed to."""
    try:
        api.create(pod, dry_run=True)
    except ClusterError as error:
        if error.status == 409:
            return ok(name, "a pod of this name is there already")
        if "cannot create resource" in error.said:
            return warning(
                name, f"cannot be checked: {error.said}", "allow to create pods, which only this check needs"
            )
        return refusal(api, name, error)
    return ok(name, "a pod as the job makes it is accepted")


def refusal(api: Api, name: str, error: ClusterError) -> Check:
    """The server's own words, and what helps."""
    said = error.said.strip()
    if "does not support dry run" in said:
        return warning(name, f"cannot be checked: {said}")
    return failed(name, f"is refused: {said}", remedy_of(api, error))


def remedy_of(api: Api, error: ClusterError) -> str:
    """What helps against a refusal, as far as its words tell."""
    said = error.said
    if "violates PodSecurity" in said:
        level = "pod-security.kubernetes.io/enforce=privileged"
        return f"`kubectl label namespace {api.namespace} {level} --overwrite`"
    if "failed calling webhook" in said:
        return f"this admission webhook does not answer: {webhook_remedy(said)}"
    if "exceeded quota" in said:
        return f"ask for less, or see `kubectl -n {api.namespace} describe quota`"
    if "cannot create resource" in said:
        return f"{ROLE}, and bind its role to this user"
    if error.status == 404:
        return "install what brings this kind, or see `kubectl api-resources`"
    return ""


def webhook_remedy(said: str) -> str:
    """Where to look for a webhook that does not answer: at its Service, or among all that there are."""
    service = re.search(r"https?://([a-z0-9-]+)\.([a-z0-9-]+)\.svc", said)
    if service:
        return f"see `kubectl -n {service[2]} get endpoints {service[1]}` and the controller's pods there"
    return "see that its controller runs (`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`)"
