"""Where the pods of a manifest look for each other, and why they may find nobody there."""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from torchyard.pods.workload import (
    LintFinding,
    ManifestContainer,
    Workload,
    yaml_entries,
    yaml_number,
    yaml_text,
    yaml_value,
)

_INIT_PATTERN = re.compile(r"(?:dist[-_]url|init[-_]method)[=\s]+[\"']?(tcp|file)://([^\s\"']+)", re.IGNORECASE)
_INIT_VARIABLES = ("DIST_URL", "INIT_METHOD")
_EXAMPLE_PORTS = ("23456", "29400", "29500")  # of training-operator and torch, and so of every example
_FIRST_POD_FIXES = {  # what names the first pod, whatever the job is called
    "volcano": "take the first name of the variable VC_<TASK>_HOSTS, which the plugin svc sets",
    "pytorchjob": "write $MASTER_ADDR and $MASTER_PORT, which the operator sets where there is a Master",
    "jobset": "take the job's name from the pod's label jobset.sigs.k8s.io/jobset-name",
}
_ADD_SERVICE_FIX = "add a Service with this name and clusterIP None to the manifest"
_SERVICE_PATTERN = re.compile(r"(?!localhost$)[a-z](?:[-a-z0-9]*[a-z0-9])?(?:\.[-a-z0-9]+\.svc(?:\..*)?)?")
_KINDS_WITH_SERVICE = ("volcano", "jobset")  # they give their pods a subdomain, and make its Service
_MIN_CROWDED_PODS = 3
_GPUS_PER_NODE = 8


def find_address_traps(
    jobs: Sequence[Workload], objects: Sequence[object], is_renamed: bool
) -> Iterator[tuple[str, LintFinding]]:
    """Each trap once for each job, at the first place. `renamed`: a run gives the jobs other names."""
    services = {str(yaml_value(obj, "metadata", "name")) for obj in objects if yaml_value(obj, "kind") == "Service"}
    rules = (_find_fixed_address, _find_common_host_port, _find_reused_file, _find_crowded_nodes)
    for job in jobs:
        findings = [finding for rule in rules for finding in rule(job)]
        findings += [*(_find_name_of_other_run(job) if is_renamed else ()), *_find_missing_service(job, services)]
        yield from (
            (job.location, finding)
            for finding in {problem: (key_path, problem, fix) for key_path, problem, fix in findings[::-1]}.values()
        )


class _Address(NamedTuple):
    """Where a container says that the others meet."""

    key_path: str
    host: str
    port: str


