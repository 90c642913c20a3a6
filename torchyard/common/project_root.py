"""Where the project's own files lie: beside the package in a checkout, inside the package in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_IS_WHEEL = (_PACKAGE / "profiles").is_dir()
ROOT = _PACKAGE if _IS_WHEEL else _PACKAGE.parent  # holds profiles/ and programs/


def default_runs_folder() -> Path:
    """`runs` in the checkout; in the current folder for a wheel, whose own folder belongs to the installer."""
    return (Path.cwd() if _IS_WHEEL else ROOT) / "runs"
