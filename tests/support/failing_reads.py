"""Files that exist and cannot be read: an expired ticket of a share, a bad block, a server that is away."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def fail_to_stat(path: Path, error_number: int) -> Iterator[None]:
    """Let each `stat` of a path fail with an error."""
    real_stat = os.stat

    def fail(stat_path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if stat_path == path:
            raise OSError(error_number, os.strerror(error_number), str(path))
        return real_stat(stat_path, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", fail)
        yield
