"""Is everything there that the plan needs? One report of all findings."""

from torchyard.backend import backend_of
from torchyard.common.log import log
from torchyard.common.secrets import check_exposed
from torchyard.model.errors import PreflightError
from torchyard.model.plan import Plan
from torchyard.model.requirements import Check
from torchyard.steps.descriptors import allowed, check_limit


def preflight(plan: Plan) -> tuple[Check, ...]:
    """Every check of the plan. PreflightError carries all of them where one failed."""
    backend_of(plan).reach()
    checks = findings(plan)
    for found in checks:
        if found.verdict == "warning":
            log().warning("%s", "; ".join(filter(None, (f"{found.need}: {found.detail}", found.remedy))))
    if any(found.verdict == "failed" for found in checks):
        raise PreflightError(checks)
    return checks


def findings(plan: Plan) -> tuple[Check, ...]:
    """Every check of the plan, asked of its hosts or of its cluster, and of this process."""
    return (*check_limit(plan, allowed()), *backend_of(plan).check(), *check_exposed(plan))
