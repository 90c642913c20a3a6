"""Reading YAML strictly: its limits, its numbers, and the overrides of its keys."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, load
from tests.inputs.user_files import HEAD, list_findings
from torchyard.loading.profile import load_profile
from torchyard.loading.yaml_document import read_documents

LAUGHS = "".join(f"  - &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9))
GARBAGE = {
    "options: &a [*a]\n": ":5: more than 100 levels: an alias may contain itself",
    "options: &a {queue: *a}\n": ":5: more than 100 levels",
    "options: &a\n  <<: *a\n": ":6: more than 100 levels",
    f"args: {'[' * 100_000}{']' * 100_000}\n": ":5: more than 100 levels",
    f"args:\n  - &a0 [x]\n{LAUGHS}": ":7: more than 100000 values",
    f"nodes: {'9' * 5000}\n": ":5: a number of 5000 digits; at most 1000 are read",
    f"nodes: {'9' * 30}\n": ":5: nodes.max: must be less than or equal to 10000",
    f"image: {'x' * 9999}\nprogram: [{'x' * 9999}]\n": "(10003 characters)",
    "deadlines: {run: .inf}\n": ":5: deadlines.run: must be less than or equal to",
    "args: [!!int two]\n": ":5: 'two' cannot be read as int",
    "args: [!!bool two]\n": ":5: 'two' cannot be read as bool",
    "args: [!!timestamp two]\n": ":5: 'two' cannot be read as timestamp",
    "values: [~nobody-has-this-name/x.yaml]\n": ":5: values: there is no file ~nobody-has-this-name/x.yaml",
    f"values: [{'x' * 5000}]\n": ":5: values: there is no file ",
    "---\nabout: another\n": ":6: a profile is one document, not more",
    "\0": ": control characters are not allowed",
}


@pytest.mark.parametrize(("text", "expected"), GARBAGE.items(), ids=range(len(GARBAGE)))
def test_garbage_is_reported_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    """Files that once caused a traceback, a crash or a message of megabytes give a short finding with its line."""
    head = HEAD.replace("image: i:1\nprogram: a.py\n", "") if text.startswith("image") else HEAD
    findings = list_findings(tmp_path, "profile", f"{head}{text}".encode())
    assert expected in " ".join(findings)
    assert all(len(finding) < 6000 for finding in findings)


@pytest.mark.parametrize(("kind", "noun"), {"hardware": "a hardware file", "values": "a values file"}.items())
def test_file_that_is_not_a_mapping_is_reported_with_its_expected_kind(tmp_path: Path, kind: str, noun: str) -> None:
    """The finding for a file that is not a mapping names the expected kind of file."""
    assert f":1: {noun} is a mapping of keys to values" in list_findings(tmp_path, kind, b"[a]")[0]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_encodings_with_a_byte_order_mark_are_read(tmp_path: Path, encoding: str) -> None:
    """Encodings with a byte order mark, as Windows writes them, are read."""
    assert list_findings(tmp_path, "profile", HEAD.encode(encoding)) == ()


def test_date_is_read_as_text(tmp_path: Path) -> None:
    """A date is read as text, as kubectl and helm do."""
    assert list_findings(tmp_path, "profile", f"{HEAD}env: {{SINCE: 2001-02-03}}\n".encode()) == ()


def test_time_of_day_is_text(tmp_path: Path) -> None:
    """`12:30:45` and `=` in an adopted manifest are texts, as kubectl reads them, and not YAML 1.1's own kinds."""
    path = tmp_path / "job.yaml"
    path.write_text("args: [12:30:45, 22:22, =, 1:20.5, 0x1F, 1.5, 010]\n")
    (document,) = read_documents(path, "sample")
    assert document.content["args"] == ["12:30:45", "22:22", "=", "1:20.5", 31, 1.5, 8]


@pytest.mark.parametrize("number", ["1.10", "010", "12:30:00", "1_000", "0x1F", "3.0", "-5", "1e3", ".5"])
def test_number_keeps_its_digits_as_text(tmp_path: Path, number: str) -> None:
    """CUDA 12.10 is not 12.1: where text is expected, a YAML number is read as the text that was written."""
    (tmp_path / "x.py").touch()
    path = tmp_path / "sample.yaml"
    path.write_text(f"about: a\nlauncher: baremetal\nprogram: x.py\nenv: {{A: {number}}}\nargs: [{number}]\n")
    profile = load_profile(str(path))
    assert (profile.env["A"], profile.args) == (number, (number,))


# --- overrides


def test_overrides_reach_nested_keys(write: Write) -> None:
    """An override with dots changes one key and leaves its neighbours."""
    deadlines = load(write(deadlines={"start": "1m", "run": "2m"}), **{"deadlines.run": "5m"}).deadlines
    assert (deadlines.start, deadlines.run) == (60.0, 300.0)


@pytest.mark.parametrize(
    "overrides",
    [
        {"pod.labels": {"nvidia.com/gpu": "yes", "a/b.c": "1"}},
        {"pod": {"labels": {"nvidia.com/gpu": "yes", "a/b.c": "1"}}},
    ],
)
def test_inner_keys_keep_their_dots(write: Write, overrides: dict[str, Any]) -> None:
    """Dots separate the keys of an override but not the labels inside it, and other labels are kept."""
    labels = load(write(launcher="volcano", image="i:1", pod={"labels": {"x.y/z": "2"}}), **overrides).pod.labels
    assert labels == {"x.y/z": "2", "nvidia.com/gpu": "yes", "a/b.c": "1"}


def test_lists_are_replaced(write: Write) -> None:
    """An override of a list replaces the whole list."""
    assert load(write(args=["--epochs=1", "--lr=2"]), args=["--epochs=3"]).args == ("--epochs=3",)


def test_null_removes_the_hardware(write: Write) -> None:
    """A null override removes the hardware from a profile."""
    path = write(hardware="oke/bm-gpu-b4-8", fabric="host")
    profile = load(path, hardware=None, fabric=None)
    assert (profile.hardware, profile.network) == (None, None)
