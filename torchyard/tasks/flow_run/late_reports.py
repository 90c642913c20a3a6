"""Pages of a run's end that Prefect did not take in time: they wait in the run's folder for the next sweep."""

from collections.abc import Sequence
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from pydantic import TypeAdapter, ValidationError

from torchyard.common.log import get_log
from torchyard.common.private_files import write_private_text
from torchyard.run.folder import list_run_folders

from .states import is_transient_error, open_bounded_client

_FILE = "late-pages.json"
_PAGES = TypeAdapter(list[ArtifactCreate])


def keep_pages(folder: Path, pages: Sequence[ArtifactCreate]) -> None:
    """Keep the pages that Prefect has not taken, in place of those that an earlier call has kept; none if it took all.

    An error is logged: the report is also a file of the folder.
    """
    try:
        if pages:
            write_private_text(folder / _FILE, _PAGES.dump_json(list(pages)).decode())
        else:
            (folder / _FILE).unlink(missing_ok=True)
    except OSError as error:
        get_log().warning("the pages of %s cannot be kept for Prefect: %s", folder.name, error)


def publish_late_pages() -> None:
    """Publish what the runs of this machine have kept. What Prefect still does not take stays for the next call.

    Nothing is raised: a page that Prefect refuses is dropped with a warning, as is a file that cannot be read. The
    first page without a response ends the call, so that a server that hangs costs one timeout and not one a page.
    """
    kept_files = [path for folder in list_run_folders() if (path := folder.path / _FILE).exists()]
    if not kept_files:
        return
    try:
        with open_bounded_client() as client:
            for path in kept_files:
                late_pages = _read_pages(path)
                while late_pages and _publish_page(client, late_pages[0]):
                    late_pages = late_pages[1:]
                keep_pages(path.parent, late_pages)
                if late_pages:
                    return
                get_log().info("%s: Prefect has its report now", path.parent.name)
    except Exception as error:
        get_log().debug("cannot publish pages of ended runs in Prefect: %s", error)


def _read_pages(path: Path) -> list[ArtifactCreate]:
    """The kept pages; none if the file cannot be read, which is reported."""
    try:
        return _PAGES.validate_json(path.read_bytes())
    except FileNotFoundError:  # another sweep has published them
        return []
    except (OSError, ValidationError) as error:
        get_log().warning("%s cannot be read, and its pages are missing in Prefect: %s", path, error)
        return []


def _publish_page(client: SyncPrefectClient, page: ArtifactCreate) -> bool:
    """Publish a page; False if it must be tried again."""
    try:
        client.create_artifact(page)
    except Exception as error:
        if is_transient_error(error):
            return False
        get_log().warning("Prefect refuses the page %s of flow run %s: %s", page.key, page.flow_run_id, error)
    return True
