"""A job of pods as the flags of Run:ai's CLI: `submit-dist pytorch` of v1, `training pytorch submit` of v2."""

import re
import shlex
from collections.abc import Iterator
from typing import Literal

from torchyard.agents import command, process_env
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.diagnosis.pod_facts import RUN_LABEL
from torchyard.model.finding import Finding
from torchyard.model.pod import Mount, Pod, Toleration, read_toleration
from torchyard.model.resolved import GPU_RESOURCE, ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods import template

Generation = Literal["cli-v1", "cli-v2"]
_COMMAND_VARIABLE = "TORCHYARD_COMMAND"
_CLI_LABELS = {RUN_LABEL: template.CLI_RUN_LABEL}
_KUBERNETES_REMEDY = "or use options.through: kubernetes"
# Flags of v1 that have another name in v2.
_V2_FLAGS = {
    "--gpu": "--gpu-devices-request",
    "--cpu": "--cpu-core-request",
    "--cpu-limit": "--cpu-core-limit",
    "--memory": "--cpu-memory-request",
    "--memory-limit": "--cpu-memory-limit",
    "--add-capability": "--capability",
}
# Keys of `pod` that no flag sets.
_UNSUPPORTED_POD_KEYS = (
    "privileged",
    "devices",
    "avoid",
    "only",
    "env_from",
    "init",
    "pull_secrets",
    "service_account",
    "priority_class",
    "patch",
)
_POD_VARIABLE_PATTERN = re.compile(rf"(?<!\$)\$\(({process_env.NODE_VARIABLE}|MASTER_ADDR|MASTER_PORT)\)")
# The master's Service is headless, and MASTER_PORT is set in each pod: these two values exist only there.
_MASTER_ENDPOINT = Endpoint.model_construct(address="$(MASTER_ADDR)", port="$(MASTER_PORT)")  # type: ignore[arg-type]


def build_script(profile: ResolvedProfile, run: Run) -> str:
    """The script that every pod runs, as a variable's value; the words `/bin/sh -c $(VARIABLE)` pass it to sh.

    These words have no quotes and no spaces, so they mean the same if a CLI joins them into one shell line: the kubelet
    puts the text into that line, `sh -c :` is its first command, and the line's own shell runs the rest.

    WORLD_SIZE is the number of pods in old training operators, and of processes in new ones: nothing here reads it.
    """
    job_node = JobNode(_MASTER_ENDPOINT, process_env.NODE_VARIABLE)
    lines = [":", "set -e", f'export {process_env.NODE_VARIABLE}="${{PET_NODE_RANK:-$RANK}}"']
    for name, value in process_env.program_environment(profile, job_node).items():
        lines.append(f"export {name}={_quote_word(value)}")
    argv = command.pod_command(profile, run, job_node, has_config_map=False)
    lines.append(f"exec {' '.join(map(_quote_word, argv))}")
    return "\n".join(lines)


def _quote_word(text: str) -> str:
    """A word quoted for a shell; variables that are set only in the pod are left for its shell to expand."""
    return _POD_VARIABLE_PATTERN.sub(r"""'"$\1"'""", shlex.quote(text))


def build_cli_flags(profile: ResolvedProfile, run: Run, generation: Generation) -> Iterator[str]:
    """Yield every flag that a profile needs, each followed by its value if it has one, and then the command.

    The run's label has another key here: with RUN_LABEL, a sweep would take the job for one that has lost its Lease.
    """
    for flag, *values in _list_flags(profile, run, generation):
        yield _V2_FLAGS.get(flag, flag) if generation == "cli-v2" else flag
        yield from values
    yield from ("--command", "--", "/bin/sh", "-c", f"$({_COMMAND_VARIABLE})")


