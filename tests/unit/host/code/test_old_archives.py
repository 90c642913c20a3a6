"""The number of archives that a machine keeps."""

import os
from pathlib import Path

from torchyard.host.code.old_archives import remove_old_archives


def test_newest_archives_stay(tmp_path: Path) -> None:
    """The oldest are removed, by the time of their last use; other files stay."""
    for age, name in enumerate(("new.tar.gz", "used.tar.gz", "old.tar.gz", "oldest.txt")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    remove_old_archives(str(tmp_path), kept=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.tar.gz", "oldest.txt", "used.tar.gz"]
