"""What the black box knows of ranks."""

import pytest

from torchyard.model.hang import Frame


@pytest.mark.parametrize("file", ["/code/train.py", "train.py"])
def test_frame_is_spelled_short(file: str) -> None:
    """A frame is its function, the file's name and the line: the folder is on every other line too."""
    assert str(Frame(function="step", file=file, line=7)) == "step (train.py:7)"
