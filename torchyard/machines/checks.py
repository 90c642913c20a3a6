"""Checks a plan's requirements on its hosts."""

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from torchyard.diagnosis.host_facts import check_fact
from torchyard.machines import processes
from torchyard.machines.staging import script_command
from torchyard.model.errors import HostError, UnreachedError
from torchyard.model.plan import THIS_MACHINE, Site
from torchyard.model.requirements import Check, HostRequirement, Package


def check_hosts(requires: Iterable[HostRequirement], sites: Sequence[Site] = ()) -> tuple[Check, ...]:
    """One check per requirement; each host (and each interpreter) is asked once, all at the same time."""
    keepers = {site.host: site.python for site in sites}

    def where(need: HostRequirement) -> tuple[str, str]:
        """The host to ask, and the interpreter to ask with."""
        return need.host, need.python if isinstance(need, Package) else keepers.get(need.host, sys.executable)

    asked = [(at, tuple(needs)) for at, needs in groupby(sorted(requires, key=where), key=where)]
    with ThreadPoolExecutor(max(len(asked), 1)) as pool:
        found = [each for checks in pool.map(lambda each: _check_host(each[0], each[1]), asked) for each in checks]
    return tuple(dict.fromkeys(found))  # a host that is down is reported once


def _check_host(at: tuple[str, str], needs: tuple[HostRequirement, ...]) -> list[Check]:
    """The checks of one host and interpreter."""
    host, python = at
    questions = script_command(host, python, "facts.py").model_copy(
        update={"input": {"needs": [need.model_dump() for need in needs]}}
    )
    try:
        facts = processes.run_command(host, questions, patience=0)
    except UnreachedError as error:
        return [Check(name=host, verdict="failed", detail=f"{error.action}: {error.message}")]
    except HostError as error:
        others = "options.python" if host in THIS_MACHINE else "options.python, or options.keeper_python"
        remedy = f"choose another interpreter with {others}" if python != sys.executable else ""
        said = f"{error.action}: {error.message}"
        return [Check(name=f"{python} on {host}", verdict="failed", detail=said, remedy=remedy)]
    return [check_fact(need, fact) for need, fact in zip(needs, facts, strict=True)]
