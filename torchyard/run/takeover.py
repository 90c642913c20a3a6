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


def learn_past(folder: RunFolder, profile: Profile, run_id: str, archive: RunArchive) -> None:
    """Bring the folder up to what the archive and the cluster know of the run. RunInUseError if it is owned elsewhere.

    DetachedError if the archive does not answer and no other record of the run exists: it may have ended, and is not
    started again.
    """
    answered = archive.fetch()
    adopt_run(folder, profile, run_id)
    if not answered and not folder.events():
        raise DetachedError(f"whether this run has been started before is not known ({archive.describe()})")


def adopt_run(folder: RunFolder, profile: Profile, run_id: str) -> None:
    """Continue where another machine stopped. RunInUseError if a living process there owns the run."""

    def plan_of(number: int) -> Plan:
        run = Run(id=run_id, attempt=number, folder=str(folder.path))
        return registry.load_launcher(profile.launcher).plan(profile, run)

    if found := backend_of(plan_of(1)).take_over(plan_of, folder.attempts()):
        _import_attempt(folder, profile, run_id, found)


def _import_attempt(folder: RunFolder, profile: Profile, run_id: str, found: RemoteAttempt) -> None:
    """Record another machine's attempt as a process here would have recorded it."""
    if found.number not in folder.attempts():
        folder.save_intent(found.number, AttemptPlan(plan=found.plan, deadlines=profile.deadlines))
    if found.outcome and not folder.outcome(found.number):
        folder.save_outcome(found.number, found.outcome)
    if not folder.events():
        budget = max(found.number - profile.attempts + 1, 1)
        folder.note("start", entry="moved", run=run_id, first=budget, **found.facts)
    if found.ending:
        end, sentence = found.ending
        folder.note("ending", end=end, sentence=sentence)
