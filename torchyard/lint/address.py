"""Addresses at which the pods of a manifest look for each other, and at which they may not find each other."""

import ipaddress
import re
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from torchyard.lint.workload import (
    ManifestContainer,
    Workload,
    yaml_entries,
    yaml_number,
    yaml_text,
    yaml_value,
)
from torchyard.model.finding import Finding

_INIT_PATTERN = re.compile(r"(?:dist[-_]url|init[-_]method)[=\s]+[\"']?(tcp|file)://([^\s\"']+)", re.IGNORECASE)
_INIT_VARIABLES = ("DIST_URL", "INIT_METHOD")
_EXAMPLE_PORTS = ("23456", "29400", "29500")  # the defaults of training-operator and torch, so examples use them
_FIRST_POD_FIXES = {  # how to address the first pod under any name of the job
    "volcano": "take the first name of the variable VC_<TASK>_HOSTS, which the plugin svc sets",
    "pytorchjob": "write $MASTER_ADDR and $MASTER_PORT, which the operator sets where there is a Master",
    "jobset": "take the job's name from the pod's label jobset.sigs.k8s.io/jobset-name",
    "job": "take the job's name from the pod's label batch.kubernetes.io/job-name",
}
_ADD_SERVICE_FIX = "add a Service with this name and clusterIP None to the manifest"
_SERVICE_PATTERN = re.compile(r"(?!localhost$)[a-z](?:[-a-z0-9]*[a-z0-9])?(?:\.[-a-z0-9]+\.svc(?:\..*)?)?")
_KINDS_WITH_SERVICE = ("volcano", "jobset")  # their controllers give the pods a subdomain, and create its Service
_MIN_CROWDED_PODS = 3
_GPUS_PER_NODE = 8


def find_address_traps(jobs: Sequence[Workload], objects: Sequence[object]) -> Iterator[tuple[str, Finding]]:
    """Yield the traps of each job, with the job's kind and name."""
    services = {str(yaml_value(obj, "metadata", "name")) for obj in objects if yaml_value(obj, "kind") == "Service"}
    for job in jobs:
        findings = [
            *_find_fixed_address(job),
            *_find_common_host_port(job),
            *_find_reused_file(job),
            *_find_crowded_nodes(job),
        ]
        findings += _find_missing_service(job, services)
        for finding in findings:
            yield job.location, finding


class _Address(NamedTuple):
    """An address at which the pods meet, and the key that sets it; `host` or `port` is empty if it is not written."""

    key_path: str
    host: str
    port: str


def _list_addresses(job: Workload) -> Iterator[_Address]:
    """Yield the rendezvous addresses that are written out; one that a shell computes is known only in the pod."""
    policy = job.elastic_policy
    rendezvous_host = yaml_text(yaml_value(policy, "rdzvHost"))
    if rendezvous_host:
        rendezvous_port = yaml_number(yaml_value(policy, "rdzvPort"))
        yield _Address("spec.elasticPolicy.rdzvHost", rendezvous_host, str(rendezvous_port or ""))
    for container in job.containers:
        for name in ("rdzv-endpoint", "master-addr"):
            host, _, port = (container.find_option(name) or "").partition(":")
            yield _Address(container.script_path, host, port or container.find_option("master-port") or "")
        if _is_master_variable_read(job, container):
            master_host = _get_variable(container, "MASTER_ADDR")
            master_port = _get_variable(container, "MASTER_PORT")
            yield _Address(f"{container.key_path}.env", master_host, master_port)
        for address in _list_init_methods(container, "tcp"):
            host, _, port = address.partition(":")
            yield _Address(container.script_path, host, port)


def _is_master_variable_read(job: Workload, container: ManifestContainer) -> bool:
    """Whether the program can get the MASTER_ADDR of the manifest: torchrun gives its processes one of its own."""
    if job.gets_master_address:
        return False
    return not container.torchrun_calls or "MASTER_ADDR" in " ".join(container.argv)


def _get_variable(container: ManifestContainer, name: str) -> str:
    """The value of a variable; empty if it is not written as text."""
    return yaml_text(yaml_value(container.env.get(name), "value"))


