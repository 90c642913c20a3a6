"""What any pod of a manifest will do that its author does not expect."""

import re
from collections.abc import Iterator

from torchyard.pods.workload import (
    LintFinding,
    ManifestContainer,
    Workload,
    is_floating_image,
    is_new_etcd,
    yaml_entries,
    yaml_list,
    yaml_text,
    yaml_value,
)

_ETCD_HINT = "a version of 3.5, such as quay.io/coreos/etcd:v3.5.35"
_HEREDOC_PATTERN = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?^\s*\2\s*$", re.DOTALL | re.MULTILINE)
_LITERAL_PATTERN = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<!\S)#[^\n]*", re.DOTALL)
_BASH_PATTERN = re.compile(
    r"<<<|\bread -\w*a\b|\$\{\w+\[|[<>]\(|&>|\[\[ |\b(?:mapfile|readarray|declare) |\b\w+=\((?!\()"
)


def _find_floating_images(job: Workload) -> Iterator[LintFinding]:
    for container in (candidate for group in job.groups for candidate in group.all_containers):
        key_path, image = f"{container.key_path}.image", container.image
        if _is_broken_etcd(container):
            problem = f"`{image}` is etcd 3.6 or newer, which has no v2 API and no --enable-v2: it exits at once, "
            yield (
                key_path,
                problem + "the pod crash-loops, and torchrun's etcd-v2 finds no store",
                f"write {_ETCD_HINT}",
            )
        elif image and is_floating_image(image):
            problem = f"`{image}` is another image on another day, and maybe on another node"
            yield key_path, problem, "write the tag of a version, or a digest"


def _is_broken_etcd(container: ManifestContainer) -> bool:
    """Whether it asks etcd 3.6 or newer for the v2 API, which 3.6 removed."""
    return is_new_etcd(container.image) and any(arg.startswith("--enable-v2") for arg in container.argv)


def _find_broad_tolerations(job: Workload) -> Iterator[LintFinding]:
    for group in job.groups:
        for key_path, toleration in yaml_entries(f"{group.pod_path}.tolerations", group.pod.get("tolerations")):
            is_unlimited = (
                toleration.get("effect") in (None, "", "NoExecute") and toleration.get("tolerationSeconds") is None
            )
            if toleration.get("operator") == "Exists" and not toleration.get("key") and is_unlimited:
                problem = "it tolerates unready and unreachable nodes too: pods of a lost node are never evicted, and "
                fix = "name a key, such as {key: nvidia.com/gpu, operator: Exists}"
                yield key_path, problem + "what waits for them waits for ever", fix


def _find_unbounded_memory(job: Workload) -> Iterator[LintFinding]:
    for group in job.groups:
        for key_path, volume in yaml_entries(f"{group.pod_path}.volumes", group.pod.get("volumes")):
            if yaml_value(volume, "emptyDir", "medium") == "Memory" and not yaml_value(volume, "emptyDir", "sizeLimit"):
                problem = "what is written there is memory, up to the pod's limit or, without one, the node's"
                yield f"{key_path}.emptyDir", problem, "write a sizeLimit, such as 32Gi"


def _find_prefixed_capabilities(job: Workload) -> Iterator[LintFinding]:
    for container in (candidate for group in job.groups for candidate in group.all_containers):
        for key in ("add", "drop"):
            for capability in yaml_list(yaml_value(container.spec, "securityContext", "capabilities", key)):
                if yaml_text(capability).upper().startswith("CAP_"):
                    problem = f"names in Kubernetes have no CAP_: a runtime that adds it finds no `CAP_{capability}`"
                    yield f"{container.key_path}.securityContext.capabilities.{key}", problem, f"write {capability[4:]}"


def _find_host_ports(job: Workload) -> Iterator[LintFinding]:
    for container in _list_host_containers(job):
        ports = [entry for _, entry in yaml_entries("", container.spec.get("ports"))]
        node_ports = ", ".join(str(port.get("containerPort")) for port in ports if not _is_job_port(job, port))
        if node_ports:
            problem = (
                f"under hostNetwork {node_ports} becomes a port of the node: one such pod a node, and two such jobs "
            )
            yield (
                f"{container.key_path}.ports",
                problem + "exclude each other",
                "leave the ports out, nothing needs them there",
            )


def _list_host_containers(job: Workload) -> Iterator[ManifestContainer]:
    if job.kind != "pod":
        yield from (container for group in job.groups if group.uses_host_network for container in group.containers)


def _is_job_port(job: Workload, port: object) -> bool:
    return job.kind == "pytorchjob" and yaml_value(port, "name") == "pytorchjob-port"


def _find_host_dns(job: Workload) -> Iterator[LintFinding]:
    # Volcano's webhook fills in what is left out.
    node_dns_policies = ("ClusterFirst", "Default", *(() if job.kind == "volcano" else (None, "")))
    for group in job.groups if job.kind != "pod" else ():
        if group.uses_host_network and group.pod.get("dnsPolicy") in node_dns_policies:
            problem = (
                "under hostNetwork the node's DNS is asked, which knows no Service: the nodes do not find each other"
            )
            yield f"{group.pod_path}.dnsPolicy", problem, "write ClusterFirstWithHostNet"


def _find_nccl_file(job: Workload) -> Iterator[LintFinding]:
    for container in job.containers:
        log_files = re.findall(r"\bNCCL_DEBUG_FILE=(\S+)", container.script)
        if container.env.get("NCCL_DEBUG_FILE"):
            log_files.append(yaml_text(container.env["NCCL_DEBUG_FILE"].get("value", "a file")))
        if any(log_file and not log_file.strip("\"'").startswith("/dev/std") for log_file in log_files):
            problem = "NCCL_DEBUG_FILE takes NCCL's lines out of the log: nothing there shows whether RDMA was used"
            yield f"{container.key_path}.env", problem, "leave NCCL_DEBUG_FILE out"


def _find_bash_in_sh(job: Workload) -> Iterator[LintFinding]:
    for container in job.containers:
        constructs = dict.fromkeys(
            construct.strip() for construct in _BASH_PATTERN.findall(_strip_literals(container.script))
        )
        if container.shell in ("sh", "dash", "ash") and constructs:
            constructs_text = " ".join(f"`{construct}`" for construct in constructs)
            problem = f"{constructs_text} is for bash: where sh is another shell, such as dash, the script breaks there"
            yield container.script_path, problem, "write /bin/bash, or the same without it"


def _strip_literals(script: str) -> str:
    """The script without comments and text that it only quotes, which may be in any language."""
    script_without_heredocs = _HEREDOC_PATTERN.sub("\n", script)
    return _LITERAL_PATTERN.sub(
        lambda match: match[0] if re.match(r'".*(?:\$[({]|`)', match[0], re.DOTALL) else " ", script_without_heredocs
    )


POD_RULES = (
    *(_find_floating_images, _find_broad_tolerations, _find_unbounded_memory, _find_prefixed_capabilities),
    *(_find_host_ports, _find_host_dns, _find_nccl_file, _find_bash_in_sh),
)
