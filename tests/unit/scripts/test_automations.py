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

LOOKS = UUID(RUN_ID)


def test_no_automation_schedules_a_run() -> None:
    """An automation that fires late may only set a silent run to Crashed, or have the state of all runs checked."""
    crashing, *checking = (
        automations._heartbeat_automation(),
        automations._crashed_automation(LOOKS),
        automations._pending_automation(LOOKS),
    )
    (crash,) = crashing.actions
    assert isinstance(crash, ChangeFlowRunState)
    assert crash.state == StateType.CRASHED
    assert [each.actions for each in checking] == [[RunDeployment(deployment_id=LOOKS)]] * 2


def test_lost_benchmarks_are_noticed_too() -> None:
    """Each automation watches the runs of both flows that come back."""
    automations_of_runs = (
        automations._heartbeat_automation(),
        automations._crashed_automation(LOOKS),
        automations._pending_automation(LOOKS),
    )
    for each in automations_of_runs:
        assert isinstance(each.trigger, EventTrigger)
        assert isinstance(each.trigger.match_related, list)
        assert each.trigger.match_related[0]["prefect.resource.name"] == ["train", "benchmark"]


@pytest.mark.parametrize("pool", ["torchyard", "team-b"])
def test_automations_belong_to_one_pool(pool: str) -> None:
    """Each installation's automations have its name, and watch the runs of its work pool alone."""
    os.environ["TORCHYARD_POOL"] = pool
    for each in (automations._heartbeat_automation(), automations._pending_automation(LOOKS)):
        assert each.name.startswith(f"{pool}: a run ")
        assert isinstance(each.trigger, EventTrigger)
        assert isinstance(each.trigger.match_related, list)
        assert each.trigger.match_related[1]["prefect.resource.role"] == ["work-pool"]
        assert each.trigger.match_related[1]["prefect.resource.name"] == [pool]


def test_four_missed_heartbeats_are_a_lost_run() -> None:
    """The automation waits for four heartbeats as prefect.toml sets them: one may be late on a busy machine."""
    beat = tomllib.loads((ROOT / "prefect.toml").read_text())["flows"]["heartbeat_frequency"]
    trigger = automations._heartbeat_automation().trigger
    assert isinstance(trigger, EventTrigger)
    assert trigger.within == timedelta(seconds=4 * beat)


def test_automation_is_recognized_after_the_server_has_stored_it() -> None:
    """A stored automation has ids of its own and counts as the same; one with another pause does not."""
    wanted = automations._crashed_automation(LOOKS)
    stored = AutomationCore.model_validate_json(wanted.model_dump_json())
    assert isinstance(stored.trigger, EventTrigger)
    stored.trigger = stored.trigger.model_copy(update={"id": uuid4()})
    assert automations._automation_facts(stored) == automations._automation_facts(wanted)
    stored.trigger.within = timedelta(seconds=16)
    assert automations._automation_facts(stored) != automations._automation_facts(wanted)


def test_automations_of_the_nightly_page_can_be_created() -> None:
    """Prefect accepts the automations that docs/nightly.md shows; they watch the tag of the nightly deployments."""
    page = (ROOT / "docs" / "nightly.md").read_text()
    (block,) = re.findall(r"^```yaml\n(automations:.*?)^```", page, re.MULTILINE | re.DOTALL)
    found = [AutomationCore.model_validate(each) for each in yaml.safe_load(block)["automations"]]
    assert len(found) == 2
    for each in found:
        assert isinstance(each.trigger, EventTrigger)
        assert not isinstance(each.trigger.match_related, list)
        assert each.trigger.match_related["prefect.resource.id"] == ["prefect.tag.nightly"]
