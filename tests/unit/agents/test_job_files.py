"""torchyard's own files in a job's pods, from a ConfigMap or unpacked by the pod's shell."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, load
from torchyard.agents.job_files import build_unpack_lines, list_job_files
from torchyard.model.resolved import ResolvedProfile, resolve

VF: dict[str, Any] = {"launcher": "volcano", "image": "train:v1", "hardware": "oke/bm-gpu-b4-8", "fabric": "vf"}
SHELLS = ("sh", "bash")


@pytest.fixture
def profile(write: Write) -> ResolvedProfile:
    """The profile of a job that needs all of the files."""
    return resolve(load(write(**VF, check_fabric="30s", min_busbw=20, nodes=2)))


def unpack(shell: str, profile: ResolvedProfile, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a pod's shell that unpacks the files, and prints their folder."""
    script = f'set -eu\n{build_unpack_lines(profile)}echo "$torchyard"\n'
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.run(
        [f"/bin/{shell}", "-c", script], env={"PATH": path} | env, capture_output=True, text=True, check=True
    )


def test_profile_decides_which_files_there_are(write: Write, profile: ResolvedProfile) -> None:
    """The recorder, the facts about RDMA and the check of the fabric are each in a job that uses them."""
    names = {name.partition("/")[0] for name in list_job_files(profile)}
    assert names == {"black_box", "rdma_facts.py", "allreduce.py"}
    assert list_job_files(resolve(load(write(on_hang="off")))) == {}


@pytest.mark.parametrize("shell", SHELLS)
def test_files_are_unpacked_into_a_new_private_folder(shell: str, profile: ResolvedProfile, tmp_path: Path) -> None:
    """Each pod gets a folder with a name that another user could not know, which only its user can read."""
    folders = [Path(unpack(shell, profile, TMPDIR=str(tmp_path)).stdout.strip()) for _ in range(2)]
    assert len(set(folders)) == 2
    for folder in folders:
        assert (folder.parent, stat.S_IMODE(folder.stat().st_mode)) == (tmp_path, 0o700)
        assert {name: (folder / name).read_text() for name in list_job_files(profile)} == list_job_files(profile)


@pytest.mark.parametrize("shell", SHELLS)
def test_folder_that_others_can_change_is_not_used(shell: str, profile: ResolvedProfile, tmp_path: Path) -> None:
    """If mktemp creates a folder that other users can write, no file is unpacked, and one line reports that."""
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "mktemp").write_text(f"#!/bin/sh\necho {open_folder}\n")
    (fake / "mktemp").chmod(0o755)
    completed = unpack(shell, profile, PATH=f"{fake}:{Path(sys.executable).parent}:/usr/bin:/bin")
    assert (completed.stdout, os.listdir(open_folder)) == ("\n", [])
    assert completed.stderr == f"torchyard: no black box: other users can change {open_folder}\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_pod_in_which_nothing_can_be_unpacked_continues(shell: str, profile: ResolvedProfile, tmp_path: Path) -> None:
    """Without a folder that can be written, or without python3, one line reports that the files are missing."""
    read_only = unpack(shell, profile, TMPDIR=str(tmp_path / "missing"))
    without_python = unpack(shell, profile, PATH=str(tmp_path))
    for completed in (read_only, without_python):
        assert (completed.stdout, completed.stderr.count("\n")) == ("\n", 1)
