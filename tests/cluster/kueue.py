"""Kueue, added to a running test cluster: it admits the jobs of the namespaces that have its label.

It is not part of every cluster, because its build takes minutes: `make stop` adds it.
`Plane.down` stops it with the rest of the cluster.
"""

import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import build
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.certificates import encode_base64
from tests.cluster.components import allocate_port, build_client_component, write_serving_certificate
from tests.cluster.plane import ClusterError, Plane
from tests.cluster.ready import is_served, responds_ok
from tests.cluster.webhooks import KUBEBUILDER, build_configuration, build_rule, build_webhook

NAMESPACE_LABELS = {"torchyard.test/kueue": "managed"}  # of the namespaces whose jobs Kueue manages
API_VERSION = "kueue.x-k8s.io/v1beta2"
START_TIMEOUT_S = 60.0
METRICS_CERTIFICATE_FOLDER = Path("/etc/kueue/metrics/certs")  # compiled in; Kueue reads it also without metrics
SYSTEM_NAMESPACE = "kueue-system"
FRAMEWORKS = ("batch/job", "jobset.x-k8s.io/jobset", "kubeflow.org/pytorchjob", "workload.codeflare.dev/appwrapper")
# The resources whose webhooks are needed: of these kinds of jobs, and Kueue's own.
JOB_RESOURCES = (
    ("batch/v1", "jobs"),
    ("jobset.x-k8s.io/v1alpha2", "jobsets"),
    ("kubeflow.org/v1", "pytorchjobs"),
    ("workload.codeflare.dev/v1beta2", "appwrappers"),
)
OWN_RESOURCES = ((API_VERSION, "clusterqueues"), (API_VERSION, "resourceflavors"), (API_VERSION, "workloads"))


def ensure_kueue(plane: Plane, print_line: build.PrintLine = print) -> None:
    """Build Kueue if it is missing, and start it if it does not run; return once it is ready.

    Raises BuildError or ClusterError.
    """
    if any(process.component == "kueue" for process in plane.list_processes()):
        return
    component = build.get_addition("kueue")
    build.build_components([component], print_line)
    api = plane.api()
    webhook_port = allocate_port()
    crds = [json.loads(path.read_text()) for path in sorted((component.cache_folder / "crds").glob("*.json"))]
    api.create_all(crds)
    for crd in crds:
        wait_for(crd["metadata"]["name"], partial(is_served, api, crd))
        if len(crd["spec"]["versions"]) > 1:
            set_conversion(api, crd, build_conversion(plane, webhook_port))
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}})
    ready_url = start_manager(plane, webhook_port)
    wait_for("Kueue", partial(responds_ok, ready_url))
    api.create_all(build_webhooks(plane, webhook_port))
    flavor = {"apiVersion": API_VERSION, "kind": "ResourceFlavor", "metadata": {"name": "any"}}
    wait_for("Kueue's webhooks", partial(is_admitted, api, flavor))
    api.create(flavor)


def start_manager(plane: Plane, webhook_port: int) -> str:
    """Start the process; return the address that responds 200 once it is ready."""
    health = f"127.0.0.1:{allocate_port()}"
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": SYSTEM_NAMESPACE,
        "health": {"healthProbeBindAddress": health},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(write_certificates(plane))},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "managedJobsNamespaceSelector": {"matchLabels": NAMESPACE_LABELS},
        "integrations": {"frameworks": list(FRAMEWORKS)},
        "featureGates": {"VisibilityOnDemand": False},  # its server has a fixed port
    }
    settings_path = plane.state_folder / "kueue.yaml"
    settings_path.write_text(yaml.safe_dump(settings))
    options = [f"--config={settings_path}"]
    component = build_client_component(plane, "kueue", options, f"http://{health}/readyz")
    _, *arguments = component.command
    plane.start("kueue", [plane.get_program_path("kueue"), *arguments])
    return component.ready_url


def write_certificates(plane: Plane) -> Path:
    """Write the certificate of the webhooks, and return its folder; write one for metrics if the machine has none."""
    certificate = plane.read_certificate("webhook")
    temp_folder = plane.state_folder / "tmp" / "kueue"
    shutil.rmtree(temp_folder, ignore_errors=True)  # of a start that failed
    write_serving_certificate(temp_folder, certificate)
    if not METRICS_CERTIFICATE_FOLDER.exists():
        plane.add_teardown_command(["rm", "-rf", METRICS_CERTIFICATE_FOLDER.parents[1]])
        METRICS_CERTIFICATE_FOLDER.mkdir(parents=True)
        (METRICS_CERTIFICATE_FOLDER / "tls.crt").write_bytes(certificate.certificate)
        (METRICS_CERTIFICATE_FOLDER / "tls.key").write_bytes(certificate.key)
    return temp_folder / "k8s-webhook-server" / "serving-certs"


def build_conversion(plane: Plane, webhook_port: int) -> Object:
    """How the API server converts between the versions of Kueue's kinds: Kueue does it."""
    authority = encode_base64(plane.read_certificate("ca").certificate)
    client = {"url": f"https://127.0.0.1:{webhook_port}/convert", "caBundle": authority}
    return {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}}


def set_conversion(api: Api, crd: Object, conversion: Object) -> None:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    api.call("PATCH", path, {"spec": {"conversion": conversion}}, "merge")


def build_webhooks(plane: Plane, webhook_port: int) -> list[Object]:
    """The webhooks of Kueue's own kinds, and of the jobs in its namespaces."""
    authority = plane.read_certificate("ca").certificate
    configurations = []
    for kind, verb, operations in KUBEBUILDER:
        hooks = []
        for version, resource in (*OWN_RESOURCES, *JOB_RESOURCES):
            path = f"{verb}-{version.replace('.', '-').replace('/', '-')}-{resource.removesuffix('s')}"
            rule = build_rule(version, resource, operations)
            name = f"{verb[0]}{resource.removesuffix('s')}.kb.io"
            hook = build_webhook(name, f"https://127.0.0.1:{webhook_port}/{path}", authority, rule)
            if (version, resource) in JOB_RESOURCES:
                hook["namespaceSelector"] = {"matchLabels": NAMESPACE_LABELS}
            hooks.append(hook)
        configurations.append(build_configuration(kind, f"kueue-{kind.lower()}-webhook-configuration", hooks))
    return configurations


def build_queue(name: str, namespace: str, quotas: dict[str, Any]) -> list[Object]:
    """A ClusterQueue in which a higher priority preempts, and its LocalQueue in a namespace, both of this name.

    quotas: the amount of each resource that the jobs of the queue may hold together; other resources are refused.
    """
    resources = [{"name": resource, "nominalQuota": quota} for resource, quota in quotas.items()]
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {"coveredResources": list(quotas), "flavors": [{"name": "any", "resources": resources}]},
        ],
    }
    local = {"name": name, "namespace": namespace}
    return [
        {"apiVersion": API_VERSION, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": API_VERSION, "kind": "LocalQueue", "metadata": local, "spec": {"clusterQueue": name}},
    ]


def is_admitted(api: Api, obj: Object) -> bool:
    """Whether the API server accepts an object."""
    try:
        api.dry_run(obj)
    except ApiError:
        return False
    return True


def wait_for(name: str, condition: Callable[[], bool]) -> None:
    """Poll until the condition is true; raises ClusterError after START_TIMEOUT_S."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{name} was not ready within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.1)
