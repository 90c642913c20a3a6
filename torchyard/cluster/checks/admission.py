"""Checks that the API server accepts the job.

A dry run passes schema, webhooks, quotas and pod security, and stores nothing.
"""

import re
from http import HTTPStatus
from typing import Any

from torchyard.cluster.checks.permissions import RBAC_COMMAND, is_known_refusal
from torchyard.diagnosis.pod_facts import RUN_LABEL
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.finding import Finding, Verdict, failed_check, passed_check, warning_check
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import AdmissionAccepted
from torchyard.pods.etcd import is_companion_object
from torchyard.pods.manifest_names import RENAMED_KINDS
from torchyard.pods.optional_objects import find_optional_object
from torchyard.pods.user_manifest import has_protected_data

_VERDICTS_BY_SEVERITY: tuple[Verdict, ...] = ("failed", "warning", "ok")


def check_admission(client: Client, requirement: AdmissionAccepted, name: str, plan: ManifestPlan) -> Finding:
    """Dry-run the job's objects, or a pod like those that the job will create; return the most severe findings as one.

    Raises ClusterError if an existing object cannot be read.
    """
    if requirement.target == "pod":
        return _check_pod(client, name, plan.pod)
    checks = [_check_object(client, obj, plan) for obj in plan.admitted_objects]
    verdict = _find_worst_verdict(checks)
    worst_checks = [check for check in checks if check.verdict == verdict]
    detail = "; ".join(f"{check.where} {check.what}" for check in worst_checks)
    remedies = dict.fromkeys(check.remedy for check in worst_checks)
    return Finding(where=name, verdict=verdict, what=detail, remedy="; ".join(remedies))


def _find_worst_verdict(checks: list[Finding]) -> Verdict:
    """The most severe verdict of some checks; `ok` if there are none."""
    verdicts = {check.verdict for check in checks}
    for verdict in _VERDICTS_BY_SEVERITY:
        if verdict in verdicts:
            return verdict
    return "ok"


def _format_object_title(obj: dict[str, Any]) -> str:
    return f"{obj['kind']} {obj['metadata']['name']}"


def _check_object(client: Client, obj: dict[str, Any], plan: ManifestPlan) -> Finding:
    """Check that an object could be created, or already belongs to this run."""
    try:
        client.create(obj, dry_run=True)
    except ClusterError as error:
        if error.status == HTTPStatus.CONFLICT:
            return _check_existing(client, obj, plan)
        optional = find_optional_object(obj)
        if optional and error.status == HTTPStatus.FORBIDDEN:
            return warning_check(
                _format_object_title(obj),
                f"cannot be created: {error.message}; {optional.loss}",
                f"{RBAC_COMMAND} creates role {optional.rbac_role}, which grants it",
            )
        if is_known_refusal(plan, error.message):
            return warning_check(_format_object_title(obj), "cannot be checked without the right to create it")
        return _report_refusal(client, _format_object_title(obj), error)
    return passed_check(_format_object_title(obj), "is accepted")


def _check_existing(client: Client, obj: dict[str, Any], plan: ManifestPlan) -> Finding:
    """Check who owns the existing object of that name."""
    labels = plan.labels
    metadata = obj["metadata"]
    existing = client.get(obj["apiVersion"], obj["kind"], metadata["name"], metadata.get("namespace", ""))
    if existing is None:
        return passed_check(_format_object_title(obj), "existed during the dry run and has been deleted since")
    if labels.items() <= existing["metadata"].get("labels", {}).items():
        return passed_check(_format_object_title(obj), "already exists, and belongs to this run")
    if is_companion_object(obj):
        return _check_existing_companion(client, obj | existing, plan)
    command = f"kubectl -n {client.namespace} get {obj['kind'].lower()} {metadata['name']}"
    has_run_name = str(metadata["name"]).startswith(labels[RUN_LABEL])
    change = "give the profile another name" if has_run_name else "write manifest_name: run"
    remedy = f"{change}, or see `{command}`"
    return failed_check(
        _format_object_title(obj), f"already exists, and {_describe_owner(existing['metadata'])}", remedy
    )


