"""What could not be delivered when a run ended: it waits in the run's folder for the next sweep."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from torchyard.common.log import get_log
from torchyard.common.private_files import write_private_text
from torchyard.model.errors import FolderError
from torchyard.run.folder import list_run_folders

T = TypeVar("T")


class LateItems(Generic[T]):
    """Items of one kind, in one file of each run's folder.

    An error of the file is a warning and is not raised: the run's report lists what was not delivered too.
    """

    def __init__(self, name: str, adapter: TypeAdapter[list[T]], title: str) -> None:
        """`name`: of the file. `title`: what the items are, as the subject of a warning, such as `messages`."""
        self._name = name
        self._adapter = adapter
        self._title = title

    def keep(self, folder: Path, items: Sequence[T]) -> None:
        """Keep undelivered items, in place of those that an earlier call has kept; none if all were delivered."""
        try:
            if items:
                write_private_text(folder / self._name, self._adapter.dump_json(list(items)).decode())
            else:
                (folder / self._name).unlink(missing_ok=True)
        except OSError as error:
            get_log().warning("%s of %s cannot be kept for the next sweep: %s", self._title, folder.name, error)

    def list_folders(self) -> list[Path]:
        """The folders of this machine's runs that have kept items. Those that cannot be read now are left out."""
        folders: list[Path] = []
        try:
            for folder in list_run_folders():
                with contextlib.suppress(OSError):
                    if (folder.path / self._name).exists():
                        folders.append(folder.path)
        except FolderError as error:
            get_log().warning("%s of ended runs cannot be sent now: %s", self._title, error)
        return folders

    def read(self, folder: Path) -> list[T] | None:
        """The items that a run has kept; none if the file is damaged, None if it cannot be read now: both are reported.

        A file that cannot be read keeps its items for the next call.
        """
        path = folder / self._name
        try:
            return self._adapter.validate_json(path.read_bytes())
        except FileNotFoundError:  # another sweep has delivered them
            return []
        except OSError as error:
            get_log().warning("%s cannot be read now: %s", path, error)
            return None
        except ValidationError as error:
            get_log().warning("%s cannot be read, and its %s are lost: %s", path, self._title, error)
            return []