def _list_init_methods(container: ManifestContainer, scheme: str) -> list[str]:
    """What follows `tcp://` or `file://` in the arguments and variables that set torch's init_method."""
    texts = list(container.argv)
    for name in _INIT_VARIABLES:
        texts.append(f"{name}={_get_variable(container, name)}")
    matches = _INIT_PATTERN.findall(" ".join(texts))
    return [location.partition("?")[0] for url_scheme, location in matches if url_scheme.lower() == scheme]


def _is_machine_address(host: str) -> bool:
    """Whether a host is an IP address, other than one of the pod itself."""
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _find_fixed_address(job: Workload) -> Iterator[Finding]:
    if not job.is_job or job.uses_etcd:
        return
    for key_path, host, port in _list_addresses(job):
        if _is_machine_address(host):
            problem = f"{host} is one machine's address: the pods meet only if the first one is placed there"
            if port.isdecimal():
                problem += f", and two such jobs on it conflict on port {port}"
            yield Finding(key_path, problem, _FIRST_POD_FIXES.get(job.kind, ""))


def _is_own_name(job: Workload, host: str) -> bool:
    """Whether a host name is made from the job's own, as the names of its pods are, or its controller's Service."""
    if host.partition(".")[0] == job.name:
        return job.kind in _KINDS_WITH_SERVICE
    return bool(job.name) and bool(re.fullmatch(rf"{re.escape(job.name)}(?:-[a-z0-9-]+)?(?:\..*)?", host))


def _is_bare_pod_name(job: Workload, host: str) -> bool:
    """Whether a host is the name of one of the pods of a job, among several, without its Service."""
    roles = {"job": "", "volcano": r"[a-z0-9-]+-", "jobset": r"[a-z0-9-]+-\d+-"}
    role = roles.get(job.kind)
    is_name = role is not None and bool(re.fullmatch(rf"{re.escape(job.name)}-{role}\d+", host))
    return is_name and job.pod_count > 1 and bool(job.name)


def find_own_host(job: Workload) -> str | None:
    """The first address that is made from the job's own name; None if no address is."""
    hosts = [address.host for address in _list_addresses(job)]
    return next((host for host in hosts if host and _is_own_name(job, host)), None)


def _find_other_service(job: Workload, host: str) -> str | None:
    """The Service in the address of a pod that is not the one of the job's controller; None if there is none."""
    match = re.fullmatch(rf"{re.escape(job.name)}-[a-z0-9-]+-\d+\.([a-z0-9-]+)(?:\..*)?", host)
    if job.kind not in _KINDS_WITH_SERVICE or not job.name or not match:
        return None
    return match[1] if match[1] != _get_own_service(job) else None


def _get_own_service(job: Workload) -> str:
    """The Service that the job's controller creates for the names of its pods: that of their subdomain."""
    subdomains = [yaml_text(yaml_value(job.spec, "network", "subdomain"))]
    subdomains += [yaml_text(group.pod.get("subdomain")) for group in job.groups]
    return next(filter(None, subdomains), job.name)


def _has_search_domains(job: Workload) -> bool:
    """Whether the pods look for hosts in domains that the manifest adds, such as that of their Service."""
    return any(yaml_value(group.pod, "dnsConfig", "searches") for group in job.groups)


def _build_pod_address_fix(job: Workload, host: str) -> str:
    """How to write the address of a pod: with its subdomain, which the pods of a Job may lack."""
    if job.kind in _KINDS_WITH_SERVICE:
        return f"write {host}.{_get_own_service(job)}"
    subdomains = [yaml_text(group.pod.get("subdomain")) for group in job.groups]
    subdomain = next(filter(None, subdomains), "")
    if subdomain:
        return f"write {host}.{subdomain}"
    return f"write {host}.{job.name}, subdomain: {job.name} in the pod's spec, and {_ADD_SERVICE_FIX}"


