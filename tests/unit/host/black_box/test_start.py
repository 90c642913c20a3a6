"""The recorders that a process starts."""

import pytest

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
