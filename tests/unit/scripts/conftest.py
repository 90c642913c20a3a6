"""A temporary folder for the server and the worker."""

from pathlib import Path

import pytest

from scripts import processes, server, service


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary `.prefect` folder, which is not that of a server and worker that `make train` has started here."""
    folder = tmp_path / ".prefect"
    for module, name, path in (
        (processes, "YARD_SCRIPT", tmp_path / "yard.py"),
        (service, "YARD_SCRIPT", tmp_path / "yard.py"),
        (processes, "PREFECT_HOME", folder),
        (server, "PREFECT_HOME", folder),
        (server, "_PASSWORD_FILE", folder / "password"),
        (server, "ENV_FILE", folder / "env"),
        (server, "_DATABASE_FILE", folder / "database"),
    ):
        monkeypatch.setattr(module, name, path)
    server.create_prefect_home()
    return folder
