"""Connections to an API server, from a context of the kubeconfig or from a pod's service account."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from torchyard.diagnosis.pod_facts import get_mapping, get_mappings
from torchyard.kube.http import Connection, build_keepalive_options
from torchyard.model.errors import ClusterError

_MISSING_REMEDY = "set KUBECONFIG to the file of your cluster; `make cluster-up` creates a local test cluster"
_MAX_CONNECTIONS = 4000  # one for each watched kind and each followed log, of hundreds of runs


def open_connection(settings: Any, context: str | None) -> Connection:
    """A connection pool with the settings of a context; `context` is None in a pod without a kubeconfig."""
    settings.connection_pool_maxsize = _MAX_CONNECTIONS
    settings.socket_options = build_keepalive_options()
    settings.refresh_api_key_hook = None  # it would renew tokens only, not certificates, and once for each thread
    http = client.ApiClient(settings).rest_client.pool_manager
    return Connection(f"context {context}" if context else "this pod", settings, http)


def renew_connection(original: Connection, context: str | None) -> Connection:
    """A new connection with freshly loaded credentials. It may block: a plugin may wait for a login.

    Raises ClusterError if the kubeconfig no longer contains any: the requests would be sent without credentials.
    """
    settings, _ = load_settings(context)
    renewed = open_connection(settings, context)
    if _has_credentials(original.settings) and not _has_credentials(renewed.settings):
        raise ClusterError("kubeconfig", renewed.name, "it has no credentials any more: log in again", 401)
    return renewed


def load_settings(context: str | None) -> tuple[Any, dict[str, Any]]:
    """The connection's settings, and the context as the kubeconfig has it.

    `context` None: the current context, or a pod's service account where there is no kubeconfig. Raises ClusterError if
    the context does not exist, the kubeconfig cannot be read, or is not one, or its plugin provides no credentials: the
    client library then sends requests without any.
    """
    settings = client.Configuration()
    paths = get_kubeconfig_paths()
    try:
        contexts, active_context = config.list_kube_config_contexts(paths)
        context_name = context or read_current_context() or active_context["name"]
        by_name = {entry["name"]: entry for entry in reversed(contexts)}  # the first of a name counts
        if context_name not in by_name:
            choices = ", ".join(sorted(by_name)) or "none"
            message = f"there is no such context; there are: {choices}"
            raise ClusterError("kubeconfig", f"context {context_name}", message, 0)
        config.load_kube_config(paths, context=context_name, client_configuration=settings)
        plugin = _find_plugin(by_name[context_name])
        if plugin and not _has_credentials(settings):
            message = f"its plugin {plugin} provides no credentials: log in again"
            raise ClusterError("kubeconfig", f"context {context_name}", message, HTTPStatus.UNAUTHORIZED)
        return settings, by_name[context_name]
    except (yaml.YAMLError, OSError) as error:
        raise ClusterError("kubeconfig", "read it", str(error), 0) from error
    except (LookupError, TypeError, AttributeError) as error:  # the client library expects mappings without a check
        problem = f"{get_kubeconfig_paths()} does not have the structure of a kubeconfig: {error}"
        raise ClusterError("kubeconfig", "read it", problem, 0) from error
    except ConfigException as error:
        if has_kubeconfig():  # the pod's own cluster may be another one
            raise ClusterError("kubeconfig", "read it", f"{paths}: {error}; {_MISSING_REMEDY}", 0) from error
        return _load_pod_account(settings, context, f"there is no file {paths}")


def has_kubeconfig() -> bool:
    """Whether a file of the kubeconfig exists; also one that this user may not look for."""
    for path in filter(None, get_kubeconfig_paths().split(os.pathsep)):
        try:
            Path(path).expanduser().lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return True
        return True
    return False


def _has_credentials(settings: Any) -> bool:
    return bool(settings.api_key or settings.cert_file)


def get_kubeconfig_paths() -> str:
    """KUBECONFIG as it is now; the client library keeps the value that it had at import."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def read_current_context() -> str | None:
    """The current context as kubectl determines it: that of the first file of KUBECONFIG with one. None without one.

    The client library takes the last file with one, so the job could go to another cluster than kubectl shows.
    """
    for document in _read_documents():
        if document.get("current-context"):
            return str(document["current-context"])
    return None


def describe_credentials(context: Mapping[str, Any]) -> str:
    """What provides the credentials of a context, for messages: the user's plugin, or the kubeconfig.

    `context`: as `load_settings` returns it.
    """
    plugin = _find_plugin(context)
    return f"the kubeconfig's plugin {plugin}" if plugin else "the kubeconfig"


def _find_plugin(context: Mapping[str, Any]) -> str:
    """The command that provides the credentials of a context's user; empty if the kubeconfig has them."""
    user_name = context["context"].get("user")
    for document in _read_documents():
        for user in get_mappings(document, "users"):
            if user.get("name") == user_name:  # the first of a name counts
                return str(get_mapping(user, "user", "exec").get("command") or "")
    return ""


def _read_documents() -> Iterator[dict[str, Any]]:
    """The files of the kubeconfig that can be read, in their order."""
    for path in filter(None, get_kubeconfig_paths().split(os.pathsep)):
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
            document = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
            if isinstance(document, dict):
                yield document


def _load_pod_account(settings: Any, context: str | None, reason: str) -> tuple[Any, dict[str, Any]]:
    """The service account of the pod that this process runs in, as `load_settings` returns a context.

    Raises ClusterError with `reason`, why there is no kubeconfig, if this process is not in a pod, or if a context is
    named: the pod's own cluster may be another one.
    """
    if context:
        remedy = "set KUBECONFIG to the file that contains it; without `cluster.context` a pod uses its own cluster"
        raise ClusterError("kubeconfig", f"context {context}", f"{reason}; {remedy}", 0)
    try:
        config.load_incluster_config(client_configuration=settings)
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as file:
            return settings, {"context": {"namespace": file.read().strip()}}
    except (ConfigException, OSError):
        raise ClusterError("kubeconfig", "read it", f"{reason}; {_MISSING_REMEDY}", 0) from None
