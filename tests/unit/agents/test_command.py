"""The command of a pod, run by real shells: what it does before torchrun, and what it passes on."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders.plan_parts import get_command, get_container
from tests.conftest import Planned
from tests.doubles.kubelet import expand_variables, mount_job_files

KUBERNETES = pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])


@KUBERNETES
def test_launch_gives_the_local_rank(planned: Planned, launcher: str) -> None:
    """`agent: launch` is torchrun's predecessor, torch.distributed.launch, with the same options."""
    argv = get_command(planned(launcher=launcher, agent="launch", rendezvous="etcd-v2", on_hang="off"))
    assert argv[:3] == ["python3", "-m", "torch.distributed.launch"]
    assert argv[3:8] == get_command(planned(launcher=launcher, rendezvous="etcd-v2", on_hang="off"))[1:6]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rendezvous": "static"}, ["-m", "--", "my.train", "--max=3"]),
        ({"rendezvous": "static", "agent": "launch"}, ["-m", "--", "my.train", "--max=3"]),
        ({"rendezvous": "env"}, ["python3", "-m", "my.train", "--max=3"]),
    ],
)
@KUBERNETES
def test_module_is_started_by_its_name(planned: Planned, launcher: str, keys: dict[str, str], words: list[str]) -> None:
    """`-m` is an option of the agents, before the `--` that ends their options, and of the interpreter itself."""
    plan = planned(launcher=launcher, program=None, module="my.train", args=["--max=3"], **keys)
    assert get_command(plan)[-len(words) :] == words


@pytest.mark.parametrize(("args", "container_args"), [([], None), (["$(A)", "{nodes}"], ["$$(A)", "2"])])
@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob", "jobset", "appwrapper"])
def test_entrypoint_of_the_image_gets_only_arguments(
    planned: Planned, launcher: str, args: list[str], container_args: list[str] | None
) -> None:
    """The container has no command, and its arguments only if there are some; the environment names the job's place."""
    keys: dict[str, Any] = {"hardware": "oke/bm-gpu4-8", "fabric": "vf", "nodes": 2, "args": args}
    plan = planned(launcher=launcher, program="image", rendezvous="static", agent="none", **keys)
    container = get_container(plan)
    assert "command" not in container
    assert container.get("args") == container_args
    assert plan.on_hang == "off"
    assert [obj["kind"] for obj in plan.dependencies] == []  # no recorder, no facts about RDMA


@pytest.mark.parametrize(("node", "remaining_files"), [("0", ["meet.sample-a1b2c3d4-3"]), ("1", None)])
def test_first_node_removes_the_files_before(
    planned: Planned, tmp_path: Path, node: str, remaining_files: list[str]
) -> None:
    """The first node alone deletes the files of earlier attempts, and leaves the one of this attempt."""
    for attempt in (1, 2, 3):
        (tmp_path / f"meet.sample-a1b2c3d4-{attempt}").touch()
    plan = planned(attempt=3, rendezvous="file", shared_file=str(tmp_path / "meet"), nodes=2)
    env = {"PATH": "/usr/bin:/bin", "TORCHYARD_NODE": node}
    subprocess.run([*get_command(plan)[:3], "sh", "true"], env=env, check=True)
    file_names = sorted(path.name for path in tmp_path.glob("meet.*"))
    assert file_names == (remaining_files or [f"meet.sample-a1b2c3d4-{attempt}" for attempt in (1, 2, 3)])


def test_index_of_the_address_is_found_before_the_program(planned: Planned) -> None:
    """If the fabric requires it, the pod looks up its GID index on the HCAs of NCCL before the program starts."""
    keys = {"hardware": "epfl/rcp", "fabric": "roce", "rendezvous": "static"}
    script = get_command(planned(**keys))[2]
    assert script.index("gid_find /sys/class/infiniband/mlx5*/ports/*") < script.index('exec "$@"')


# --- the prelude, run by real shells


TORCHRUN = f"""#!{sys.executable} -IS
import json, os, sys
print(json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}}))
"""


class PodResult(NamedTuple):
    """How a pod's command ended, and what torchrun saw if it was started."""

    exit_code: int
    pid: int
    torchrun_call: Any


StartPod = Callable[..., PodResult]
SHELLS = ["dash", "bash", "bash --posix", "busybox sh", "dash -eu", "busybox sh -eu"]


