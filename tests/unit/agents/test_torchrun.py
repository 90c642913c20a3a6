"""torchrun's options: how the nodes find each other, and that the torchrun of any image accepts them."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given

from tests.builders.generated_plans import PROFILES, expand_command, list_argvs, list_pod_variables
from tests.builders.generated_profiles import RUNS, build_plan
from tests.builders.plan_parts import get_local_address, get_torchrun_option
from tests.cluster.images import old_torchrun
from tests.conftest import Planned, Write, command_plan_of, load, plan_of
from tests.tools.record_torchrun import FOLDER, UnknownArgumentsError, build_parser
from torchyard.agents.process_env import build_job_env
from torchyard.agents.torchrun import SHUTDOWN_VARIABLE, describe_old_shutdown, first_port, get_shutdown_timeout_s
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.plan import CommandPlan, ManifestPlan
from torchyard.model.profile import Profile
from torchyard.model.requirements import Capacity, FreePort
from torchyard.model.run import TRIAL_RUN, Run

# --- how the nodes meet


BOTH = pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
ELASTIC = {"nodes": {"min": 2, "max": 8}}


@BOTH
def test_each_attempt_meets_apart(planned: Planned, launcher: str) -> None:
    """A second attempt shares no name, rendezvous id or endpoint with the first."""
    first, second = (planned(launcher=launcher, attempt=attempt) for attempt in (1, 2))
    for option in ("rdzv_id", "rdzv_endpoint"):
        assert get_torchrun_option(first, option) != get_torchrun_option(second, option)
    assert get_local_address(first) != get_local_address(second)
    assert first.job != second.job


@BOTH
def test_nodes_meet_at_the_first_pod(planned: Planned, launcher: str) -> None:
    """With c10d the endpoint is the address of pod 0, on the run's own port."""
    plan = planned(launcher=launcher, nodes=2)
    address, _, port = get_torchrun_option(plan, "rdzv_endpoint").partition(":")
    assert get_local_address(plan).replace("$(TORCHYARD_NODE)", "0") == address
    assert int(port) in range(10300, 29400) or int(port) > 60999


@pytest.mark.parametrize(
    ("launcher", "rank", "first_pod"),
    [("volcano", "$(TORCHYARD_NODE)", "worker-0.sample-a1b2c3d4-1"), ("pytorchjob", "$(RANK)", "master-0")],
)
def test_static_ranks_by_the_index_of_the_pod(planned: Planned, launcher: str, rank: str, first_pod: str) -> None:
    """With static the node rank is the pod's own, and the master is the first pod."""
    plan = planned(launcher=launcher, nodes=2, rendezvous="static")
    assert get_torchrun_option(plan, "node_rank") == rank
    assert get_torchrun_option(plan, "master_addr") == f"sample-a1b2c3d4-1-{first_pod}"
    assert (get_torchrun_option(plan, "rdzv_id"), plan.probe) == (plan.job, None)


@BOTH
def test_agents_get_the_range(planned: Planned, launcher: str) -> None:
    """The agents of an elastic job get the range, and preflight checks the capacity for the fewest nodes."""
    plan = planned(launcher=launcher, **ELASTIC)
    assert get_torchrun_option(plan, "nnodes") == "2:8"
    assert [requirement.pods for requirement in plan.requires if isinstance(requirement, Capacity)] == [2]


@BOTH
@pytest.mark.parametrize(
    ("keys", "restarts"), [({}, "0"), (ELASTIC, "100"), ({"restarts": 3}, "3"), (ELASTIC | {"restarts": 0}, "0")]
)
def test_elastic_job_may_start_its_processes_again(
    planned: Planned, launcher: str, keys: dict[str, Any], restarts: str
) -> None:
    """When a node is lost the processes on the others fail, so an elastic job restarts them by default."""
    assert get_torchrun_option(planned(launcher=launcher, **keys), "max_restarts") == restarts


