"""Sets up a Kubernetes work pool: the pool, its deployments and its automations, in the version of the worker's image.

The worker's pod runs this before its worker starts (deploy/kubernetes/worker.yaml). A run's pod is Prefect's default
job, with the files of /etc/torchyard merged into it, in the order of their names.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from scripts.api import YardError, open_prefect_client
from torchyard.common.pool import read_pool
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import TorchyardError
from torchyard.model.profile import Cluster

_RUN_POD_FOLDER = Path("/etc/torchyard")
_SERVER_TIMEOUT_S = 300.0  # for a server that starts together with this pod
_RETRY_INTERVAL_S = 2.0
_FINISHED_JOB_TTL_S = 600  # how long the logs of a finished pod can be read
_CONTAINER_NAME = "prefect-job"  # Prefect's name for it

KubeObject = dict[str, Any]


def main() -> int:
    """`python -m scripts.pods`, in a pod with the variables POD_NAME and POD_NAMESPACE; return the exit code."""
    try:
        _wait_for_server()
        template = build_job_template(read_run_pod(_RUN_POD_FOLDER), _read_own_image(), os.environ["POD_NAMESPACE"])
        _write_pool(template)
        from scripts.automations import create_automations
        from scripts.deployments import deploy_flows

        deploy_flows(pool_type="kubernetes")
        create_automations()
    except (YardError, TorchyardError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def build_job_template(run_pod: KubeObject, image: str, namespace: str) -> KubeObject:
    """The job template of the work pool: Prefect's default, with the pod spec `run_pod` merged into its pod spec."""
    from prefect_kubernetes.worker import KubernetesWorker

    template: KubeObject = KubernetesWorker.get_default_base_job_template()
    spec = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    # Without these placeholders Prefect adds its own variables to those of run_pod.
    del container["env"]
    del container["resources"]
    # A container without a name is the one that runs the flow.
    containers = [{"name": _CONTAINER_NAME} | run_container for run_container in run_pod.get("containers", [])]
    template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"] = merge_manifest(
        spec, run_pod | {"containers": containers}
    )
    # With a limit of 0 Prefect itself starts the run again if its pod is evicted: it would not notice a restart of the
    # pod by Kubernetes.
    defaults = {"backoff_limit": 0, "finished_job_ttl": _FINISHED_JOB_TTL_S, "image": image, "namespace": namespace}
    variables = template["variables"]["properties"]
    for name, value in defaults.items():
        variables[name]["default"] = value
    return template


def merge_manifest(base: Any, change: Any) -> Any:
    """Merge `change` into `base`: mappings by key, lists by the names of their items. A null removes a key.

    Any other value, and a list of which not every item has a name, replaces the base's.
    """
    if isinstance(base, Mapping) and isinstance(change, Mapping):
        merged = dict(base)
        for key, value in change.items():
            merged[key] = merge_manifest(base.get(key), value)
        return {key: value for key, value in merged.items() if value is not None}
    if _has_names(base) and _has_names(change):
        base_items = {item["name"]: item for item in base}
        items = dict(base_items)
        for item in change:
            items[item["name"]] = merge_manifest(base_items.get(item["name"]), item)
        return list(items.values())
    return change


def _has_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) and "name" in item for item in value)


def read_run_pod(folder: Path) -> KubeObject:
    """The pod spec of a run, merged from the folder's YAML files. YardError if a file is not a YAML mapping."""
    merged: KubeObject = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            fields = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise YardError(f"{path}: {error}") from error
        if not isinstance(fields, Mapping):
            raise YardError(f"{path}: must be a mapping with the fields of a pod's spec, not {type(fields).__name__}")
        merged = merge_manifest(merged, fields)
    return merged


def _read_own_image() -> str:
    """The image of this pod. The runs use it too, so that code and deployments always have the same version."""
    name = os.environ["POD_NAME"]
    pod = get_cluster_client(Cluster()).get("v1", "Pod", name)
    if pod is None:
        raise YardError(f"this pod was not found by its name {name} in its namespace: check POD_NAME")
    return str(pod["spec"]["containers"][0]["image"])


def _wait_for_server() -> None:
    """Wait until the Prefect server responds; YardError after `_SERVER_TIMEOUT_S`."""
    deadline = time.monotonic() + _SERVER_TIMEOUT_S
    while True:
        try:
            with open_prefect_client(timeout_s=10) as client:
                client.read_work_pools(limit=1)
            return
        except YardError as error:
            if time.monotonic() > deadline:
                raise
            print(error, file=sys.stderr, flush=True)
            time.sleep(_RETRY_INTERVAL_S)


def _write_pool(template: KubeObject) -> None:
    """Create the work pool, or update its job template; an existing pool keeps its limit and its pause."""
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound

    pool_name = read_pool()
    with open_prefect_client() as client:
        try:
            pool = client.read_work_pool(pool_name)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=pool_name, type="kubernetes", base_job_template=template))
            return
        if pool.type == "kubernetes" and pool.base_job_template != template:
            client.update_work_pool(pool_name, WorkPoolUpdate(base_job_template=template))


if __name__ == "__main__":
    sys.exit(main())
