"""Checks a plan's requirements on its hosts."""

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from torchyard.diagnosis.host_facts import check_requirement
from torchyard.machines import processes
from torchyard.machines.staging import script_command
from torchyard.model.errors import HostError, UnreachedError
from torchyard.model.finding import Finding
from torchyard.model.plan import THIS_MACHINE, Site
from torchyard.model.requirements import HostRequirement, Package


class _Target(NamedTuple):
    """A host, and the interpreter that answers for it."""

    host: str
    python: str


def check_hosts(requires: Iterable[HostRequirement], sites: Sequence[Site] = ()) -> tuple[Finding, ...]:
    """One check per requirement; each host (and each interpreter) is queried once, all at the same time."""
    supervisor_pythons = {site.host: site.python for site in sites}
    by_target: dict[_Target, list[HostRequirement]] = {}
    for requirement in requires:
        python = supervisor_pythons.get(requirement.host, sys.executable)
        if isinstance(requirement, Package):
            python = requirement.python
        by_target.setdefault(_Target(requirement.host, python), []).append(requirement)

    checks: dict[Finding, None] = {}  # a host that is down is reported once
    targets = sorted(by_target)
    with ThreadPoolExecutor(max(len(targets), 1)) as pool:
        for host_checks in pool.map(_check_host, targets, [by_target[target] for target in targets]):
            checks |= dict.fromkeys(host_checks)
    return tuple(checks)


def _check_host(target: _Target, requirements: Sequence[HostRequirement]) -> list[Finding]:
    """The checks of one host and interpreter; a single one if it cannot be queried."""
    host, python = target
    request = {"needs": [requirement.model_dump() for requirement in requirements]}
    command = replace(script_command(host, python, "facts.py"), input=request)
    try:
        probe_results = processes.run_command(host, command, retry_timeout_s=0)
    except UnreachedError as error:
        return [Finding(where=host, verdict="failed", what=f"{error.action}: {error.message}")]
    except HostError as error:
        remedy = ""
        if python != sys.executable:
            options = "options.python" if host in THIS_MACHINE else "options.python, or options.supervisor_python"
            remedy = f"choose another interpreter with {options}"
        detail = f"{error.action}: {error.message}"
        return [Finding(where=f"{python} on {host}", verdict="failed", what=detail, remedy=remedy)]
    return [
        check_requirement(requirement, probe_result)
        for requirement, probe_result in zip(requirements, probe_results, strict=True)
    ]
