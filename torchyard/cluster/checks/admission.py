"""Would the API server accept the job? A dry run tests schema, webhooks, quotas and pod security; it leaves nothing."""

import re
from typing import Any

from torchyard.cluster.checks.permissions import RBAC_COMMAND, is_known_refusal
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import AdmissionAccepted, Check, Verdict, failed_check, passed_check, warning_check
from torchyard.pods.etcd import is_companion_object, is_optional_object

_VERDICT_ORDER: tuple[Verdict, ...] = ("failed", "warning", "ok")


def check_admission(api: Client, need: AdmissionAccepted, name: str, plan: ManifestPlan) -> Check:
    """Dry-run the job's objects, or a pod like those that the job will create."""
    if need.target == "pod":
        return _try_pod(api, name, plan.pod)
    found = [_try_object(api, thing, plan) for thing in plan.admitted_objects]
    worst = next((each for each in _VERDICT_ORDER if any(check.verdict == each for check in found)), "ok")
    told = [check for check in found if check.verdict == worst]
    detail = "; ".join(f"{check.name} {check.detail}" for check in told)
    return Check(name=name, verdict=worst, detail=detail, remedy="; ".join(dict.fromkeys(c.remedy for c in told)))


def _object_title(thing: dict[str, Any]) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


def _try_object(api: Client, thing: dict[str, Any], plan: ManifestPlan) -> Check:
    """Check that an object could be created, or already belongs to this run."""
    try:
        api.create(thing, dry_run=True)
    except ClusterError as error:
        if error.status == 409:
            return _check_existing(api, thing, plan.labels)
        if is_optional_object(thing) and error.status == 403:
            return warning_check(
                _object_title(thing),
                f"cannot be created: {error.message}",
                f"{RBAC_COMMAND} makes role torchyard-policy, which allows it",
            )
        if is_known_refusal(plan, error.message):
            return warning_check(_object_title(thing), "cannot be checked without the right to create it")
        return _report_refusal(api, _object_title(thing), error)
    return passed_check(_object_title(thing), "is accepted")


def _check_existing(api: Client, thing: dict[str, Any], labels: dict[str, str]) -> Check:
    """Check who owns the existing object of that name."""
    meta = thing["metadata"]
    there = api.get(thing["apiVersion"], thing["kind"], meta["name"], meta.get("namespace", ""))
    if there is None:
        return passed_check(_object_title(thing), "existed, and is gone now")
    if labels.items() <= there["metadata"].get("labels", {}).items():
        return passed_check(_object_title(thing), "already exists, and belongs to this run")
    if is_companion_object(thing):
        return passed_check(_object_title(thing), "already exists, and is used as it is")
    remedy = (
        f"give the profile another name, or see `kubectl -n {api.namespace} get {thing['kind'].lower()} {meta['name']}`"
    )
    return failed_check(_object_title(thing), f"already exists, and {_describe_owner(there['metadata'])}", remedy)


def _describe_owner(meta: dict[str, Any]) -> str:
    """Who created an object, as far as its metadata says."""
    if run := meta.get("labels", {}).get("torchyard/run"):
        return f"belongs to the run {run}"
    if owners := meta.get("ownerReferences"):
        return f"belongs to {owners[0]['kind']} {owners[0]['name']}"
    managers = [each["manager"] for each in meta.get("managedFields", ()) if "manager" in each]
    return f"does not belong to this run: {managers[0]} created it" if managers else "does not belong to this run"


def _try_pod(api: Client, name: str, pod: dict[str, Any]) -> Check:
    """Check that a pod of the job could be created; the controller creates it, so this user need not have the right."""
    try:
        api.create(pod, dry_run=True)
    except ClusterError as error:
        if error.status == 409:
            return passed_check(name, "a pod of this name already exists")
        if "cannot create resource" in error.message:
            return warning_check(
                name,
                f"cannot be checked: {error.message}",
                "grant the right to create pods, which only this check needs",
            )
        return _report_refusal(api, name, error)
    return passed_check(name, "a pod like the job's is accepted")


def _report_refusal(api: Client, name: str, error: ClusterError) -> Check:
    """The server's message, and a remedy."""
    said = error.message.strip()
    if "does not support dry run" in said:
        return warning_check(name, f"cannot be checked: {said}")
    return failed_check(name, f"is refused: {said}", _find_remedy(api, error))


def _find_remedy(api: Client, error: ClusterError) -> str:
    """The remedy for a refusal; empty if its message suggests none."""
    said = error.message
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
        return "install what provides this kind, or see `kubectl api-resources`"
    return ""


def _webhook_remedy(said: str) -> str:
    """Where to look for a webhook that does not answer: at its Service, or among all webhooks."""
    service = re.search(r"https?://([a-z0-9-]+)\.([a-z0-9-]+)\.svc", said)
    if service:
        return f"see `kubectl -n {service[2]} get endpoints {service[1]}` and the controller's pods there"
    return "see that its controller runs (`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`)"
