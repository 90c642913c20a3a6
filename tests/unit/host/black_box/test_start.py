"""The recorders that a process starts."""

import os
from pathlib import Path

import pytest

from tests.processes.python_commands import running_python
from tests.support.waiting import wait_until
from torchyard.host.black_box.slot import read_slots
from torchyard.host.black_box.start import is_agent


@pytest.mark.parametrize(
    ("command", "agent"),
    [
        ("/usr/bin/python3 /usr/local/bin/torchrun --nnodes=2 -- train.py", True),
        ("python3 -m torch.distributed.run --nnodes=2 -- train.py", True),
        ("python -u -m torch.distributed.launch --nproc_per_node=2 train.py", True),
        ("python train.py --starter torchrun", False),
        ("python -u train.py -- torchrun", False),
        ("python -c pass", False),
    ],
)
def test_torchrun_is_recognized_by_its_command_line(command: str, agent: bool) -> None:
    """torchrun is recognized as a script, as a module and in its older form, but not as an argument of a program."""
    assert is_agent(command.split()) == agent


def test_record_has_all_threads_of_the_recorders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a rank without an agent four threads record: the rank's, the one that writes, the node's, the checkpoints'."""
    variables = {"TORCHYARD_BLACK_BOX": tmp_path, "TORCHYARD_CHECKPOINTS": tmp_path, "RANK": 0, "WORLD_SIZE": 2}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    code = "import time; from torchyard.host.black_box.start import start_recorders; start_recorders(); time.sleep(60)"

    with running_python(code) as pid:

        def has_all_threads() -> bool:
            record = read_slots(str(tmp_path)).get(0, {})
            threads = {int(thread) for thread in os.listdir(f"/proc/{pid}/task")}
            return set(record.get("recorder_threads", ())) == threads - {pid} and len(threads) == 5

        wait_until(has_all_threads)
