"""Would the API server take it? A dry run meets schema, webhooks, quotas and pod security, and leaves nothing."""

import re
from typing import Any

from torchyard.cluster.checks.permissions import RBAC_COMMAND, is_known_refusal
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Admitted, Check, Verdict, failed_check, passed_check, warning_check
from torchyard.pods.etcd import is_companion_object, is_optional_object

_VERDICT_ORDER: tuple[Verdict, ...] = ("failed", "warning", "ok")


def check_admission(api: Client, need: Admitted, name: str, plan: ManifestPlan) -> Check:
    """A dry run of the job's objects, or of a pod as the job will make it."""
    if need.what == "pod":
        return _try_pod(api, name, plan.pod)
    found = [_try_object(api, thing, plan) for thing in plan.parts]
    worst = next((each for each in _VERDICT_ORDER if any(check.verdict == each for check in found)), "ok")
    told = [check for check in found if check.verdict == worst]
    detail = "; ".join(f"{check.need} {check.detail}" for check in told)
    return Check(need=name, verdict=worst, detail=detail, remedy="; ".join(dict.fromkeys(c.remedy for c in told)))


def _object_title(thing: dict[str, Any]) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


def _try_object(api: Client, thing: dict[str, Any], plan: ManifestPlan) -> Check:
    """Whether it could be created, or is this run's already."""
    try:
        api.create(thing, dry_run=True)
    except ClusterError as error:
        if error.status == 409:
            return _check_existing(api, thing, plan.labels)
        if is_optional_object(thing) and error.status == 403:
            return warning_check(
                _object_title(thing),
                f"cannot be made: {error.said}",
                f"{RBAC_COMMAND} has role torchyard-policy for it",
            )
        if is_known_refusal(plan, error.said):
            return warning_check(_object_title(thing), "cannot be tried without the right to create it")
        return _report_refusal(api, _object_title(thing), error)
    return passed_check(_object_title(thing), "is accepted")


def _check_existing(api: Client, thing: dict[str, Any], labels: dict[str, str]) -> Check:
    """Whose the object is that has the name."""
    meta = thing["metadata"]
    there = api.read(thing["apiVersion"], thing["kind"], meta["name"], meta.get("namespace", ""))
    if there is None:
        return passed_check(_object_title(thing), "was there and has gone")
    if labels.items() <= there["metadata"].get("labels", {}).items():
        return passed_check(_object_title(thing), "is there already, and is this run's")
    if is_companion_object(thing):
        return passed_check(_object_title(thing), "is there already, and is used as it is")
    remedy = (
        f"give the profile another name, or see `kubectl -n {api.namespace} get {thing['kind'].lower()} {meta['name']}`"
    )
    return failed_check(_object_title(thing), f"is there already, and {_describe_owner(there['metadata'])}", remedy)


def _describe_owner(meta: dict[str, Any]) -> str:
    """Who made an object, as far as it tells."""
    if run := meta.get("labels", {}).get("torchyard/run"):
        return f"belongs to the run {run}"
    if owners := meta.get("ownerReferences"):
        return f"belongs to {owners[0]['kind']} {owners[0]['name']}"
    managers = [each["manager"] for each in meta.get("managedFields", ()) if "manager" in each]
    return f"is not this run's: {managers[0]} made it" if managers else "is not this run's"


def _try_pod(api: Client, name: str, pod: dict[str, Any]) -> Check:
    """Whether a pod of the job could be created; the controller makes it, so that this user need not be allowed to."""
    try:
        api.create(pod, dry_run=True)
    except ClusterError as error:
        if error.status == 409:
            return passed_check(name, "a pod of this name is there already")
        if "cannot create resource" in error.said:
            return warning_check(
                name, f"cannot be checked: {error.said}", "allow to create pods, which only this check needs"
            )
        return _report_refusal(api, name, error)
    return passed_check(name, "a pod as the job makes it is accepted")


def _report_refusal(api: Client, name: str, error: ClusterError) -> Check:
    """The server's own words, and what helps."""
    said = error.said.strip()
    if "does not support dry run" in said:
        return warning_check(name, f"cannot be checked: {said}")
    return failed_check(name, f"is refused: {said}", _find_remedy(api, error))


def _find_remedy(api: Client, error: ClusterError) -> str:
    """What helps against a refusal, as far as its words tell."""
    said = error.said
    if "violates PodSecurity" in said:
        level = "pod-security.kubernetes.io/enforce=privileged"
        return f"`kubectl label namespace {api.namespace} {level} --overwrite`"
    if "failed calling webhook" in said:
        return f"this admission webhook does not answer: {_webhook_remedy(said)}"
    if "exceeded quota" in said:
        return f"ask for less, or see `kubectl -n {api.namespace} describe quota`"
    if "cannot create resource" in said:
        return f"{RBAC_COMMAND}, and bind its role to this user"
    if error.status == 404:
        return "install what brings this kind, or see `kubectl api-resources`"
    return ""


def _webhook_remedy(said: str) -> str:
    """Where to look for a webhook that does not answer: at its Service, or among all that there are."""
    service = re.search(r"https?://([a-z0-9-]+)\.([a-z0-9-]+)\.svc", said)
    if service:
        return f"see `kubectl -n {service[2]} get endpoints {service[1]}` and the controller's pods there"
    return "see that its controller runs (`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`)"
