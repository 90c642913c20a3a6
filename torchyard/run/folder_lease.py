"""Renews the lease of a run's folder, from the run's start to the end of its teardown, however long a step takes."""

import contextlib
import contextvars
import threading
from collections.abc import Iterator

from torchyard.common.log import get_log
from torchyard.model.errors import FolderError
from torchyard.run.folder import RunFolder

RENEW_INTERVAL_S = 2.0


@contextlib.contextmanager
def hold_folder_lease(folder: RunFolder, lease_s: float) -> Iterator[None]:
    """Renew the lease on its own thread, so that no step and no call to Prefect delays it.

    The thread is not waited for: one more renewal may follow the end of the block.
    """
    stop_event = threading.Event()
    run = contextvars.copy_context().run  # the run's log belongs to a context
    threading.Thread(
        target=run, args=(_renew_folder_lease, folder, lease_s, stop_event), daemon=True, name="lease"
    ).start()
    try:
        yield
    finally:
        stop_event.set()


def _renew_folder_lease(folder: RunFolder, lease_s: float, stop_event: threading.Event) -> None:
    """Renew until `stop_event` is set. A folder that cannot be written is reported once and ends no job."""
    reported_error = ""
    while True:
        try:
            folder.renew(lease_s)
            reported_error = ""
        except FolderError as error:
            if str(error) != reported_error:
                reported_error = str(error)
                get_log().warning("the run's lease is not renewed: %s", reported_error)
        if stop_event.wait(RENEW_INTERVAL_S):
            return


def read_renewal_time(folder: RunFolder) -> float:
    """When the lease was last renewed; 0 if it never was."""
    try:
        return (folder.path / "lease").stat().st_mtime
    except OSError:
        return 0.0