def _list_flags(profile: ResolvedProfile, run: Run, generation: Generation) -> Iterator[tuple[str, ...]]:
    """Yield the flags under their names in v1, each with its value if it has one."""
    yield from _list_resource_flags(profile)
    metadata = template.build_pod_template(profile, run, {"name": "pytorch"})["metadata"]
    for name, value in metadata.get("annotations", {}).items():
        yield "--annotation", f"{name}={value}"
    for name, value in metadata["labels"].items():
        yield "--label", f"{_CLI_LABELS.get(name, name)}={value}"
    for variable in template.build_container_env(profile, run, []):
        if variable["name"] != _COMMAND_VARIABLE:
            yield "--environment", f"{variable['name']}={variable['value']}"
    yield "--environment", f"{_COMMAND_VARIABLE}={build_script(profile, run)}"
    for path, mount in profile.mounts.items():
        yield _build_claim_flag(path, mount, generation)
    yield from _list_pod_flags(profile.pod)


def _list_resource_flags(profile: ResolvedProfile) -> Iterator[tuple[str, ...]]:
    """Yield the resources that each pod requests, and its limits; no GPU is written as 0."""
    flag_names = {GPU_RESOURCE: "--gpu", "cpu": "--cpu", "memory": "--memory"}
    requests = {GPU_RESOURCE: "0"} | profile.requests
    for name, amount in requests.items():
        if name in flag_names:
            yield flag_names[name], _format_cores(amount)
        else:
            yield "--extended-resource", f"{name}={amount}"
    for name in ("cpu", "memory"):
        if name in profile.limits:
            yield f"--{name}-limit", _format_cores(profile.limits[name])


def _format_cores(amount: str) -> str:
    """An amount as the CLI parses it: `500m` is 0.5."""
    return f"{float(amount[:-1]) / 1000:g}" if amount.endswith("m") else amount


def _build_claim_flag(path: str, mount: Mount, generation: Generation) -> tuple[str, ...]:
    """The flag that mounts a claim. v1 has had three spellings: the guides use the oldest, which newer ones accept."""
    if generation == "cli-v2":
        return "--existing-pvc", f"claimname={mount.claim},path={path}"
    suffix = ":ro" if mount.read_only else ""
    return "--pvc", f"{mount.claim}:{path}{suffix}"


def _list_pod_flags(pod: Pod) -> Iterator[tuple[str, ...]]:
    """Yield the pods' other settings, as far as the CLI has flags for them."""
    switches = {
        "--large-shm": bool(pod.memory_volumes),
        "--host-network": pod.host_network,
        "--host-ipc": pod.host_ipc,
    }
    for flag, is_enabled in switches.items():
        if is_enabled:
            yield (flag,)
    for capability in pod.capabilities:
        yield "--add-capability", capability
    for item in pod.tolerations:
        yield "--toleration", _format_toleration(read_toleration(item))
    if pod.pull_policy:
        yield "--image-pull-policy", pod.pull_policy
    if pod.workdir:
        yield "--working-dir", pod.workdir


def _format_toleration(toleration: Toleration) -> str:
    """A toleration as the CLI parses it: operator=Equal,key=team,value=a,effect=NoSchedule."""
    parts = {
        "operator": toleration.resolved_operator,
        "key": toleration.key,
        "value": toleration.value,
        "effect": toleration.effect,
        "seconds": toleration.toleration_seconds,
    }
    return ",".join(f"{name}={value}" for name, value in parts.items() if value is not None)


# --- settings without a flag


