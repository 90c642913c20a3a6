"""The artifacts that show a run while it is active."""

from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate

from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import STATE, FakePrefect
from tests.support.waiting import wait_until
from torchyard.tasks.flow_run.pages import RunPages
from torchyard.tasks.flow_run.requests import PrefectRequests
from torchyard.tasks.flow_run.states import open_bounded_client


def test_page_is_one_artifact_however_often_it_is_shown(fake_prefect: FakePrefect) -> None:
    """The first call creates the artifact NAME-PROFILE, and later calls update it."""
    pages = RunPages(UUID(RUN_ID), "digits-local")
    with open_bounded_client() as client:
        for text in ("one", "two", "three"):
            pages.publish_page(client, "plan", ArtifactCreate(type="markdown", data=text))
    assert [(artifact["key"], artifact["data"]) for artifact in fake_prefect.artifacts] == [
        ("plan-digits-local", "one")
    ]
    assert fake_prefect.artifact_updates == ["two", "three"]


def test_progress_is_a_bar_and_the_name_of_the_task_that_waits(fake_prefect: FakePrefect) -> None:
    """The bar and the waiting task's name show the progress; without a task there is only the bar."""
    pages = RunPages(UUID(RUN_ID), "digits-local")
    with open_bounded_client() as client:
        pages.set_waiting_task(None, "epoch 1 of 4")
        pages.publish_progress(client, "epoch 1 of 4", 25.0)
        assert fake_prefect.updates == []
        pages.set_waiting_task(RUN_ID, "epoch 2 of 4")
        pages.publish_progress(client, "epoch 2 of 4", 50.0)
    assert fake_prefect.updates == [{"name": "wait: epoch 2 of 4"}]
    assert fake_prefect.artifact_updates == [50.0]


def test_ended_task_gets_its_name_after_its_end_is_recorded(fake_prefect: FakePrefect) -> None:
    """A name that came before Prefect has recorded the end would be reset: the request is repeated until then."""
    set_task_state(fake_prefect, "RUNNING")
    pages = RunPages(UUID(RUN_ID), "digits-local")
    pages.set_waiting_task(RUN_ID, "epoch 4 of 4")
    requests = PrefectRequests(lambda client: None)
    requests.start()
    renamed = requests.send("wait", pages.rename_ended_task)
    count = fake_prefect.request_count
    wait_until(lambda: fake_prefect.request_count > count + 1)
    assert not renamed.done()
    assert fake_prefect.updates == []
    set_task_state(fake_prefect, "COMPLETED")
    renamed.result(60)
    requests.close(10)
    assert fake_prefect.updates == [{"name": "wait: epoch 4 of 4"}]


def set_task_state(fake_prefect: FakePrefect, state: str) -> None:
    """The state of the task run that the fake has recorded."""
    body = {"id": RUN_ID, "task_key": "wait", "dynamic_key": "0", "state": STATE | {"type": state}}
    fake_prefect.responses[f"/task_runs/{RUN_ID}"] = body
