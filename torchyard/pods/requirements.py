"""Requirements on a cluster, checked before the pods of a job start there."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from torchyard.agents.job_code import list_code_advice
from torchyard.agents.job_files import needs_config_map
from torchyard.diagnosis.pod_facts import RUN_LABEL, find_main_container, get_mapping, get_mappings
from torchyard.lint.pod_requests import sum_pod_requests
from torchyard.lint.rdma import HCA_VARIABLE, ExpectedHcas, count_listed_hcas, list_hca_shortages
from torchyard.lint.workload import ManifestContainer
from torchyard.model.finding import Finding, warning_check
from torchyard.model.pod import Pod, Toleration, TolerationItem
from torchyard.model.profile import Profile
from torchyard.model.requirements import (
    AdmissionAccepted,
    Advice,
    Capacity,
    ClusterRequirement,
    Permission,
    ReferencedKind,
    ReferencedObject,
    WritableFolder,
)
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods.template import NODE_TOPOLOGY_KEY, code_name, files_name
from torchyard.pods.volumes import Manifest

_RUN_PERMISSIONS = (
    Permission(verbs=("list", "watch"), resource="pods"),
    Permission(verbs=("get",), resource="pods/log"),
    Permission(verbs=("list",), resource="events"),
    Permission(verbs=("create", "get", "patch", "delete"), resource="leases.coordination.k8s.io"),
)
# Keys of a variable's source, by the kind of object that they name.
_SOURCE_KINDS: dict[tuple[str, str], ReferencedKind] = {
    ("secretKeyRef", "secretRef"): "Secret",
    ("configMapKeyRef", "configMapRef"): "ConfigMap",
}
_FILES_PERMISSION = Permission(verbs=("create", "get", "list", "delete"), resource="configmaps")


def list_run_permissions(profile: Profile) -> tuple[Permission, ...]:
    """The permissions that a run needs on any job's pods, and on its Lease."""
    if profile.on_stuck_pod == "force":
        return (*_RUN_PERMISSIONS, Permission(verbs=("delete",), resource="pods"))
    return _RUN_PERMISSIONS


def job_permission(crd: str) -> Permission:
    """The permission that a run needs on the job itself."""
    return Permission(verbs=("create", "get", "list", "watch", "delete"), resource=crd)


def list_pod_requirements(
    profile: ResolvedProfile, run: Run, template: Manifest, *, has_ports: bool = False
) -> tuple[ClusterRequirement, ...]:
    """The requirements of the job's pods, and what is advised about them.

    template: the pod template of the job.
    has_ports: the pods declare ports, which are ports of their node if they use the host's network.
    """
    requirements: list[ClusterRequirement] = [
        WritableFolder(host="localhost", path=run.folder),
        *list_run_permissions(profile),
    ]
    if needs_config_map(profile) or profile.code:
        requirements.append(_FILES_PERMISSION)
    requirements += [
        build_capacity(template, profile.nodes.min, has_ports=has_ports, device_plugin=profile.device_plugin),
        AdmissionAccepted(target="objects"),
        AdmissionAccepted(target="pod"),
        *_list_references(profile, run, template),
        *list_pod_advice(profile, template),
    ]
    return tuple(requirements)


def list_pod_advice(profile: ResolvedProfile, template: Manifest) -> list[Advice]:
    """Warnings about the job's pods that need no check. `template`: of the pods."""
    findings = _list_hca_shortages(profile, template)
    if _has_floating_tag(profile.image or ""):
        problem = "has no fixed tag: the next run may get another program"
        findings.append(warning_check(f"image {profile.image}", problem, "name a version or a digest"))
    return [*list_code_advice(profile), *(Advice(finding=finding) for finding in findings)]


