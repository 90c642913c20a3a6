"""Traps of any pod in a manifest: what it will do that its author does not expect."""

import re
from collections.abc import Iterator, Mapping

from torchyard.lint.workload import (
    ManifestContainer,
    Workload,
    is_floating_image,
    is_new_etcd,
    yaml_entries,
    yaml_list,
    yaml_text,
    yaml_value,
)
from torchyard.model.finding import Finding
from torchyard.model.rules import find_image_fault

# Of Helm, Argo Workflows and Katib: no program in a pod reads these.
_LEFTOVER_PATTERN = re.compile(
    r"\{\{-?\s*(?:\.(?:Values|Release|Chart|Capabilities|Template)\b|(?:include|template)\s|"
    r"(?:workflow|inputs|outputs|tasks|steps)\.)[^{}]*\}\}|\$\{trialParameters\.\w+\}"
)
_EXPRESSION_PATTERN = re.compile(r"\{\{-?\s*[.$][^{}]*\}\}")  # of Go, as docker's --format takes it too
_ETCD_HINT = "a version of 3.5, such as quay.io/coreos/etcd:v3.5.35"
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_REFERENCE_PATTERN = re.compile(r"\$\((\w+)\)")
_SERVICE_VARIABLE_PATTERN = re.compile(r"\w+_(?:SERVICE_HOST|(?:SERVICE_)?PORT(?:_\w+)?)")
_FIELD_VARIABLES = {"HOSTNAME": "valueFrom: {fieldRef: {fieldPath: metadata.name}}"}
_HEREDOC_PATTERN = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?^\s*\2\s*$", re.DOTALL | re.MULTILINE)
_LITERAL_PATTERN = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<!\S)#[^\n]*", re.DOTALL)
_BASH_PATTERN = re.compile(
    r"<<<|\bread -\w*a\b|\$\{\w+\[|[<>]\(|&>|\[\[ |\b(?:mapfile|readarray|declare) |\b\w+=\((?!\()"
)


def _find_unusable_images(job: Workload) -> Iterator[Finding]:
    for container in job.all_containers:
        key_path = f"{container.key_path}.image"
        image = container.image
        if _is_broken_etcd(container):
            problem = (
                f"`{image}` is etcd 3.6 or newer, which has no v2 API and no --enable-v2: it exits immediately, "
                "the pod crash-loops, and torchrun's etcd-v2 cannot connect"
            )
            yield Finding(key_path, problem, f"use {_ETCD_HINT}")
        elif not container.spec.get("image"):
            problem = "it is missing: the API server rejects the pod"
            yield Finding(key_path, problem, "write the image's name")
        elif image and find_image_fault(image):
            problem = f"`{image}` {find_image_fault(image)}: the pods cannot start"
            yield Finding(key_path, problem, "write the image's name, or render the template before the run")
        elif image and is_floating_image(image):
            problem = f"`{image}` may be another image on another day or another node"
            yield Finding(key_path, problem, "write the tag of a version, or a digest")


def _is_broken_etcd(container: ManifestContainer) -> bool:
    """Whether a container starts etcd 3.6 or newer with --enable-v2, an option that 3.6 removed."""
    return is_new_etcd(container.image) and any(arg.startswith("--enable-v2") for arg in container.script_argv)


def _find_broad_tolerations(job: Workload) -> Iterator[Finding]:
    for group in job.groups:
        for key_path, toleration in yaml_entries(f"{group.pod_path}.tolerations", group.pod.get("tolerations")):
            tolerates_every_key = toleration.get("operator") == "Exists" and not toleration.get("key")
            # The taints of unready and unreachable nodes have the effect NoExecute; no effect means all of them.
            tolerates_eviction = toleration.get("effect") in (None, "", "NoExecute")
            if tolerates_every_key and tolerates_eviction and toleration.get("tolerationSeconds") is None:
                yield Finding(
                    key_path,
                    "it tolerates unready and unreachable nodes too: pods of a lost node are never evicted, and the "
                    "job waits for them forever",
                    "name a key, such as {key: nvidia.com/gpu, operator: Exists}",
                )


def _find_unbounded_memory(job: Workload) -> Iterator[Finding]:
    for group in job.groups:
        for key_path, volume in yaml_entries(f"{group.pod_path}.volumes", group.pod.get("volumes")):
            is_memory = yaml_value(volume, "emptyDir", "medium") == "Memory"
            if is_memory and not yaml_value(volume, "emptyDir", "sizeLimit"):
                problem = "files in it use memory, up to the pod's limit or, without one, all of the node's"
                yield Finding(f"{key_path}.emptyDir", problem, "write a sizeLimit, such as 32Gi")