@pytest.fixture(params=SHELLS)
def start(request: pytest.FixtureRequest, planned: Planned, tmp_path: Path) -> StartPod:
    """Start a pod's command as the kubelet would, with a fake torchrun that prints what it sees."""
    shell = request.param.split()
    if not shutil.which(shell[0]):
        pytest.skip(f"there is no {shell[0]}: apt-get install {shell[0]}")
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)

    def start_pod(node: int = 0, **keys: Any) -> PodResult:
        plan = planned(**keys)
        container = plan.pod["spec"]["containers"][0]
        command = mount_job_files(plan, Path(mkdtemp(dir=tmp_path)))
        env = {"TORCHYARD_NODE": str(node)}
        for variable in container["env"]:
            env.setdefault(variable["name"], expand_variables(variable.get("value", ""), env))
        argv = [expand_variables(arg, env) for arg in command]
        argv = [*shell, *argv[1:]] if argv[0] == "/bin/sh" else argv
        path = f"{tmp_path}:{os.environ['PATH']}"
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env | {"PATH": path}, cwd=tmp_path, text=True)
        output, _ = process.communicate()
        return PodResult(
            process.returncode, process.pid, json.loads(output.splitlines()[-1]) if process.returncode == 0 else None
        )

    return start_pod


def test_first_pod_is_the_host(start: StartPod) -> None:
    """Pod 0 serves the c10d store, and no other pod does."""
    hosts = [start(node, nodes=12).torchrun_call["env"]["PET_RDZV_CONF"][-9:] for node in (0, 1, 10)]
    assert hosts == ["is_host=1", "is_host=0", "is_host=0"]


def test_pods_wait_as_long_as_the_profile_sets(start: StartPod) -> None:
    """The time until every node has joined is torchrun's join_timeout."""
    assert start(deadlines={"start": "15m"}).torchrun_call["env"]["PET_RDZV_CONF"].startswith("join_timeout=900,")


def test_program_replaces_the_shell(start: StartPod) -> None:
    """torchrun is the pod's first process: it gets the signals, and its exit code is the pod's."""
    result = start(setup=["true"])
    assert result.pid == result.torchrun_call["pid"]


TCPXO = {"hardware": "gke/a3-mega", "fabric": "tcpxo"}
SCRIPT = """\
echo noise
if [[ $NCCL_LIB_DIR == /* ]]; then export NCCL_ODD="a  'b' \\$HOME $(echo c)" NCCL_ALGO=Ring; fi
"""


def test_script_of_a_fabric_sets_the_environment(start: StartPod, tmp_path: Path) -> None:
    """A script for bash sets variables in a pod whose shell is another; the profile's setup comes later."""
    (tmp_path / "nccl-env-profile.sh").write_text(SCRIPT)
    env = {"NCCL_LIB_DIR": str(tmp_path), "LINES": "1\n2"}
    env_seen = start(**TCPXO, env=env, setup=["export NCCL_ALGO=Tree"]).torchrun_call["env"]
    assert [env_seen[name] for name in ("NCCL_ODD", "LINES", "NCCL_ALGO")] == ["a  'b' $HOME c", "1\n2", "Tree"]


def test_missing_script_of_a_fabric_ends_the_pod(start: StartPod, tmp_path: Path) -> None:
    """Without the script the program would run without the network that the fabric requires: it is not started."""
    assert start(**TCPXO, env={"NCCL_LIB_DIR": str(tmp_path)}).exit_code != 0


VF = {"hardware": "oke/bm-gpu-b4-8", "fabric": "vf"}


def test_pod_prints_its_rdma_devices(start: StartPod, capfd: pytest.CaptureFixture[str]) -> None:
    """A pod with an RDMA fabric prints its devices before torchrun; without them it may end."""
    assert start(**VF).exit_code == 0
    assert start(**VF, on_fabric="fail").exit_code == 1
    assert (
        "torchyard: error: this pod cannot use RDMA: the pod has no /dev/infiniband/uverbs*" in capfd.readouterr().err
    )


@KUBERNETES
def test_pod_without_rdma_prints_no_devices(planned: Planned, launcher: str) -> None:
    """With a TCP fabric, or none, no facts about RDMA are gathered."""
    plans = [planned(launcher=launcher, **keys) for keys in (VF | {"fabric": "no-rdma"}, {})]
    assert not any("rdma_facts.py" in str(get_command(plan)) for plan in plans)
    assert "rdma_facts.py" in str(get_command(planned(launcher=launcher, **VF)))


