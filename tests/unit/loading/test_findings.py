"""All that is wrong with a profile, in one error."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.inputs.user_files import get_refusal
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ProfileError

SIX_MISTAKES = """\
about: a job with six mistakes
launcher: volcano
image: Train:v1
program: train.py
nodes: many
proceses: 2
env: {TORCHYARD_NODE: "0", RANK: "1"}
min_busbw: 3
hardware: lab/none
options: {quee: a}
"""


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """A wrong name, value, key, file and option, and broken rules, are found in one run, each with its line."""
    path = tmp_path / "six.yaml"
    path.write_text(SIX_MISTAKES)
    with pytest.raises(ProfileError) as error:
        load_profile(str(path))
    texts = [str(finding).removeprefix(f"{path}:") for finding in error.value.findings]
    locations = sorted((int(text.split(": ")[0]), text.split(": ")[1]) for text in texts)
    assert locations == [
        (3, "image"),
        (5, "nodes"),
        (6, "unknown key proceses"),
        (7, "env"),
        (8, "min_busbw"),
        (9, "hardware"),
        (10, "unknown key options.quee"),
    ]


@pytest.mark.parametrize(
    ("keys", "line", "message"),
    [
        ({"nodes": 2000}, 4, "nodes: at most 1000"),
        ({"pod": {"init": [{"name": "worker", "image": "i:1"}]}}, 6, "pod.init: a second container cannot be called"),
        ({"launcher": "jobset", "nodes": {"min": 1, "max": 2}}, 4, "nodes: must be one number, not 1:2"),
        (
            {"launcher": "runai", "options": {"project": "a", "through": "kubernetes"}, "cluster": {"namespace": "b"}},
            3,
            "cluster.namespace: must be runai-a",
        ),
    ],
)
def test_what_the_launcher_cannot_plan_has_a_line(write: Write, keys: dict[str, Any], line: int, message: str) -> None:
    """A finding of the plan is reported when the profile is loaded, with its file and line."""
    path = write(**({"launcher": "volcano", "image": "train:v1", "nodes": 1} | keys))
    assert f"{path}:{line}: {message}" in get_refusal(path)


def test_finding_about_an_override_has_no_line(write: Write) -> None:
    """A finding about a value of --set names no line of the file."""
    with pytest.raises(ProfileError, match="override: nodes: at most 1000"):
        load_profile(str(write(launcher="volcano", image="train:v1")), {"nodes": 2000})


def test_findings_of_a_file_have_its_own_lines(write: Write, tmp_path: Path) -> None:
    """Mistakes in a manifest are reported with its path, beside those of the profile; nothing follows from them."""
    (tmp_path / "job.yaml").write_text("a: 1\n")
    refusal = get_refusal(write(launcher="volcano", program=None, manifest="job.yaml", attempts=99))
    assert refusal.count("\n") == 2
    assert f"{tmp_path}/job.yaml:1: object 1 is not a Kubernetes object" in refusal
    assert "attempts: must be less than or equal to 20" in refusal


def test_every_missing_file_is_reported(write: Write) -> None:
    """Each of `files` that cannot be read is a finding."""
    files = {"/opt/a.py": "no-a.py", "/opt/b.py": "no-b.py"}
    refusal = get_refusal(write(launcher="volcano", image="train:v1", files=files))
    assert ("no-a.py does not exist" in refusal, "no-b.py does not exist" in refusal) == (True, True)


def test_wrong_option_hides_no_other(write: Write) -> None:
    """Beside an unknown option, what the launcher cannot plan with another option is reported too."""
    refusal = get_refusal(write(nodes=3, options={"hosts": ["a", "b"], "prt": 1}))
    assert "unknown key options.prt" in refusal
    assert "options.hosts: 2 hosts for 3 nodes" in refusal
