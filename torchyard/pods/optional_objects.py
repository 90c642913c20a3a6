"""Objects of a plan without which its run goes on, because its user may lack the right to create them."""

from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import ROLE_LABEL

OWN_FILES_ROLE = "own-files"  # of a ConfigMap that has only torchyard's own files


class OptionalObject(NamedTuple):
    """What an optional object needs, and what the run lacks without it.

    resource: plural.group, as a Permission names it.
    loss: a clause for a warning.
    rbac_role: of deploy/kubernetes/rbac.yaml, which grants the rights.
    """

    resource: str
    verbs: tuple[str, ...]
    loss: str
    rbac_role: str


_OBJECTS = {
    ("NetworkPolicy", "store"): OptionalObject(
        resource="networkpolicies.networking.k8s.io",
        verbs=("create", "get", "list", "patch", "delete"),  # patch: the job becomes its owner
        loss="no NetworkPolicy protects the rendezvous store",
        rbac_role="torchyard-policy",
    ),
    ("ConfigMap", OWN_FILES_ROLE): OptionalObject(
        resource="configmaps",
        verbs=("create", "get", "list", "delete"),
        loss="the pods lack torchyard's own files, so hangs are not recognized and RDMA devices are not reported",
        rbac_role="torchyard",
    ),
}


def find_optional_object(obj: dict[str, Any]) -> OptionalObject | None:
    """What is known of an object as an optional one; None if the run cannot go on without it."""
    role = (obj["metadata"].get("labels") or {}).get(ROLE_LABEL)
    return _OBJECTS.get((obj["kind"], role)) if isinstance(role, str) else None
