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


def check_admission(client: Client, requirement: AdmissionAccepted, name: str, plan: ManifestPlan) -> Check:
    """Dry-run the job's objects, or a pod like those that the job will create."""
    if requirement.target == "pod":
        return _check_pod(client, name, plan.pod)
    checks = [_check_object(client, obj, plan) for obj in plan.admitted_objects]
    worst = next((verdict for verdict in _VERDICT_ORDER if any(check.verdict == verdict for check in checks)), "ok")
    worst_checks = [check for check in checks if check.verdict == worst]
    detail = "; ".join(f"{check.name} {check.detail}" for check in worst_checks)
    return Check(
        name=name, verdict=worst, detail=detail, remedy="; ".join(dict.fromkeys(check.remedy for check in worst_checks))
    )


def _format_object_title(obj: dict[str, Any]) -> str:
    return f"{obj['kind']} {obj['metadata']['name']}"


def _check_object(client: Client, obj: dict[str, Any], plan: ManifestPlan) -> Check:
    """Check that an object could be created, or already belongs to this run."""
    try:
        client.create(obj, dry_run=True)
    except ClusterError as error:
        if error.status == 409:
            return _check_existing(client, obj, plan.labels)
        if is_optional_object(obj) and error.status == 403:
            return warning_check(
                _format_object_title(obj),
                f"cannot be created: {error.message}",
                f"{RBAC_COMMAND} makes role torchyard-policy, which allows it",
            )
        if is_known_refusal(plan, error.message):
            return warning_check(_format_object_title(obj), "cannot be checked without the right to create it")
        return _report_refusal(client, _format_object_title(obj), error)
    return passed_check(_format_object_title(obj), "is accepted")


def _check_existing(client: Client, obj: dict[str, Any], labels: dict[str, str]) -> Check:
    """Check who owns the existing object of that name."""
    metadata = obj["metadata"]
    existing = client.get(obj["apiVersion"], obj["kind"], metadata["name"], metadata.get("namespace", ""))
    if existing is None:
        return passed_check(_format_object_title(obj), "existed, and is gone now")
    if labels.items() <= existing["metadata"].get("labels", {}).items():
        return passed_check(_format_object_title(obj), "already exists, and belongs to this run")
    if is_companion_object(obj):
        return passed_check(_format_object_title(obj), "already exists, and is used as it is")
    command = f"kubectl -n {client.namespace} get {obj['kind'].lower()} {metadata['name']}"
    remedy = f"give the profile another name, or see `{command}`"
    return failed_check(
        _format_object_title(obj), f"already exists, and {_describe_owner(existing['metadata'])}", remedy
    )


def _describe_owner(metadata: dict[str, Any]) -> str:
    """Who created an object, as far as its metadata says."""
    if run := metadata.get("labels", {}).get("torchyard/run"):
        return f"belongs to the run {run}"
    if owners := metadata.get("ownerReferences"):
        return f"belongs to {owners[0]['kind']} {owners[0]['name']}"
    managers = [entry["manager"] for entry in metadata.get("managedFields", ()) if "manager" in entry]
    return f"does not belong to this run: {managers[0]} created it" if managers else "does not belong to this run"


def _check_pod(client: Client, name: str, pod: dict[str, Any]) -> Check:
    """Check that a pod of the job could be created; the controller creates it, so this user need not have the right."""
    try:
        client.create(pod, dry_run=True)
    except ClusterError as error:
        if error.status == 409:
            return passed_check(name, "a pod of this name already exists")
        if "cannot create resource" in error.message:
            return warning_check(
                name,
                f"cannot be checked: {error.message}",
                "grant the right to create pods, which only this check needs",
            )
        return _report_refusal(client, name, error)
    return passed_check(name, "a pod like the job's is accepted")


def _report_refusal(client: Client, name: str, error: ClusterError) -> Check:
    """The server's message, and a remedy."""
    message = error.message.strip()
    if "does not support dry run" in message:
        return warning_check(name, f"cannot be checked: {message}")
    return failed_check(name, f"is refused: {message}", _find_remedy(client, error))


def _find_remedy(client: Client, error: ClusterError) -> str:
    """The remedy for a refusal; empty if its message suggests none."""
    message = error.message
    if "violates PodSecurity" in message:
        level = "pod-security.kubernetes.io/enforce=privileged"
        return f"`kubectl label namespace {client.namespace} {level} --overwrite`"
    if "failed calling webhook" in message:
        return f"this admission webhook does not answer: {_describe_webhook_remedy(message)}"
    if "exceeded quota" in message:
        return f"ask for less, or see `kubectl -n {client.namespace} describe quota`"
    if "cannot create resource" in message:
        return f"{RBAC_COMMAND}, and bind its role to this user"
    if error.status == 404:
        return "install what provides this kind, or see `kubectl api-resources`"
    return ""


def _describe_webhook_remedy(message: str) -> str:
    """Where to look for a webhook that does not answer: at its Service, or among all webhooks."""
    service = re.search(r"https?://([a-z0-9-]+)\.([a-z0-9-]+)\.svc", message)
    if service:
        return f"see `kubectl -n {service[2]} get endpoints {service[1]}` and the controller's pods there"
    return "see that its controller runs (`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`)"
