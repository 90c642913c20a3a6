"""Resumes a run that another machine started: saves what that machine recorded into the run's folder here.

The archive has the run's past; its Lease in the cluster says who owns the run now, and how far its job is.
"""

from torchyard.backends import owner_of
from torchyard.interfaces import RemoteAttempt
from torchyard.launchers import registry
from torchyard.model.errors import DetachedError
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.run.folder import AttemptPlan, RunFolder
from torchyard.run.services import Archive


def fetch_past(folder: RunFolder, profile: Profile, run_id: str, archive: Archive) -> None:
    """Update the folder with what the archive and the cluster have recorded of the run.

    RunInUseError if another machine owns the run. DetachedError if the archive does not answer and no other record of
    the run exists: the run may have ended, and must not be started again.
    """
    was_fetched = archive.fetch()
    adopt_run(folder, profile, run_id)
    if not was_fetched and not folder.events():
        raise DetachedError(f"cannot find out whether this run has been started before ({archive.describe()})")


def adopt_run(folder: RunFolder, profile: Profile, run_id: str) -> None:
    """Record the attempt of another machine, if there is one. RunInUseError if a living process there owns the run."""

    def build_plan(number: int, port_try: int = 0) -> Plan:
        run = Run(id=run_id, attempt=number, port_try=port_try, folder=str(folder.path))
        return registry.make_plan(profile, run)

    remote_attempt = owner_of(build_plan(1)).take_over(build_plan, folder.attempts())
    if remote_attempt:
        _import_attempt(folder, profile, run_id, remote_attempt)


def _import_attempt(folder: RunFolder, profile: Profile, run_id: str, remote_attempt: RemoteAttempt) -> None:
    """Record another machine's attempt as a process here would have recorded it."""
    if remote_attempt.number not in folder.attempts():
        folder.save_attempt_plan(
            remote_attempt.number, AttemptPlan(plan=remote_attempt.plan, deadlines=profile.deadlines)
        )
    if remote_attempt.outcome and not folder.outcome(remote_attempt.number):
        folder.save_outcome(remote_attempt.number, remote_attempt.outcome)
    if not folder.events():
        budget = max(remote_attempt.number - profile.attempts + 1, 1)
        folder.record_event("start", entry="moved", run=run_id, first=budget, **remote_attempt.journal_fields)
    if remote_attempt.ending:
        end, sentence = remote_attempt.ending
        folder.record_event("ending", end=end, sentence=sentence)
