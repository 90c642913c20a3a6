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
from torchyard.agents.job_code import list_code_advice, plan_code
from torchyard.agents.placement import Options, Placement
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.diagnosis.process_status import read_status
from torchyard.host.network import LISTEN_URLS_PLACEHOLDER
from torchyard.model.checkpoint import CHECKPOINTS_VARIABLE
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.plan import CommandPlan, HostScript, Process
from torchyard.model.profile import Profile
from torchyard.model.requirements import (
    INTERPRETER,
    Clock,
    FreePort,
    Gpus,
    HostRequirement,
    Package,
    Processors,
    ProgramFile,
    Reachable,
    ScriptCheck,
    WritableFolder,
)
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run

__all__ = ["PROGRAM_IS_A_FILE", "Options", "plan", "read_status"]
PROGRAM_IS_A_FILE = True
_HOST_SCRIPTS = Path(__file__).resolve().parent.parent / "host"
SUPERVISOR_PATH = str(_HOST_SCRIPTS / "supervisor.py")
_ETCD_SCRIPT = "etcd_program.py"
_MIN_TORCH_VERSION = "2.0"
_MAX_ROUTE_HOSTS = 8  # hosts; the routes to them decide where the etcd listens
_POD_ONLY_KEYS = ("cluster", "image", "job", "manifest", "mounts", "pod", "setup")
_FABRIC_KEYS = frozenset({"about", "env", "expect", "min_busbw"})  # the keys of a fabric that do not need pods


@dataclass(frozen=True)
class _Job:
    """One attempt of a profile, with the host of each node."""

    profile: ResolvedProfile
    run: Run
    options: Options
    placements: tuple[Placement, ...]

    @cached_property
    def is_multi_host(self) -> bool:
        """Whether the job runs on several hosts, and so needs a network."""
        return len(self.first_placements) > 1

    @cached_property
    def first_placements(self) -> dict[str, Placement]:
        """The first node's placement on each host, by host."""
        return {node_placement.host.host: node_placement for node_placement in reversed(self.placements)}

    @cached_property
    def local_indices(self) -> tuple[int, ...]:
        """For each node, the number of earlier nodes on the same host."""
        node_counts: Counter[str] = Counter()
        indices: list[int] = []
        for node_placement in self.placements:
            host = node_placement.host.host
            indices.append(node_counts[host])
            node_counts[host] += 1
        return tuple(indices)

    @property
    def port(self) -> int:
        return self.options.port or torchrun.first_port(self.run)

    @property
    def endpoint(self) -> Endpoint:
        """The rendezvous of the agents: the first host, or the etcd."""
        if self.options.etcd:
            address, _, port = self.options.etcd.partition(":")
            return Endpoint(address=address, port=int(port))
        if self.has_own_store and not self.is_multi_host:
            return Endpoint(address="127.0.0.1", port=self.port)  # no other host must reach the etcd
        return Endpoint(address=self.placements[0].host.reachable_address, port=self.port)

    @property
    def has_own_store(self) -> bool:
        """Whether the run brings its own etcd."""
        return self.profile.rendezvous == "etcd-v2" and not self.options.etcd


def plan(profile: ResolvedProfile, run: Run) -> CommandPlan:
    """One process per host entry, and the run's own etcd for etcd-v2."""
    options = Options.model_validate(profile.options)
    job = _Job(profile, run, options, placement.place_agents(profile, run, options))
    _validate_profile(job)
    return CommandPlan(
        launcher="baremetal",
        job=run.name(profile),
        label=f"{run.name(profile)}/{run.attempt}/",
        processes=tuple(_build_agent(job, node) for node in range(len(job.placements))),
        code=plan_code(profile, run),
        store=_build_etcd(job) if job.has_own_store else None,
        probe=f"http://{job.endpoint}/v2/keys" if profile.rendezvous == "etcd-v2" else None,
        ranks=command.rank_source(profile),
        expect=profile.expect,
        on_fabric=profile.on_fabric,
        on_hang=profile.on_hang,
        requires=(*_list_host_requirements(job), *list_code_advice(profile)),
    )