def test_only_one_node_is_host(write: Write, tmp_path: Path) -> None:
    """With c10d exactly the first node serves the store."""
    plan = command_plan_of(load(write(nodes=3)), tmp_path)
    assert [str(process.spec).count("is_host=1") for process in plan.processes] == [1, 0, 0]


def test_static_gives_each_node_its_rank(write: Write, tmp_path: Path) -> None:
    """With static the node rank is fixed, and the id keeps an agent of an earlier attempt apart."""
    plan = command_plan_of(load(write(nodes=2, rendezvous="static")), tmp_path)
    assert ["--node_rank=1" in str(process.spec) for process in plan.processes] == [False, True]
    assert all(f"--rdzv_id={plan.job}" in str(process.spec) for process in plan.processes)


def test_run_has_ports_for_its_store(write: Write, tmp_path: Path) -> None:
    """A run with its own etcd has two ports, which must be free and may be replaced."""
    plan = plan_of(load(write(rendezvous="etcd-v2")), tmp_path)
    ports = [requirement for requirement in plan.requires if isinstance(requirement, FreePort)]
    assert len({requirement.port for requirement in ports}) == 2
    assert all(requirement.is_derived for requirement in ports)


def test_ports_of_runs_are_neither_ephemeral_nor_well_known() -> None:
    """No client socket can occupy a run's port by chance, and no service of a host or a cluster listens on one."""
    for number in range(2000):
        first = first_port(Run(id=str(number), attempt=1, folder=""))
        for port in range(first, first + 3):
            assert port in range(10300, 29400) or port in range(61000, 65536)
            assert port not in (11211, 11434, 15001, 15021, 27017)


def test_fifty_runs_rarely_share_a_port() -> None:
    """Of 50 runs on one host, two have the same port in less than one case of ten."""
    groups = [[first_port(Run(id=f"{group}-{run}", attempt=1, folder="")) for run in range(50)] for group in range(400)]
    assert sum(len(set(ports)) < 50 for ports in groups) < 40


def test_next_try_has_another_port() -> None:
    """A port that is held is replaced by one that follows from the run's id too."""
    run = Run(id="0190c7f0", attempt=1, folder="")
    ports = [first_port(run.model_copy(update={"port_try": number})) for number in (0, 1, 1)]
    assert ports[0] != ports[1] == ports[2]


@given(PROFILES, RUNS)
def test_agents_get_the_same_job(profile: Profile, run: Run) -> None:
    """Every agent gets the number of nodes and of processes."""
    assume(profile.resolved_agent != "none")
    plan = build_plan(profile, run)
    if isinstance(plan, ManifestPlan):
        argvs = [expand_command(plan, variables) for variables in list_pod_variables(plan)[:3]]
    else:
        argvs = list_argvs(plan)
    for argv in argvs:
        assert [arg for arg in argv if arg.startswith(("--nnodes=", "--nproc_per_node="))][:2] == [
            f"--nnodes={profile.nodes}",
            f"--nproc_per_node={profile.processes}",
        ]


# --- the torchrun of any image


VERSIONS = sorted(path.stem for path in FOLDER.glob("*.json"))
AGENT_COMMANDS = ("torchrun", "torch.distributed.launch")


def list_torchrun_args(name: str, folder: Path) -> list[str]:
    """The arguments of torchrun or torch.distributed.launch in a profile's pods; none if neither is started."""
    plan = plan_of(load_profile(name), folder)
    if isinstance(plan, ManifestPlan):
        argv = [str(arg) for arg in plan.pod["spec"]["containers"][0]["command"]]
    else:
        spec = plan.processes[0].spec or {}
        script = next((arg for arg in spec["argv"] if arg.startswith("TORCHYARD_COMMAND=")), "")
        argv = shlex.split(script)
    start = next((index for index, arg in enumerate(argv) if arg in AGENT_COMMANDS), len(argv))
    return [arg.replace("$(RANK)", "1").replace("$TORCHYARD_NODE", "1") for arg in argv[start + 1 :]]


