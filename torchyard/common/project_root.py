"""The folder of the project's own files: beside the package in a checkout, inside the package in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_IS_WHEEL = (_PACKAGE / "profiles").is_dir()
ROOT = _PACKAGE if _IS_WHEEL else _PACKAGE.parent  # holds profiles/ and programs/


def default_runs_folder() -> Path:
    """`runs` in the checkout; for a wheel in the current folder, because the package's folder is the installer's."""
    return (Path.cwd() if _IS_WHEEL else ROOT) / "runs"
