"""A run that comes back on another machine: what is known of it there goes into the folder here."""

from torchyard.backend import RemoteAttempt, backend_of
from torchyard.launchers import registry
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.run.folder import AttemptPlan, RunFolder


def adopt_run(folder: RunFolder, profile: Profile, run_id: str) -> None:
    """Go on where another machine was. RunInUseError where a living process carries the run there."""

    def plan_of(number: int) -> Plan:
        run = Run(id=run_id, attempt=number, folder=str(folder.path))
        return registry.load_launcher(profile.launcher).plan(profile, run)

    if found := backend_of(plan_of(1)).take_over(plan_of, folder.attempts()):
        _import_attempt(folder, profile, run_id, found)


def _import_attempt(folder: RunFolder, profile: Profile, run_id: str, found: RemoteAttempt) -> None:
    """Write down what is known of an attempt, as the processes here would have done."""
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