def find_unsupported_settings(profile: ResolvedProfile, generation: Generation) -> Iterator[Finding]:
    """Yield one finding, with its remedy, for each setting of the profile that this CLI cannot express."""
    yield from _find_unsupported_pod_settings(profile)
    if profile.has_image_entrypoint:
        yield Finding("program", f"the CLI needs a command: name one in place of image, {_KUBERNETES_REMEDY}")
    for key in profile.job.model_fields_set:
        yield Finding(f"job.{key}", f"the CLI creates the job's object: remove it, {_KUBERNETES_REMEDY}")
    if profile.claims:
        yield Finding(
            "fabric",
            f"{profile.fabric} claims devices ({', '.join(profile.claims)}), for which the CLI has no flag: "
            f"use another fabric, {_KUBERNETES_REMEDY}",
        )
    yield from _find_unsupported_environment(profile)
    yield from _find_unsupported_mounts(profile, generation)
    yield from _find_unsupported_amounts(profile)
    if profile.rendezvous == "etcd-v2":
        yield Finding(
            "rendezvous",
            f"etcd-v2 needs a store, which the CLI cannot create: use c10d or static, {_KUBERNETES_REMEDY}",
        )
    if profile.nodes.min != profile.nodes.max or profile.nodes.max < 2:
        yield Finding(
            "nodes",
            "must be one number of 2 or more, because a job is a master and its workers, "
            f"not {profile.nodes}: change it, {_KUBERNETES_REMEDY}",
        )


def _find_unsupported_pod_settings(profile: ResolvedProfile) -> Iterator[Finding]:
    """Yield a finding for each pod setting, of the profile or its hardware, that Run:ai's CLI cannot express."""
    pod = profile.pod
    for key in _UNSUPPORTED_POD_KEYS:
        if getattr(pod, key):
            yield Finding(f"pod.{key}", f"no flag of Run:ai's CLI sets it: remove it, {_KUBERNETES_REMEDY}")
    if pod.spread and "spread" in pod.model_fields_set:  # it is the default: only an explicit one is a request
        yield Finding(
            "pod.spread",
            "no flag of Run:ai's CLI puts the pods on different nodes: request whole nodes, remove it, "
            f"{_KUBERNETES_REMEDY}",
        )
    if pod.scheduler not in (None, "runai-scheduler"):
        yield Finding("pod.scheduler", f"must be runai-scheduler, Run:ai's own, and not {pod.scheduler}: remove it")
    if profile.node_labels:
        yield Finding(
            "pod.node_selector, or match of the hardware file",
            f"the CLI selects only pools: use options.node_pools, {_KUBERNETES_REMEDY}",
        )


def _find_unsupported_environment(profile: ResolvedProfile) -> Iterator[Finding]:
    for name, value in profile.env.items():
        if not isinstance(value, str):
            yield Finding(
                f"env.{name}", f"the CLI passes values, not references: mount a claim with it, {_KUBERNETES_REMEDY}"
            )


def _find_unsupported_mounts(profile: ResolvedProfile, generation: Generation) -> Iterator[Finding]:
    if profile.files:
        yield Finding(
            "files",
            f"the CLI cannot create a ConfigMap: put the files into the image or on a claim, {_KUBERNETES_REMEDY}",
        )
    if profile.code:
        yield Finding(
            "code", f"the CLI cannot create an init container: put the code into the image, {_KUBERNETES_REMEDY}"
        )
    for path, mount in profile.mounts.items():
        if not mount.claim:
            yield Finding(f"mounts.{path}", f"the CLI mounts claims only: use a claim, {_KUBERNETES_REMEDY}")
        elif mount.read_only and generation == "cli-v2":
            yield Finding(
                f"mounts.{path}",
                f"read_only has no flag in v2, which would mount it for writing: remove read_only, "
                f"{_KUBERNETES_REMEDY}",
            )
        if re.search(r"[,:\s]", path):
            yield Finding(
                f"mounts.{path}",
                f"the CLI does not accept a comma, colon or space in a path: choose another, {_KUBERNETES_REMEDY}",
            )


def _find_unsupported_amounts(profile: ResolvedProfile) -> Iterator[Finding]:
    if "ephemeral-storage" in profile.requests:
        yield Finding(
            "resources.ephemeral-storage", f"no flag of Run:ai's CLI sets it: remove it, {_KUBERNETES_REMEDY}"
        )
    for name in profile.pod.limits.keys() - {"cpu", "memory"}:
        yield Finding(f"pod.limits.{name}", f"the CLI limits cpu and memory only: remove it, {_KUBERNETES_REMEDY}")