def _find_common_host_port(job: Workload) -> Iterator[Finding]:
    if job.kind not in _FIRST_POD_FIXES or job.uses_etcd:
        return
    if not any(group.uses_host_network for group in job.groups):
        return
    for container in job.containers:
        endpoint = container.find_option("rdzv-endpoint") or ""
        port = container.find_option("master-port") or endpoint.rpartition(":")[2]
        entries = yaml_entries("", container.spec.get("ports"))
        declared_ports = [str(entry.get("containerPort")) for _, entry in entries]
        if port in _EXAMPLE_PORTS and port not in declared_ports:  # another rule checks declared ports
            yield Finding(
                container.script_path,
                f"{port} is the port of every example, and with hostNetwork it is the node's: two jobs whose first "
                "pods share a node exclude each other",
                "choose another port",
            )


def _find_reused_file(job: Workload) -> Iterator[Finding]:
    for container in job.containers:
        for path in _list_init_methods(container, "file"):
            if "$" not in path:
                problem = f"torch waits forever if an earlier run has left the file {path}"
                fix = "use a path that is new in every run, such as one with the job's name"
                yield Finding(container.script_path, problem, fix)


def _find_crowded_nodes(job: Workload) -> Iterator[Finding]:
    if job.kind != "pytorchjob" or job.pod_count < _MIN_CROWDED_PODS:
        return
    if not all(group.uses_host_network for group in job.groups):
        return
    # Pods that use all GPUs of a node need a node each in any case.
    gpu_counts = [container.gpu_count for container in job.containers]
    if 0 < max(gpu_counts, default=0) < _GPUS_PER_NODE:
        yield Finding(
            f"{job.groups[0].pod_path}.hostNetwork",
            f"every pod uses the port pytorchjob-port of its node, so {job.pod_count} pods need {job.pod_count} nodes, "
            "and those without a node of their own stay pending",
            "remove hostNetwork, or request fewer and larger pods",
        )


def _find_pod_service(job: Workload) -> str:
    """The Service in the address of one of a Job's pods, at which the others look for it; empty if there is none."""
    for _, host, _ in _list_addresses(job):
        match = re.fullmatch(rf"{re.escape(job.name)}-\d+\.([a-z0-9-]+)(?:\..*)?", host)
        if match and job.kind == "job":
            return match[1]
    return ""


def _find_missing_service(job: Workload, services: Set[str]) -> Iterator[Finding]:
    """Yield subdomains and host names for which neither the manifest nor a controller creates a Service."""
    if job.kind not in _KINDS_WITH_SERVICE:
        for group in job.groups:
            subdomain = yaml_text(group.pod.get("subdomain"))
            if subdomain and subdomain not in services:
                problem = (
                    f"the manifest does not create the headless Service {subdomain}, without which the names of the "
                    "pods do not resolve"
                )
                yield Finding(f"{group.pod_path}.subdomain", problem, _ADD_SERVICE_FIX)
            service = _find_pod_service(job)
            if service and not subdomain:
                problem = f"without it the names of the pods, such as {job.name}-0.{service}, do not resolve"
                fix = f"write {service}"
                if service not in services:
                    fix += ", and add a Service with this name and clusterIP None to the manifest"
                yield Finding(f"{group.pod_path}.subdomain", problem, fix)
    for key_path, host, _ in _list_addresses(job):
        service = host.partition(".")[0]
        if _is_bare_pod_name(job, host) and service not in services and not _has_search_domains(job):
            yield Finding(
                key_path,
                f"{host} does not resolve: the names of the pods exist only in the Service of their subdomain",
                _build_pod_address_fix(job, host),
            )
        other_service = _find_other_service(job, host)
        if other_service and other_service not in services:
            own_service = _get_own_service(job)
            problem = f"{host} does not resolve: the controller creates the names of the pods in {own_service}"
            yield Finding(key_path, problem, f"write {service}.{own_service}")
        if _SERVICE_PATTERN.fullmatch(host) and service not in services and not _is_own_name(job, host):
            problem = (
                f"the manifest does not create the Service {service}: the pods find each other only if the cluster "
                "already has it"
            )
            fix = "add an etcd with its Service to the manifest, or use the backend c10d"
            yield Finding(key_path, problem, fix if job.uses_etcd else _ADD_SERVICE_FIX)
