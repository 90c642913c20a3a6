"""torchyard's own files in a job's pods: the black box, the facts about RDMA, and the program of the fabric check.

The pods of a manifest mount them, read-only, from the attempt's ConfigMap. A job that is submitted through a command
line has none: its shell unpacks them into a new folder, because another user of the node could have planted files, or
links, under a fixed name in a shared folder.
"""

import base64
import json
import shlex
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torchyard.agents import black_box, fabric_check
from torchyard.common.project_root import ROOT
from torchyard.host import rdma_facts
from torchyard.model.profile import Profile
from torchyard.model.resolved import ResolvedProfile

# The transports of NCCL itself, which need the devices that rdma_facts looks for.
_VERBS_TRANSPORTS = ("roce", "infiniband", "rdma")
_RDMA_FACTS = "rdma_facts.py"
# -I: Python imports nothing from the work folder, where the user's files could hide modules. An image without python3
# reports nothing, and an error of the program itself does not end the pod.
_RDMA_FACTS_LINES = """\
if [ -f "{path}" ] && command -v python3 >/dev/null; then
python3 -I "{path}"{args} || [ $? != {unusable} ]
fi
"""
_UNPACK_LINES = """\
torchyard=$(mktemp -d) && python3 -I -c {code} "$torchyard" {packed} || torchyard=
"""
_UNPACK_CODE = """\
import base64, json, os, sys, zlib
folder = sys.argv[1]
try:
    status = os.lstat(folder)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        sys.exit("torchyard: no black box: other users can change %s" % folder)
    for name, text in json.loads(zlib.decompress(base64.b64decode(sys.argv[2])).decode()).items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
except OSError as error:
    sys.exit("torchyard: no black box: %s" % error)
"""


class PodFolders(NamedTuple):
    """Folders of a pod, as its shell writes them inside double quotes.

    files: with torchyard's own files.
    records: in which the pod's processes can write.
    """

    files: str
    records: str


MOUNTED = PodFolders("/run/torchyard", "/run/torchyard-records")
UNPACKED = PodFolders("$torchyard", "$torchyard")


def needs_config_map(profile: Profile) -> bool:
    """Whether the pods cannot run without the ConfigMap: it has files of the profile, or the fabric check's program."""
    return bool(profile.files) or profile.check_fabric is not None


def list_job_files(profile: ResolvedProfile) -> dict[str, str]:
    """The text of each file that the job's pods need, by its path in their folder; empty if they need none."""
    files: dict[str, str] = {}
    if profile.on_hang != "off":
        files |= black_box.read_files()
    if _needs_rdma_facts(profile):
        files[_RDMA_FACTS] = Path(rdma_facts.__file__).read_text("utf-8")
    if profile.check_fabric is not None:
        files[fabric_check.PROGRAM_NAME] = (ROOT / fabric_check.PROGRAM).read_text("utf-8")
    return files


def build_unpack_lines(profile: ResolvedProfile) -> str:
    """The lines of a pod's shell, under `set -e`, that unpack its files into `UNPACKED`; empty if it needs none.

    On an image without python3 or mktemp, or without a folder that can be written, the files are missing.
    """
    files = list_job_files(profile)
    if not files:
        return ""
    return _UNPACK_LINES.format(code=shlex.quote(_UNPACK_CODE), packed=pack_files(files))


def pack_files(files: Mapping[str, str]) -> str:
    """Files as one word: their texts by path, as JSON, compressed, in base64."""
    return base64.b64encode(zlib.compress(json.dumps(files).encode(), 9)).decode()


def build_rdma_facts_lines(profile: ResolvedProfile, folders: PodFolders) -> str:
    """The lines of a pod's shell, under `set -e`, that print what it has for RDMA; empty if the fabric needs none."""
    if not _needs_rdma_facts(profile):
        return ""
    return _RDMA_FACTS_LINES.format(
        path=f"{folders.files}/{_RDMA_FACTS}",
        args=" required" if profile.on_fabric == "fail" else "",
        unusable=rdma_facts.UNUSABLE_EXIT_CODE,
    )


def _needs_rdma_facts(profile: ResolvedProfile) -> bool:
    if profile.expect is None or profile.has_image_entrypoint:  # torchyard's command prints the facts
        return False
    return profile.expect.transport in _VERBS_TRANSPORTS