def _find_small_shared_memory(job: Workload) -> Iterator[Finding]:
    if not job.is_job:
        return
    for group in job.groups:
        if group.pod.get("hostIPC") is True:  # the pods then have the node's /dev/shm
            continue
        for container in group.containers:
            has_peers = container.gpu_count > 1 or job.pod_count > 1
            is_training = container.gpu_count and has_peers and not container.is_idle
            if is_training and not _has_own_shared_memory(job, container):
                yield Finding(
                    f"{container.key_path}.volumeMounts",
                    "/dev/shm has 64 MiB, the runtime's default: if they need more, DataLoader workers die of a bus "
                    "error and NCCL fails with `No space left on device`",
                    "mount an emptyDir {medium: Memory, sizeLimit: 32Gi} at /dev/shm",
                )


def _has_own_shared_memory(job: Workload, container: ManifestContainer) -> bool:
    """Whether a volume is mounted at /dev/shm, or over all of /dev."""
    mounts = [*yaml_entries("", container.spec.get("volumeMounts"))]
    if job.kind == "volcano":
        mounts += yaml_entries("", job.spec.get("volumes"))  # Volcano mounts these into every container
    return any(yaml_text(mount.get("mountPath")).rstrip("/") in ("/dev/shm", "/dev") for _, mount in mounts)


def _find_prefixed_capabilities(job: Workload) -> Iterator[Finding]:
    for container in job.all_containers:
        for key in ("add", "drop"):
            for capability in yaml_list(yaml_value(container.spec, "securityContext", "capabilities", key)):
                if yaml_text(capability).upper().startswith("CAP_"):
                    yield Finding(
                        f"{container.key_path}.securityContext.capabilities.{key}",
                        "names of capabilities have no CAP_ in Kubernetes: a runtime adds it, and does not find "
                        f"`CAP_{capability}`",
                        f"write {capability[4:]}",
                    )


def _find_host_ports(job: Workload) -> Iterator[Finding]:
    for container in _list_host_containers(job):
        node_ports = []
        for _, port in yaml_entries("", container.spec.get("ports")):
            if not _is_job_port(job, port):
                node_ports.append(str(port.get("containerPort")))
        if node_ports:
            yield Finding(
                f"{container.key_path}.ports",
                f"with hostNetwork {', '.join(node_ports)} becomes a port of the node: a node can run only one such "
                "pod, and two such jobs exclude each other",
                "remove the ports: nothing needs them there",
            )


def _list_host_containers(job: Workload) -> Iterator[ManifestContainer]:
    """Yield the containers of a job that use their node's network; none of a companion."""
    if not job.is_job:
        return
    for group in job.groups:
        if group.uses_host_network:
            yield from group.containers


def _is_job_port(job: Workload, port: object) -> bool:
    return job.kind == "pytorchjob" and yaml_value(port, "name") == "pytorchjob-port"


def _find_host_dns(job: Workload) -> Iterator[Finding]:
    if not job.is_job:
        return
    node_dns_policies: list[str | None] = ["ClusterFirst", "Default"]
    if job.kind != "volcano":  # its webhook sets ClusterFirstWithHostNet where no policy is set
        node_dns_policies += [None, ""]
    for group in job.groups:
        if group.uses_host_network and group.pod.get("dnsPolicy") in node_dns_policies:
            problem = "with hostNetwork the pods use the node's DNS, which has no Services: they do not find each other"
            yield Finding(f"{group.pod_path}.dnsPolicy", problem, "write ClusterFirstWithHostNet")


def _find_nccl_file(job: Workload) -> Iterator[Finding]:
    for container in job.containers:
        log_files = re.findall(r"\bNCCL_DEBUG_FILE=(\S+)", container.script)
        if container.env.get("NCCL_DEBUG_FILE"):
            log_files.append(yaml_text(container.env["NCCL_DEBUG_FILE"].get("value", "a file")))
        if any(log_file and not log_file.strip("\"'").startswith("/dev/std") for log_file in log_files):
            problem = (
                "NCCL_DEBUG_FILE moves NCCL's lines out of the log, which then does not show whether RDMA was used"
            )
            yield Finding(f"{container.key_path}.env", problem, "remove NCCL_DEBUG_FILE")