def _validate_profile(job: _Job) -> None:
    """Check what only the profile as a whole shows. ProfileError with all findings."""
    profile = job.profile
    options = job.options
    findings: list[Finding] = []
    if profile.nodes.min != profile.nodes.max:
        findings.append(
            Finding("nodes", f"must be one number, not {profile.nodes}: baremetal starts an agent on every host")
        )
    if len(job.placements) < profile.nodes.max:
        exclusion = f", without {', '.join(options.avoid)} (options.avoid)" if options.avoid else ""
        summary = f"{len(job.placements)} hosts for {profile.nodes.max} nodes{exclusion}"
        findings.append(
            Finding("options.hosts", f"{summary}: name a host for each node, and spares after them, or none at all")
        )
    if profile.has_image_entrypoint:
        findings.append(Finding("program", "image requires pods; for a file of this name write ./image"))
    if options.etcd and profile.rendezvous != "etcd-v2":
        findings.append(Finding("options.etcd", f"requires rendezvous: etcd-v2, and this is {profile.rendezvous}"))
    findings += [*_check_pod_keys(profile), *_check_hosts(job), *_check_resources(profile)]
    if findings:
        raise ProfileError(profile.name, tuple(findings))


def _check_pod_keys(profile: Profile) -> list[Finding]:
    """Findings about keys that only a pod can have."""
    findings: list[Finding] = []
    for key in _POD_ONLY_KEYS:
        if key in profile.model_fields_set and getattr(profile, key):
            findings.append(Finding(key, "is for launchers on Kubernetes, and this one is baremetal"))
    pod_keys = ", ".join(sorted(profile.network.model_fields_set - _FABRIC_KEYS)) if profile.network else ""
    if pod_keys:
        findings.append(
            Finding(
                "fabric",
                f"{profile.fabric} requires pods ({pod_keys}), but on machines a fabric is only its env: use "
                "another fabric, or your own hardware file",
            )
        )
    if profile.files:
        findings.append(Finding("files", "requires pods; on machines use code, which brings a whole folder"))
    for name, value in profile.env.items():
        if not isinstance(value, str):
            findings.append(
                Finding(f"env.{name}", f"a reference requires pods; on a machine, set {name} in the host's environment")
            )
    return findings


def _check_hosts(job: _Job) -> list[Finding]:
    """Findings about the hosts."""
    findings: list[Finding] = []
    hosts = [node_placement.host for node_placement in job.placements]
    if job.is_multi_host and any(host.is_local and not host.address for host in hosts):
        findings.append(
            Finding(
                "options.hosts",
                "localhost is one of several; use {host: localhost, address: ADDRESS}, which others reach",
            )
        )
    if job.profile.code:
        for name in ("source", "program_there"):
            if getattr(job.options, name):
                findings.append(Finding(f"options.{name}", "cannot be combined with code, which brings the program"))
    source = placement.find_program_source(job.profile, job.options)
    if source and source.program.startswith(".."):
        findings.append(Finding("options.source", f"{job.options.source} is not a folder that contains the program"))
    return findings


def _check_resources(profile: Profile) -> list[Finding]:
    """Findings about the resources: on a machine only GPUs can be assigned to processes."""
    pod_resources = sorted(profile.resources.keys() - {"gpus"})
    findings = [
        Finding(f"resources.{key}", "is for launchers on Kubernetes; baremetal takes gpus") for key in pod_resources
    ]
    if not str(profile.resources.get("gpus", "1")).isdigit():
        findings.append(
            Finding("resources.gpus", f"must be a number of GPUs per node, not {profile.resources['gpus']}")
        )
    return findings


def _build_agent(job: _Job, node: int) -> Process:
    """An agent, or the program alone, on one host."""
    profile = job.profile
    run = job.run
    name = f"node-{node}"
    node_placement = job.placements[node]
    job_node = JobNode(job.endpoint, node, node_placement.host.reachable_address)
    program = profile.model_copy(update={"program": node_placement.program or None})
    node_run = placement.locate_resume(run, node_placement)
    agent_argv = command.node_command(program, node_run, job_node, f"--log_dir={node_placement.folder}/{name}/ranks")
    check_argv = fabric_check.build_machine_check(profile, run, job_node, node_placement)
    spec: dict[str, Any] = {
        "argv": [*check_argv, *command.choose_interpreter(program, node_placement.python), *agent_argv],
        "env": process_env.program_environment(profile, job_node) | _build_environment(job, node),
    }
    spec |= black_box.build_recorder_spec(profile, node_placement.site)
    if profile.shared_file and node == 0:
        spec["meeting"] = process_env.rendezvous_file(profile, run, run.attempt)
    if job.is_multi_host:
        other_hosts = [host for host in job.first_placements if host != node_placement.host.host]
        spec["toward"] = job.first_placements[other_hosts[0]].host.reachable_address
    return _build_supervised_process(job, node_placement, name, spec)


