"""The models of the black box."""

import pytest

from torchyard.model.hang import Frame


@pytest.mark.parametrize("file", ["/code/train.py", "train.py"])
def test_frame_is_formatted_without_its_folder(file: str) -> None:
    """A frame is formatted as its function, the name of its file and the line."""
    assert str(Frame(function="step", file=file, line=7)) == "step (train.py:7)"
