"""YAML -> Profile."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Write, load
from torchyard.cli.main import main
from torchyard.loading.profile import _list_hardware, _load_hardware, list_profiles, load_profile
from torchyard.model.errors import ProfileError

GOOD = "about: a test\nlauncher: baremetal\nprogram: x.py\n"


def refused(path: Path | str, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(ProfileError) as error:
        load_profile(str(path), overrides)
    return str(error.value)


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_shipped_profiles_load(name: str) -> None:
    """Every profile of the project loads, and its program is here, or in its image, or on its hosts."""
    profile = load_profile(name)
    there = profile.image or profile.options.get("program_there")
    assert there or Path(str(profile.program)).is_file()
    assert profile.deadlines.start <= profile.deadlines.run  # both count from the submit


def test_durations_are_read_with_their_units(write: Write) -> None:
    """30m is 1800 seconds and 1.5h is 5400."""
    deadlines = load(write(deadlines={"start": "30m", "run": "1.5h"})).deadlines
    assert (deadlines.start, deadlines.run) == (1800.0, 5400.0)


@pytest.mark.parametrize("number", ["1.10", "010", "12:30:00", "1_000", "0x1F", "3.0", "-5", "1e3", ".5"])
def test_number_keeps_its_digits_as_a_text(tmp_path: Path, number: str) -> None:
    """CUDA 12.10 is not 12.1: what YAML takes for a number is the text that was written, where a text is wanted."""
    path = tmp_path / "sample.yaml"
    path.write_text(f"about: a\nlauncher: baremetal\nprogram: x.py\nenv: {{A: {number}}}\nargs: [{number}]\n")
    profile = load_profile(str(path))
    assert (profile.env["A"], profile.args) == (number, (number,))


def test_numbers_become_text_in_env_and_args(write: Write) -> None:
    """A number in env or args stands for its digits."""
    profile = load(write(env={"NCCL_IB_TC": 41}, args=["--lr", 0.1]))
    assert (profile.env, profile.args) == ({"NCCL_IB_TC": "41"}, ("--lr", "0.1"))


def test_overrides_reach_nested_keys(write: Write) -> None:
    """An override with dots changes one key and leaves its neighbours."""
    deadlines = load(write(deadlines={"start": "1m", "run": "2m"}), **{"deadlines.run": "5m"}).deadlines
    assert (deadlines.start, deadlines.run) == (60.0, 300.0)


def test_own_folder_comes_first(write: Write) -> None:
    """A profile in TORCHYARD_PROFILES is found by its name."""
    path = write("mine")
    os.environ["TORCHYARD_PROFILES"] = str(path.parent)
    assert load_profile("mine").name == "mine"


def test_program_is_looked_for_beside_the_profile(write: Write) -> None:
    """A relative program is the one beside the profile."""
    path = write("mine")
    assert load(path).program == str(path.parent / "mine.py")


def test_unknown_profile_names_the_nearest() -> None:
    """A name that is not there is told with the nearest one and all others."""
    said = refused("digit-local")
    assert "did you mean digits-local?" in said
    assert "pi-local" in said


def test_missing_file_is_told(tmp_path: Path) -> None:
    """A path that is not there is told as a path."""
    assert f"there is no file {tmp_path}/none.yaml" in refused(tmp_path / "none.yaml")


MISTAKES = {
    "about: [x\n": ":2: did not find expected ',' or ']'",
    "- a\n": ":1: a profile is a mapping",
    "\tabout: x\n": ":1: found character",
    "": ":1: a profile is a mapping",
    GOOD + "about: again\n": ":4: the key about stands here a second time",
    GOOD + "ndoes: 2\n": ":4: unknown key ndoes: did you mean nodes?",
    GOOD + "deadlines:\n  start: 1m\n  rnu: 2m\n": ":6: unknown key deadlines.rnu: did you mean run? there are: grace",
    GOOD + "options: {hots: []}\n": ":4: unknown key options.hots: did you mean hosts?",
    GOOD + "options: {hosts: [-oPort=1]}\n": ":4: options.hosts.0.host: string should match pattern",
    GOOD + "nodes: 0\n": ":4: nodes: a number of nodes is at least 1, not 0",
    GOOD + "nodes: {min: 3, max: 2}\n": ":4: nodes: min is 3, max is 2",
    GOOD + "deadlines: {run: 5 parsecs}\n": ":4: deadlines.run: a duration is a number with a unit",
    GOOD + "deadlines: {run: 1.1.1h}\n": ":4: deadlines.run: a duration is a number with a unit",
    GOOD + "env: {A: yes}\n": ":4: env.A: true is a boolean in YAML",
    GOOD + "args: [a, [b]]\n": ":4: args.1: input should be a valid string",
    GOOD + "hardware: 5\n": ":4: hardware: it is the name of a file, not 5",
    GOOD + "hardware: oke/bm-gpu-b4\n": ":4: hardware: there is no oke/bm-gpu-b4; did you mean oke/bm-gpu-b4-8? there",
    GOOD + "hardware: oke/bm-gpu-b4-8\nfabric: hosts\n": ":5: fabric: hosts is not one of this hardware: host, vf, no-",
    GOOD + "hardware: oke/bm-gpu-b4-8\n": ":1: fabric: none is not one of this hardware: host, vf, no-rdma",
    GOOD + "fabric: host\n": ":4: fabric: is one of a hardware file's, and no hardware is named",
    GOOD + "manifest: none.yaml\n": ":4: manifest: there is no file ",
    GOOD + "manifest: [a]\n": ":4: manifest: it is the name of a file, not ['a']",
    GOOD + "env: {A: {secret: hub}}\n": ":4: the key env.A.key is missing",
    GOOD + "env: {A: {key: token}}\n": ":4: env.A: name a secret or a config_map: one of them",
    GOOD + "env: {A: {secret: s, config_map: c, key: k}}\n": ":4: env.A: name a secret or a config_map",
    GOOD + "env:\n  A: {secret: s, kye: k, key: k}\n": ":5: unknown key env.A.kye: did you mean key?",
    GOOD + "env: {A: [1]}\n": ":4: env.A: input should be a valid string",
    GOOD + "mounts:\n  /data: {}\n": ":5: mounts./data: exactly one of claim, config_map, secret, host, scratch",
    GOOD + "mounts: {/data: {claim: a, host: /b}}\n": ":4: mounts./data: exactly one of claim",
    GOOD + "mounts: {/data: {clam: a}}\n": ":4: unknown key mounts./data.clam: did you mean claim?",
    GOOD + "resources: {gpu: 1}\n": ":4: resources: there is no gpu: gpus, cpu, memory, ephemeral-storage, or a full",
    GOOD + "resources: {memory: 5 GB}\n": ":4: resources.memory: an amount is a number with or without a unit",
    GOOD + "resources: {cpu: yes}\n": ":4: resources.cpu: an amount is a number",
    GOOD + "resources: {cpu: -1}\n": ":4: resources.cpu: an amount is a number",
    GOOD + "pod: {shm: large}\n": ":4: pod.shm: an amount is a number",
    GOOD + "pod: {host_netwrok: true}\n": ":4: unknown key pod.host_netwrok: did you mean host_network?",
    GOOD + "rendezvous: zookeeper\n": ":4: rendezvous: input should be 'c10d', 'etcd-v2', 'static', 'env' or 'file'",
    GOOD.replace("baremetal", "slurm"): ":2: launcher: there is no slurm; there are: appwrapper, baremetal",
    GOOD.replace(
        "program: x.py\n", ""
    ): ":1: a profile names a program (with an image, in pods) or a manifest: one of them",
}


@pytest.mark.parametrize(("text", "said"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    """Each mistake gets one message with file, line, key and what is allowed."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert f"{path}{said}" in refused(path)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Two mistakes make one error with two findings."""
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD + "nodez: 2\nprocesses: 0\n")
    assert refused(path).count(str(path)) == 2


