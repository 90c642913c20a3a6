"""A job of pods as the flags of Run:ai's CLI: `submit-dist pytorch` of v1, `training pytorch submit` of v2."""

import re
import shlex
from collections.abc import Iterator
from typing import Literal

from torchyard.agents import command, process_env
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.model.pod import Mount, Pod
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.pods import template
from torchyard.pods.volumes import merge_mounts

Generation = Literal["cli-v1", "cli-v2"]
_COMMAND_VARIABLE = "TORCHYARD_COMMAND"
_CLI_LABELS = {template.RUN_LABEL: template.CLI_RUN_LABEL}
_KUBERNETES_REMEDY = "options.through: kubernetes can"
# Flags of v1 that have another name in v2.
_V2_FLAGS = {
    "--gpu": "--gpu-devices-request",
    "--cpu": "--cpu-core-request",
    "--cpu-limit": "--cpu-core-limit",
    "--memory": "--cpu-memory-request",
    "--memory-limit": "--cpu-memory-limit",
    "--add-capability": "--capability",
}
# Keys of `pod` that have no flag.
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
)
_POD_VARIABLE_PATTERN = re.compile(rf"(?<!\$)\$\(({process_env.NODE_VARIABLE}|MASTER_ADDR|MASTER_PORT)\)")
# The master's Service is headless, and MASTER_PORT is set in each pod: only the pods know these two values.
_MASTER_ENDPOINT = Endpoint.model_construct(address="$(MASTER_ADDR)", port="$(MASTER_PORT)")  # type: ignore[arg-type]


def _build_script(profile: Profile, run: Run) -> str:
    """The script that every pod runs, as a variable's value; the words `/bin/sh -c $(VARIABLE)` pass it to sh.

    These words have no quotes and no spaces, so they mean the same if a CLI joins them into one shell line: the kubelet
    puts the text into that line, `sh -c :` is its first command, and the line's own shell runs the rest.

    WORLD_SIZE is the number of pods in old training operators, and of processes in new ones: nothing here reads it.
    """
    job_node = JobNode(_MASTER_ENDPOINT, process_env.NODE_VARIABLE)
    variables = {process_env.NODE_VARIABLE: '"${PET_NODE_RANK:-$RANK}"'}
    variables |= {
        name: _quote_word(value) for name, value in process_env.program_environment(profile, job_node).items()
    }
    lines = [":", "set -e", *(f"export {name}={value}" for name, value in variables.items())]
    return "\n".join((*lines, f"exec {' '.join(map(_quote_word, command.pod_command(profile, run, job_node)))}"))


def _quote_word(text: str) -> str:
    """A word quoted for a shell; variables that only the pod knows are left for its shell to expand."""
    return _POD_VARIABLE_PATTERN.sub(r"""'"$\1"'""", shlex.quote(text))


def build_cli_flags(profile: Profile, run: Run, generation: Generation) -> Iterator[str]:
    """Every flag that a profile asks for, and then the command.

    The run's label has another key here: with RUN_LABEL, a sweep would take the job for one that has lost its Lease.
    """
    metadata = template.build_pod_template(profile, run, {"name": "pytorch"})["metadata"]
    container_env = {
        variable["name"]: str(variable["value"]) for variable in template.build_container_env(profile, run, [])
    }
    flags = [
        *_list_resource_flags(profile),
        *(("--annotation", f"{name}={value}") for name, value in metadata.get("annotations", {}).items()),
        *(("--label", f"{_CLI_LABELS.get(name, name)}={value}") for name, value in metadata["labels"].items()),
        *(
            ("--environment", f"{name}={value}")
            for name, value in {**container_env, _COMMAND_VARIABLE: _build_script(profile, run)}.items()
        ),
        *(_build_claim_flag(path, mount, generation) for path, mount in merge_mounts(profile).items()),
        *_list_pod_flags(template.merge_pod_settings(profile)),
    ]
    for flag, *values in flags:
        yield from (_V2_FLAGS.get(flag, flag) if generation == "cli-v2" else flag, *values)
    yield from ("--command", "--", "/bin/sh", "-c", f"$({_COMMAND_VARIABLE})")


def _list_resource_flags(profile: Profile) -> Iterator[tuple[str, ...]]:
    """The resources that each pod requests; no GPU is written as 0."""
    requests, limits = (
        template.resource_requests(profile),
        template.rename_resources(profile, template.merge_pod_settings(profile).limits),
    )
    flag_names = {template.GPU_RESOURCE: "--gpu", "cpu": "--cpu", "memory": "--memory"}
    for name, amount in {template.GPU_RESOURCE: "0", **requests}.items():
        yield (
            (flag_names[name], _format_cores(amount))
            if name in flag_names
            else ("--extended-resource", f"{name}={amount}")
        )
    yield from ((f"--{name}-limit", _format_cores(limits[name])) for name in ("cpu", "memory") if name in limits)


