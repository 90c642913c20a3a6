"""What a fact that a host told means for a requirement: good, or what to do."""

import re
import time
from typing import Any, assert_never

from torchyard.model.plan import THIS_MACHINE
from torchyard.model.requirements import (
    Check,
    Clock,
    FreePort,
    HostNeed,
    Package,
    Processors,
    ProgramFile,
    Reaches,
    RunaiCli,
    WritableFolder,
)

LEAST_ROOM = 100 * 2**20
MOST_OFF = 5.0  # seconds


def judge(need: HostNeed, fact: dict[str, Any]) -> Check:
    """What a fact means for a requirement."""
    match need:
        case WritableFolder():
            found = judge_folder(need, fact)
        case ProgramFile():
            found = judge_program(need, fact["readable"])
        case Package():
            found = judge_package(need, fact)
        case FreePort():
            found = judge_port(need, fact)
        case Processors():
            found = judge_processors(need, fact)
        case Reaches():
            found = judge_way(need, fact)
        case Clock():
            found = judge_clock(need, time.time() - fact["now"])
        case RunaiCli():
            found = judge_runai(need, fact)
        case _:
            assert_never(need)
    return found


def made(need: str, good: bool, detail: str, remedy: str) -> Check:
    return Check(need=need, verdict="ok" if good else "failed", detail=detail, remedy="" if good else remedy)


def judge_folder(need: WritableFolder, fact: dict[str, Any]) -> Check:
    here = need.host in THIS_MACHINE
    name = f"run folder {need.path}{'' if here else f' on {need.host}'}"
    remedy = f"choose another place with {'TORCHYARD_RUNS' if here else 'options.folder'}"
    if "error" in fact:
        return made(name, False, fact["error"], remedy)
    room = f"{fact['free'] / 2**30:.1f} GiB free"
    if fact["free"] < LEAST_ROOM:
        return Check(need=name, verdict="warning", detail=f"only {room}: a full disk costs log lines", remedy=remedy)
    return made(name, True, room, remedy)


def judge_program(need: ProgramFile, good: bool) -> Check:
    if need.host in THIS_MACHINE:
        name = f"program {need.path}"
        remedy = "correct the profile's `program` (relative to the profile's folder or the project)"
    else:
        name = f"program {need.path} on {need.host}"
        remedy = "put it there, or leave options.program_there out: then it is copied from this machine"
    return made(name, good, "is there" if good else "there is no such file", remedy)


def judge_port(need: FreePort, fact: dict[str, Any]) -> Check:
    if fact.get("ours"):
        return made(f"port {need.port} on {need.host}", True, "is held by this run", "")
    held = f"is held by {fact.get('holder') or 'a process of another user'}"
    remedy = f"stop that, or choose another port with {need.option}; a new run takes another by itself"
    return made(f"port {need.port} on {need.host}", fact["free"], "is free" if fact["free"] else held, remedy)


def judge_way(need: Reaches, fact: dict[str, Any]) -> Check:
    good = "error" not in fact
    found = f"{need.address} is {fact['to']}, from {fact['through']}" if good else fact["error"]
    remedy = "name an address that every host reaches: options.hosts: [{host: NAME, address: ADDRESS}, ...]"
    return made(f"way from {need.host} to {need.address}", good, found, remedy)


def judge_package(need: Package, fact: dict[str, Any]) -> Check:
    name = f"{need.name} for {need.python} on {need.host}"
    version, remedy = fact["version"], f"{need.python} -m pip install '{need.name}>={need.at_least}'"
    if version is None:
        return made(name, False, f"is not installed ({need.why})", remedy)
    good = numbers(version) >= numbers(need.at_least)
    return made(name, good, version if good else f"is {version}, {need.at_least} is needed", remedy)


def numbers(version: str) -> list[int]:
    """`2.13.0+cu128` as `[2, 13, 0]`: enough to compare releases."""
    return [int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])]


def judge_processors(need: Processors, fact: dict[str, Any]) -> Check:
    name = f"processors of {need.host}"
    if fact["count"] >= need.count:
        return made(name, True, f"{fact['count']} for {need.count} processes", "")
    detail = f"{fact['count']} for {need.count} processes: they will wait for each other"
    return Check(need=name, verdict="warning", detail=detail, remedy="fewer nodes or processes run faster here")


def judge_clock(need: Clock, late: float) -> Check:
    """`late` has the time of the answer's way in it."""
    name, off = f"clock of {need.host}", "is right to a few seconds"
    if abs(late) < MOST_OFF:
        return made(name, True, off, "")
    off = f"is {abs(late):.0f} s {'behind' if late > 0 else 'ahead'}: times and deadlines will be wrong"
    return Check(need=name, verdict="warning", detail=off, remedy="let both keep time by NTP")


def judge_runai(need: RunaiCli, fact: dict[str, Any]) -> Check:
    name, other = f"{need.cli} on {need.host}", ", ".join(fact.get("generations", ())) or "none that is known"
    if not fact["runs"]:
        return made(name, False, fact["why"], "install Run:ai's CLI, or name it with options.cli")
    if need.generation not in fact["generations"]:
        remedy = "choose another with options.cli, or the other with options.through"
        return made(name, False, f"is no {need.generation}; it is: {other}", remedy)
    if not fact["user"]:
        return made(name, False, f"nobody is logged in: {fact['why']}", f"{need.cli} login")
    if fact["project"] is False:
        return made(name, False, f"there is no project {need.project} for this user", "correct options.project")
    return made(name, True, f"{need.generation}, logged in, project {need.project}", "")
