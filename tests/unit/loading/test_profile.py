"""Profiles and the files that they name are found, and loaded or refused."""

import copy
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders.generated_profiles import POD_LAUNCHERS
from tests.conftest import Planned, Write, load
from tests.doubles.installed_packages import InstalledPackages
from tests.inputs.user_files import FILES, PROFILE, get_refusal, list_findings
from tests.inputs.user_manifests import JOB
from torchyard.common.project_root import ROOT
from torchyard.launchers import registry
from torchyard.loading.profile import list_hardware, list_profiles, load_hardware, load_profile
from torchyard.model.errors import ProfileError
from torchyard.model.profile import MetricsPattern
from torchyard.model.run import TRIAL_RUN


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_shipped_profiles_load(name: str) -> None:
    """Every shipped profile loads, and its program is in the project, in its image, or on its hosts."""
    profile = load_profile(name)
    remote_program = profile.image or profile.options.get("program_there")
    assert remote_program or Path(str(profile.program)).is_file()
    assert profile.deadlines.start <= profile.deadlines.run  # both count from the submit


def test_own_folder_comes_first(write: Write) -> None:
    """A profile in TORCHYARD_PROFILES is found by its name."""
    path = write("mine")
    os.environ["TORCHYARD_PROFILES"] = str(path.parent)
    assert load_profile("mine").name == "mine"


def test_program_is_looked_for_beside_the_profile(write: Write) -> None:
    """A relative program path is relative to the profile."""
    path = write("mine")
    assert load(path).program == str(path.parent / "mine.py")


