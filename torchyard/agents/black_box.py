"""The way of the black box (torchyard/host/black_box) into a job's processes: a folder on their PYTHONPATH."""

from pathlib import Path

from torchyard.host import black_box
from torchyard.model.plan import Site
from torchyard.model.profile import Profile

_FOLDER = Path(black_box.__file__).parent
_SITE = "site"  # the part of it that is on PYTHONPATH
_POD_LINES = """\
if [ -d "{folder}" ]; then
export TORCHYARD_BLACK_BOX="{records}" PYTHONPATH="{folder}/{site}${{PYTHONPATH:+:$PYTHONPATH}}"
fi
"""


def build_recorder_spec(profile: Profile, site: Site | None) -> dict[str, str]:
    """The supervisor's key for the black box: the folder for PYTHONPATH; empty with `on_hang: off`.

    The folder is on this machine or, with a `site`, where the supervisor was copied.
    """
    if profile.on_hang == "off":
        return {}
    if site:
        return {"recorder": f"{site.folder}/supervisor/torchyard/host/black_box/{_SITE}"}
    return {"recorder": str(_FOLDER / _SITE)}


def build_recorder_lines(profile: Profile, files_folder: str, records_folder: str) -> str:
    """The lines of a pod's shell that start the black box in its Pythons, if it is there; empty with `on_hang: off`.

    The folders, which the shell may contain in double quotes, have torchyard's files and the records of the ranks.
    """
    if profile.on_hang == "off":
        return ""
    return _POD_LINES.format(folder=f"{files_folder}/{_FOLDER.name}", records=f"{records_folder}/records", site=_SITE)


def read_files() -> dict[str, str]:
    """The text of each module of the black box, by its path."""
    paths = sorted(_FOLDER.rglob("*.py"))
    return {str(path.relative_to(_FOLDER.parent)): path.read_text("utf-8") for path in paths}