def _build_etcd(job: _Job) -> Process:
    """An etcd that serves the v2 API, for this attempt alone, on the first agent's host, which chooses its program.

    It listens only where the agents reach it: on the loopback for one host, else on addresses its supervisor finds.
    """
    first_placement = job.placements[0]
    client = job.endpoint
    peer = Endpoint(address="127.0.0.1", port=client.port + 1)
    listen_url = LISTEN_URLS_PLACEHOLDER if job.is_multi_host else f"http://{client}"
    site = first_placement.site
    scripts_folder = f"{site.folder}/supervisor/torchyard/host" if site else str(_HOST_SCRIPTS)
    argv = [
        first_placement.python,
        "-I",
        f"{scripts_folder}/{_ETCD_SCRIPT}",
        "--enable-v2",
        f"--data-dir={first_placement.folder}/etcd/data",
        f"--listen-client-urls={listen_url}",
        f"--advertise-client-urls=http://{client}",
        f"--listen-peer-urls=http://{peer}",
        f"--initial-advertise-peer-urls=http://{peer}",
        f"--initial-cluster=default=http://{peer}",
    ]
    spec: dict[str, Any] = {"argv": argv, "env": {}, "ports": [client.port, peer.port]}
    if job.is_multi_host:
        hosts = [node_placement.host for node_placement in job.placements]
        other_addresses = dict.fromkeys(
            host.reachable_address for host in hosts if host.host != first_placement.host.host
        )
        spec["serves"] = {
            "name": client.address,
            "port": client.port,
            "toward": list(other_addresses)[:_MAX_ROUTE_HOSTS],
        }
    return _build_supervised_process(job, first_placement, "etcd", spec)


def _build_supervised_process(job: _Job, node_placement: Placement, name: str, process_spec: dict[str, Any]) -> Process:
    """A process under a supervisor.

    `process_spec` holds its argv, env and ports for the supervisor (torchyard/host/supervisor.py).
    """
    run_name = job.run.name(job.profile)
    deadlines = job.profile.deadlines
    site = node_placement.site
    if site:
        supervisor_argv = (site.python, "-I", "-S", f"{site.folder}/supervisor/torchyard/host/supervisor.py")
    else:
        supervisor_argv = (sys.executable, "-I", "-S", SUPERVISOR_PATH)
    spec: dict[str, Any] = {
        "name": name,
        "label": f"{run_name}/{job.run.attempt}/{name}",
        "lease": deadlines.lease,
        "grace": deadlines.grace,
        "cwd": node_placement.cwd,
    }
    if site:
        spec["site"] = site.folder
    spec["ports"] = []
    spec |= process_spec
    return Process(
        name=name,
        script=HostScript(host=node_placement.host.host, argv=supervisor_argv, site=site),
        folder=f"{node_placement.folder}/{name}",
        log=job.run.log(name),
        copies_log=site is not None,
        spec=spec,
        grace=deadlines.grace,
    )


def _build_environment(job: _Job, node: int) -> dict[str, str]:
    """The variables that are added to the host's own environment. Those of the profile take precedence."""
    profile = job.profile
    gpus = int(profile.resources.get("gpus", 0))
    env = process_env.build_job_env(profile, placement.locate_resume(job.run, job.placements[node]))
    if not job.is_multi_host:
        env["GLOO_SOCKET_IFNAME"] = "lo"  # on several hosts the supervisor finds the interface
    env[CHECKPOINTS_VARIABLE] = job.placements[node].checkpoints
    if profile.nodes.max * profile.processes > 1:
        env["OMP_NUM_THREADS"] = "1"
    if gpus:
        # The GPUs that follow those of earlier agents on the same host.
        first = gpus * job.local_indices[node]
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(first, first + gpus)))
    if profile.expect or gpus:
        env |= process_env.NCCL_LOG_ENV
    env |= {name: value for name, value in profile.env.items() if isinstance(value, str)}
    return env


