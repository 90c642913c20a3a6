"""The lines of a manifest that findings are about. What is not a manifest is tested in test_profile.py."""

from pathlib import Path

import pytest

from tests.conftest import Write
from tests.inputs.user_files import get_refusal
from torchyard.loading.manifest_file import read_manifest
from torchyard.model.errors import ProfileError
from torchyard.model.finding import FilePosition

TEXT = """\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: hosts}
---
apiVersion: workload.codeflare.dev/v1beta2
kind: AppWrapper
metadata: {name: outer}
spec:
  components:
  - template:
      kind: Job
      metadata:
        name: train
      spec:
        template:
          spec:
            containers:
            - name: a
            - name: b
              resources:
                limits:
                  nvidia.com/gpu: 8
---
apiVersion: batch/v1
kind: Job
metadata: {generateName: night-}
"""


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("Service hosts", 4),
        ("AppWrapper outer, metadata.annotations", 10),
        ("AppWrapper outer, Job train", 14),
        ("AppWrapper outer, Job train, spec.template.spec.containers[1].resources.limits.nvidia.com/gpu", 25),
        ("AppWrapper outer, spec.components[0].template.spec, spec.components[7] and 2 more", 17),
        ("Job, spec.completions", 27),
        ("Job night", None),
        ("nodes", None),
    ],
)
def test_line_of_a_key(tmp_path: Path, where: str, line: int | None) -> None:
    """A finding has the line of its key, or of the last key before it that the file has; its first key counts."""
    path = tmp_path / "job.yaml"
    path.write_text(TEXT)
    manifest = read_manifest(path, "sample")
    assert manifest.locate(where) == (FilePosition(str(path), line) if line else None)


def test_items_of_a_list_may_come_from_a_merge_key(tmp_path: Path) -> None:
    """Objects that a merge key provides have the lines where the file writes them."""
    path = tmp_path / "job.yaml"
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}}"
    path.write_text(f"apiVersion: v1\nkind: List\n<<: {{items: [{pod}, {pod}]}}\n")
    manifest = read_manifest(path, "sample")
    assert (len(manifest.objects), [node.start_mark.line for node in manifest.nodes]) == (2, [2, 2])


def test_fault_of_a_job_has_its_line(write: Write, tmp_path: Path) -> None:
    """What is wrong with the job of a manifest is reported with the manifest's line, not the profile's."""
    text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train}\nspec:\n  completions: 4\n  parallelism: $N\n"
    (tmp_path / "job.yaml").write_text(text)
    refusal = get_refusal(write(launcher="job", program=None, manifest="job.yaml"))
    assert f"{tmp_path}/job.yaml:6: Job train, spec.parallelism: `$N` contains $N" in refusal


REPEATED = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
  template:
    spec:
      containers:
      - name: a
        resources: {{limits: {{cpu: 1}}}}
        resources: {{limits: {{cpu: {amount}}}}}
"""


def test_key_with_the_same_value_is_a_warning(tmp_path: Path) -> None:
    """A key that appears twice with one value is read as kubectl reads it, and the warning has both lines."""
    path = tmp_path / "job.yaml"
    path.write_text(REPEATED.format(amount=1))
    (finding,) = read_manifest(path, "train").warnings
    assert (finding.verdict, finding.line, finding.remedy) == ("warning", 10, "remove one")
    key_path = "spec.template.spec.containers[0].resources"
    assert finding.what == f"the key {key_path} appears here a second time, after line 9, with the same value"


def test_key_with_another_value_is_an_error(tmp_path: Path) -> None:
    """Of two different values one would be lost: the refusal names the key, both lines and what to do."""
    path = tmp_path / "job.yaml"
    path.write_text(REPEATED.format(amount="'1'"))
    with pytest.raises(ProfileError, match=r":10: the key spec\..*\.resources appears .* line 9; write it once"):
        read_manifest(path, "train")


def test_octal_number_is_a_number(tmp_path: Path) -> None:
    """A mode in the form of YAML 1.2 is the number that kubectl sends."""
    path = tmp_path / "job.yaml"
    path.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nmodes: [0o755, 0755, '0o755', 0o9]\n")
    assert read_manifest(path, "train").objects[0]["modes"] == [493, 493, "0o755", "0o9"]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "write the job"),
        ("- a\n", "write a mapping with apiVersion"),
        ("kind: Job\n\tspec: {}\n", "indent with spaces"),
        ("kind: Job\n  spec: {}\n", "check the indentation"),
        ("spec: *unknown\n", "define it with `&`"),
    ],
)
def test_file_that_is_not_a_manifest_has_a_remedy(tmp_path: Path, text: str, remedy: str) -> None:
    """What cannot be read says what to write."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=f"; {remedy}"):
        read_manifest(path, "train")
