"""What the caller's environment must not lend to a test: a cluster, and a Prefect server."""

import os

CLUSTER = "TORCHYARD_TEST_KUBECONFIG"  # the only way to name a cluster of one's own for tests
SERVER = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")
NOWHERE = "/nonexistent/kubeconfig of a test"


def forget_caller() -> None:
    """Go on without the caller's cluster and Prefect server; programs that are started see none of them either."""
    forget_cluster()
    for name in SERVER:
        os.environ.pop(name, None)
    os.environ["PREFECT_PROFILE"] = "ephemeral"  # the caller's own profile may name a server


def forget_cluster() -> None:
    os.environ["KUBECONFIG"] = NOWHERE  # unset, it would mean ~/.kube/config
    os.environ.pop("KUBERNETES_SERVICE_HOST", None)  # in a pod: the cluster that the pod is in
