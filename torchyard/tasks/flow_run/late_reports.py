"""Pages of a run's end that Prefect did not take in time: they wait in the run's folder for the next sweep."""

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from pydantic import TypeAdapter

from torchyard.common.log import get_log
from torchyard.run.late_items import LateItems

from .states import is_transient_error, open_bounded_client

LATE_PAGES = LateItems("late-pages.json", TypeAdapter(list[ArtifactCreate]), "pages in Prefect")


def publish_late_pages() -> None:
    """Publish what the runs of this machine have kept. What Prefect still does not take stays for the next call.

    Nothing is raised: a page that Prefect refuses is dropped with a warning, as is a file that cannot be read. The
    first page without a response ends the call, so that a server that hangs costs one timeout and not one a page.
    """
    folders = LATE_PAGES.list_folders()
    if not folders:
        return
    try:
        with open_bounded_client() as client:
            for folder in folders:
                pages = LATE_PAGES.read(folder)
                if pages is None:
                    continue
                while pages and _publish_page(client, pages[0]):
                    pages = pages[1:]
                LATE_PAGES.keep(folder, pages)
                if pages:
                    return
                get_log().info("%s: Prefect has its report now", folder.name)
    except Exception as error:
        get_log().debug("cannot publish pages of ended runs in Prefect: %s", error)


def _publish_page(client: SyncPrefectClient, page: ArtifactCreate) -> bool:
    """Publish a page that Prefect does not have yet; False if it must be tried again."""
    try:
        if not _is_published(client, page):
            client.create_artifact(page)
    except Exception as error:
        if is_transient_error(error):
            return False
        get_log().warning("Prefect refuses the page %s of flow run %s: %s", page.key, page.flow_run_id, error)
    return True


def _is_published(client: SyncPrefectClient, page: ArtifactCreate) -> bool:
    """Whether Prefect has taken this page before: an earlier request arrived, and only its response was lost."""
    assert page.flow_run_id
    of_flow_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[page.flow_run_id]))
    artifacts = client.read_artifacts(artifact_filter=of_flow_run)
    return any((item.key, item.type, item.data) == (page.key, page.type, page.data) for item in artifacts)
