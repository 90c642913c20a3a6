"""Plans a run and checks it, before anything is started. A dry run ends there."""

from collections.abc import Callable

from torchyard.backends import job_of
from torchyard.common import secrets
from torchyard.common.log import get_log
from torchyard.launchers import registry
from torchyard.model.errors import PreflightError, list_findings
from torchyard.model.event import ChecksMade, PlanMade, RunStarted
from torchyard.model.finding import Finding, describe_checks
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.run.control import RunControl
from torchyard.run.folder import RunFolder
from torchyard.run.next_attempt import find_resume_point
from torchyard.run.services import Sink, Sinks
from torchyard.steps.preflight import report_warnings
from torchyard.steps.step_functions import StepFunctions

_MAX_PORT_TRIES = 8  # a machine on which so many ports in a row are held has another problem


def make_plan(profile: Profile, run: Run, sinks: Sinks) -> Plan:
    """The plan of an attempt, in the cluster and namespace that the kubeconfig names."""
    plan = job_of(registry.make_plan(profile, run)).locate()
    secrets.remember_secrets(plan)
    sinks.emit(PlanMade(profile, plan))
    return plan


def check_plan(plan: Plan, steps: StepFunctions, sinks: Sinks, *, is_first_attempt: bool = True) -> tuple[Finding, ...]:
    """Run preflight, with the findings of the sinks. PreflightError if a check failed."""
    sink_checks = sinks.check(is_first_attempt=is_first_attempt)
    report_warnings(sink_checks)
    try:
        checks = (*steps.preflight(plan), *sink_checks)
    except PreflightError as error:
        checks = (*error.checks, *sink_checks)
    sinks.emit(ChecksMade(checks))
    if any(check.verdict == "failed" for check in checks):
        raise PreflightError(checks)
    return checks


def choose_port(run: Run, check: Callable[[Run], Plan]) -> Plan:
    """The plan that `check` returns for the run, with another port as long as another process holds the run's.

    Raises the PreflightError of `check` if anything else prevents the run, and after `_MAX_PORT_TRIES` ports.
    """
    while True:
        try:
            return check(run)
        except PreflightError as error:
            failed_checks = list_findings(error)
            is_last = run.port_try + 1 >= _MAX_PORT_TRIES
            if is_last or not all(finding.takes_other_port for finding in failed_checks):
                raise
            for finding in failed_checks:
                get_log().info("%s %s: the run takes another port", finding.where, finding.what)
            run = run.model_copy(update={"port_try": run.port_try + 1})


def preview_run(
    profile: Profile, run_id: str, control: RunControl, run_sinks: tuple[Sink, ...], steps: StepFunctions
) -> str:
    """Show the plan of a run, and run its preflight; return a sentence. Nothing is started and no folder created.

    PreflightError if a check failed, ProfileError if `resume` names a run that cannot be continued.
    """
    sinks = Sinks(run_sinks)
    with control:
        sinks.emit(RunStarted())
        checks: tuple[Finding, ...] = ()

        def check_run(run: Run) -> Plan:
            nonlocal checks
            plan = make_plan(profile, run, sinks)
            checks = check_plan(plan, steps, sinks)
            return plan

        folder = RunFolder.of(profile, run_id)
        run = Run(id=run_id, attempt=1, folder=str(folder.path), resume=find_resume_point(folder, profile))
        plan = choose_port(run, check_run)
        for check in checks:
            get_log().info("%s: %s", check.where, check.what)
    return f"dry run: {plan.job}, {len(plan.nodes)} nodes, {describe_checks(checks)}; nothing was started"
