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
    for container in (each for group in job.groups for each in group.all_containers):
        at, name = f"{container.at}.image", container.image
        if _is_broken_etcd(container):
            happens = f"`{name}` is etcd 3.6 or newer, which has no v2 API and no --enable-v2: it exits at once, "
            yield at, happens + "the pod crash-loops, and torchrun's etcd-v2 finds no store", f"write {_ETCD_HINT}"
        elif name and is_floating_image(name):
            happens = f"`{name}` is another image on another day, and maybe on another node"
            yield at, happens, "write the tag of a version, or a digest"


def _is_broken_etcd(container: ManifestContainer) -> bool:
    """Whether it asks etcd 3.6 or newer for the v2 API, which 3.6 removed."""
    return is_new_etcd(container.image) and any(word.startswith("--enable-v2") for word in container.argv)


def _find_broad_tolerations(job: Workload) -> Iterator[LintFinding]:
    for group in job.groups:
        for at, each in yaml_entries(f"{group.pod_at}.tolerations", group.pod.get("tolerations")):
            forever = each.get("effect") in (None, "", "NoExecute") and each.get("tolerationSeconds") is None
            if each.get("operator") == "Exists" and not each.get("key") and forever:
                happens = "it tolerates unready and unreachable nodes too: pods of a lost node are never evicted, and "
                instead = "name a key, such as {key: nvidia.com/gpu, operator: Exists}"
                yield at, happens + "what waits for them waits for ever", instead


def _find_unbounded_memory(job: Workload) -> Iterator[LintFinding]:
    for group in job.groups:
        for at, each in yaml_entries(f"{group.pod_at}.volumes", group.pod.get("volumes")):
            if yaml_value(each, "emptyDir", "medium") == "Memory" and not yaml_value(each, "emptyDir", "sizeLimit"):
                happens = "what is written there is memory, up to the pod's limit or, without one, the node's"
                yield f"{at}.emptyDir", happens, "write a sizeLimit, such as 32Gi"


def _find_prefixed_capabilities(job: Workload) -> Iterator[LintFinding]:
    for container in (each for group in job.groups for each in group.all_containers):
        for key in ("add", "drop"):
            for name in yaml_list(yaml_value(container.spec, "securityContext", "capabilities", key)):
                if yaml_text(name).upper().startswith("CAP_"):
                    happens = f"names in Kubernetes have no CAP_: a runtime that adds it finds no `CAP_{name}`"
                    yield f"{container.at}.securityContext.capabilities.{key}", happens, f"write {name[4:]}"


def _find_host_ports(job: Workload) -> Iterator[LintFinding]:
    for container in _list_host_containers(job):
        ports = [each for _, each in yaml_entries("", container.spec.get("ports"))]
        taken = ", ".join(str(each.get("containerPort")) for each in ports if not _is_job_port(job, each))
        if taken:
            happens = f"under hostNetwork {taken} becomes a port of the node: one such pod a node, and two such jobs "
            yield (
                f"{container.at}.ports",
                happens + "exclude each other",
                "leave the ports out, nothing needs them there",
            )


def _list_host_containers(job: Workload) -> Iterator[ManifestContainer]:
    if job.kind != "pod":
        yield from (each for group in job.groups if group.host_network for each in group.containers)


def _is_job_port(job: Workload, port: object) -> bool:
    return job.kind == "pytorchjob" and yaml_value(port, "name") == "pytorchjob-port"


def _find_host_dns(job: Workload) -> Iterator[LintFinding]:
    # Volcano's webhook fills in what is left out.
    blind = ("ClusterFirst", "Default", *(() if job.kind == "volcano" else (None, "")))
    for group in job.groups if job.kind != "pod" else ():
        if group.host_network and group.pod.get("dnsPolicy") in blind:
            happens = (
                "under hostNetwork the node's DNS is asked, which knows no Service: the nodes do not find each other"
            )
            yield f"{group.pod_at}.dnsPolicy", happens, "write ClusterFirstWithHostNet"


def _find_nccl_file(job: Workload) -> Iterator[LintFinding]:
    for container in job.containers:
        said = re.findall(r"\bNCCL_DEBUG_FILE=(\S+)", container.script)
        if container.env.get("NCCL_DEBUG_FILE"):
            said.append(yaml_text(container.env["NCCL_DEBUG_FILE"].get("value", "a file")))
        if any(name and not name.strip("\"'").startswith("/dev/std") for name in said):
            happens = "NCCL_DEBUG_FILE takes NCCL's lines out of the log: nothing there shows whether RDMA was used"
            yield f"{container.at}.env", happens, "leave NCCL_DEBUG_FILE out"


def _find_bash_in_sh(job: Workload) -> Iterator[LintFinding]:
    for container in job.containers:
        words = dict.fromkeys(word.strip() for word in _BASH_PATTERN.findall(_strip_literals(container.script)))
        if container.shell in ("sh", "dash", "ash") and words:
            named = " ".join(f"`{word}`" for word in words)
            happens = f"{named} is for bash: where sh is another shell, such as dash, the script breaks there"
            yield container.script_at, happens, "write /bin/bash, or the same without it"


def _strip_literals(script: str) -> str:
    """The script without comments and text that it only quotes, which may be in any language."""
    bare = _HEREDOC_PATTERN.sub("\n", script)
    return _LITERAL_PATTERN.sub(
        lambda match: match[0] if re.match(r'".*(?:\$[({]|`)', match[0], re.DOTALL) else " ", bare
    )


POD_RULES = (
    *(_find_floating_images, _find_broad_tolerations, _find_unbounded_memory, _find_prefixed_capabilities),
    *(_find_host_ports, _find_host_dns, _find_nccl_file, _find_bash_in_sh),
)