def _read_addresses(job: Workload) -> Iterator[_Address]:
    """The places of rendezvous that are written out; one that a shell puts together is known to nobody before."""
    policy = job.elastic_policy
    if host := yaml_text(yaml_value(policy, "rdzvHost")):
        yield _Address("spec.elasticPolicy.rdzvHost", host, str(yaml_number(yaml_value(policy, "rdzvPort")) or ""))
    for container in job.containers:
        for name in ("rdzv-endpoint", "master-addr"):
            host, _, port = (container.find_option(name) or "").partition(":")
            yield _Address(container.script_path, host, port or container.find_option("master-port") or "")
        host, port = (_read_variable(container, name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        yield _Address(f"{container.key_path}.env", host, port)
        for address in _list_init_methods(container, "tcp"):
            host, _, port = address.partition(":")
            yield _Address(container.script_path, host, port)


def _read_variable(container: ManifestContainer, name: str) -> str:
    return yaml_text(yaml_value(container.env.get(name), "value"))


def _list_init_methods(container: ManifestContainer, scheme: str) -> list[str]:
    """What follows `tcp://` or `file://` where a program is told how its processes meet."""
    texts = (*container.argv, *(f"{name}={_read_variable(container, name)}" for name in _INIT_VARIABLES))
    matches = _INIT_PATTERN.findall(" ".join(texts))
    return [location.partition("?")[0] for url_scheme, location in matches if url_scheme.lower() == scheme]


def _is_machine_address(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _find_fixed_address(job: Workload) -> Iterator[LintFinding]:
    for key_path, host, port in () if job.kind == "pod" or job.uses_etcd else _read_addresses(job):
        if _is_machine_address(host):
            suffix = f", and two such jobs there want the port {port}" if port.isdecimal() else ""
            problem = f"{host} is one machine's address: the pods meet only if the first one is placed there{suffix}"
            yield key_path, problem, _FIRST_POD_FIXES.get(job.kind, "")


def _find_name_of_other_run(job: Workload) -> Iterator[LintFinding]:
    for key_path, host, _ in _read_addresses(job) if job.kind in _FIRST_POD_FIXES else ():
        if _is_own_name(job, host):
            problem = f"a run gives the job a name of its own, so no pod has the name {host}"
            yield key_path, problem, _FIRST_POD_FIXES[job.kind]


def _is_own_name(job: Workload, host: str) -> bool:
    """Whether a host name is made from the job's own, as the names of its pods are."""
    return bool(job.name) and bool(re.fullmatch(rf"{re.escape(job.name)}(?:-[a-z0-9-]+)?(?:\..*)?", host))


def _find_common_host_port(job: Workload) -> Iterator[LintFinding]:
    uses_host_ports = (
        job.kind in _FIRST_POD_FIXES and not job.uses_etcd and any(group.uses_host_network for group in job.groups)
    )
    for container in job.containers if uses_host_ports else ():
        endpoint = container.find_option("rdzv-endpoint") or ""
        port = container.find_option("master-port") or endpoint.rpartition(":")[2]
        declared_ports = [str(entry.get("containerPort")) for _, entry in yaml_entries("", container.spec.get("ports"))]
        if port in _EXAMPLE_PORTS and port not in declared_ports:  # for a declared port there is a rule of its own
            problem = f"{port} is the port of every example, and under hostNetwork it is the node's: two jobs whose "
            yield container.script_path, problem + "first pods share a node exclude each other", "write another one"


def _find_reused_file(job: Workload) -> Iterator[LintFinding]:
    for container in job.containers:
        for path in _list_init_methods(container, "file"):
            if "$" not in path:
                problem = f"torch waits for ever in the file {path} if an earlier run has left it there"
                fix = "let the path contain something that is new in every run, such as the job's name"
                yield container.script_path, problem, fix


def _find_crowded_nodes(job: Workload) -> Iterator[LintFinding]:
    if (
        job.kind != "pytorchjob"
        or job.pod_count < _MIN_CROWDED_PODS
        or not all(group.uses_host_network for group in job.groups)
    ):
        return
    gpus = [_count_gpus(container.spec) for container in job.containers]
    if 0 < max(gpus, default=0) < _GPUS_PER_NODE:
        problem = (
            f"every pod takes the port pytorchjob-port of its node, so {job.pod_count} pods need {job.pod_count} nodes, and "
            "the rest stay pending"
        )
        yield (
            f"{job.groups[0].pod_path}.hostNetwork",
            problem,
            "leave hostNetwork out, or ask for fewer and larger pods",
        )


def _count_gpus(container: Mapping[str, Any]) -> int:
    limits = yaml_value(container, "resources", "limits")
    amounts = limits.items() if isinstance(limits, Mapping) else ()
    return sum(int(str(count)) for name, count in amounts if str(name).endswith("/gpu") and str(count).isdecimal())


def _find_missing_service(job: Workload, services: Set[str]) -> Iterator[LintFinding]:
    """Names that pods look up, or are to have, and that no Service of the manifest gives."""
    for group in job.groups if job.kind not in _KINDS_WITH_SERVICE else ():
        name = yaml_text(group.pod.get("subdomain"))
        if name and name not in services:
            problem = f"nothing here makes the headless Service {name}, without which the pods have no names"
            yield f"{group.pod_path}.subdomain", problem, _ADD_SERVICE_FIX
    for key_path, host, _ in _read_addresses(job):
        name = host.partition(".")[0]
        if _SERVICE_PATTERN.fullmatch(host) and name not in services and not _is_own_name(job, host):
            problem = f"nothing here makes the Service {name}: the pods meet only if the cluster already has it"
            yield key_path, problem, _ADD_SERVICE_FIX
