"""Is everything there that the plan needs? One report of all findings."""

from torchyard.backend import backend_of
from torchyard.common.log import get_log
from torchyard.common.secrets import check_exposed_secrets
from torchyard.model.errors import PreflightError
from torchyard.model.plan import Plan
from torchyard.model.requirements import Check
from torchyard.steps.descriptors import check_file_limit, read_file_limit


def preflight(plan: Plan) -> tuple[Check, ...]:
    """Every check of the plan. PreflightError carries all of them where one failed."""
    backend_of(plan).reach()
    checks = run_checks(plan)
    for found in checks:
        if found.verdict == "warning":
            get_log().warning("%s", "; ".join(filter(None, (f"{found.need}: {found.detail}", found.remedy))))
    if any(found.verdict == "failed" for found in checks):
        raise PreflightError(checks)
    return checks


def run_checks(plan: Plan) -> tuple[Check, ...]:
    """Every check of the plan, asked of its hosts or of its cluster, and of this process."""
    return (*check_file_limit(plan, read_file_limit()), *backend_of(plan).check(), *check_exposed_secrets(plan))