def test_program_may_be_in_the_home_folder(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` stands for the home folder in the path of a program, as in every other path of a profile."""
    home = tmp_path / "home"
    (home / "app").mkdir(parents=True)
    (home / "app" / "train.py").touch()
    monkeypatch.setenv("HOME", str(home))
    assert load(write(program="~/app/train.py")).program == str(home / "app" / "train.py")
    module_profile = load(write(program=None, module="train", options={"source": "~/app"}))
    assert module_profile.options["source"] == str(home / "app")


@pytest.mark.parametrize(
    "keys",
    [
        {"program": "none.py"},
        {"program": "none\0.py"},
        {"program": "none.py", "nodes": 2, "options": {"hosts": ["gpu1", "gpu2"]}},
        {"program": None, "module": "my.train", "options": {"source": "none"}},
    ],
)
def test_program_that_does_not_exist_here_is_a_mistake(write: Write, keys: dict[str, Any]) -> None:
    """A program or a module's folder that a run starts here, or copies from here, must exist."""
    path = write(**keys)
    with pytest.raises(ProfileError, match=r"none.*: there is no such file") as error:
        load(path)
    assert str(error.value).count("\n") == 0
    assert str(error.value).startswith(f"profile sample: {path}:")


def test_program_on_another_host_is_not_looked_for_here(write: Write) -> None:
    """With `program_there` only preflight can find the program."""
    options = {"hosts": ["gpu1"], "program_there": True}
    assert load(write(program="/data/none.py", options=options)).program == "/data/none.py"


def test_program_of_an_image_is_not_changed(write: Write) -> None:
    """In pods the program is a path in the image, not on this machine."""
    assert load(write(launcher="volcano", image="train:v1", program="train.py")).program == "train.py"


def test_unknown_profile_names_the_nearest() -> None:
    """The error for an unknown name suggests the nearest one and lists all others."""
    message = get_refusal("digit-local")
    assert "did you mean digits-local?" in message
    assert "pi-local" in message


def test_path_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    """A run's files are UTF-8, so a profile in a folder with another encoding is refused before anything starts."""
    folder = tmp_path / os.fsdecode(b"d\xe9")
    folder.mkdir()
    (folder / "sample.yaml").touch()
    with pytest.raises(ProfileError, match="is not UTF-8; rename the folder"):
        load_profile(str(folder / "sample.yaml"))


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """A missing path is reported as a path, not as an unknown name."""
    assert f"there is no file {tmp_path}/none.yaml" in get_refusal(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"values": "a.yaml"}, ":4: values: must be a list of files, not 'a.yaml'"),
        ({"values": ["a.yaml"]}, ":4: values: there is no file"),
        ({"values": ["sample.py"], "manifest": "job.yaml"}, ":5: values: a manifest is a whole job"),
    ],
)
def test_files_that_cannot_be_read_are_reported(write: Write, keys: dict[str, Any], expected: str) -> None:
    """`values` must be a list of existing files beside the profile, and cannot be used with a manifest."""
    path = write(**keys)
    assert f"{path}{expected}" in get_refusal(path)


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
    """A hardware file in the user's own profiles folder."""
    os.environ["TORCHYARD_PROFILES"] = str(tmp_path)
    path = tmp_path / "hardware" / "lab" / "four.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(SHAPE)
    return path


@pytest.mark.parametrize("name", sorted(list_hardware()))
def test_shipped_hardware_loads(name: str) -> None:
    """Each hardware file names the source of its values, and each of its fabrics the expected transport."""
    hardware = load_hardware(name)
    assert hardware.source
    assert all(fabric.expect.transport for fabric in hardware.fabrics.values())


def test_unknown_shape_gives_a_hint_about_the_users_own_folder(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown name gives a hint about TORCHYARD_PROFILES, unless that is set."""
    path = write(hardware="ours/h100", fabric="tcp")
    hint = "TORCHYARD_PROFILES names no folder of your own"
    monkeypatch.delenv("TORCHYARD_PROFILES", raising=False)
    assert hint in get_refusal(path)
    monkeypatch.setenv("TORCHYARD_PROFILES", str(path.parent))
    assert hint not in get_refusal(path)


@pytest.mark.usefixtures("shape")
def test_own_hardware_is_found(write: Write) -> None:
    """A hardware file in a folder of TORCHYARD_PROFILES is named like the project's."""
    profile = load(write(hardware="lab/four", fabric="tcp"))
    assert profile.hardware
    assert (profile.hardware.match, profile.hardware.gpus.per_node) == ({"pool": "train"}, 4)


def test_own_hardware_comes_first(shape: Path) -> None:
    """A shape of the user overrides the project's shape of the same name."""
    user_path = shape.parent.parent / "oke" / "bm-gpu-b4-8.yaml"
    user_path.parent.mkdir()
    user_path.write_text(SHAPE)
    assert load_hardware("oke/bm-gpu-b4-8").about == "a shape of ours"


def test_mistake_in_the_hardware_is_reported_with_its_own_line(write: Write, shape: Path) -> None:
    """A mistake in a hardware file is reported with the line in that file, not in the profile."""
    shape.write_text(SHAPE.replace("transport: socket", "transport: pigeon").replace("line_rate: 50", "line_rte: 50"))
    message = get_refusal(write(hardware="lab/four", fabric="tcp"))
    assert f"{shape}:5: unknown key line_rte: did you mean line_rate?" in message
    assert f"{shape}:9: fabrics.tcp.expect.transport: must be 'roce', 'infiniband', 'rdma', " in message


def test_hardware_file_that_is_not_yaml_is_reported(write: Write, shape: Path) -> None:
    """A hardware file that cannot be read is reported with its own path."""
    shape.write_text("about: [x\n")
    assert f"{shape}:2: did not find" in get_refusal(write(hardware="lab/four"))


def test_name_in_a_file_is_refused(write: Write, shape: Path) -> None:
    """The file's name counts: a key `name` in a profile, an override or a hardware file is refused, not ignored."""
    allowed = "name: the name comes from the file's, {}.yaml: remove this key, or rename the file"
    path = write()
    path.write_text(path.read_text() + "name: other\n")
    assert f"{path}:4: {allowed.format('sample')}" in get_refusal(path)
    assert f"override: {allowed.format('sample')}" in get_refusal(write(), {"name": "other"})
    shape.write_text("name: other\n" + SHAPE)
    assert f"{shape}:1: {allowed.format('four')}" in get_refusal(write(hardware="lab/four", fabric="tcp"))


# --- manifests


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: [", "job.yaml:2: did not find"),
        ("- a\n- b\n", "job.yaml:1: object 1 is not a Kubernetes object: it is not a mapping"),
        ("apiVersion: v1\nkind: Pod\nmetadata: name\n", "object 1 is not a Kubernetes object: the Pod has no metadata"),
        ("kind: Pod\nmetadata: {name: a}\n", "object 1 is not a Kubernetes object: apiVersion is missing"),
        ("kind: List\nitems: [7]\n", "object 1 is not a Kubernetes object: it is not a mapping"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: 7}\n", "metadata.name of the Pod is not a text"),
        ("a:\n${nodes}\nb: 1\n", r"the file contains `\$\{nodes\}`: if it is a template, fill it in first"),
        ("---\n---\n", "job.yaml: it has no object"),
        (None, "sample.yaml:.*: manifest: there is no file .*/job.yaml"),
    ],
)
def test_file_that_is_not_a_manifest_is_reported(
    planned: Planned, tmp_path: Path, text: str | None, expected: str
) -> None:
    """A manifest that is missing, not YAML, or not made of objects is reported with the name of its file."""
    if text is not None:
        (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ProfileError, match=expected):
        planned(image=None, program=None, manifest="job.yaml")


def test_manifest_is_looked_for_beside_the_profile(planned: Planned, tmp_path: Path) -> None:
    """A relative manifest path is relative to the profile's folder."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "job.yaml").write_text(yaml.safe_dump(JOB))
    assert planned(image=None, program=None, manifest="sub/job.yaml").pods.keys() == {
        "lead-0",
        "rest-0",
        "rest-1",
        "rest-2",
    }


@pytest.mark.parametrize(
    "text", ["data: {a: .nan}", "data: {a: !!binary aGk=}", "data: {[a]: b}", "metadata: {labels: [a]}", "kind: [a]"]
)
def test_documents_of_a_manifest_must_be_objects(tmp_path: Path, text: str) -> None:
    """A document that no API server could read is reported with the name of its file."""
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    document.pop(text.partition(":")[0], None)
    assert "it.yaml" in list_findings(tmp_path, "manifest", f"{yaml.safe_dump(document)}{text}\n".encode())[0]


def test_keys_of_a_manifest_are_strings(tmp_path: Path) -> None:
    """A number as a key is read as its digits, as in JSON."""
    job = yaml.safe_load((ROOT / "tests" / "manifests" / "volcano-c10d.yaml").read_text())
    job["metadata"]["labels"] = {1: "a"}
    list_findings(tmp_path, "manifest", yaml.safe_dump(job).encode())
    assert load_profile(str(tmp_path / "sample.yaml")).manifest[0]["metadata"]["labels"] == {"1": "a"}


# --- files with arbitrary content


MACHINES_PROFILE = {
    "about": PROFILE["about"],
    "program": "programs/digits.py",  # a file of this machine
    "args": PROFILE["args"],
    "launcher": "baremetal",
    "nodes": 2,
    "env": {"A": "1"},
    "options": {"port": 5000},
}
REQUIRED_OPTIONS = {"runai": {"project": "vision", "through": "kubernetes"}}
VALID_FILES: dict[str, list[Any]] = {
    "profile": [
        PROFILE,
        MACHINES_PROFILE,
        *[
            PROFILE | {"launcher": launcher, "nodes": 2, "options": REQUIRED_OPTIONS.get(launcher, {})}
            for launcher in POD_LAUNCHERS
        ],
    ],
    "hardware": [
        yaml.safe_load(path.read_text()) for path in sorted((ROOT / "profiles" / "hardware" / "oke").glob("*.yaml"))
    ],
    "values": [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "tests" / "values").glob("*.yaml"))],
    "manifest": [
        list(yaml.safe_load_all(path.read_text()))
        for path in sorted((ROOT / "tests" / "manifests").glob("volcano*.yaml"))
    ],
}
YAML_FRAGMENTS = (
    "a;: ;:; ;  ;- ;? ;&a ;*a;<<: ;[;];{;};,;';\";~;=;#;\\;0x;1;.nan;2001-13-99;é;\t;\0;\x85;\ufeff;!x ;|\n;\n;"
    "!!int ;!!float ;!!bool ;!!binary ;!!set ;!!timestamp ;!!omap ;!!null ;!!map ;%YAML 1.1\n;launcher: volcano\n;"
    "---\n;...\n;kind: Job\n;about;metadata: ;options: ;values: ;manifest: ;fabrics: "
)
TEXTS = st.lists(st.sampled_from(YAML_FRAGMENTS.split(";")), max_size=25).map("".join).map(str.encode)
ODD_STRINGS = ["", "~nobody/x", "/", "..", "a" * 5000, "\0", "é", "$(A)", "1:2", "a/b/c", ".inf", "9" * 400]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*ODD_STRINGS, 10**400, -(10**30)])
    | st.dates()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3), max_leaves=6
)


def list_value_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    yield path
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield from list_value_paths(child, (*path, key))


@st.composite
def draw_spoiled_file(draw: st.DrawFn, kind: str) -> bytes:
    """A good file with an arbitrary value in place of one of its values, or beside it."""
    document = [copy.deepcopy(draw(st.sampled_from(VALID_FILES[kind])))]
    path: list[Any] = [0, *draw(st.sampled_from(sorted(list_value_paths(document[0]), key=str)))]
    parent: Any = document
    for key in path[:-1]:
        parent = parent[key]
    key = draw(SCALARS) if isinstance(parent, dict) and draw(st.booleans()) else path[-1]
    parent[key] = draw(VALUES)
    return dump_documents(document[0])


def dump_documents(document: Any) -> bytes:
    """The document as YAML; a list is written as a manifest's documents."""
    return (yaml.safe_dump_all(document) if isinstance(document, list) else yaml.safe_dump(document)).encode()


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind, paths in VALID_FILES.items() for number in range(len(paths))]
)
def test_files_to_spoil_are_valid(tmp_path: Path, kind: str, number: int) -> None:
    """The files that the tests below spoil have no findings before that."""
    assert list_findings(tmp_path, kind, dump_documents(VALID_FILES[kind][number])) == ()


@pytest.mark.parametrize("kind", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_text_is_reported_in_one_sentence(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """Any bytes, and pieces of YAML in any order, give findings of bounded length."""
    assert all(0 < len(finding) < 1500 for finding in list_findings(tmp_path, kind, data.draw(TEXTS | st.binary())))


@pytest.mark.parametrize("kind", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_at_any_key_is_reported_in_one_sentence(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """A good file with one arbitrary value gives findings of bounded length."""
    lengths = [len(finding) for finding in list_findings(tmp_path, kind, data.draw(draw_spoiled_file(kind)))]
    assert all(0 < length < 1500 for length in lengths), lengths


def test_long_key_of_a_manifest_is_shortened(tmp_path: Path) -> None:
    """A message about a very long key of a manifest, such as the name of a resource, stays readable."""
    document = copy.deepcopy(VALID_FILES["manifest"][0])
    path = next(path for path in list_value_paths(document) if path[-1:] == ("limits",))
    limits = document
    for key in path:
        limits = limits[key]
    limits["long" * 1000] = "lots"
    (finding,) = list_findings(tmp_path, "manifest", dump_documents(document))
    assert len(finding) < 1500
    assert "is not an amount of Kubernetes" in finding


@pytest.mark.parametrize("keys", [{"resources": {"gpus": "a" * 5000}}, {"image": "A" * 5000}])
def test_long_value_in_a_message_is_shortened(write: Write, keys: dict[str, Any]) -> None:
    """A message that quotes a very long value stays readable."""
    with pytest.raises(ProfileError) as error:
        load(write(**keys))
    assert len(str(error.value)) < 1500


def test_path_that_is_not_a_file_is_reported(tmp_path: Path) -> None:
    """A folder, a circular link, a device and a missing file, also of an impossible name, have different messages."""
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    paths = {
        str(tmp_path / "loop.yaml"): "is a link to a file that does not exist: loop.yaml",
        str(tmp_path / "folder.yaml"): "is a folder: name a file in it",
        "/dev/null": "is not a regular file: name a YAML file",
        str(tmp_path / "none.yaml"): "there is no file ",
        str(tmp_path / f"{'long' * 100}.yaml"): "there is no file ",
    }
    for path, expected in paths.items():
        with pytest.raises(ProfileError, match=expected):
            load_profile(path)


def test_file_in_another_encoding_is_reported_with_its_line(tmp_path: Path) -> None:
    """The error for a file that is not UTF-8 contains the line and the remedy."""
    (tmp_path / "a.yaml").write_bytes(b"about: a test\nprogram: gr\xfc\xdfe.py\n")
    with pytest.raises(ProfileError, match=r"a\.yaml:2: .*: it is not UTF-8; save it as UTF-8"):
        load_profile(str(tmp_path / "a.yaml"))


def test_tag_of_a_language_is_refused(tmp_path: Path) -> None:
    """A tag that asks for an object of some language is refused by its name."""
    (tmp_path / "a.yaml").write_text("about: !!python/object:os.system x\n")
    with pytest.raises(ProfileError, match=r"a\.yaml:1: a value cannot have the tag !!python/object:os\.system"):
        load_profile(str(tmp_path / "a.yaml"))


def test_hardware_of_another_package_is_found(packages: InstalledPackages, write: Write) -> None:
    """The entry point's name is the first part of the name of a hardware file in the package that it names."""
    packages.install("ty-nimbus", "[torchyard.hardware]\nnimbus = ty_nimbus\nflat = ty_flat\n", ty_flat="")
    (packages.folder / "ty_nimbus").mkdir()
    text = (ROOT / "profiles" / "hardware" / "v100" / "pair.yaml").read_text()
    (packages.folder / "ty_nimbus" / "pair.yaml").write_text(text)
    assert load_hardware("nimbus/pair").fabrics == load_hardware("v100/pair").fabrics
    assert "there is no nimbus/h100" in get_refusal(write(hardware="nimbus/h100", fabric="tcp"))
    assert "hardware flat of ty-nimbus 1.0" in get_refusal(write(hardware="flat/h100", fabric="tcp"))


def test_package_that_is_broken_affects_only_its_users(packages: InstalledPackages, write: Write) -> None:
    """A profile that names what a broken package adds has one finding for each; other profiles load."""
    groups = "[torchyard.launchers]\nl = ty_b\n[torchyard.metrics]\nm = ty_b:f\n[torchyard.trackers]\nt = ty_b:f\n"
    packages.install("ty-broken", groups, ty_b="1 / 0")
    assert load(write()).metrics == "none"
    lines = get_refusal(write(launcher="l", metrics="m", metrics_to=["t"])).splitlines()
    assert [line.count("ty-broken 1.0") for line in lines[1:]] == [1, 1]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"pattern": "loss=("}, "metrics.pattern: is not a regular expression of Python"),
        ({"pattern": "loss=(.+)"}, "metrics.pattern: needs a named group"),
        ({"pattern": 1}, "metrics: must be the name of a format, or {pattern: "),
        ({"patern": "x"}, "metrics: must be the name of a format, or {pattern: "),
        (["json-lines"], "metrics: must be the name of a format, or {pattern: "),
    ],
)
def test_metrics_that_cannot_be_read_are_refused(write: Write, metrics: object, message: str) -> None:
    """A pattern that is invalid, and a value that is neither a name nor a pattern, is an error with its line."""
    assert re.search(rf":\d+: {re.escape(message)}", get_refusal(write(metrics=metrics)))


def test_pattern_is_in_the_plan(write: Write) -> None:
    """A profile's pattern, also one of `--set`, and `on_nan` reach the plan, by which the job's output is read."""
    pattern = "loss=(?P<loss>[^ ,]+)"
    for profile in (
        load_profile(str(write(metrics={"pattern": pattern}, on_nan="fail"))),
        load_profile(str(write(on_nan="fail")), {"metrics.pattern": pattern}),
    ):
        plan = registry.make_plan(profile, TRIAL_RUN)
        assert (plan.metrics, plan.on_nan) == (MetricsPattern(pattern=pattern), "fail")
