"""Checks a plan's requirements on its hosts."""

import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from torchyard.machines import processes
from torchyard.machines.host_command import script_command
from torchyard.model.errors import HostError, UnreachedError
from torchyard.model.finding import Finding, passed_check, warning_check
from torchyard.model.plan import Site
from torchyard.model.requirements import (
    THIS_MACHINE,
    Advice,
    Clock,
    CommandRequirement,
    HostRequirement,
    Package,
    ScriptCheck,
)

_COMMON_SCRIPT = "facts.py"
_MAX_CLOCK_OFFSET_S = 5.0


class _Target(NamedTuple):
    """A host, and the interpreter and the script of torchyard/host that answer for it."""

    host: str
    python: str
    script: str


def check_hosts(requires: Iterable[CommandRequirement], sites: Sequence[Site] = ()) -> tuple[Finding, ...]:
    """One check per requirement; each host (and each interpreter and script) is queried once, all at the same time.

    Advice comes first.
    """
    checks: dict[Finding, None] = {}  # a host that is down is reported once
    supervisor_pythons = {site.host: site.python for site in sites}
    by_target: dict[_Target, list[HostRequirement]] = {}
    for requirement in requires:
        if isinstance(requirement, Advice):
            checks[requirement.finding] = None
            continue
        python = supervisor_pythons.get(requirement.host, sys.executable)
        if isinstance(requirement, Package):
            python = requirement.python
        script = requirement.script if isinstance(requirement, ScriptCheck) else _COMMON_SCRIPT
        by_target.setdefault(_Target(requirement.host, python, script), []).append(requirement)

    targets = sorted(by_target)
    with ThreadPoolExecutor(max(len(targets), 1)) as pool:
        for host_checks in pool.map(_check_host, targets, [by_target[target] for target in targets]):
            checks |= dict.fromkeys(host_checks)
    return tuple(checks)


def _check_host(target: _Target, requirements: Sequence[HostRequirement]) -> list[Finding]:
    """The checks of one host, interpreter and script; a single one if it cannot be queried."""
    host, python, script = target
    probed_requirements = [requirement for requirement in requirements if not isinstance(requirement, Clock)]
    request = {"needs": [requirement.to_probe() for requirement in probed_requirements]}
    command = replace(script_command(host, python, script), input=request)
    started_at = time.time()
    try:
        response = processes.run_command(host, command, retry_timeout_s=0)
    except UnreachedError as error:
        return [Finding(where=host, verdict="failed", what=f"{error.action}: {error.message}")]
    except HostError as error:
        remedy = ""
        if python != sys.executable:
            options = "options.python" if host in THIS_MACHINE else "options.python, or options.supervisor_python"
            remedy = f"choose another interpreter with {options}"
        detail = f"{error.action}: {error.message}"
        return [Finding(where=f"{python} on {host}", verdict="failed", what=detail, remedy=remedy)]
    findings = [Finding(**fields) for fields in response["findings"]]
    if len(probed_requirements) < len(requirements):
        findings.append(check_clock(host, response["now"], started_at, time.time()))
    return findings


def check_clock(host: str, host_time: float, started_at: float, ended_at: float) -> Finding:
    """Compare a host's clock with this machine's, which read `started_at` before the host's and `ended_at` after it.

    All times are in seconds since the epoch.
    """
    where = f"clock of {host}"
    if started_at - _MAX_CLOCK_OFFSET_S < host_time < ended_at + _MAX_CLOCK_OFFSET_S:
        return passed_check(where, "is right to a few seconds")
    is_behind = host_time < started_at
    offset_s = started_at - host_time if is_behind else host_time - ended_at
    direction = "behind" if is_behind else "ahead"
    detail = f"is {offset_s:.0f} s {direction}: times and deadlines will be wrong"
    return warning_check(where, detail, "synchronize both by NTP")
