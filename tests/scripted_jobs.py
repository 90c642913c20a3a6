"""A job of one node whose commands are shell scripts, so that no supervisor is started."""

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Write, command_plan_of, load
from torchyard.model.plan import Command, CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Outcome
from torchyard.steps.wait import wait

Make = Callable[..., CommandPlan]
OLD_LINE = "2026-01-01T00:00:00.000Z node-0 | %s\n"
JOINED_TEXT = "Rendezvous complete for workers."
STATUS_SCRIPT = """echo '{"phase": "running", "started": 1%s}'
for _ in $(seq %d); do test -e over && break; sleep 0.1; done
echo '{"phase": "exited", "exit": 0, "ended": 1%s}'"""


def build_command(script: str, folder: Path) -> Command:
    return Command(argv=("sh", "-c", f"cd {folder}; {script}", "sh"))


def scripted_job(write: Write, folder: Path) -> Make:
    """Return a function that plans a job of one node.

    The job runs for `tenths` of a second. Its log is local, or copied by the script `follow`.
    """

    def make(tenths: int = 15, follow: str = "", size: str = "", log: str = JOINED_TEXT) -> CommandPlan:
        plan = command_plan_of(load(write()), folder / "run")
        path = Path(plan.processes[0].log)
        (folder / "there").write_text(OLD_LINE % log)
        if not follow:
            path.parent.mkdir(parents=True)
            path.write_text(OLD_LINE % log)
        commands = {
            "status": build_command(STATUS_SCRIPT % (size, tenths, size), folder),
            "follow": build_command(follow, folder) if follow else None,
            "cancel": build_command("""touch over; echo '{"left": []}'""", folder),
        }
        return plan.model_copy(update={"processes": (plan.processes[0].model_copy(update=commands),)})

    return make


def wait_briefly(plan: CommandPlan, age_s: float = 0.0, on_poll: Callable[[list[str]], None] | None = None) -> Outcome:
    """Wait for a job with a start deadline and a silence deadline of one second each."""
    deadlines = Deadlines(start=1.0, silence=1.0)
    return wait(Handle(plan=plan, deadlines=deadlines, created=not age_s, submitted_at=1.0, age_s=age_s), on_poll)
