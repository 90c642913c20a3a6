"""The black box at the start of a Python: it starts its threads, and does not affect the program."""

import os
import subprocess
import sys
from pathlib import Path

from torchyard.agents.black_box import build_recorder_spec
from torchyard.diagnosis.hang.records import parse_records
from torchyard.host.black_box.slot import read_slots
from torchyard.loading.profile import load_profile

SITE = build_recorder_spec(load_profile("digits-local"), None)["recorder"]


def run(code: str, *path: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK")}
    environment["PYTHONPATH"] = os.pathsep.join((SITE, *path))
    environment |= env
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


def wait_for_record(path: Path) -> str:
    """The code of a program that waits until its record is written: a thread writes it, and another one builds it."""
    return f"""
import time
while b'"rank"' not in open({str(path)!r}, "rb").read():
    time.sleep(0.01)
"""


def test_rank_keeps_a_record(tmp_path: Path) -> None:
    """A process with a rank writes its record, although its program was not changed."""
    environment = {"TORCHYARD_BLACK_BOX": str(tmp_path), "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    run(wait_for_record(tmp_path / "rank-2"), **environment)
    assert [(rank, record["world"]) for rank, record in read_slots(str(tmp_path)).items()] == [(2, 4)]


def test_program_without_a_rank_has_no_record(tmp_path: Path) -> None:
    """A process that is not a rank of the job writes no record."""
    run("pass", TORCHYARD_BLACK_BOX=str(tmp_path / "box"))
    assert not (tmp_path / "box").exists()


def test_hidden_sitecustomize_is_imported(tmp_path: Path) -> None:
    """The image's own sitecustomize runs as it does without the black box."""
    (tmp_path / "sitecustomize.py").write_text("print('the image says hello')\n")
    assert "the image says hello" in run("pass", str(tmp_path)).stdout


def test_folder_is_not_on_the_programs_path() -> None:
    """The folder of the black box is not on the program's sys.path."""
    assert run(f"import sys; print({SITE!r} in sys.path)").stdout == "False\n"


def test_black_box_that_cannot_start_does_not_stop_the_program() -> None:
    """Without the black box the program runs, and one line on stderr gives the reason."""
    result = run("print('trained')", TORCHYARD_BLACK_BOX="/proc/none", RANK="0", WORLD_SIZE="1")
    assert result.stdout == "trained\n"
    assert result.stderr.startswith("torchyard: hangs are not detected on this node: ")


def test_error_is_reported_once_for_each_node(tmp_path: Path) -> None:
    """Of the processes of a node in which the black box cannot start, one reports the reason."""
    (tmp_path / "rank-0").mkdir()  # where the record should be
    keys = {"TORCHYARD_BLACK_BOX": str(tmp_path), "RANK": "0", "WORLD_SIZE": "1"}
    lines = [run("pass", **keys).stderr.splitlines() for _ in range(3)]
    assert [len(process_lines) for process_lines in lines] == [1, 0, 0]


def test_file_of_a_program_that_closed_all_descriptors_is_its_own(tmp_path: Path) -> None:
    """A rank that closes unknown descriptors just before a record is written, and opens a file, finds only its data."""
    model = tmp_path / "model.bin"
    code = f"""
import os, threading, time
is_opened, may_write = threading.Event(), threading.Event()
write = os.pwrite
def write_later(*args):
    is_opened.set()
    may_write.wait()
    return write(*args)
os.pwrite = write_later
is_opened.wait()
os.closerange(3, 1000)
model = open({str(model)!r}, "wb", buffering=0)
model.write(b"weights" * 100)
may_write.set()
{wait_for_record(tmp_path / "box" / "rank-0")}
model.write(b"more")
"""
    run(code, TORCHYARD_BLACK_BOX=str(tmp_path / "box"), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    assert model.read_bytes() == b"weights" * 100 + b"more"
    assert list(read_slots(str(tmp_path / "box"))) == [0]


def test_signal_for_which_a_program_waits_reaches_it(tmp_path: Path) -> None:
    """A signal that a program blocks and waits for is not delivered to the recorder's threads."""
    code = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait({signal.SIGUSR1}).name)
"""
    result = run(code, TORCHYARD_BLACK_BOX=str(tmp_path), RANK="0", WORLD_SIZE="1")
    assert result.stdout == "SIGUSR1\n"


def test_threads_of_the_recorders_import_nothing(tmp_path: Path) -> None:
    """A thread that imports while the program changes sys.path may fail, and gives the program half of a module."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(f"""
import atexit, sys, threading

def note_import(event, args):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        names.append(args[0])

names = []
sys.addaudithook(note_import)
atexit.register(lambda: print("imported by threads:", names))
sys.path[0] = {SITE!r}
del sys.modules["sitecustomize"]
import sitecustomize
""")
    environment = {"TORCHYARD_BLACK_BOX": str(tmp_path / "box"), "PYTHONPATH": str(tmp_path / "first")}
    code = wait_for_record(tmp_path / "box" / "rank-0")
    result = run(code, **environment, RANK="0", WORLD_SIZE="1")
    assert result.stdout.splitlines()[-1] == "imported by threads: []"


def test_rank_without_an_agent_reports_its_exception(tmp_path: Path) -> None:
    """A rank that prints its own records reports at its end that an exception has ended its program, and a fork not."""
    code = "import os, sys; os.fork() or sys.exit(); os.wait(); raise ValueError('bad sample')"
    environment = os.environ | {"PYTHONPATH": SITE, "RANK": "0", "WORLD_SIZE": "1"}
    environment["TORCHYARD_BLACK_BOX"] = str(tmp_path)
    environment.pop("LOCAL_RANK", None)
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert [record.kind for record in parse_records(completed.stdout)] == ["raised"]
    assert completed.stderr.endswith("ValueError: bad sample\n")
