"""The automations that bring a lost run back; by name, and made anew only where they differ."""

from datetime import timedelta
from typing import Any

from prefect import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
# Our flow in our pool: another project on the same server may have a flow of this name.
OURS: list[dict[str, str | list[str]]] = [
    {"prefect.resource.role": "flow", "prefect.resource.name": "train"},
    {"prefect.resource.role": "work-pool", "prefect.resource.name": "torchyard"},
]
BEAT = "prefect.flow-run.heartbeat"
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
            match_related=OURS,
            for_each={"prefect.resource.id"},
            after={BEAT},
            # Any event of the run: one that ends, waits or is being cancelled need not beat.
            expect={"prefect.flow-run.*"},
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
            match_related=OURS,
            for_each={"prefect.resource.id"},
            expect={"prefect.flow-run.Crashed"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[ChangeFlowRunState(state=StateType.SCHEDULED, message="its process was lost: it comes back")],
    )


def never_began() -> AutomationCore:
    """A run that was taken by a worker and never began, because the worker died, is scheduled again."""
    begun = ("Running", "Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Scheduled")
    return AutomationCore(
        name="torchyard: a run that never began is scheduled again",
        trigger=EventTrigger(
            match=RUNS,
            match_related=OURS,
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.Pending", "prefect.flow-run.Submitting"},
            expect={f"prefect.flow-run.{name}" for name in begun},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENCE,
        ),
        actions=[ChangeFlowRunState(state=StateType.SCHEDULED, message="its worker died before it began")],
    )


def facts(automation: AutomationCore) -> dict[str, Any]:
    return automation.model_dump(include={"trigger", "actions"}, exclude={"trigger": {"id"}})


def automate() -> None:
    """Each once, as it is here. One that is right stays: a new one knows nothing of the runs it should watch."""
    with get_client(sync_client=True) as client:
        for wanted in (missing_heartbeat(), comeback(), never_began()):
            found = client.read_automations_by_name(wanted.name)
            kept = [each for each in found if facts(each) == facts(wanted)][:1]
            for each in found:
                if each not in kept:
                    client.delete_automation(each.id)
            if not kept:
                client.create_automation(wanted)


if __name__ == "__main__":
    automate()