def _check_existing_companion(client: Client, companion: dict[str, Any], plan: ManifestPlan) -> Finding:
    """Check that an existing object, which accompanies the job in its manifest, remains as long as the job."""
    title = _format_object_title(companion)
    run = find_deleting_run(plan, companion)
    if run is None:
        return passed_check(title, "already exists, and is used as it is")
    remedy = (
        f"wait for the end of that run (`kubectl -n {client.namespace} get lease {run}`), or create the object before "
        "the runs, which then use and keep it"
    )
    has_run_name = plan.job.startswith(plan.labels[RUN_LABEL])  # else manifest_name: keep
    if companion["kind"] in RENAMED_KINDS and has_run_name:
        remedy = f"write the job's name into its name, so that each run has its own; or {remedy}"
    return failed_check(title, f"already exists, and belongs to the run {run}, which deletes it at its end", remedy)


def find_deleting_run(plan: ManifestPlan, companion: dict[str, Any]) -> str | None:
    """The other run that deletes an existing companion at its end; None if no other one does."""
    labels = companion["metadata"].get("labels") or {}
    run = labels.get(RUN_LABEL)
    if not isinstance(run, str) or run == plan.labels[RUN_LABEL] or has_protected_data(companion):
        return None
    return run


def _describe_owner(metadata: dict[str, Any]) -> str:
    """Which run, owner or client an object belongs to, as far as its metadata records it."""
    run = (metadata.get("labels") or {}).get(RUN_LABEL)
    if run:
        return f"belongs to the run {run}"
    owners = metadata.get("ownerReferences")
    if owners:
        return f"belongs to {owners[0]['kind']} {owners[0]['name']}"
    for entry in metadata.get("managedFields", ()):
        if "manager" in entry:
            return f"does not belong to this run: {entry['manager']} created it"
    return "does not belong to this run"


def _check_pod(client: Client, name: str, pod: dict[str, Any]) -> Finding:
    """Check that a pod of the job could be created; a missing right is a warning, because the controller creates it."""
    try:
        client.create(pod, dry_run=True)
    except ClusterError as error:
        if error.status == HTTPStatus.CONFLICT:
            return passed_check(name, "a pod of this name already exists")
        if "cannot create resource" in error.message:
            return warning_check(
                name,
                f"cannot be checked: {error.message}",
                "grant the right to create pods, which only this check needs",
            )
        return _report_refusal(client, name, error)
    return passed_check(name, "a pod like the job's is accepted")


def _report_refusal(client: Client, name: str, error: ClusterError) -> Finding:
    """The finding for a refused dry run, with the server's message; a warning if the server cannot dry-run it."""
    message = error.message.strip()
    if "does not support dry run" in message:
        return warning_check(name, f"cannot be checked: {message}")
    return failed_check(name, f"is refused: {message}", find_remedy(client, error))


def find_remedy(client: Client, error: ClusterError) -> str:
    """The remedy for a request that the API server refused with `error`; empty if none is known."""
    message = error.message
    if "violates PodSecurity" in message:
        label = "pod-security.kubernetes.io/enforce=privileged"
        return f"`kubectl label namespace {client.namespace} {label} --overwrite`"
    if "failed calling webhook" in message:
        return f"this admission webhook does not respond: {_describe_webhook_remedy(message)}"
    if "exceeded quota" in message:
        return f"request less, or see `kubectl -n {client.namespace} describe quota`"
    if "cannot create resource" in message:
        return f"{RBAC_COMMAND}, and bind its role to this user"
    if error.status == HTTPStatus.NOT_FOUND:
        return "install what provides this kind, or see `kubectl api-resources`"
    return ""


def _describe_webhook_remedy(message: str) -> str:
    """The command that inspects a webhook that does not respond: its Service if the message names it, else all."""
    service = re.search(r"https?://([a-z0-9-]+)\.([a-z0-9-]+)\.svc", message)
    if service:
        return f"see `kubectl -n {service[2]} get endpoints {service[1]}` and the controller's pods there"
    command = "`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`"
    return f"check that its controller is running ({command})"
