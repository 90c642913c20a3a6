"""The hardware files have the values that the sources of 50 platforms state (tests/inputs/hardware_facts.yaml)."""

from typing import Any

import pytest
import yaml

from torchyard.common.project_root import ROOT
from torchyard.loading.profile import load_hardware
from torchyard.model.hardware import Fabric

PLATFORMS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "inputs" / "hardware_facts.yaml").read_text())
MODES = {
    f"{name}:{mode}": platform | mode_values
    for name, platform in PLATFORMS.items()
    for mode, mode_values in platform["fabrics"].items()
}
over_modes = pytest.mark.parametrize("name", MODES)


def load_fabric(name: str) -> Fabric:
    platform, mode = name.split(":")
    return load_hardware(PLATFORMS[platform]["hardware"]).fabrics[mode]


def test_survey_has_every_platform() -> None:
    """The survey has 50 platforms."""
    assert len(PLATFORMS) == 50


@pytest.mark.parametrize("name", PLATFORMS)
def test_shape_is_that_of_the_source(name: str) -> None:
    """GPUs and line rate are those of the source, or unknown in both."""
    platform = PLATFORMS[name]
    shape = load_hardware(platform["hardware"])
    assert (shape.gpus.per_node, shape.line_rate) == (platform["gpus"], platform["line_rate"])


@over_modes
def test_environment_is_that_of_the_source(name: str) -> None:
    """The variables are those of the source, with their values."""
    assert load_fabric(name).env == MODES[name]["env"]


@over_modes
def test_pod_settings_are_those_of_the_source(name: str) -> None:
    """Devices, networks and privileges of a pod are those of the source, with their numbers."""
    pod = load_fabric(name).pod
    mode = MODES[name]
    devices = {key: value for key, value in pod.resources.items() if key != "memory"}
    assert devices == mode.get("resources", {})
    assert pod.networks == mode.get("networks", {})
    assert (pod.privileged, pod.host_network) == (mode.get("privileged", False), mode.get("host_network", False))
    assert set(mode.get("capabilities", [])) <= set(pod.capabilities)


@over_modes
def test_expected_hcas_do_not_exceed_the_nics(name: str) -> None:
    """No more HCAs are expected than the node has NICs."""
    nics = MODES[name]["nics"]
    assert load_fabric(name).expect.hcas in (None, nics) or nics is None


@over_modes
def test_floor_is_that_of_the_source(name: str) -> None:
    """A floor for all_reduce is that of the source, and only for RDMA."""
    expect = load_fabric(name).expect
    assert expect.min_busbw == (MODES[name]["min_busbw"] if expect.transport != "socket" else None)


@pytest.mark.parametrize("name", [name for name, mode in MODES.items() if {"script", "setup"} & mode.keys()])
def test_script_of_the_image_is_run(name: str) -> None:
    """The fabric's setup runs the script that the source runs before the program."""
    expected = str(MODES[name].get("script", MODES[name].get("setup")))
    assert any(expected in line for line in load_fabric(name).setup)


def test_documentation_lists_every_platform() -> None:
    """docs/hardware.md has a row for each platform of the survey, with its file and its fabrics."""
    text = (ROOT / "docs" / "hardware.md").read_text()
    rows = [f"| `{name}` | `{platform['hardware']}` | {list_modes(platform)} |" for name, platform in PLATFORMS.items()]
    assert [row for row in rows if row not in text] == [], "the rows should be:\n" + "\n".join(rows)


def list_modes(platform: dict[str, Any]) -> str:
    return ", ".join(f"`{mode}`" for mode in platform["fabrics"])
