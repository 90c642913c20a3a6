"""Holds the lease of a run's folder: renewed from its start until its teardown is done, whatever step takes long."""

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
    """Renew the lease on a thread of its own; no step and no call to Prefect holds that up."""
    over = threading.Event()
    run = contextvars.copy_context().run  # the run's log belongs to a context
    threading.Thread(target=run, args=(_renew_folder_lease, folder, seconds, over), daemon=True, name="lease").start()
    try:
        yield
    finally:
        over.set()


def _renew_folder_lease(folder: RunFolder, seconds: float, over: threading.Event) -> None:
    """Renew until it is over; a folder that cannot be written ends no job, and is reported once."""
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
    """When a process last said that it looked after the run; 0 where none did."""
    try:
        return (folder.path / "lease").stat().st_mtime
    except OSError:
        return 0.0
