"""Checks that everything the plan needs is present, and reports all findings at once."""

from collections.abc import Iterable

from torchyard.backends import job_of
from torchyard.common.log import get_log
from torchyard.common.secrets import check_exposed_secrets
from torchyard.model.errors import PreflightError
from torchyard.model.finding import Finding
from torchyard.model.plan import Plan
from torchyard.steps.descriptors import check_file_limit, read_file_limit


def preflight(plan: Plan) -> tuple[Finding, ...]:
    """Run every check of the plan, and return the results. PreflightError, with all results, if a check failed."""
    job_of(plan).reach()
    checks = run_checks(plan)
    report_warnings(checks)
    if any(check.verdict == "failed" for check in checks):
        raise PreflightError(checks)
    return checks


def report_warnings(checks: Iterable[Finding]) -> None:
    """Log each warning."""
    for check in checks:
        if check.verdict == "warning":
            get_log().warning("%s", check)


def run_checks(plan: Plan) -> tuple[Finding, ...]:
    """Run every check of the plan: on its hosts or in its cluster, and in this process."""
    return (*check_file_limit(plan, read_file_limit()), *job_of(plan).check(), *check_exposed_secrets(plan))
