"""What any pod of a manifest will do that its author does not expect."""

import re
from collections.abc import Iterator

from torchyard.pods.workload import Container, Found, Workload, entries, floats, get, is_new_etcd, listed, text

OLD_ETCD = "a version of 3.5, such as quay.io/coreos/etcd:v3.5.35"
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?^\s*\2\s*$", re.DOTALL | re.MULTILINE)
LITERAL = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<!\S)#[^\n]*", re.DOTALL)
BASH = re.compile(r"<<<|\bread -\w*a\b|\$\{\w+\[|[<>]\(|&>|\[\[ |\b(?:mapfile|readarray|declare) |\b\w+=\((?!\()")


def floating_images(job: Workload) -> Iterator[Found]:
    for container in (each for group in job.groups for each in group.all_containers):
        at, name = f"{container.at}.image", container.image
        if dies_of_v2(container):
            happens = f"`{name}` is etcd 3.6 or newer, which has no v2 API and no --enable-v2: it exits at once, "
            yield at, happens + "the pod crash-loops, and torchrun's etcd-v2 finds nobody", f"write {OLD_ETCD}"
        elif name and floats(name):
            happens = f"`{name}` is another image on another day, and maybe on another node"
            yield at, happens, "write the tag of a version, or a digest"


def dies_of_v2(container: Container) -> bool:
    """Whether it asks etcd for the v2 API, which 3.6 took away."""
    return is_new_etcd(container.image) and any(word.startswith("--enable-v2") for word in container.argv)


def broad_tolerations(job: Workload) -> Iterator[Found]:
    for group in job.groups:
        for at, each in entries(f"{group.pod_at}.tolerations", group.pod.get("tolerations")):
            forever = each.get("effect") in (None, "", "NoExecute") and each.get("tolerationSeconds") is None
            if each.get("operator") == "Exists" and not each.get("key") and forever:
                happens = "it tolerates unready and unreachable nodes too: pods of a lost node are never evicted, and "
                instead = "name a key, such as {key: nvidia.com/gpu, operator: Exists}"
                yield at, happens + "whoever waits for them does so for ever", instead


def unbounded_memory(job: Workload) -> Iterator[Found]:
    for group in job.groups:
        for at, each in entries(f"{group.pod_at}.volumes", group.pod.get("volumes")):
            if get(each, "emptyDir", "medium") == "Memory" and not get(each, "emptyDir", "sizeLimit"):
                happens = "what is written there is memory, up to the pod's limit or, without one, the node's"
                yield f"{at}.emptyDir", happens, "write a sizeLimit, such as 32Gi"


def prefixed_capabilities(job: Workload) -> Iterator[Found]:
    for container in (each for group in job.groups for each in group.all_containers):
        for key in ("add", "drop"):
            for name in listed(get(container.spec, "securityContext", "capabilities", key)):
                if text(name).upper().startswith("CAP_"):
                    happens = f"names in Kubernetes have no CAP_: a runtime that adds it finds no `CAP_{name}`"
                    yield f"{container.at}.securityContext.capabilities.{key}", happens, f"write {name[4:]}"


def host_ports(job: Workload) -> Iterator[Found]:
    for container in on_host(job):
        ports = [each for _, each in entries("", container.spec.get("ports"))]
        taken = ", ".join(str(each.get("containerPort")) for each in ports if not is_job_port(job, each))
        if taken:
            happens = f"under hostNetwork {taken} becomes a port of the node: one such pod a node, and two such jobs "
            yield (
                f"{container.at}.ports",
                happens + "exclude each other",
                "leave the ports out, nothing needs them there",
            )


def on_host(job: Workload) -> Iterator[Container]:
    if job.kind != "pod":
        yield from (each for group in job.groups if group.host_network for each in group.containers)


def is_job_port(job: Workload, port: object) -> bool:
    return job.kind == "pytorchjob" and get(port, "name") == "pytorchjob-port"


def host_names(job: Workload) -> Iterator[Found]:
    # Volcano's webhook fills in what is left out.
    blind = ("ClusterFirst", "Default", *(() if job.kind == "volcano" else (None, "")))
    for group in job.groups if job.kind != "pod" else ():
        if group.host_network and group.pod.get("dnsPolicy") in blind:
            happens = (
                "under hostNetwork the node's DNS is asked, which knows no Service: the nodes do not find each other"
            )
            yield f"{group.pod_at}.dnsPolicy", happens, "write ClusterFirstWithHostNet"


def nccl_file(job: Workload) -> Iterator[Found]:
    for container in job.containers:
        said = re.findall(r"\bNCCL_DEBUG_FILE=(\S+)", container.script)
        if container.env.get("NCCL_DEBUG_FILE"):
            said.append(text(container.env["NCCL_DEBUG_FILE"].get("value", "a file")))
        if any(name and not name.strip("\"'").startswith("/dev/std") for name in said):
            happens = "NCCL_DEBUG_FILE takes NCCL's lines out of the log: nothing there tells whether RDMA was used"
            yield f"{container.at}.env", happens, "leave NCCL_DEBUG_FILE out"


def bash_in_sh(job: Workload) -> Iterator[Found]:
    for container in job.containers:
        words = dict.fromkeys(word.strip() for word in BASH.findall(code_of(container.script)))
        if container.shell in ("sh", "dash", "ash") and words:
            named = " ".join(f"`{word}`" for word in words)
            happens = f"{named} is for bash: where sh is another shell, such as dash, the script breaks there"
            yield container.script_at, happens, "write /bin/bash, or the same without it"


def code_of(script: str) -> str:
    """The script without comments and what it only quotes: that may be of any language."""
    bare = HEREDOC.sub("\n", script)
    return LITERAL.sub(lambda match: match[0] if re.match(r'".*(?:\$[({]|`)', match[0], re.DOTALL) else " ", bare)


TRAPS = (
    *(floating_images, broad_tolerations, unbounded_memory, prefixed_capabilities),
    *(host_ports, host_names, nccl_file, bash_in_sh),
)
