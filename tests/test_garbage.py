"""Files that hold anything at all: whoever wrote them gets one ProfileError, and no other exception."""

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.conftest import RUN_ID
from tests.drawn import PODS, plan
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ProfileError
from torchyard.model.plan import Plan
from torchyard.model.run import Run

HERE = Path(__file__).parent
PLANS: TypeAdapter[Plan] = TypeAdapter(Plan)
PROFILE = {
    "about": "a test",
    "launcher": "volcano",
    "image": "i:1",
    "program": "a.py",
    "args": ["--one", 2],
    "nodes": {"min": 1, "max": 2},
    "env": {"A": "1", "B": {"secret": "s", "key": "k"}},
    "resources": {"gpus": 1},
    "setup": ["true"],
    "mounts": {"/data": {"claim": "c"}, "/more": {"ephemeral": "1Gi", "storage_class": "fast"}},
    "pod": {"shm": "1Gi", "networks": {"a/b": 1}, "avoid": {"a": ["b"]}, "init": [{"name": "a", "image": "i:1"}]},
    "cluster": {"namespace": "runai-vision"},
    "deadlines": {"start": "1m", "run": 5},
    "hardware": "oke/bm-gpu-b4-8",
    "fabric": "host",
    "options": {"queue": "default"},
}
BARE = {
    **{key: PROFILE[key] for key in ("about", "program", "args")},
    "launcher": "baremetal",
    "nodes": 2,
    "env": {"A": "1"},
    "options": {"port": 5000},
}
NEEDED = {"runai": {"project": "vision", "through": "kubernetes"}}
FILES: dict[str, dict[str, Any]] = {  # the profile that names the file
    "profile": {},
    "hardware": {**PROFILE, "hardware": "drawn", "fabric": "host"},
    "values": {"about": "a test", "launcher": "appwrapper", "image": "i:1", "values": ["it.yaml"]},
    "manifest": {"about": "a test", "launcher": "volcano", "manifest": "it.yaml"},
}
GOOD: dict[str, list[Any]] = {
    "profile": [
        PROFILE,
        BARE,
        *({**PROFILE, "launcher": each, "nodes": 2, "options": NEEDED.get(each, {})} for each in PODS),
    ],
    "hardware": [
        yaml.safe_load(path.read_text()) for path in sorted((HERE.parent / "profiles/hardware/oke").glob("*.yaml"))
    ],
    "values": [yaml.safe_load(path.read_text()) for path in sorted((HERE / "values").glob("*.yaml"))],
    "manifest": [
        list(yaml.safe_load_all(path.read_text())) for path in sorted((HERE / "manifests").glob("volcano*.yaml"))
    ],
}
SCRAPS = (
    "a;: ;:; ;  ;- ;? ;&a ;*a;<<: ;[;];{;};,;';\";~;=;#;\\;0x;1;.nan;2001-13-99;é;\t;\0;\x85;\ufeff;!x ;|\n;\n;"
    "!!int ;!!float ;!!bool ;!!binary ;!!set ;!!timestamp ;!!omap ;!!null ;!!map ;%YAML 1.1\n;launcher: volcano\n;"
    "---\n;...\n;kind: Job\n;about;metadata: ;options: ;values: ;manifest: ;fabrics: "
)
TEXTS = st.lists(st.sampled_from(SCRAPS.split(";")), max_size=25).map("".join).map(str.encode)
ODD = ["", "~nobody/x", "/", "..", "a" * 5000, "\0", "é", "$(A)", "1:2", "a/b/c", ".inf", "9" * 400]
SINGLE = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([*ODD, 10**400, -(10**30)]) | st.dates()
)
ANYTHING = st.recursive(
    SINGLE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SINGLE, inner, max_size=3), max_leaves=6
)


def told(folder: Path, kind: str, text: bytes) -> tuple[str, ...]:
    """What is said of a file of this kind; nothing where it can be planned, and the plan written down and read."""
    path = folder / "sample.yaml"
    named = path if kind == "profile" else folder / ("hardware/drawn.yaml" if kind == "hardware" else "it.yaml")
    named.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(FILES[kind]))
    named.write_bytes(text)
    os.environ["TORCHYARD_PROFILES"] = str(folder)
    try:
        profile = load_profile(str(path))
        made = plan(profile, Run(id=RUN_ID, attempt=2, folder="/runs/here"))
    except ProfileError as error:
        return error.findings
    assert PLANS.validate_json(made.model_dump_json()) == made
    return ()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    yield path
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(each, (*path, key))


@st.composite
def spoiled(draw: st.DrawFn, kind: str) -> bytes:
    """A good file with anything at one of its places, or beside it."""
    document = [copy.deepcopy(draw(st.sampled_from(GOOD[kind])))]
    path: list[Any] = [0, *draw(st.sampled_from(sorted(places(document[0]), key=str)))]
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    key = draw(SINGLE) if isinstance(place, dict) and draw(st.booleans()) else path[-1]
    place[key] = draw(ANYTHING)
    return written(document[0])


