"""The automations that detect a lost run. Each is found by its name, and replaced only if it differs.

None of them starts a run: Prefect may fire them late, on a run that has ended since. The deployment `recover/crashed`
(torchyard/tasks/recovery.py) decides what to do, from the state of each run at that moment.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, RunDeployment
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from torchyard.common.pool import format_deployment_name, read_pool
from torchyard.run.resume import IMPORT_FAILURE_MESSAGES, SILENT_MESSAGE, WORKER_START_TIMEOUT_S

_RUN_MATCH = {"prefect.resource.id": "prefect.flow-run.*"}
_HEARTBEAT_EVENT = "prefect.flow-run.heartbeat"
# Four heartbeats of 30 s (prefect.toml): with fewer a busy machine makes living runs look dead.
_HEARTBEAT_TIMEOUT = timedelta(seconds=120)
_GUARD_TIMEOUT = timedelta(seconds=15)
RECOVERY_DEPLOYMENT = "recover/crashed"  # checks all runs that may be lost
_HEARTBEAT_TITLE = "a run without heartbeat is Crashed"
_CRASHED_TITLE = "a run that stays Crashed is checked"
_PENDING_TITLE = "a run that never started is checked"


def _build_run_match() -> list[dict[str, str | list[str]]]:
    """The resources of this installation's runs: another project on the server may have flows with these names."""
    return [
        {"prefect.resource.role": "flow", "prefect.resource.name": ["train", "benchmark"]},
        {"prefect.resource.role": "work-pool", "prefect.resource.name": read_pool()},
    ]


def format_automation_name(title: str) -> str:
    """The name of an automation in Prefect: each installation has its own automations."""
    return f"{read_pool()}: {title}"


def build_heartbeat_automation() -> AutomationCore:
    """Set a run whose heartbeats have stopped to Crashed. Prefect refuses that for a run that has ended."""
    return AutomationCore(
        name=format_automation_name(_HEARTBEAT_TITLE),
        trigger=EventTrigger(
            match=_RUN_MATCH,
            match_related=_build_run_match(),
            for_each={"prefect.resource.id"},
            after={_HEARTBEAT_EVENT},
            # Any event of the run counts: a run that ends, waits or is being cancelled sends no heartbeats.
            expect={"prefect.flow-run.*"},
            posture=Posture.Proactive,
            threshold=1,
            within=_HEARTBEAT_TIMEOUT,
        ),
        actions=[
            ChangeFlowRunState(state=StateType.CRASHED, message=f"{SILENT_MESSAGE} {_HEARTBEAT_TIMEOUT.seconds} s")
        ],
    )


def build_crashed_automation(recovery_id: UUID) -> AutomationCore:
    """Start a check of all lost runs when the state of a run is named Crashed and stays so.

    The run's watchdog is faster, if its machine is alive. The automation does not change the run itself, because it may
    fire 15 minutes late after a restart of the server.
    """
    return AutomationCore(
        name=format_automation_name(_CRASHED_TITLE),
        trigger=EventTrigger(
            match=_RUN_MATCH | {"prefect.state-message": f"!{IMPORT_FAILURE_MESSAGES[0]}*"},
            match_related=_build_run_match(),
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.Crashed"},
            expect={"prefect.flow-run.*"},
            posture=Posture.Proactive,
            threshold=1,
            within=_GUARD_TIMEOUT,
        ),
        actions=[RunDeployment(deployment_id=recovery_id)],
    )


def build_pending_automation(recovery_id: UUID) -> AutomationCore:
    """Start a check of all lost runs when a worker took a run and died before it started the run."""
    started_states = ("Running", "Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Scheduled")
    return AutomationCore(
        name=format_automation_name(_PENDING_TITLE),
        trigger=EventTrigger(
            match=_RUN_MATCH,
            match_related=_build_run_match(),
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.Pending", "prefect.flow-run.Submitting"},
            expect={f"prefect.flow-run.{name}" for name in started_states},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=WORKER_START_TIMEOUT_S),
        ),
        actions=[RunDeployment(deployment_id=recovery_id)],
    )


def get_definition(automation: AutomationCore) -> dict[str, Any]:
    """What two equal automations have in common; a stored trigger also has its own id."""
    return automation.model_dump(include={"trigger", "actions"}, exclude={"trigger": {"id"}})


def create_automations() -> None:
    """Create each automation once, and delete those that differ.

    A correct automation is kept: a new one would not watch the runs whose events came before it.
    """
    with get_client(sync_client=True) as client:
        recovery_id = client.read_deployment_by_name(format_deployment_name(RECOVERY_DEPLOYMENT, read_pool())).id
        for automation in (
            build_heartbeat_automation(),
            build_crashed_automation(recovery_id),
            build_pending_automation(recovery_id),
        ):
            existing = client.read_automations_by_name(automation.name)
            definition = get_definition(automation)
            matching = [candidate for candidate in existing if get_definition(candidate) == definition]
            kept_automations = matching[:1]
            for candidate in existing:
                if candidate not in kept_automations:
                    client.delete_automation(candidate.id)
            if not kept_automations:
                client.create_automation(automation)


def delete_automations() -> list[str]:
    """Delete the automations of this installation; return their names, without those that did not exist."""
    deleted_names = []
    with get_client(sync_client=True) as client:
        for title in (_HEARTBEAT_TITLE, _CRASHED_TITLE, _PENDING_TITLE):
            name = format_automation_name(title)
            for automation in client.read_automations_by_name(name):
                client.delete_automation(automation.id)
                deleted_names.append(name)
    return deleted_names


if __name__ == "__main__":
    create_automations()
