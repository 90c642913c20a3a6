"""One command on each host for all processes there, and what its responses mean."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.scripted_hosts import build_process
from torchyard.machines.host_script import build_command, call_scripts
from torchyard.model.errors import HostError
from torchyard.model.plan import HostScript, Process, Site

ANSWER = (
    "import json, sys; requests = json.load(sys.stdin); open('calls', 'a').write('x'); "
    "print(json.dumps({name: {'verb': sys.argv[1], 'request': request} for name, request in requests.items()}))"
)


def make_processes(folder: Path, code: str) -> list[Process]:
    """Two processes of one host whose script is `code`, and a third one that starts with them."""
    os.chdir(folder)
    script = HostScript(host="localhost", argv=(sys.executable, "-I", "-S", "-c", code))
    process = build_process(folder, "").model_copy(update={"script": script, "spec": {}})
    second = process.model_copy(update={"name": "b"})
    return [process, second, process.model_copy(update={"name": "c", "spec": None})]


def call(processes: list[Process]) -> dict[str, Any]:
    return call_scripts("status", processes, lambda process: {"folder": process.folder})


@pytest.fixture(autouse=True)
def in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_host_is_called_once(tmp_path: Path) -> None:
    """The processes of a host are requested by one command, without those that another one stands for."""
    response = {"verb": "status", "request": {"folder": "a"}}
    assert call(make_processes(tmp_path, ANSWER)) == {"a": response, "b": response}
    assert (tmp_path / "calls").read_text() == "x"


@pytest.mark.parametrize("output", [{}, [], {"a": 3}, {"b": {}}, {"site": True}])
def test_process_without_a_response_is_an_error(tmp_path: Path, output: object) -> None:
    """If a host's response does not have a process, that process counts as not queried."""
    response = call(make_processes(tmp_path, f"print({json.dumps(output)!r})"))["a"]
    assert isinstance(response, HostError)
    assert str(response) == "localhost: query a: its response does not have the process"


def test_failed_host_is_the_error_of_each_process(tmp_path: Path) -> None:
    """The error of a host is the response of each of its processes."""
    responses = call(make_processes(tmp_path, "import sys; sys.exit('no room')"))
    assert [str(response).rpartition(": ")[2] for response in responses.values()] == ["no room"] * 2


def test_host_without_the_folder_has_no_process(tmp_path: Path) -> None:
    """Behind ssh, a run's folder that does not exist is not an error: its processes are absent."""
    site = Site(host="localhost", folder=str(tmp_path / "none"), python=sys.executable, work=None, files=str(tmp_path))
    script = HostScript(host="localhost", argv=(sys.executable, f"{tmp_path}/none/supervisor.py"), site=site)
    processes = [process.model_copy(update={"script": script}) for process in make_processes(tmp_path, "")]
    assert call(processes)["b"] == {"phase": "absent", "left": [], "site": False}
    assert build_command(script, "submit").argv == (sys.executable, f"{tmp_path}/none/supervisor.py", "submit")


def test_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Every error but ENOENT leaves unknown whether the run's folder exists: its processes are not absent."""
    (tmp_path / "share").touch()  # each path below it fails with ENOTDIR
    folder = f"{tmp_path}/share/a-1"
    site = Site(host="localhost", folder=folder, python=sys.executable, work=None, files=str(tmp_path))
    script = HostScript(host="localhost", argv=(sys.executable, f"{folder}/supervisor.py"), site=site)
    processes = [process.model_copy(update={"script": script}) for process in make_processes(tmp_path, "")]
    response = call(processes)["b"]
    assert isinstance(response, HostError)
    assert response.message.startswith("Not a directory: ")
