"""Renews the lease of a run's folder, from the run's start to the end of its teardown, however long a step takes."""

import contextlib
import contextvars
import threading
from collections.abc import Iterator

from torchyard.common.log import get_log
from torchyard.model.errors import FolderError
from torchyard.run.folder import RunFolder

_RENEW_INTERVAL_S = 2.0


@contextlib.contextmanager
def hold_folder_lease(folder: RunFolder, seconds: float) -> Iterator[None]:
    """Renew the lease on its own thread, so that no step and no call to Prefect delays it."""
    over = threading.Event()
    run = contextvars.copy_context().run  # the run's log belongs to a context
    threading.Thread(target=run, args=(_renew_folder_lease, folder, seconds, over), daemon=True, name="lease").start()
    try:
        yield
    finally:
        over.set()


def _renew_folder_lease(folder: RunFolder, seconds: float, over: threading.Event) -> None:
    """Renew until `over` is set. A folder that cannot be written is reported once, and ends no job."""
    said = ""
    while True:
        try:
            folder.renew(seconds)
            said = ""
        except FolderError as error:
            if str(error) != said:
                said = str(error)
                get_log().warning("the run's lease is not renewed: %s", said)
        if over.wait(_RENEW_INTERVAL_S):
            return


def read_renewal_time(folder: RunFolder) -> float:
    """When the lease was last renewed; 0 if it never was."""
    try:
        return (folder.path / "lease").stat().st_mtime
    except OSError:
        return 0.0
