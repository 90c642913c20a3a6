"""From a context of the kubeconfig, or a pod's own account, to a connection with its credentials."""

import contextlib
import os
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from torchyard.kube.http import Connection, keepalive_options
from torchyard.model.errors import ClusterError

# One for each watched kind and each followed log, of hundreds of runs.
_MAX_CONNECTIONS = 4000


def open_connection(loaded: Any, context: str | None) -> Connection:
    """A connection pool made from settings."""
    loaded.connection_pool_maxsize = _MAX_CONNECTIONS
    loaded.socket_options = keepalive_options()
    loaded.refresh_api_key_hook = None  # knows tokens only, and asks for one from each thread
    http = client.ApiClient(loaded).rest_client.pool_manager
    return Connection(f"context {context}" if context else "this pod", loaded, http)


def renew_connection(first: Connection, context: str | None) -> Connection:
    """The connection with freshly loaded credentials. ClusterError if there are none any more."""
    fresh = open_connection(load_settings(context)[0], context)
    if first.has_credentials and not fresh.has_credentials:
        raise ClusterError("kubeconfig", f"context {context}", "it has no credentials any more: log in again", 401)
    return fresh


def load_settings(context: str | None) -> tuple[Any, dict[str, Any]]:
    """The connection's settings and the context that they came from; in a pod without a kubeconfig, its account."""
    loaded = client.Configuration()
    try:
        known, active = config.list_kube_config_contexts(kubeconfig_files())
        wanted = context or read_current_context() or active["name"]
        found = next((each for each in known if each["name"] == wanted), None)
        if found is None:
            names = ", ".join(sorted(each["name"] for each in known)) or "none"
            raise ClusterError("kubeconfig", f"context {wanted}", f"there is no such context; there are: {names}", 0)
        config.load_kube_config(kubeconfig_files(), context=wanted, client_configuration=loaded)
        return loaded, found
    except yaml.YAMLError as error:
        raise ClusterError("kubeconfig", "read it", str(error), 0) from error
    except ConfigException as error:
        return _load_pod_account(loaded, context, str(error))


def kubeconfig_files() -> str:
    """KUBECONFIG as it is now; the client library keeps the value that it had at import."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def read_current_context() -> str | None:
    """The current context as kubectl understands it: the first file of KUBECONFIG that names one.

    The client library takes the last file that names one, so the job could go to another cluster than kubectl shows.
    """
    for path in filter(None, kubeconfig_files().split(os.pathsep)):
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
            document = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
            if isinstance(document, dict) and document.get("current-context"):
                return str(document["current-context"])
    return None


def _load_pod_account(loaded: Any, context: str | None, why: str) -> tuple[Any, dict[str, Any]]:
    """The account of the pod that this runs in, or the reason why there is no kubeconfig.

    A named context is refused: the pod's own cluster may be another one.
    """
    if context:
        remedy = "set KUBECONFIG to the file that has it; without `cluster.context` a pod uses its own cluster"
        raise ClusterError("kubeconfig", f"context {context}", f"{why}; {remedy}", 0)
    try:
        config.load_incluster_config(client_configuration=loaded)
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as file:
            return loaded, {"context": {"namespace": file.read().strip()}}
    except (ConfigException, OSError):
        remedy = "set KUBECONFIG to the file of your cluster; `make cluster-up` makes a cluster to try"
        raise ClusterError("kubeconfig", "read it", f"{why}; {remedy}", 0) from None
