"""A job of one node whose host runs a test's script, so that no supervisor is started."""

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Write, command_plan_of, load
from tests.doubles.job_events import take_rows
from tests.doubles.scripted_hosts import build_host_script
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Outcome, Row
from torchyard.steps.wait import wait

Make = Callable[..., CommandPlan]
OLD_LINE = "2026-01-01T00:00:00.000Z node-0 | %s\n"
JOINED_TEXT = "Rendezvous complete for workers."
_CODE = """
import select
sizes = {"log_size": LOG_SIZE} if LOG_SIZE else {}
state(started=1, **sizes)
for tenth in range(TENTHS):
    if os.path.exists("over"):
        break
    if tenth == LOG_AFTER:
        tail()
    if select.select([0], [], [], 0)[0] and os.read(0, 65536):  # a heartbeat
        send(ages={})
    time.sleep(0.1)
state("exited", exit=0, ended=1, **sizes)
end()
"""


def scripted_job(write: Write, folder: Path) -> Make:
    """Return a function that plans a job of one node.

    The job runs for `tenths` of a second. Its log is local, or copied after `log_after` tenths, and then of `log_size`
    bytes as its host reports it.
    """

    def make(
        tenths: int = 15, log_after: int | None = None, log_size: int | None = None, log: str = JOINED_TEXT
    ) -> CommandPlan:
        plan = command_plan_of(load(write()), folder / "run")
        process = plan.processes[0]
        path = Path(process.log)
        (folder / "there").write_text(OLD_LINE % log)
        if log_after is None:
            path.parent.mkdir(parents=True)
            path.write_text(OLD_LINE % log)
        settings = f"LOG_SIZE = {log_size}\nTENTHS = {tenths}\nLOG_AFTER = {log_after}"
        fields = {
            "script": build_host_script(folder, process.name, settings + _CODE),
            "copies_log": log_after is not None,
        }
        return plan.model_copy(update={"processes": (process.model_copy(update=fields),)})

    return make


def wait_briefly(
    plan: CommandPlan, age_s: float = 0.0, on_poll: Callable[[tuple[Row, ...]], None] | None = None
) -> Outcome:
    """Wait for a job with a start deadline and a silence deadline of one second each."""
    deadlines = Deadlines(start=1.0, silence=1.0)
    handle = Handle(plan=plan, deadlines=deadlines, created=not age_s, submitted_at=1.0, age_s=age_s)
    return wait(handle, take_rows(on_poll) if on_poll else None)
