"""What is sent to a host and what it sends back, without a network: tars that are torn, or that lead elsewhere."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tasks.sites import HOST, script, tree, unpack

SITE = str(HOST / "site.py")


def tar(*members: tarfile.TarInfo, whole: bool = True) -> io.BytesIO:
    """A tar of members without content, as a host may send it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w|") as archive:
        for member in [*members, *([tarfile.TarInfo("whole")] if whole else [])]:
            archive.addfile(member)
    return io.BytesIO(made.getvalue())


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.SYMTYPE, "../../outside"),
        member("pipe", tarfile.FIFOTYPE),
        member("disk", tarfile.BLKTYPE),
    ],
    ids=lambda bad: f"{bad.name}-{bad.linkname}",
)
def test_what_leads_outside_is_left_out(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    """Nothing that a host sends is written outside of the folder, and the rest comes all the same."""
    unpack(tmp_path / "run" / "files", io.BytesIO(), tar(bad, member("good")))
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "files", "good"]


def test_absolute_name_stays_inside(tmp_path: Path) -> None:
    """A name that begins at the root is one of the folder."""
    unpack(tmp_path / "files", io.BytesIO(), tar(member("/etc/torchyard")))
    assert (tmp_path / "files" / "etc" / "torchyard").exists()


def test_torn_tar_changes_nothing(tmp_path: Path) -> None:
    """What does not come whole is not taken, and what came before stays."""
    unpack(tmp_path / "files", io.BytesIO(), tar(member("first")))
    with pytest.raises(OSError, match="torn"):
        unpack(tmp_path / "files", io.BytesIO(), tar(member("second"), whole=False))
    assert [path.name for path in tmp_path.rglob("*")] == ["files", "first"]


def test_place_takes_only_what_is_whole(tmp_path: Path) -> None:
    """A site is there as a whole, or not at all."""
    stream = tar(member("work/x.py"), whole=False).read()
    argv = [sys.executable, SITE, "place", str(tmp_path / "site-1"), '{"carrier": "here:/runs/a"}']
    done = subprocess.run(argv, input=stream, capture_output=True, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])


def test_old_python_says_so(tmp_path: Path) -> None:
    """A host's interpreter that is too old is told with its version and the one that is needed."""
    words = script("far", "python3", "probe.py").argv
    old = words[2].replace("(3, 8)", "(9, 9)")
    done = subprocess.run([sys.executable, "-c", old, words[3]], capture_output=True, text=True, check=False)
    assert done.stderr.endswith(", and 3.8 or newer is needed\n")


def test_what_is_no_program_stays_here(tmp_path: Path) -> None:
    """Of a folder goes what a program needs: no history, no virtual environment, no dangling link."""
    for name in (".git/config", ".venv/bin/python", "models/net.py", "train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gone").symlink_to("nowhere")
    assert sorted(name for _, name in tree(tmp_path)) == ["models/net.py", "train.py"]