def written(document: Any) -> bytes:
    """As YAML; a list is that of a manifest's documents."""
    return (yaml.safe_dump_all(document) if isinstance(document, list) else yaml.safe_dump(document)).encode()


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind, each in GOOD.items() for number in range(len(each))]
)
def test_files_to_spoil_are_good(tmp_path: Path, kind: str, number: int) -> None:
    """What is spoiled below is nothing else yet."""
    assert told(tmp_path, kind, written(GOOD[kind][number])) == ()


@pytest.mark.parametrize("kind", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_text_is_told_in_one_sentence(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """Bytes, or pieces of YAML in any order."""
    assert all(0 < len(each) < 1500 for each in told(tmp_path, kind, data.draw(TEXTS | st.binary())))


@pytest.mark.parametrize("kind", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_at_any_key_is_told_in_one_sentence(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """A good file with one value that may be anything."""
    assert all(0 < len(each) < 1500 for each in told(tmp_path, kind, data.draw(spoiled(kind))))


HEAD = "about: a test\nlauncher: volcano\nimage: i:1\nprogram: a.py\n"
LAUGHS = "".join(f"  - &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]\n" for at in range(1, 9))
KNOWN = {
    "options: &a [*a]\n": ":5: more than 100 levels: an alias may stand inside itself",
    "options: &a {queue: *a}\n": ":5: more than 100 levels",
    "options: &a\n  <<: *a\n": ":6: more than 100 levels",
    f"args: {'[' * 100_000}{']' * 100_000}\n": ":5: more than 100 levels",
    f"args:\n  - &a0 [x]\n{LAUGHS}": ":7: more than 100000 values",
    f"nodes: {'9' * 5000}\n": ":5: a number of 5000 digits; at most 1000 are read",
    f"nodes: {'9' * 30}\n": ":5: nodes.max: input should be less than or equal to 10000",
    f"image: {'x' * 9999}\nprogram: [{'x' * 9999}]\n": "(10003 characters)",
    "deadlines: {run: .inf}\n": ":5: deadlines.run: input should be less than or equal to",
    "args: [!!int two]\n": ":5: 'two' cannot be read as int",
    "args: [!!bool two]\n": ":5: 'two' cannot be read as bool",
    "args: [!!timestamp two]\n": ":5: 'two' cannot be read as timestamp",
    "values: [~nobody-has-this-name/x.yaml]\n": ":5: values: there is no file ~nobody-has-this-name/x.yaml",
    f"values: [{'x' * 5000}]\n": ":5: values: there is no file ",
    "---\nabout: another\n": ":6: a profile is one document, not more",
    "\0": ": control characters are not allowed",
}


@pytest.mark.parametrize(("text", "said"), KNOWN.items(), ids=range(len(KNOWN)))
def test_garbage_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    """What has once ended in another exception, in a dead process, or in a message of megabytes."""
    head = HEAD.replace("image: i:1\nprogram: a.py\n", "") if text.startswith("image") else HEAD
    findings = told(tmp_path, "profile", f"{head}{text}".encode())
    assert said in " ".join(findings)
    assert all(len(each) < 6000 for each in findings)


@pytest.mark.parametrize(("kind", "what"), {"hardware": "a hardware file", "values": "a values file"}.items())
def test_what_is_no_mapping_is_told_as_what_it_should_be(tmp_path: Path, kind: str, what: str) -> None:
    """Not every file is a profile."""
    assert f":1: {what} is a mapping of keys to values" in told(tmp_path, kind, b"[a]")[0]


@pytest.mark.parametrize("text", [b"", b"# all as the chart has it\n", b"---\n", b"~\n"])
def test_values_may_say_nothing(tmp_path: Path, text: bytes) -> None:
    """helm takes a values file that is empty; what the chart needs is missing then, and nothing else is."""
    assert not any("mapping" in each for each in told(tmp_path, "values", text))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_encodings_with_a_mark_are_read(tmp_path: Path, encoding: str) -> None:
    """Windows writes them."""
    assert told(tmp_path, "profile", HEAD.encode(encoding)) == ()


def test_a_date_is_a_text(tmp_path: Path) -> None:
    """As kubectl and helm read it."""
    assert told(tmp_path, "profile", f"{HEAD}env: {{SINCE: 2001-02-03}}\n".encode()) == ()


@pytest.mark.parametrize(
    "text", ["data: {a: .nan}", "data: {a: !!binary aGk=}", "data: {[a]: b}", "metadata: {labels: [a]}", "kind: [a]"]
)
def test_manifest_is_of_objects(tmp_path: Path, text: str) -> None:
    """What no API server could read is told as no object, or as no YAML."""
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    document.pop(text.partition(":")[0], None)
    assert "it.yaml" in told(tmp_path, "manifest", f"{yaml.safe_dump(document)}{text}\n".encode())[0]


def test_keys_of_a_manifest_are_texts(tmp_path: Path) -> None:
    """A number as a key is its digits, as it is in JSON."""
    job = yaml.safe_load((HERE / "manifests/volcano-c10d.yaml").read_text())
    job["metadata"]["labels"] = {1: "a"}
    told(tmp_path, "manifest", yaml.safe_dump(job).encode())
    assert load_profile(str(tmp_path / "sample.yaml")).manifest[0]["metadata"]["labels"] == {"1": "a"}
