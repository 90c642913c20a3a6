"""The automations, as they are before they are sent; a real server gets them in tests/local."""

import os
import re
import tomllib
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import yaml
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, RunDeployment
from prefect.events.schemas.automations import AutomationCore, EventTrigger

from scripts import automations
from tests.conftest import RUN_ID
from torchyard.common.project_root import ROOT

RECOVERY_ID = UUID(RUN_ID)


def test_no_automation_schedules_a_run() -> None:
    """An automation that fires late may only set a silent run to Crashed, or have the state of all runs checked."""
    (crash,) = automations.build_heartbeat_automation().actions
    assert isinstance(crash, ChangeFlowRunState)
    assert crash.state == StateType.CRASHED
    for automation in (
        automations.build_crashed_automation(RECOVERY_ID),
        automations.build_pending_automation(RECOVERY_ID),
    ):
        assert automation.actions == [RunDeployment(deployment_id=RECOVERY_ID)]


def test_lost_benchmarks_are_noticed_too() -> None:
    """Each automation watches the runs of both flows that can be resumed."""
    automations_of_runs = (
        automations.build_heartbeat_automation(),
        automations.build_crashed_automation(RECOVERY_ID),
        automations.build_pending_automation(RECOVERY_ID),
    )
    for automation in automations_of_runs:
        assert isinstance(automation.trigger, EventTrigger)
        assert isinstance(automation.trigger.match_related, list)
        assert automation.trigger.match_related[0]["prefect.resource.name"] == ["train", "benchmark"]


@pytest.mark.parametrize("pool", ["torchyard", "team-b"])
def test_automations_belong_to_one_pool(pool: str) -> None:
    """Each installation's automations have its name, and watch only the runs of its work pool."""
    os.environ["TORCHYARD_POOL"] = pool
    for automation in (automations.build_heartbeat_automation(), automations.build_pending_automation(RECOVERY_ID)):
        assert automation.name.startswith(f"{pool}: a run ")
        assert isinstance(automation.trigger, EventTrigger)
        assert isinstance(automation.trigger.match_related, list)
        assert automation.trigger.match_related[1]["prefect.resource.role"] == ["work-pool"]
        assert automation.trigger.match_related[1]["prefect.resource.name"] == [pool]


def test_four_missed_heartbeats_are_a_lost_run() -> None:
    """The automation waits for four heartbeats as prefect.toml sets them: one may be late on a busy machine."""
    heartbeat_s = tomllib.loads((ROOT / "prefect.toml").read_text())["flows"]["heartbeat_frequency"]
    trigger = automations.build_heartbeat_automation().trigger
    assert isinstance(trigger, EventTrigger)
    assert trigger.within == timedelta(seconds=4 * heartbeat_s)


def test_automation_is_recognized_after_the_server_has_stored_it() -> None:
    """A stored automation with its own ids counts as equal; one with another pause does not."""
    automation = automations.build_crashed_automation(RECOVERY_ID)
    stored = AutomationCore.model_validate_json(automation.model_dump_json())
    assert isinstance(stored.trigger, EventTrigger)
    stored.trigger = stored.trigger.model_copy(update={"id": uuid4()})
    assert automations.get_definition(stored) == automations.get_definition(automation)
    stored.trigger.within = timedelta(seconds=16)
    assert automations.get_definition(stored) != automations.get_definition(automation)


def test_automations_of_the_nightly_page_can_be_created() -> None:
    """Prefect accepts the automations that docs/nightly.md shows; they watch the tag of the nightly deployments."""
    page = (ROOT / "docs" / "nightly.md").read_text()
    (yaml_text,) = re.findall(r"^```yaml\n(automations:.*?)^```", page, re.MULTILINE | re.DOTALL)
    created = [AutomationCore.model_validate(fields) for fields in yaml.safe_load(yaml_text)["automations"]]
    assert len(created) == 2
    for automation in created:
        assert isinstance(automation.trigger, EventTrigger)
        assert not isinstance(automation.trigger.match_related, list)
        assert automation.trigger.match_related["prefect.resource.id"] == ["prefect.tag.nightly"]