def _list_hca_shortages(profile: ResolvedProfile, template: Manifest) -> list[Finding]:
    """The keys by which the pods get or use fewer HCAs than the fabric promises, or than NCCL_IB_HCA lists.

    Empty for one node, which uses no network, and for a fabric without NCCL's own RDMA transport.
    """
    expect = profile.expect
    if profile.nodes.max < 2 or expect is None or expect.transport in ("plugin", "socket"):
        return []
    hca_rule = profile.env.get(HCA_VARIABLE)
    listed_count = count_listed_hcas(hca_rule) if isinstance(hca_rule, str) else None
    if expect.hcas:
        count = expect.hcas
        source = f"fabric {profile.fabric} promises {count} HCAs (expect.hcas)"
    else:
        count = listed_count or 1
        source = f"{HCA_VARIABLE} lists {count} HCAs"
    findings: list[Finding] = []
    if listed_count and listed_count < count:
        problem = f"lists {listed_count} HCAs, but {source}"
        findings.append(warning_check(f"env.{HCA_VARIABLE}", problem, "list all of them, or correct expect.hcas"))
    is_roce = expect.transport == "roce" or profile.find_gid
    for shortage in list_hca_shortages(template, _find_main(template).requests, ExpectedHcas(count, source, is_roce)):
        fix = f"{shortage.fix}, or correct the hardware file"
        findings.append(warning_check(f"pod.{shortage.setting}", shortage.problem, fix))
    return findings


def build_capacity(
    template: Manifest, pod_count: int, *, has_ports: bool, device_plugin: str | None = None
) -> Capacity:
    """Enough nodes for this many pods of a template. `has_ports` as for `list_pod_requirements`.

    Raises ValueError if a container requests what is not an amount of Kubernetes.
    """
    spec = template["spec"]
    node_conditions = _read_node_conditions(spec)
    is_spread = _is_spread(spec)
    uses_host_ports = has_ports and spec.get("hostNetwork") is True
    return Capacity(
        pods=pod_count,
        labels=dict(get_mapping(spec, "nodeSelector")),
        avoid=node_conditions["NotIn"],
        only=node_conditions["In"],
        tolerations=_read_tolerations(spec),
        resources=sum_pod_requests(spec),
        one_per_node=is_spread or uses_host_ports,
        uses_host_ports=uses_host_ports and not is_spread,
        device_plugin=device_plugin,
    )


def _find_main(template: Manifest) -> ManifestContainer:
    """The main container of a template."""
    name = find_main_container(template)
    container = next(container for container in template["spec"]["containers"] if container["name"] == name)
    return ManifestContainer("", container)


def _read_node_conditions(spec: Manifest) -> dict[str, dict[str, tuple[str, ...]]]:
    """The values that a node's labels must have (`In`), or must not have (`NotIn`), by label.

    Without the conditions of several terms, of which a node must match only one.
    """
    conditions: dict[str, dict[str, tuple[str, ...]]] = {"In": {}, "NotIn": {}}
    required = get_mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = get_mappings(required, "nodeSelectorTerms")
    for expression in get_mappings(terms[0], "matchExpressions") if len(terms) == 1 else ():
        operator = expression.get("operator")
        values = expression.get("values")
        if operator in conditions and isinstance(values, list):
            conditions[operator][str(expression.get("key"))] = tuple(map(str, values))
    return conditions


def _read_tolerations(spec: Manifest) -> tuple[TolerationItem, ...]:
    """The tolerations of the pods; one that has only a key, as that key."""
    tolerations: list[TolerationItem] = []
    for toleration in get_mappings(spec, "tolerations"):
        if toleration == {"key": toleration.get("key"), "operator": "Exists"}:
            tolerations.append(str(toleration["key"]))
            continue
        operator = toleration.get("operator", "Equal")  # as in Kubernetes
        fields = {
            "key": toleration.get("key"),
            "operator": operator,
            "value": toleration.get("value", "" if operator == "Equal" else None),
            "effect": toleration.get("effect"),
            "toleration_seconds": toleration.get("tolerationSeconds"),
        }
        try:
            tolerations.append(Toleration.model_validate(fields))
        except ValidationError:  # of a patch: the API server, which preflight asks too, refuses it
            continue
    return tuple(tolerations)