def _format_cores(amount: str) -> str:
    """`500m` as the number that the CLI reads."""
    return f"{float(amount[:-1]) / 1000:g}" if amount.endswith("m") else amount


def _build_claim_flag(path: str, mount: Mount, generation: Generation) -> tuple[str, ...]:
    """The flag that mounts a claim. v1 has had three spellings: the guides use the oldest, which newer ones accept."""
    if generation == "cli-v2":
        return "--existing-pvc", f"claimname={mount.claim},path={path}"
    return "--pvc", f"{mount.claim}:{path}{':ro' if mount.read_only else ''}"


def _list_pod_flags(pod: Pod) -> Iterator[tuple[str, ...]]:
    """The pods' other settings, as far as the CLI has flags for them."""
    switches = {"--large-shm": pod.shm, "--host-network": pod.host_network, "--host-ipc": pod.host_ipc}
    yield from ((flag,) for flag, is_enabled in switches.items() if is_enabled)
    yield from (("--add-capability", capability) for capability in pod.capabilities)
    yield from (("--toleration", f"operator=Exists,key={key}") for key in pod.tolerations)
    texts = {"--image-pull-policy": pod.pull_policy, "--working-dir": pod.workdir}
    yield from ((flag, value) for flag, value in texts.items() if value)


# --- what has no flag


def find_unsupported_settings(profile: Profile, generation: Generation) -> Iterator[str]:
    """What the profile asks for and this CLI cannot express: one finding each, with a remedy."""
    pod = template.merge_pod_settings(profile)
    yield from (
        f"pod.{key}: no flag of Run:ai's CLI sets it; {_KUBERNETES_REMEDY}"
        for key in _UNSUPPORTED_POD_KEYS
        if getattr(pod, key)
    )
    if pod.spread and "spread" in pod.model_fields_set:
        yield f"pod.spread: no flag keeps the pods on different nodes: ask for whole nodes, or leave it out; {_KUBERNETES_REMEDY}"
    if pod.scheduler not in (None, "runai-scheduler"):
        yield f"pod.scheduler: Run:ai has its own, runai-scheduler, and not {pod.scheduler}: leave the key out"
    if pod.node_selector or (profile.hardware and profile.hardware.match):
        yield f"pod.node_selector, or that of the hardware: the CLI knows options.node_pools only; {_KUBERNETES_REMEDY}"
    if claim_names := [claim["name"] for claim in template.list_resource_claims(profile)]:
        yield f"fabric: {profile.fabric} claims devices ({', '.join(claim_names)}), for which there is no flag; {_KUBERNETES_REMEDY}"
    yield from _find_unsupported_environment(profile)
    yield from _find_unsupported_mounts(profile, generation)
    yield from _find_unsupported_amounts(profile)
    if profile.rendezvous == "etcd-v2":
        yield f"rendezvous: etcd-v2 needs a store, which the CLI cannot make: c10d and static do not; {_KUBERNETES_REMEDY}"
    if profile.nodes.min != profile.nodes.max or profile.nodes.max < 2:
        yield f"nodes: one number of 2 or more, as a job is a master and its workers, not {profile.nodes}; {_KUBERNETES_REMEDY}"


def _find_unsupported_environment(profile: Profile) -> Iterator[str]:
    for name, value in profile.env.items():
        if not isinstance(value, str):
            yield f"env.{name}: the CLI sends values, not references: mount a claim with it; {_KUBERNETES_REMEDY}"


def _find_unsupported_mounts(profile: Profile, generation: Generation) -> Iterator[str]:
    if profile.files:
        yield f"files: the CLI cannot create a ConfigMap: put the files into the image or on a claim; {_KUBERNETES_REMEDY}"
    for path, mount in merge_mounts(profile).items():
        if not mount.claim:
            yield f"mounts.{path}: the CLI mounts a claim, and this is none; {_KUBERNETES_REMEDY}"
        elif mount.read_only and generation == "cli-v2":
            yield f"mounts.{path}: read_only has no flag in v2, which would mount it for writing; {_KUBERNETES_REMEDY}"
        if re.search(r"[,:\s]", path):
            yield f"mounts.{path}: the CLI takes no comma, colon or space in it; {_KUBERNETES_REMEDY}"


def _find_unsupported_amounts(profile: Profile) -> Iterator[str]:
    requests, limits = template.resource_requests(profile), template.merge_pod_settings(profile).limits
    if "ephemeral-storage" in requests:
        yield f"resources.ephemeral-storage: no flag of Run:ai's CLI sets it; {_KUBERNETES_REMEDY}"
    for name in limits.keys() - {"cpu", "memory"}:
        yield f"pod.limits.{name}: the CLI limits cpu and memory only; {_KUBERNETES_REMEDY}"
