"""`torchyard archive init`: creates the archive that TORCHYARD_ARCHIVE names."""

from torchyard.archive.store import ARCHIVE_VARIABLE, open_store
from torchyard.cli.documents import ArchiveDocument, print_document
from torchyard.cli.exit_codes import ExitCode
from torchyard.model.errors import SettingError


def create_archive(*, as_json: bool) -> int:
    """Write the archive's marker. SettingError if no archive is named; ArchiveError if it cannot be written."""
    store = open_store()
    if store is None:
        raise SettingError(ARCHIVE_VARIABLE, "", "set it to the URL of the archive, such as s3://BUCKET/PREFIX")
    created = store.initialize()
    if as_json:
        print_document(ArchiveDocument(url=store.url, created=created))
    elif created:
        print(f"created the archive {store.url}")
    else:
        print(f"{store.url} is an archive already")
    return ExitCode.SUCCESS
