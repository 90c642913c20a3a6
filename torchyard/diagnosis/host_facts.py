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


def check_fact(need: HostRequirement, fact: dict[str, Any]) -> Check:
    """What a fact means for a requirement."""
    match need:
        case WritableFolder():
            found = _check_folder(need, fact)
        case ProgramFile():
            found = _check_program(need, fact["readable"])
        case Package():
            found = _check_package(need, fact)
        case FreePort():
            found = _check_port(need, fact)
        case Processors():
            found = _check_processors(need, fact)
        case Reachable():
            found = _check_route(need, fact)
        case Clock():
            found = _check_clock(need, time.time() - fact["now"])
        case RunaiCli():
            found = _check_runai(need, fact)
        case _:
            assert_never(need)
    return found


def _make_check(need: str, good: bool, detail: str, remedy: str) -> Check:
    return Check(name=need, verdict="ok" if good else "failed", detail=detail, remedy="" if good else remedy)


def _check_folder(need: WritableFolder, fact: dict[str, Any]) -> Check:
    here = need.host in THIS_MACHINE
    name = f"run folder {need.path}{'' if here else f' on {need.host}'}"
    remedy = f"choose another folder with {'TORCHYARD_RUNS' if here else 'options.folder'}"
    if "error" in fact:
        return _make_check(name, False, fact["error"], remedy)
    room = f"{fact['free'] / 2**30:.1f} GiB free"
    if fact["free"] < _MIN_FREE_BYTES:
        return Check(name=name, verdict="warning", detail=f"only {room}: a full disk costs log lines", remedy=remedy)
    return _make_check(name, True, room, remedy)


def _check_program(need: ProgramFile, good: bool) -> Check:
    if need.host in THIS_MACHINE:
        name = f"program {need.path}"
        remedy = "correct the profile's `program` (relative to the profile's folder or the project)"
    else:
        name = f"program {need.path} on {need.host}"
        remedy = "put it there, or leave options.program_there out: then it is copied from this machine"
    return _make_check(name, good, "exists" if good else "there is no such file", remedy)


def _check_port(need: FreePort, fact: dict[str, Any]) -> Check:
    if fact.get("ours"):
        return _make_check(f"port {need.port} on {need.host}", True, "is held by this run", "")
    held = f"is held by {fact.get('holder') or 'a process of another user'}"
    remedy = f"stop that, or choose another port with {need.option}; a new run takes another by itself"
    return _make_check(f"port {need.port} on {need.host}", fact["free"], "is free" if fact["free"] else held, remedy)


def _check_route(need: Reachable, fact: dict[str, Any]) -> Check:
    good = "error" not in fact
    found = f"{need.address} is {fact['to']}, from {fact['through']}" if good else fact["error"]
    remedy = "name an address that every host reaches: options.hosts: [{host: NAME, address: ADDRESS}, ...]"
    return _make_check(f"route from {need.host} to {need.address}", good, found, remedy)


def _check_package(need: Package, fact: dict[str, Any]) -> Check:
    name = f"{need.name} for {need.python} on {need.host}"
    version, remedy = fact["version"], f"{need.python} -m pip install '{need.name}>={need.minimum_version}'"
    if version is None:
        return _make_check(name, False, f"is not installed ({need.reason})", remedy)
    good = _parse_version(version) >= _parse_version(need.minimum_version)
    return _make_check(name, good, version if good else f"is {version}, {need.minimum_version} is needed", remedy)


def _parse_version(version: str) -> list[int]:
    """`2.13.0+cu128` as `[2, 13, 0]`: enough to compare releases."""
    return [int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])]


def _check_processors(need: Processors, fact: dict[str, Any]) -> Check:
    name = f"processors of {need.host}"
    if fact["count"] >= need.count:
        return _make_check(name, True, f"{fact['count']} for {need.count} processes", "")
    detail = f"{fact['count']} for {need.count} processes: they will wait for each other"
    return Check(name=name, verdict="warning", detail=detail, remedy="fewer nodes or processes run faster here")


def _check_clock(need: Clock, late: float) -> Check:
    """`late` includes the time that the answer took to arrive."""
    name, off = f"clock of {need.host}", "is right to a few seconds"
    if abs(late) < _MAX_CLOCK_OFFSET_S:
        return _make_check(name, True, off, "")
    off = f"is {abs(late):.0f} s {'behind' if late > 0 else 'ahead'}: times and deadlines will be wrong"
    return Check(name=name, verdict="warning", detail=off, remedy="synchronize both by NTP")


def _check_runai(need: RunaiCli, fact: dict[str, Any]) -> Check:
    name, other = f"{need.cli} on {need.host}", ", ".join(fact.get("generations", ())) or "unknown"
    if not fact["runs"]:
        return _make_check(name, False, fact["why"], "install Run:ai's CLI, or name it with options.cli")
    if need.generation not in fact["generations"]:
        remedy = "choose another CLI with options.cli, or the other generation with options.through"
        return _make_check(name, False, f"is not {need.generation}; it is: {other}", remedy)
    if not fact["user"]:
        return _make_check(name, False, f"nobody is logged in: {fact['why']}", f"{need.cli} login")
    if fact["project"] is False:
        return _make_check(name, False, f"there is no project {need.project} for this user", "correct options.project")
    return _make_check(name, True, f"{need.generation}, logged in, project {need.project}", "")
