"""The way of the black box (torchyard/host/black_box) into a job's processes: a folder on their PYTHONPATH."""

import base64
import json
import shlex
import zlib
from pathlib import Path

from torchyard.host import black_box
from torchyard.model.plan import Site
from torchyard.model.profile import Profile

_FOLDER = Path(black_box.__file__).parent
_SITE = "site"  # the part of it that is on PYTHONPATH
FILES = tuple(sorted(str(path.relative_to(_FOLDER)) for path in _FOLDER.rglob("*.py")))
# On an image without python3, or with a file system that cannot be written, only the black box is missing.
_POD_LINES = """\
black_box="${{TMPDIR:-/tmp}}/torchyard-black-box"
if command -v python3 >/dev/null && python3 -I -c {code} "$black_box" {packed}; then
export TORCHYARD_BLACK_BOX="$black_box/records" PYTHONPATH="$black_box/{site}${{PYTHONPATH:+:$PYTHONPATH}}"
fi
"""
_UNPACK_CODE = """\
import base64, json, os, sys, zlib
try:
    for name, text in json.loads(zlib.decompress(base64.b64decode(sys.argv[2]))).items():
        path = os.path.join(sys.argv[1], name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
except OSError as error:
    sys.exit("torchyard: no black box: %s" % error)
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


def build_recorder_lines(profile: Profile) -> str:
    """The lines of a pod's shell, under `set -e`, that unpack the black box; empty with `on_hang: off`."""
    if profile.on_hang == "off":
        return ""
    return _POD_LINES.format(code=shlex.quote(_UNPACK_CODE), packed=pack_files(), site=_SITE)


def pack_files() -> str:
    """All files of the black box as one word: their texts by path, as JSON, compressed, in base64."""
    texts = {name: (_FOLDER / name).read_text("utf-8") for name in FILES}
    return base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode()
