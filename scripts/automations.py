"""The two automations that bring a lost run back; created or updated by name."""

from datetime import timedelta

from prefect import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
OF_TRAIN = {"prefect.resource.role": "flow", "prefect.resource.name": "train"}
BEAT = "prefect.flow-run.heartbeat"
# The names of states that end a run, ours too (tasks/sweep.py): a run that has ended need not beat.
ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "TimedOut", "Stopped", "GaveUp", "Swept")
# Four heartbeats of 30 s (prefect.toml): with fewer a busy machine makes living runs look dead.
SILENCE = timedelta(seconds=120)
# A flow process that ends with 1 could not import its flow: it would never come to its journal, and come back for ever.
NOT_OUR_FAULT = {"prefect.state-message": "!Process exited with status code: 1.*"}


def missing_heartbeat() -> AutomationCore:
    """A run that has stopped beating is Crashed."""
    return AutomationCore(
        name="torchyard: a run without heartbeat is Crashed",
        trigger=EventTrigger(
            match=RUNS,
            match_related=OF_TRAIN,
            for_each={"prefect.resource.id"},
            after={BEAT},
            expect={BEAT, *(f"prefect.flow-run.{name}" for name in ENDS)},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENCE,
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=f"no heartbeat for {SILENCE.seconds} s")],
    )


def comeback() -> AutomationCore:
    """A run that is Crashed by that very name is scheduled again; it attaches to its job (tasks/comeback.py)."""
    return AutomationCore(
        name="torchyard: a Crashed run comes back",
        trigger=EventTrigger(
            match=RUNS | NOT_OUR_FAULT,
            match_related=OF_TRAIN,
            for_each={"prefect.resource.id"},
            expect={"prefect.flow-run.Crashed"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[ChangeFlowRunState(state=StateType.SCHEDULED, message="its process was lost: it comes back")],
    )


def automate() -> None:
    """Both automations, once each, as they are here."""
    with get_client(sync_client=True) as client:
        for wanted in (missing_heartbeat(), comeback()):
            for found in client.read_automations_by_name(wanted.name):
                client.delete_automation(found.id)
            client.create_automation(wanted)


if __name__ == "__main__":
    automate()
