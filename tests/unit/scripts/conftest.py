"""A folder of its own for this folder's server and worker."""

from pathlib import Path

import pytest

from scripts import processes, server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `.prefect` folder of the test's own."""
    made = tmp_path / ".prefect"
    for module, name, path in (
        (processes, "PREFECT_HOME", made),
        (server, "PREFECT_HOME", made),
        (server, "_PASSWORD_FILE", made / "password"),
        (server, "ENV_FILE", made / "env"),
        (server, "_DATABASE_FILE", made / "database"),
    ):
        monkeypatch.setattr(module, name, path)
    server.create_prefect_home()
    return made