ODD = [
    "two words",
    "it's",
    'say "hi"',
    "",
    "$HOME",
    "$(date)",
    "$$",
    "$$(A)",
    "`id`",
    "a\nb",
    "*",
    "\\n",
    "-x=$(A)",
    "é",
]


def test_arguments_reach_the_program_unchanged(start: StartPod) -> None:
    """Neither the shell nor the kubelet expands an argument, even if it looks like a variable."""
    assert start(args=ODD, env={"A": "1"}).torchrun_call["argv"][-len(ODD) - 1 :] == ["sample.py", *ODD]


# Without NUL and surrogates, which no argument of a command can have, and without placeholders, which are filled in.
WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0")).filter(lambda word: not re.search(r"{\w+}", word)),
    max_size=5,
)


LINES = st.sampled_from(
    [
        "set -eu",
        "set -f",
        "IFS=:",
        "A='a b'",
        "f() { return 0; }",
        "cd / # it's home",
        "false || :",
        ": \\\n  more",
        "export B=$$",
    ]
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(args=WORDS, setup=st.lists(LINES, max_size=3), name=st.text(st.sampled_from("a'\" $(;\\"), min_size=1))
def test_program_gets_exactly_its_arguments(start: StartPod, args: list[str], setup: list[str], name: str) -> None:
    """The program gets its arguments unchanged, whatever they contain and whatever setup has done to the shell."""
    torchrun_call = start(args=args, setup=setup, program=f"{name}.py").torchrun_call
    assert torchrun_call["argv"][-len(args) - 1 :] == [f"{name}.py", *args]


def test_arguments_reach_the_program_without_a_shell_too(start: StartPod) -> None:
    """A pod that needs no prelude runs without a shell, with the same arguments."""
    assert start(args=ODD, env={"A": "1"}, rendezvous="etcd-v2").torchrun_call["argv"][-len(ODD) :] == ODD


def test_variables_are_as_they_are_written(start: StartPod) -> None:
    """A value in the profile's environment reaches the pod unchanged."""
    env = {"A": "1", "B": "$(A) $$ $HOME"}
    assert start(env=env).torchrun_call["env"]["B"] == env["B"]


def test_address_is_the_pods_own(start: StartPod) -> None:
    """The pod's index is filled into the address that its agent gets."""
    torchrun_call = start(3, nodes=4).torchrun_call
    assert torchrun_call["env"]["PET_LOCAL_ADDR"] == "sample-a1b2c3d4-1-worker-3.sample-a1b2c3d4-1"


def test_setup_runs_first_and_in_one_shell(start: StartPod) -> None:
    """The next line and torchrun see what a line has set; the shell expands `$(…)` and `$$` in the lines."""
    setup = ["export A=$(echo one)", "export B=$A-two; mkdir sub", "cd sub", "export PID=$$"]
    result = start(setup=setup)
    assert (result.torchrun_call["env"]["B"], result.torchrun_call["env"]["PWD"][-4:]) == ("one-two", "/sub")
    assert result.torchrun_call["env"]["PID"] == str(result.pid)


@pytest.mark.parametrize(
    "line", ["exit 3", "sh -c 'exit 3'", "sh -c 'exit 3' && true", "(exit 3) # tried", "false || sh -c 'exit 3'"]
)
@pytest.mark.parametrize("rendezvous", ["c10d", "etcd-v2"])
def test_setup_that_fails_ends_the_pod(start: StartPod, tmp_path: Path, line: str, rendezvous: str) -> None:
    """A line that fails, in its first command or its last, ends the pod with its code, before any later line."""
    result = start(setup=[line, "touch later"], rendezvous=rendezvous)
    assert (result.exit_code, (tmp_path / "later").exists()) == (3, False)


def test_setup_may_have_more_than_one_line(start: StartPod) -> None:
    """A block of YAML with a loop or a here-document is one command."""
    block = "cat > note <<'END'\nit's $HOME\nEND\nfor each in 1 2; do\n  export LAST=$each\ndone\n"
    assert start(setup=[block]).torchrun_call["env"]["LAST"] == "2"