def test_mistake_in_an_override_is_not_blamed_on_the_file(write: Write) -> None:
    """A wrong override is told as an override."""
    assert "override: processes: input should be greater" in refused(write(), {"processes": 0})


def test_mistake_beside_an_override_is_blamed_on_the_file(write: Write) -> None:
    """An override of one variable does not take the blame for another one."""
    path = write(env={"A": "1", "B": True})
    assert f"{path}:4: env.B: true is a boolean" in refused(path, {"env.A": "2"})


def test_bad_name_is_told(write: Write) -> None:
    """A file name that cannot become a job's name is refused, with the rule."""
    assert "name: string should match pattern" in refused(write("My_Profile"))


@pytest.mark.parametrize("amount", [64, 0.5, "500m", "1.5", "512Gi", "1Ti", "2k"])
def test_amounts_are_those_of_kubernetes(write: Write, amount: object) -> None:
    """An amount is kept as it is written."""
    assert load(write(resources={"cpu": amount})).resources == {"cpu": str(amount)}


def test_resource_may_have_a_full_name(write: Write) -> None:
    """What a device plugin offers is asked for by its own name."""
    assert load(write(resources={"rdma/rdma": 1, "hugepages-2Mi": "1Gi"})).resources["rdma/rdma"] == "1"


# --- overrides


