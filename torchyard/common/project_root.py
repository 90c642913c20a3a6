"""The folder of the project's own files, and that of all runs.

The files are beside the package in a checkout, inside the package in an installed wheel.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_IS_WHEEL = (_PACKAGE / "profiles").is_dir()
ROOT = _PACKAGE if _IS_WHEEL else _PACKAGE.parent  # holds profiles/ and programs/


def runs_folder() -> Path:
    """The folder of all runs: TORCHYARD_RUNS, or `runs` in the current folder, or in the checkout that contains it."""
    return Path(os.environ.get("TORCHYARD_RUNS") or default_runs_folder()).expanduser().absolute()


def is_utf8(path: Path) -> bool:
    """Whether a path can be written into the files of a run, which are UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def default_runs_folder() -> Path:
    """`runs` in the current folder; inside a checkout in the checkout's own folder, whichever its subfolder is."""
    current_folder = Path.cwd()
    is_in_checkout = not _IS_WHEEL and current_folder.is_relative_to(ROOT)
    return (ROOT if is_in_checkout else current_folder) / "runs"
