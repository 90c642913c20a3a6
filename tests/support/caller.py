"""Keeps the caller's cluster, Prefect server and signals out of the tests."""

import os
import signal

CLUSTER = "TORCHYARD_TEST_KUBECONFIG"  # the only way to give the tests an existing cluster
SERVER = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")
NOWHERE = "/nonexistent/kubeconfig of a test"


def forget_caller() -> None:
    """Hide the caller's cluster, Prefect server and signals from this process and from the processes that it starts."""
    restore_interrupt()
    forget_cluster()
    for name in SERVER:
        os.environ.pop(name, None)
    os.environ["PREFECT_PROFILE"] = "ephemeral"  # the caller's own profile may name a server


def restore_interrupt() -> None:
    """Handle SIGINT where the caller ignores it, as `nohup`, cron and a shell's background jobs do.

    Processes inherit an ignored signal: no test could interrupt the programs that it starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def forget_cluster() -> None:
    os.environ["KUBECONFIG"] = NOWHERE  # unset, it would mean ~/.kube/config
    os.environ.pop("KUBERNETES_SERVICE_HOST", None)  # in a pod: the cluster that the pod is in
