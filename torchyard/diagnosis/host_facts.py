"""What a fact that a host reported means for a requirement: it is met, or what to do."""

import re
import time
from typing import Any, assert_never

from torchyard.model.plan import THIS_MACHINE
from torchyard.model.requirements import (
    Check,
    Clock,
    FreePort,
    HostRequirement,
    Package,
    Processors,
    ProgramFile,
    Reachable,
    RunaiCli,
    WritableFolder,
)

_MIN_FREE_BYTES = 100 * 2**20
_MAX_CLOCK_OFFSET_S = 5.0  # seconds


def check_requirement(requirement: HostRequirement, probe: dict[str, Any]) -> Check:
    """What a fact means for a requirement."""
    match requirement:
        case WritableFolder():
            check = _check_folder(requirement, probe)
        case ProgramFile():
            check = _check_program(requirement, probe["readable"])
        case Package():
            check = _check_package(requirement, probe)
        case FreePort():
            check = _check_port(requirement, probe)
        case Processors():
            check = _check_processors(requirement, probe)
        case Reachable():
            check = _check_route(requirement, probe)
        case Clock():
            check = _check_clock(requirement, time.time() - probe["now"])
        case RunaiCli():
            check = _check_runai(requirement, probe)
        case _:
            assert_never(requirement)
    return check


def _build_check(name: str, passed: bool, detail: str, remedy: str) -> Check:
    return Check(name=name, verdict="ok" if passed else "failed", detail=detail, remedy="" if passed else remedy)


def _check_folder(requirement: WritableFolder, probe: dict[str, Any]) -> Check:
    is_local = requirement.host in THIS_MACHINE
    name = f"run folder {requirement.path}{'' if is_local else f' on {requirement.host}'}"
    remedy = f"choose another folder with {'TORCHYARD_RUNS' if is_local else 'options.folder'}"
    if "error" in probe:
        return _build_check(name, False, probe["error"], remedy)
    free_space = f"{probe['free'] / 2**30:.1f} GiB free"
    if probe["free"] < _MIN_FREE_BYTES:
        return Check(
            name=name, verdict="warning", detail=f"only {free_space}: a full disk costs log lines", remedy=remedy
        )
    return _build_check(name, True, free_space, remedy)


def _check_program(requirement: ProgramFile, exists: bool) -> Check:
    if requirement.host in THIS_MACHINE:
        name = f"program {requirement.path}"
        remedy = "correct the profile's `program` (relative to the profile's folder or the project)"
    else:
        name = f"program {requirement.path} on {requirement.host}"
        remedy = "put it there, or leave options.program_there out: then it is copied from this machine"
    return _build_check(name, exists, "exists" if exists else "there is no such file", remedy)


def _check_port(requirement: FreePort, probe: dict[str, Any]) -> Check:
    if probe.get("ours"):
        return _build_check(f"port {requirement.port} on {requirement.host}", True, "is held by this run", "")
    holder = f"is held by {probe.get('holder') or 'a process of another user'}"
    remedy = f"stop that, or choose another port with {requirement.option}; a new run takes another by itself"
    return _build_check(
        f"port {requirement.port} on {requirement.host}", probe["free"], "is free" if probe["free"] else holder, remedy
    )


def _check_route(requirement: Reachable, probe: dict[str, Any]) -> Check:
    is_reachable = "error" not in probe
    detail = f"{requirement.address} is {probe['to']}, from {probe['through']}" if is_reachable else probe["error"]
    remedy = "name an address that every host reaches: options.hosts: [{host: NAME, address: ADDRESS}, ...]"
    return _build_check(f"route from {requirement.host} to {requirement.address}", is_reachable, detail, remedy)


def _check_package(requirement: Package, probe: dict[str, Any]) -> Check:
    name = f"{requirement.name} for {requirement.python} on {requirement.host}"
    version, remedy = (
        probe["version"],
        f"{requirement.python} -m pip install '{requirement.name}>={requirement.minimum_version}'",
    )
    if version is None:
        return _build_check(name, False, f"is not installed ({requirement.reason})", remedy)
    is_recent = _parse_version(version) >= _parse_version(requirement.minimum_version)
    return _build_check(
        name, is_recent, version if is_recent else f"is {version}, {requirement.minimum_version} is needed", remedy
    )


def _parse_version(version: str) -> list[int]:
    """`2.13.0+cu128` as `[2, 13, 0]`: enough to compare releases."""
    return [int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])]


def _check_processors(requirement: Processors, probe: dict[str, Any]) -> Check:
    name = f"processors of {requirement.host}"
    if probe["count"] >= requirement.count:
        return _build_check(name, True, f"{probe['count']} for {requirement.count} processes", "")
    detail = f"{probe['count']} for {requirement.count} processes: they will wait for each other"
    return Check(name=name, verdict="warning", detail=detail, remedy="fewer nodes or processes run faster here")


def _check_clock(requirement: Clock, skew_s: float) -> Check:
    """`late` includes the time that the answer took to arrive."""
    name, detail = f"clock of {requirement.host}", "is right to a few seconds"
    if abs(skew_s) < _MAX_CLOCK_OFFSET_S:
        return _build_check(name, True, detail, "")
    detail = f"is {abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead'}: times and deadlines will be wrong"
    return Check(name=name, verdict="warning", detail=detail, remedy="synchronize both by NTP")


def _check_runai(requirement: RunaiCli, probe: dict[str, Any]) -> Check:
    name, generations = f"{requirement.cli} on {requirement.host}", ", ".join(probe.get("generations", ())) or "unknown"
    if not probe["runs"]:
        return _build_check(name, False, probe["why"], "install Run:ai's CLI, or name it with options.cli")
    if requirement.generation not in probe["generations"]:
        remedy = "choose another CLI with options.cli, or the other generation with options.through"
        return _build_check(name, False, f"is not {requirement.generation}; it is: {generations}", remedy)
    if not probe["user"]:
        return _build_check(name, False, f"nobody is logged in: {probe['why']}", f"{requirement.cli} login")
    if probe["project"] is False:
        return _build_check(
            name, False, f"there is no project {requirement.project} for this user", "correct options.project"
        )
    return _build_check(name, True, f"{requirement.generation}, logged in, project {requirement.project}", "")
