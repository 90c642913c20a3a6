"""Checks a plan's requirements on its hosts."""

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from torchyard.diagnosis.host_facts import check_requirement
from torchyard.machines import processes
from torchyard.machines.staging import script_command
from torchyard.model.errors import HostError, UnreachedError
from torchyard.model.plan import THIS_MACHINE, Site
from torchyard.model.requirements import Check, HostRequirement, Package


def check_hosts(requires: Iterable[HostRequirement], sites: Sequence[Site] = ()) -> tuple[Check, ...]:
    """One check per requirement; each host (and each interpreter) is asked once, all at the same time."""
    supervisor_pythons = {site.host: site.python for site in sites}

    def get_target(requirement: HostRequirement) -> tuple[str, str]:
        """The host to ask, and the interpreter to ask with."""
        return requirement.host, requirement.python if isinstance(requirement, Package) else supervisor_pythons.get(
            requirement.host, sys.executable
        )

    targets = [
        (target, tuple(requirements))
        for target, requirements in groupby(sorted(requires, key=get_target), key=get_target)
    ]
    with ThreadPoolExecutor(max(len(targets), 1)) as pool:
        checks = [
            check
            for host_checks in pool.map(lambda target: _check_host(target[0], target[1]), targets)
            for check in host_checks
        ]
    return tuple(dict.fromkeys(checks))  # a host that is down is reported once


def _check_host(target: tuple[str, str], requirements: tuple[HostRequirement, ...]) -> list[Check]:
    """The checks of one host and interpreter."""
    host, python = target
    command = script_command(host, python, "facts.py").model_copy(
        update={"input": {"needs": [requirement.model_dump() for requirement in requirements]}}
    )
    try:
        probe_results = processes.run_command(host, command, retry_timeout_s=0)
    except UnreachedError as error:
        return [Check(name=host, verdict="failed", detail=f"{error.action}: {error.message}")]
    except HostError as error:
        others = "options.python" if host in THIS_MACHINE else "options.python, or options.keeper_python"
        remedy = f"choose another interpreter with {others}" if python != sys.executable else ""
        detail = f"{error.action}: {error.message}"
        return [Check(name=f"{python} on {host}", verdict="failed", detail=detail, remedy=remedy)]
    return [
        check_requirement(requirement, probe_result)
        for requirement, probe_result in zip(requirements, probe_results, strict=True)
    ]
