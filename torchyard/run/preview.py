"""Plans a run and checks it, and shows each as a page, before anything is started. A dry run ends there."""

from torchyard.backends import job_of
from torchyard.common import secrets
from torchyard.common.log import get_log
from torchyard.launchers import registry
from torchyard.model.errors import PreflightError
from torchyard.model.finding import Finding
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.pages.plan import render_checks_page, render_plan_page
from torchyard.pages.report import describe_checks
from torchyard.run.folder import RunFolder
from torchyard.run.notifications import check_notifications
from torchyard.run.reporter import Reporter
from torchyard.steps.preflight import report_warnings
from torchyard.steps.step_functions import StepFunctions


def make_plan(profile: Profile, run: Run, reporter: Reporter) -> Plan:
    """The plan of an attempt, in the cluster and namespace that the kubeconfig names, with its page."""
    plan = job_of(registry.make_plan(profile, run)).locate()
    secrets.remember_secrets(plan)
    reporter.show_page("plan", lambda: render_plan_page(profile, plan))
    return plan


def check_plan(
    plan: Plan, steps: StepFunctions, reporter: Reporter, other_checks: tuple[Finding, ...] = ()
) -> tuple[Finding, ...]:
    """Run preflight and show its page, with the findings of other checks. PreflightError if a check failed."""
    report_warnings(other_checks)
    try:
        checks = (*steps.preflight(plan), *other_checks)
    except PreflightError as error:
        checks = (*error.checks, *other_checks)
    reporter.show_page("preflight", lambda: render_checks_page(checks))
    if any(check.verdict == "failed" for check in checks):
        raise PreflightError(checks)
    return checks


def preview_run(profile: Profile, run_id: str, reporter: Reporter, steps: StepFunctions) -> str:
    """Show the plan of a run, and run its preflight; return a sentence. Nothing is started and no folder created.

    PreflightError if a check failed.
    """
    with reporter:
        run = Run(id=run_id, attempt=1, folder=str(RunFolder.of(profile, run_id).path))
        plan = make_plan(profile, run, reporter)
        try:
            checks = check_plan(plan, steps, reporter, check_notifications(profile))
        finally:
            reporter.flush()
        for check in checks:
            get_log().info("%s: %s", check.where, check.what)
    return f"dry run: {plan.job}, {len(plan.nodes)} nodes, {describe_checks(checks)}; nothing was started"
