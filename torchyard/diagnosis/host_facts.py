"""Whether a requirement on a host is met, decided from what a probe on that host reported, and what to do if not."""

import re
import time
from typing import Any, assert_never

from torchyard.model.finding import Finding, failed_check, passed_check, warning_check
from torchyard.model.plan import THIS_MACHINE
from torchyard.model.requirements import (
    Clock,
    FreePort,
    Gpus,
    HostRequirement,
    Package,
    Processors,
    ProgramFile,
    Reachable,
    RunaiCli,
    WritableFolder,
)

_MIN_FREE_BYTES = 100 * 2**20
_MAX_CLOCK_OFFSET_S = 5.0


def check_requirement(requirement: HostRequirement, probe: dict[str, Any]) -> Finding:
    """The check of a requirement, from the result of its probe (host/facts.py)."""
    match requirement:
        case WritableFolder():
            check = _check_folder(requirement, probe)
        case ProgramFile():
            check = _check_program(requirement, exists=probe["readable"])
        case Package():
            check = _check_package(requirement, probe)
        case FreePort():
            check = _check_port(requirement, probe)
        case Processors():
            check = _check_processors(requirement, probe)
        case Gpus():
            check = _check_gpus(requirement, probe)
        case Reachable():
            check = _check_route(requirement, probe)
        case Clock():
            check = _check_clock(requirement, skew_s=time.time() - probe["now"])
        case RunaiCli():
            check = _check_runai(requirement, probe)
        case _:
            assert_never(requirement)
    return check


def _check_folder(requirement: WritableFolder, probe: dict[str, Any]) -> Finding:
    is_local = requirement.host in THIS_MACHINE
    name = f"run folder {requirement.path}"
    setting = "TORCHYARD_RUNS"
    if not is_local:
        name += f" on {requirement.host}"
        setting = "options.folder"
    remedy = f"choose another folder with {setting}"
    if "error" in probe:
        return failed_check(name, probe["error"], remedy)
    free_space = f"{probe['free'] / 2**30:.1f} GiB free"
    if probe["free"] < _MIN_FREE_BYTES:
        return warning_check(name, f"only {free_space}: a full disk costs log lines", remedy)
    return passed_check(name, free_space)


def _check_program(requirement: ProgramFile, *, exists: bool) -> Finding:
    if requirement.host in THIS_MACHINE:
        name = f"program {requirement.path}"
        remedy = "correct the profile's `program` (relative to the profile's folder or the project)"
    else:
        name = f"program {requirement.path} on {requirement.host}"
        remedy = "put it there, or remove options.program_there: then it is copied from this machine"
    return passed_check(name, "exists") if exists else failed_check(name, "there is no such file", remedy)


def _check_port(requirement: FreePort, probe: dict[str, Any]) -> Finding:
    name = f"port {requirement.port} on {requirement.host}"
    if probe.get("ours"):
        return passed_check(name, "is held by this run")
    if probe["free"]:
        return passed_check(name, "is free")
    holder = probe.get("holder") or "a process of another user"
    remedy = f"stop it, or choose another port with {requirement.option}; a new run chooses another one by itself"
    return failed_check(name, f"is held by {holder}", remedy)


def _check_route(requirement: Reachable, probe: dict[str, Any]) -> Finding:
    name = f"route from {requirement.host} to {requirement.address}"
    if "error" in probe:
        remedy = "name an address that every host reaches: options.hosts: [{host: NAME, address: ADDRESS}, ...]"
        return failed_check(name, probe["error"], remedy)
    return passed_check(name, f"{requirement.address} is {probe['to']}, from {probe['through']}")


def _check_package(requirement: Package, probe: dict[str, Any]) -> Finding:
    name = f"{requirement.name} for {requirement.python} on {requirement.host}"
    version = probe["version"]
    remedy = f"{requirement.python} -m pip install '{requirement.name}>={requirement.minimum_version}'"
    if version is None:
        return failed_check(name, f"is not installed ({requirement.reason})", remedy)
    if _parse_version(version) < _parse_version(requirement.minimum_version):
        return failed_check(name, f"is {version}, {requirement.minimum_version} is needed", remedy)
    return passed_check(name, version)


def _parse_version(version: str) -> list[int]:
    """`2.13.0+cu128` as `[2, 13, 0]`: enough to compare releases."""
    return [int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])]


def _check_processors(requirement: Processors, probe: dict[str, Any]) -> Finding:
    name = f"processors of {requirement.host}"
    detail = f"{probe['count']} for {requirement.count} processes"
    if probe["count"] >= requirement.count:
        return passed_check(name, detail)
    remedy = "fewer nodes or processes run faster here"
    return warning_check(name, f"{detail}: they will wait for each other", remedy)


def _check_gpus(requirement: Gpus, probe: dict[str, Any]) -> Finding:
    name = f"GPUs of {requirement.host}"
    count = probe["count"]
    if count is None:  # in some containers the driver is not visible
        detail = f"{requirement.count} are needed, and neither the driver of NVIDIA nor that of AMD is visible"
        return warning_check(name, detail, "check with nvidia-smi or rocm-smi on that host")
    detail = f"{count} for {requirement.count} that the job uses there"
    if count >= requirement.count:
        return passed_check(name, detail)
    return failed_check(name, detail, "lower resources.gpus, or choose other hosts")


def _check_clock(requirement: Clock, *, skew_s: float) -> Finding:
    """`skew_s`: by how much the host's clock is behind; it includes the time that the response took to arrive."""
    name = f"clock of {requirement.host}"
    if abs(skew_s) < _MAX_CLOCK_OFFSET_S:
        return passed_check(name, "is right to a few seconds")
    direction = "behind" if skew_s > 0 else "ahead"
    detail = f"is {abs(skew_s):.0f} s {direction}: times and deadlines will be wrong"
    return warning_check(name, detail, "synchronize both by NTP")


def _check_runai(requirement: RunaiCli, probe: dict[str, Any]) -> Finding:
    name = f"{requirement.cli} on {requirement.host}"
    if not probe["runs"]:
        return failed_check(name, probe["reason"], "install Run:ai's CLI, or name it with options.cli")
    if requirement.generation not in probe["generations"]:
        generations = ", ".join(probe["generations"]) or "unknown"
        remedy = "choose another CLI with options.cli, or the other generation with options.through"
        return failed_check(name, f"is not {requirement.generation}; it is: {generations}", remedy)
    if not probe["user"]:
        return failed_check(name, f"no user is logged in: {probe['reason']}", f"{requirement.cli} login")
    if probe["project"] is False:  # None: the CLI could not be asked for its projects
        detail = f"there is no project {requirement.project} for this user"
        return failed_check(name, detail, "correct options.project")
    return passed_check(name, f"{requirement.generation}, logged in, project {requirement.project}")