def list_pod_profiles() -> Iterator[str]:
    """Yield every shipped profile whose pods start torchrun, or the older launch, which has the same parser."""
    for name in list_profiles():
        plan = plan_of(load_profile(name), Path("/runs"))
        if not (isinstance(plan, CommandPlan) and plan.launcher == "baremetal") and list_torchrun_args(
            name, Path("/runs")
        ):
            yield name


def test_versions_are_recorded() -> None:
    """The oldest version with this parser, that of guide 000, the first with dashes and the newest are recorded."""
    assert {"1.9.0", "1.13.1", "2.0.0"} < set(VERSIONS)
    assert max(tuple(map(int, version.split("."))) for version in VERSIONS) >= (2, 15)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(list_pod_profiles()))
def test_pods_use_options_of_any_torchrun(name: str, version: str, tmp_path: Path) -> None:
    """This torchrun accepts a pod's options, and parses program and arguments as the profile sets them."""
    args = build_parser(version).parse_args(list_torchrun_args(name, tmp_path))
    profile = load_profile(name)
    assert args.training_script == str(profile.program)
    assert len(args.training_script_args) == len(profile.args)


def test_old_parser_refuses_what_is_newer() -> None:
    """The recorded parser of 1.13 refuses --local_addr, as the real one does; that of 2.0 accepts it."""
    argv = ["--nnodes=2", "--local_addr=here", "--", "train.py"]
    with pytest.raises(UnknownArgumentsError, match="unrecognized arguments: --local_addr=here"):
        build_parser("1.13.1").parse_args(argv)
    assert build_parser("2.0.0").parse_args(argv).local_addr == "here"


def test_installed_torchrun_reads_its_address_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchrun with the option --local_addr reads it from the variable that pods have."""
    from torch.distributed.run import get_args_parser

    monkeypatch.setenv("PET_LOCAL_ADDR", "here")
    assert get_args_parser().parse_args(["train.py"]).local_addr == "here"


def test_real_pods_have_an_old_torchrun_in_front() -> None:
    """The torchrun stub on the test cluster's real nodes refuses what 1.13 refuses, before torch starts."""
    code = compile(old_torchrun(), "torchrun", "exec")
    old_argv, sys.argv = sys.argv, ["torchrun", "--local_addr=here", "train.py"]
    try:
        with pytest.raises(SystemExit) as raised:
            exec(code, {})
    finally:
        sys.argv = old_argv
    assert raised.value.code == 2


@pytest.mark.parametrize(("grace_s", "timeout_s"), [(30, 25), (90, 85), (10, 8), (1, 1)])
def test_torchrun_kills_its_ranks_before_it_is_killed(grace_s: float, timeout_s: int) -> None:
    """The ranks have the grace but for a few seconds, in which torchrun reports how they ended."""
    profile = load_profile("digits-local", {"deadlines": {"grace": grace_s}})
    assert get_shutdown_timeout_s(profile) == timeout_s
    assert build_job_env(profile, TRIAL_RUN)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == str(timeout_s)


def test_installed_torchrun_reads_its_shutdown_timeout_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed torchrun, which is new enough, takes the time from the variable that a plan sets."""
    from torch.distributed.run import config_from_args, get_args_parser

    monkeypatch.setenv(SHUTDOWN_VARIABLE, "85")
    config, _, _ = config_from_args(get_args_parser().parse_args(["train.py"]))
    assert config.shutdown_timeout == 85


def test_old_torchrun_is_a_limitation_of_a_long_grace() -> None:
    """Only a grace that an old torchrun cuts short, of a job with torchrun, needs a newer one."""
    assert describe_old_shutdown(load_profile("digits-local", {"deadlines": {"grace": 30}})) is None
    limitation = describe_old_shutdown(load_profile("digits-local", {"deadlines": {"grace": 90}}))
    assert limitation is not None
    assert "30 s after SIGTERM, not after 85 s" in limitation
    assert describe_old_shutdown(load_profile("mnist-spawn-env", {"deadlines": {"grace": 90}})) is None
