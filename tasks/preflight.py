"""Is everything there that the plan needs? One report of all findings; hosts are asked here, one question each."""

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, assert_never

from tasks import shell
from tasks.errors import HostError, PreflightError
from tasks.model import Command, CommandPlan, ManifestPlan, Plan
from tasks.needs import Check, FreePort, HostNeed, Package, Processors, ProgramFile, WritableFolder
from tasks.step import log, step

PROBE = str(Path(__file__).resolve().parent / "host" / "probe.py")
LEAST_ROOM = 100 * 2**20


@step
def preflight(plan: Plan) -> tuple[Check, ...]:
    """Every check of the plan. PreflightError carries all of them where one failed."""
    checks = findings(plan)
    for found in checks:
        if found.verdict == "warning":
            log().warning("%s", "; ".join(filter(None, (f"{found.need}: {found.detail}", found.remedy))))
    if any(found.verdict == "failed" for found in checks):
        raise PreflightError(checks)
    return checks


def findings(plan: Plan) -> tuple[Check, ...]:
    """Every check of the plan, asked of its hosts or of its cluster."""
    match plan:
        case CommandPlan():
            return check(plan.requires)
        case ManifestPlan():
            from tasks.preflight_cluster import check_cluster

            folders = [need for need in plan.requires if isinstance(need, WritableFolder)]
            return (*check(folders), *check_cluster(plan))
        case _:
            assert_never(plan)


def check(requires: Iterable[HostNeed]) -> tuple[Check, ...]:
    """One check a requirement, by asking each host (and each interpreter) once."""
    ordered = sorted(requires, key=where)
    return tuple(found for at, needs in groupby(ordered, key=where) for found in ask(*at, tuple(needs)))


def where(need: HostNeed) -> tuple[str, str]:
    """The host that knows, and the interpreter that packages are asked of."""
    return need.host, need.python if isinstance(need, Package) else sys.executable


def ask(host: str, python: str, needs: tuple[HostNeed, ...]) -> list[Check]:
    """The checks of one host and interpreter."""
    questions = Command(argv=(python, PROBE), input={"needs": [need.model_dump() for need in needs]})
    try:
        facts = shell.call(host, questions)
    except HostError as error:
        remedy = "choose another interpreter with options.python" if python != sys.executable else ""
        return [Check(need=f"{python} on {host}", verdict="failed", detail=str(error), remedy=remedy)]
    return [judge(need, fact) for need, fact in zip(needs, facts, strict=True)]


def judge(need: HostNeed, fact: dict[str, Any]) -> Check:
    """What a fact means for a requirement."""
    match need:
        case WritableFolder():
            return judge_folder(need, fact)
        case ProgramFile():
            good = fact["readable"]
            remedy = "correct the profile's `program` (relative to the profile's folder or the project)"
            return made(f"program {need.path}", good, "is there" if good else "there is no such file", remedy)
        case Package():
            return judge_package(need, fact)
        case FreePort():
            held = f"is held by {fact.get('holder') or 'a process of another user'}"
            remedy = f"stop that, or choose another port with {need.option}; a new run takes another by itself"
            return made(f"port {need.port} on {need.host}", fact["free"], "is free" if fact["free"] else held, remedy)
        case Processors():
            return judge_processors(need, fact)
        case _:
            assert_never(need)


def made(need: str, good: bool, detail: str, remedy: str) -> Check:
    return Check(need=need, verdict="ok" if good else "failed", detail=detail, remedy="" if good else remedy)


def judge_folder(need: WritableFolder, fact: dict[str, Any]) -> Check:
    name, remedy = f"run folder {need.path}", "choose another place with TORCHYARD_RUNS"
    if "error" in fact:
        return made(name, False, fact["error"], remedy)
    room = f"{fact['free'] / 2**30:.1f} GiB free"
    if fact["free"] < LEAST_ROOM:
        return Check(need=name, verdict="warning", detail=f"only {room}: a full disk costs log lines", remedy=remedy)
    return made(name, True, room, remedy)


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