def _is_spread(spec: Manifest) -> bool:
    """Whether each of the attempt's pods needs a node of its own."""
    for term in get_mappings(spec, "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        is_own = RUN_LABEL in get_mapping(term, "labelSelector", "matchLabels")
        if is_own and term.get("topologyKey") == NODE_TOPOLOGY_KEY:
            return True
    return False


def _list_references(profile: ResolvedProfile, run: Run, template: Manifest) -> list[ReferencedObject]:
    """Every object that the pods name, which must exist before them."""
    spec = template["spec"]
    references = _list_networks(profile.pod)
    references += list_referenced_objects(spec, profile.compute_domain)
    references += _refer("Secret", get_mappings(spec, "imagePullSecrets"))
    own_names = (files_name(profile, run), code_name(profile, run))  # the run itself creates them
    own_objects = [ReferencedObject(object_kind="ConfigMap", name=name) for name in own_names]
    unique_references = dict.fromkeys(references)  # a ConfigMap may be mounted and in the environment
    return [reference for reference in unique_references if reference not in own_objects]


def list_referenced_objects(spec: Manifest, compute_domain: str | None = None) -> list[ReferencedObject]:
    """The objects that a pod needs to start, by its spec; without the Secrets of registries, which may be missing.

    compute_domain: the name of a ComputeDomain, which creates the claim template of that name; None without one.
    """
    containers = get_mappings(spec, "containers") + get_mappings(spec, "initContainers")
    references: list[ReferencedObject] = []
    for container in containers:
        for variable in get_mappings(container, "env"):
            references += _list_sources(get_mapping(variable, "valueFrom"))
    for container in containers:
        for source in get_mappings(container, "envFrom"):
            references += _list_sources(source)
    volumes = get_mappings(spec, "volumes")
    for volume in volumes:
        references += _list_mounted_objects(volume)
    for claim in get_mappings(spec, "resourceClaims"):
        name = claim.get("resourceClaimTemplateName")
        if name and name == compute_domain:
            references += _refer("ComputeDomain", [{"name": name}])
        else:
            references += _refer("ResourceClaimTemplate", [{"name": name}])
            references += _refer("ResourceClaim", [{"name": claim.get("resourceClaimName")}])
    for volume in volumes:
        claim_spec = get_mapping(volume, "ephemeral", "volumeClaimTemplate", "spec")
        references += _refer("StorageClass", [{"name": claim_spec.get("storageClassName")}])
    references += _refer("PriorityClass", [{"name": spec.get("priorityClassName")}])
    references += _refer("ServiceAccount", [{"name": spec.get("serviceAccountName")}])
    return references


def _list_networks(pod: Pod) -> list[ReferencedObject]:
    """The networks of the pods; one without a namespace is in the job's."""
    networks = []
    for network, count in pod.networks.items():
        if count:
            namespace, _, name = network.rpartition("/")
            networks.append(
                ReferencedObject(object_kind="NetworkAttachmentDefinition", name=name, namespace=namespace or None)
            )
    return networks


def _list_sources(source: Mapping[str, Any]) -> list[ReferencedObject]:
    """The Secret or ConfigMap that a variable's value, or those of `envFrom`, come from."""
    references = []
    for keys, kind in _SOURCE_KINDS.items():
        for key in keys:
            references += _refer(kind, [get_mapping(source, key)])
    return references


def _list_mounted_objects(volume: Mapping[str, Any]) -> list[ReferencedObject]:
    """The claim, ConfigMaps and Secrets of a volume; empty for a volume of another kind."""
    claim = get_mapping(volume, "persistentVolumeClaim")
    references = _refer("PersistentVolumeClaim", [{"name": claim.get("claimName")}])
    references += _refer("ConfigMap", [get_mapping(volume, "configMap")])
    secret = get_mapping(volume, "secret")
    references += _refer("Secret", [{"name": secret.get("secretName"), "optional": secret.get("optional")}])
    for source in get_mappings(volume, "projected", "sources"):
        references += _refer("ConfigMap", [get_mapping(source, "configMap")])
        references += _refer("Secret", [get_mapping(source, "secret")])
    return references


def _refer(kind: ReferencedKind, sources: Iterable[Mapping[str, Any]]) -> list[ReferencedObject]:
    """A reference to each source that has a name and is not optional, with the key that it must have, if any."""
    references = []
    for source in sources:
        name = source.get("name")
        if isinstance(name, str) and name and not source.get("optional"):
            key = source.get("key")
            entries = (key,) if isinstance(key, str) else ()
            references.append(ReferencedObject(object_kind=kind, name=name, required_entries=entries))
    return references


def _has_floating_tag(image: str) -> bool:
    """Whether the name of an image may mean another image tomorrow: no tag or `latest`, and no digest."""
    if "@" in image:
        return False
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag in ("", "latest")
