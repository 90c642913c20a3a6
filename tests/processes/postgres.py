"""A PostgreSQL server for one test, with its own folder, port and password."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.server import find_free_port
from tests.tools.skips import find_postgres

PASSWORD = "a-password-of-a-test"
_USER = "postgres"  # PostgreSQL refuses to run as root


@contextmanager
def run_postgres() -> Iterator[str]:
    """An empty PostgreSQL server, stopped at the end; yields its address, for `create_database`."""
    programs = find_postgres()
    assert programs, "there is no PostgreSQL"
    folder = Path(tempfile.mkdtemp(prefix="torchyard-postgres-"))
    port = find_free_port()
    try:
        (folder / "password").write_text(PASSWORD)
        if not os.getuid():
            for path in (folder, folder / "password"):
                shutil.chown(path, _USER)
        initdb_args = ["--pgdata", f"{folder}/data", "--username", "torchyard", "--auth", "scram-sha-256"]
        _run(f"{programs}/initdb", *initdb_args, "--pwfile", f"{folder}/password", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        control = (f"{programs}/pg_ctl", "--pgdata", f"{folder}/data", "--wait")
        _run(*control, "--log", f"{folder}/log", "--options", options, "start")
        try:
            yield f"127.0.0.1:{port}"
        finally:
            _run(*control, "--mode", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def create_database(address: str, name: str) -> str:
    """Create a database; return its URL for Prefect."""
    host, _, port = address.partition(":")
    args = ["--host", host, "--port", port, "--username", "torchyard", "--maintenance-db", "postgres", name]
    subprocess.run([f"{find_postgres()}/createdb", *args], env=os.environ | {"PGPASSWORD": PASSWORD}, check=True)
    return f"postgresql+asyncpg://torchyard:{PASSWORD}@{address}/{name}"


def _run(*argv: str) -> None:
    """Run a program of PostgreSQL, never as root; its output appears only if it fails."""
    user = _USER if not os.getuid() else None
    with tempfile.TemporaryFile("w+") as output:  # a pipe would be kept open by the server that pg_ctl starts
        completed = subprocess.run(argv, user=user, cwd="/", stdout=output, stderr=output, check=False)
        output.seek(0)
        assert completed.returncode == 0, output.read()