def _list_host_requirements(job: _Job) -> tuple[HostRequirement, ...]:
    """The requirements of every host, each once."""
    profile = job.profile
    first = job.placements[0]
    gpus = int(profile.resources.get("gpus", 0))
    host_requirements: list[HostRequirement] = [WritableFolder(host="localhost", path=job.run.folder)]
    for host, agents in Counter(node_placement.host.host for node_placement in job.placements).items():
        node_placement = job.first_placements[host]
        host_requirements += _list_remote_requirements(job, node_placement)
        host_requirements += _list_program_requirements(job, node_placement)
        host_requirements.append(Processors(host=host, count=agents * profile.processes))
        if gpus:
            host_requirements.append(Gpus(host=host, count=agents * gpus))
    label = f"{job.run.name(profile)}/{job.run.attempt}/"
    for port in _list_ports(job):
        host_requirements.append(
            FreePort(
                host=first.host.host,
                port=port,
                option="options.port",
                is_derived=job.options.port is None,
                label=label,
            )
        )
    unique_requirements = list(dict.fromkeys(host_requirements))
    if job.has_own_store:  # added last, because its settings have no hash
        settings = {"python": first.python}
        unique_requirements.append(ScriptCheck(host=first.host.host, script=_ETCD_SCRIPT, settings=settings))
    return tuple(unique_requirements)


def _list_ports(job: _Job) -> list[int]:
    """The ports on which the attempt listens on the first host."""
    ports: list[int] = []
    if not job.options.etcd:
        ports.append(job.port)
    if job.has_own_store:
        ports.append(job.port + 1)  # for the etcd's peers
    if job.profile.check_fabric and job.profile.rendezvous != "etcd-v2":
        ports.append(job.port + fabric_check.PORT_OFFSET)
    return ports


def _list_program_requirements(job: _Job, node_placement: Placement) -> list[HostRequirement]:
    """The program, where it is read or copied from, and the packages that it imports."""
    profile = job.profile
    host = node_placement.host.host
    is_copied = node_placement.site is not None and node_placement.site.work is not None
    program_host = "localhost" if is_copied else host
    program_requirements: list[HostRequirement] = []
    if profile.program and not profile.code:  # loading has found it in the code
        program_requirements.append(ProgramFile(host=program_host, path=profile.program))
    elif profile.module and job.options.source:
        package, dot, _ = profile.module.partition(".")
        folder = job.options.source
        program_requirements.append(ProgramFile(host=program_host, path=f"{folder}/{package}" if dot else folder))

    def build_package(name: str, minimum_version: str, reason: str) -> Package:
        return Package(
            host=host, python=node_placement.python, name=name, minimum_version=minimum_version, reason=reason
        )

    if profile.resolved_agent != "none" or profile.check_fabric:
        torch = build_package("torch", _MIN_TORCH_VERSION, "torchrun starts the job")
        limitation = torchrun.describe_old_shutdown(profile)
        if limitation:
            update = {"recommended_version": torchrun.SHUTDOWN_VARIABLE_VERSION, "limitation": limitation}
            torch = torch.model_copy(update=update)
        program_requirements.append(torch)
    elif profile.module or str(profile.program).endswith(".py"):
        # What a program without an agent imports is unknown.
        program_requirements.append(build_package(INTERPRETER, "3", "it starts the program"))
    if profile.rendezvous == "etcd-v2":
        reason = "torchrun's etcd-v2 rendezvous imports it"
        program_requirements.append(build_package("python-etcd", "0.4.5", reason))
    return program_requirements


def _list_remote_requirements(job: _Job, node_placement: Placement) -> list[HostRequirement]:
    """The further requirements of a host that is one of several, or behind ssh."""
    host = node_placement.host.host
    first_host = job.placements[0].host
    remote_requirements: list[HostRequirement] = []
    if node_placement.site:
        remote_requirements.append(WritableFolder(host=host, path=node_placement.site.folder))
        remote_requirements.append(Clock(host=host))
    if host != first_host.host:
        remote_requirements.append(Reachable(host=host, address=first_host.reachable_address))
    return remote_requirements
