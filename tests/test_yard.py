"""What `make up` starts and `make down` ends: this folder's own, and nothing else."""

import os
import shlex
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow, get_client

from scripts import processes, server
from scripts.runs import tear_down_open_runs
from tests.yard import prefect_server, speaking_to
from torchyard.host import processes as host
from torchyard.run.folder import RunFolder

IDLE = "import time\ntime.sleep(60)\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `.prefect` of its own."""
    made = tmp_path / ".prefect"
    for module, name, path in (
        (processes, "PREFECT_HOME", made),
        (server, "PREFECT_HOME", made),
        (server, "_PASSWORD_FILE", made / "password"),
        (server, "ENV_FILE", made / "env"),
    ):
        monkeypatch.setattr(module, name, path)
    server.create_prefect_home()
    return made


def test_password_is_for_this_user_alone(home: Path) -> None:
    """Nobody else may read the folder, the password, or what a shell sources to use it."""
    server.use_own_server("http://127.0.0.1:4321/api")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (home, home / "password", home / "env")]
    assert modes == [0o700, 0o600, 0o600]


def test_shell_that_sources_env_reaches_the_server(home: Path) -> None:
    """`source .prefect/env` sets the address and the password, and is where the address is remembered."""
    server.use_own_server("http://127.0.0.1:4321/api")
    said = f"source {shlex.quote(str(home / 'env'))}; echo $PREFECT_API_URL $PREFECT_API_AUTH_STRING"
    done = subprocess.run(["bash", "-c", said], env={}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["http://127.0.0.1:4321/api", server._ensure_password()]
    assert server.read_last_address() == "http://127.0.0.1:4321/api"


@pytest.mark.parametrize("torn", ["", "x", "\0" * 44], ids=["empty", "half", "zeros"])
def test_torn_files_are_made_again(home: Path, torn: str) -> None:
    """A crash that left half a password or half an address costs both, and nothing else."""
    (home / "password").write_text(torn)
    (home / "env").write_text(torn)
    assert server.read_last_address() == ""
    assert len(server._ensure_password()) >= 32
    assert "\0" not in server._ensure_password()


def test_keys_of_another_server_stay_away_from_ours(home: Path) -> None:
    """The own server is asked directly, and neither a proxy nor the server sees the user's key of Prefect Cloud."""
    os.environ |= {"PREFECT_API_KEY": "pnu_secret", "NO_PROXY": "intranet"}
    server.use_own_server("http://127.0.0.1:4321/api")
    assert "PREFECT_API_KEY" not in os.environ
    assert os.environ["NO_PROXY"] == "intranet,127.0.0.1"


class Answer(BaseHTTPRequestHandler):
    """A server that says it is well."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[int]:
    """The port of such a server, which this process holds."""
    made = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made.server_port
    made.shutdown()
    made.server_close()


def test_stranger_at_the_port_is_not_taken_for_the_server(answering: int) -> None:
    """Only the process that was started counts: whoever else answers there would be sent the password."""
    with subprocess.Popen([sys.executable, "-c", IDLE]) as other:
        assert server._is_healthy(answering, os.getpid())
        assert not server._is_healthy(answering, other.pid)
        other.kill()


def test_started_processes_are_found_without_a_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs of this folder is known by its words; that of another folder is neither found nor ended."""
    folders = []
    for name in ("mine", "other"):
        folders.append(tmp_path / name / "yard.py")
        folders[-1].parent.mkdir()
        folders[-1].write_text(IDLE)
    mine, other = (processes.start_yard_process("worker", [sys.executable, str(path), "tend"]) for path in folders)
    try:
        monkeypatch.setattr(processes, "YARD_SCRIPT", folders[0])
        processes.await_result(
            "no process was found", processes.find_yard_processes, 30
        )  # its words come a moment after its id
        assert {name: found.pid for name, found in processes.find_yard_processes().items()} == {"worker": mine.pid}
        reaper = threading.Thread(target=mine.wait)  # a zombie's group lives
        reaper.start()
        processes.stop_yard_process("worker")
        reaper.join()
        assert (processes.find_yard_processes(), other.poll()) == ({}, None)
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@flow(name="train")
def empty() -> None:
    """A flow that some worker took."""


def open_run(name: str, worker: str) -> RunFolder:
    """A run without an end, that a worker of this name took; an empty name: Prefect does not know it."""
    run_id = UUID("0190c7f0-0000-7000-8000-0000a1b2c3d4")
    if worker:
        with get_client(sync_client=True) as client:
            run_id = client.create_flow_run(empty).id
            client.update_flow_run_labels(run_id, {"prefect.worker.name": worker})
    folder = RunFolder(Path(os.environ["TORCHYARD_RUNS"]) / name)
    with folder.owned():
        folder.note("start", run=str(run_id))
    return folder


@pytest.mark.slow
def test_down_ends_only_what_its_worker_took(prefect_api: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A run of another worker, one that was started by hand, and one that a living process carries are left."""
    with speaking_to(prefect_api):
        ours, carried = open_run("ours", processes.worker_name()), open_run("carried", processes.FORMER_WORKER_NAME)
        others, by_hand = open_run("others", "torchyard of another folder"), open_run("by-hand", "")
        with carried.owned():
            tear_down_open_runs()
    ends = [folder.last("end").get("by") for folder in (ours, carried, others, by_hand)]
    assert ends == ["down", None, None, None]
    assert "ours: nothing left" in capsys.readouterr().out


@pytest.mark.slow
def test_down_ends_processes_whose_folder_is_gone(prefect_api: dict[str, str]) -> None:
    """Of two runs whose folders were removed, the processes of the one that our worker took are ended."""
    with speaking_to(prefect_api):
        folders = [open_run("ours", processes.worker_name()), open_run("others", "torchyard of another folder")]
        started = [strayed(str(folder.last("start")["run"])) for folder in folders]
        try:
            tear_down_open_runs()
            assert started[0].wait(30) == -signal.SIGTERM
            assert started[1].poll() is None
        finally:
            for process in started:
                process.kill()
                process.wait()


def strayed(flow_run: str) -> subprocess.Popen[bytes]:
    """A process of a run without a folder."""
    name = f"sample-{UUID(flow_run).hex[-8:]}"
    block = Path(os.environ["TORCHYARD_RUNS"]) / name / "attempt-1" / "node-0"
    label = {host.JOB_VARIABLE: f"{name}/1/node-0", host.FOLDER_VARIABLE: str(block)}
    return subprocess.Popen(["sleep", "300"], env={**os.environ, **label})
