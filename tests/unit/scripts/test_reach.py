"""Which profiles an installation reaches: by the kubeconfig, the command line of a scheduler, and the hosts."""

from pathlib import Path

import pytest

from scripts.reach import find_obstacle
from torchyard.loading.profile import load_profile

KUBECONFIG = """
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: ada}}]
clusters: [{name: lab, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: ada, user: {}}]
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubeconfig with the context `lab`, and no Run:ai."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "overrides", "obstacle"),
    [
        ("digits-local", {}, ""),
        ("yolov5-volcano", {}, ""),
        ("yolov5-volcano", {"cluster.context": "lab"}, ""),
        ("yolov5-volcano", {"cluster.context": "farm"}, "there is no such context; there are: lab"),
        ("pi-runai", {}, "the command line runai is not installed"),
        ("pi-runai", {"options.through": "kubernetes"}, ""),
        ("mnist-baremetal", {}, "hosts behind ssh are not contacted: gpu-48, gpu-49"),
    ],
)
def test_obstacle_follows_from_the_place_of_the_job(name: str, overrides: dict[str, str], obstacle: str) -> None:
    """A context must be in the kubeconfig, a command line on this machine, and hosts behind ssh are not contacted."""
    found = find_obstacle(load_profile(name, overrides))
    assert obstacle in found
    assert bool(found) == bool(obstacle)


def test_installed_command_line_is_no_obstacle(tmp_path: Path) -> None:
    """Run:ai's profiles are reached where its command line is."""
    program = tmp_path / "runai"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_obstacle(load_profile("pi-runai")) == ""


def test_kubeconfig_that_cannot_be_read_is_an_obstacle(tmp_path: Path) -> None:
    """A damaged kubeconfig does not end `make up`: its problem is the obstacle of the profiles that need it."""
    (tmp_path / "kubeconfig").write_text("- not a mapping\n")
    assert "does not have the structure of a kubeconfig" in find_obstacle(load_profile("yolov5-volcano"))
