"""Keeps the caller's cluster and Prefect server out of the tests."""

import os

CLUSTER = "TORCHYARD_TEST_KUBECONFIG"  # the only way to give the tests an existing cluster
SERVER = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")
NOWHERE = "/nonexistent/kubeconfig of a test"


def forget_caller() -> None:
    """Hide the caller's cluster and Prefect server from this process and from the processes that it starts."""
    forget_cluster()
    for name in SERVER:
        os.environ.pop(name, None)
    os.environ["PREFECT_PROFILE"] = "ephemeral"  # the caller's own profile may name a server


def forget_cluster() -> None:
    os.environ["KUBECONFIG"] = NOWHERE  # unset, it would mean ~/.kube/config
    os.environ.pop("KUBERNETES_SERVICE_HOST", None)  # in a pod: the cluster that the pod is in
