"""The automations that notice a lost run; by name, and made anew only where they differ.

None of them starts a run: Prefect may fire them late, on a run that has ended since. What is to be done is decided by
`comeback/crashed` (tasks/recovery.py), from how each run is when it looks.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, RunDeployment
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from torchyard.run.resume import BEGINNING_S, NOT_LOST

RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
# Our flow in our pool: another project on the same server may have a flow of this name.
OURS: list[dict[str, str | list[str]]] = [
    {"prefect.resource.role": "flow", "prefect.resource.name": "train"},
    {"prefect.resource.role": "work-pool", "prefect.resource.name": "torchyard"},
]
BEAT = "prefect.flow-run.heartbeat"
# Four heartbeats of 30 s (prefect.toml): with fewer a busy machine makes living runs look dead.
SILENCE = timedelta(seconds=120)
GUARDS_TURN = timedelta(seconds=15)
LOOKS = "comeback/crashed"  # the deployment that looks at all lost runs
# Of the version before: they scheduled runs themselves.
RETIRED = ("torchyard: a Crashed run comes back", "torchyard: a run that never began is scheduled again")


def missing_heartbeat() -> AutomationCore:
    """A run that has stopped beating is Crashed; Prefect refuses that for one that has ended."""
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


def nobody_came_back(looks: UUID) -> AutomationCore:
    """A run that is Crashed by that very name, and stays so: all lost runs are looked at as they are by then.

    Its guard is quicker, where its machine lives. Nothing is done to the run itself here: after a restart of the server
    this may come a quarter of an hour late.
    """
    return AutomationCore(
        name="torchyard: a run that stays Crashed is looked at",
        trigger=EventTrigger(
            match=RUNS | {"prefect.state-message": f"!{NOT_LOST[0]}*"},
            match_related=OURS,
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.Crashed"},
            expect={"prefect.flow-run.*"},
            posture=Posture.Proactive,
            threshold=1,
            within=GUARDS_TURN,
        ),
        actions=[RunDeployment(deployment_id=looks)],
    )


def never_began(looks: UUID) -> AutomationCore:
    """A run that was taken by a worker and did not begin, because the worker died: the same look."""
    begun = ("Running", "Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Scheduled")
    return AutomationCore(
        name="torchyard: a run that never began is looked at",
        trigger=EventTrigger(
            match=RUNS,
            match_related=OURS,
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.Pending", "prefect.flow-run.Submitting"},
            expect={f"prefect.flow-run.{name}" for name in begun},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=BEGINNING_S),
        ),
        actions=[RunDeployment(deployment_id=looks)],
    )


def facts(automation: AutomationCore) -> dict[str, Any]:
    return automation.model_dump(include={"trigger", "actions"}, exclude={"trigger": {"id"}})


def automate() -> None:
    """Each once, as it is here. One that is right stays: a new one knows nothing of the runs it should watch."""
    with get_client(sync_client=True) as client:
        looks = client.read_deployment_by_name(LOOKS).id
        for wanted in (missing_heartbeat(), nobody_came_back(looks), never_began(looks)):
            found = client.read_automations_by_name(wanted.name)
            kept = [each for each in found if facts(each) == facts(wanted)][:1]
            for each in found:
                if each not in kept:
                    client.delete_automation(each.id)
            if not kept:
                client.create_automation(wanted)
        for each in [old for name in RETIRED for old in client.read_automations_by_name(name)]:
            client.delete_automation(each.id)


if __name__ == "__main__":
    automate()
