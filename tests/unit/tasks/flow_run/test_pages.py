"""The artifacts that show a run while it is active."""

from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate

from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect
from torchyard.tasks.flow_run.pages import RunPages
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