def _find_loopback_interface(job: Workload) -> Iterator[Finding]:
    if not job.is_job or job.pod_count < 2:
        return
    for container in job.containers:
        for name in _INTERFACE_VARIABLES:
            value = yaml_text(yaml_value(container.env.get(name), "value"))
            key_path = f"{container.key_path}.env"
            match = re.search(rf"\b{name}=[\"']?(=?lo)(?![\w,.:-])", container.script)
            if match:
                value = match[1]
                key_path = container.script_path
            if value in ("lo", "=lo"):
                problem = (
                    f"{name} selects lo, the loopback of each pod, over which the job's pods do not reach each other"
                )
                yield Finding(key_path, problem, "write the interface of the pods' network, or remove the variable")


def _find_literal_references(job: Workload) -> Iterator[Finding]:
    """Yield values of variables with a `$(NAME)` that the kubelet leaves as it is.

    It replaces the variables that the same list defines before, those of `envFrom`, and those of Services. Controllers
    append theirs.
    """
    for container in job.all_containers:
        if container.spec.get("envFrom"):
            continue
        defined_names: set[str] = set()
        for key_path, variable in yaml_entries(f"{container.key_path}.env", container.spec.get("env")):
            for name in _REFERENCE_PATTERN.findall(yaml_text(variable.get("value")).replace("$$", "")):
                if name not in defined_names and not _SERVICE_VARIABLE_PATTERN.fullmatch(name):
                    problem = f"$({name}) stays as it is: no variable before this one has that name"
                    source = _FIELD_VARIABLES.get(name, "a value or valueFrom")
                    yield Finding(f"{key_path}.value", problem, f"define {name} before it, with {source}")
            defined_names.add(yaml_text(variable.get("name")))


def _find_bash_in_sh(job: Workload) -> Iterator[Finding]:
    for container in job.containers:
        if container.shell not in ("sh", "dash", "ash"):
            continue
        matches = _BASH_PATTERN.findall(_strip_literals(container.script))
        constructs = dict.fromkeys(match.strip() for match in matches)
        if constructs:
            constructs_text = " ".join(f"`{construct}`" for construct in constructs)
            problem = f"{constructs_text} is for bash: if sh is another shell, such as dash, the script fails there"
            yield Finding(container.script_path, problem, "use /bin/bash, or write it for sh")


def _strip_literals(script: str) -> str:
    """The script without comments, here-documents and quoted text, which may contain any characters.

    Text in double quotes stays if the shell substitutes something in it.
    """
    script_without_heredocs = _HEREDOC_PATTERN.sub("\n", script)
    return _LITERAL_PATTERN.sub(_keep_substitutions, script_without_heredocs)


def _keep_substitutions(match: re.Match[str]) -> str:
    has_substitution = re.match(r'".*(?:\$[({]|`)', match[0], re.DOTALL)
    return match[0] if has_substitution else " "


def _find_unrendered_templates(job: Workload) -> Iterator[Finding]:
    fix = "render the template before the run"
    for group in job.groups:
        for key_path, text in _list_texts(group.pod, group.pod_path):
            leftover = _LEFTOVER_PATTERN.search(text)
            expression = leftover or _EXPRESSION_PATTERN.search(text)
            if leftover:
                yield Finding(key_path, f"`{leftover[0]}` is an expression of a template that is not filled in", fix)
            elif expression:
                problem = f"`{expression[0]}` may be an expression of a template that is not filled in"
                yield Finding(key_path, problem, f"{fix}, unless a program in the pod expects this text")


def _list_texts(node: object, key_path: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a part of a pod, with its path; without images, which have a rule of their own."""
    if isinstance(node, str):
        yield key_path, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if key != "image":
                yield from _list_texts(value, f"{key_path}.{key}")
    else:
        for index, item in enumerate(yaml_list(node)):
            yield from _list_texts(item, f"{key_path}[{index}]")


POD_RULES = (
    _find_unusable_images,
    _find_unrendered_templates,
    _find_broad_tolerations,
    _find_unbounded_memory,
    _find_small_shared_memory,
    _find_prefixed_capabilities,
    _find_host_ports,
    _find_host_dns,
    _find_nccl_file,
    _find_loopback_interface,
    _find_literal_references,
    _find_bash_in_sh,
)
