"""`torchyard archive init`: creates the archive that TORCHYARD_ARCHIVE names."""

from torchyard.archive.store import ARCHIVE_VARIABLE, open_store
from torchyard.model.errors import SettingError


def create_archive() -> int:
    """Write the archive's marker. SettingError if no archive is named; ArchiveError if it cannot be written."""
    store = open_store()
    if store is None:
        raise SettingError(ARCHIVE_VARIABLE, "", "set it to the URL of the archive, such as s3://BUCKET/PREFIX")
    if store.initialize():
        print(f"created the archive {store.url}")
    else:
        print(f"{store.url} is an archive already")
    return 0