@pytest.mark.parametrize(
    "overrides",
    [
        {"pod.labels": {"nvidia.com/gpu": "yes", "a/b.c": "1"}},
        {"pod": {"labels": {"nvidia.com/gpu": "yes", "a/b.c": "1"}}},
    ],
)
def test_inner_keys_keep_their_dots(write: Write, overrides: dict[str, Any]) -> None:
    """Dots lead into the keys of an override and not into the labels that it holds; the others stay."""
    labels = load(write(pod={"labels": {"x.y/z": "2"}}), **overrides).pod.labels
    assert labels == {"x.y/z": "2", "nvidia.com/gpu": "yes", "a/b.c": "1"}


def test_lists_are_replaced(write: Write) -> None:
    """An override of a list is the whole list."""
    assert load(write(args=["--epochs=1", "--lr=2"]), args=["--epochs=3"]).args == ("--epochs=3",)


def test_null_takes_the_hardware_away(write: Write) -> None:
    """A profile of a shape can be tried without it."""
    path = write(hardware="oke/bm-gpu-b4-8", fabric="host")
    profile = load(path, hardware=None, fabric=None)
    assert (profile.hardware, profile.network) == (None, None)


# --- hardware

SHAPE = """about: a shape of ours
source: our own measurements
match: {pool: train}
gpus: {resource: nvidia.com/gpu, per_node: 4}
line_rate: 50
fabrics:
  tcp:
    about: what there is
    expect: {transport: socket}
"""


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    """A hardware file in a folder of the user's own."""
    os.environ["TORCHYARD_PROFILES"] = str(tmp_path)
    path = tmp_path / "hardware" / "lab" / "four.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(SHAPE)
    return path


@pytest.mark.parametrize("name", sorted(_list_hardware()))
def test_shipped_hardware_loads(name: str) -> None:
    """Each shape says where its values were read, and each of its fabrics what the log must show."""
    found = _load_hardware(name)
    assert found.source
    assert all(fabric.expect.transport for fabric in found.fabrics.values())


@pytest.mark.usefixtures("shape")
def test_own_hardware_is_found(write: Write) -> None:
    """A shape in a folder of TORCHYARD_PROFILES is named like the project's own."""
    profile = load(write(hardware="lab/four", fabric="tcp"))
    assert profile.hardware
    assert (profile.hardware.match, profile.hardware.gpus.per_node) == ({"pool": "train"}, 4)


def test_own_hardware_comes_first(shape: Path) -> None:
    """A shape of the user's hides the project's of the same name."""
    own = shape.parent.parent / "oke" / "bm-gpu-b4-8.yaml"
    own.parent.mkdir()
    own.write_text(SHAPE)
    assert _load_hardware("oke/bm-gpu-b4-8").about == "a shape of ours"


def test_mistake_in_the_hardware_is_told_with_its_own_line(write: Write, shape: Path) -> None:
    """A mistake in a hardware file is not blamed on the profile that names it."""
    shape.write_text(SHAPE.replace("transport: socket", "transport: pigeon").replace("line_rate: 50", "line_rte: 50"))
    said = refused(write(hardware="lab/four", fabric="tcp"))
    assert f"{shape}:5: unknown key line_rte: did you mean line_rate?" in said
    assert f"{shape}:9: fabrics.tcp.expect.transport: input should be 'roce', 'infiniband' or 'socket'" in said


def test_hardware_that_is_no_yaml_is_told(write: Write, shape: Path) -> None:
    """A hardware file that cannot be read is told with its own path."""
    shape.write_text("about: [x\n")
    assert f"profile hardware/lab/four: {shape}:2: did not find" in refused(write(hardware="lab/four"))


# --- the schema


@pytest.fixture
def schema(capsys: pytest.CaptureFixture[str]) -> Any:
    """A validator of what `torchyard schema` prints."""
    assert main(["schema"]) == 0
    return pytest.importorskip("jsonschema").Draft202012Validator(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_schema_takes_shipped_profiles(schema: Any, name: str) -> None:
    """What editors hold a profile to is what is written in them: hardware is a name there."""
    assert [error.message for error in schema.iter_errors(yaml.safe_load(list_profiles()[name].read_text()))] == []


@pytest.mark.parametrize(
    "keys",
    [
        {"hardware": {}},
        {"manifest": []},
        {"ndoes": 2},
        {"nodes": 0},
        {"launcher": "slurm"},
        {"options": {"etcd_image": "e:1"}},
        {"env": {"A": {"secret": "s"}}},
        {"deadlines": {"run": "5 parsecs"}},
    ],
)
def test_schema_refuses_mistakes(schema: Any, keys: dict[str, Any]) -> None:
    """An editor shows these before anything is run."""
    good = {"about": "a test", "launcher": "baremetal", "program": "x.py"}
    assert list(schema.iter_errors(good)) == []
    assert list(schema.iter_errors({**good, **keys}))
