"""Resumes a run that another machine started: saves what that machine recorded into the run's folder here.

The archive has the run's past; its Lease in the cluster says who owns the run now, and how far its job is.
"""

from torchyard.archive.copier import RunArchive
from torchyard.backend import RemoteAttempt, backend_of
from torchyard.launchers import registry
from torchyard.model.errors import DetachedError
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.run.folder import AttemptPlan, RunFolder


def fetch_past(folder: RunFolder, profile: Profile, run_id: str, archive: RunArchive) -> None:
    """Bring the folder up to what the archive and the cluster know of the run. RunInUseError if it is owned elsewhere.

    DetachedError if the archive does not answer and no other record of the run exists: it may have ended, and is not
    started again.
    """
    has_answer = archive.fetch()
    adopt_run(folder, profile, run_id)
    if not has_answer and not folder.events():
        raise DetachedError(f"whether this run has been started before is not known ({archive.describe()})")


def adopt_run(folder: RunFolder, profile: Profile, run_id: str) -> None:
    """Continue where another machine stopped. RunInUseError if a living process there owns the run."""

    def plan_of(number: int) -> Plan:
        run = Run(id=run_id, attempt=number, folder=str(folder.path))
        return registry.load_launcher(profile.launcher).plan(profile, run)

    if remote_attempt := backend_of(plan_of(1)).take_over(plan_of, folder.attempts()):
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
        folder.note("start", entry="moved", run=run_id, first=budget, **remote_attempt.facts)
    if remote_attempt.ending:
        end, sentence = remote_attempt.ending
        folder.note("ending", end=end, sentence=sentence)
