"""The lines of a manifest that findings are about. What is not a manifest is tested in test_profile.py."""

from pathlib import Path

import pytest

from tests.conftest import Write
from tests.inputs.user_files import get_refusal
from torchyard.loading.manifest_file import read_manifest
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
