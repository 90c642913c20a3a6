"""What is sent to a host and what it sends back, without a network: tars that are torn, or that lead elsewhere."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from torchyard.machines.archive import unpack_archive
from torchyard.machines.staging import _SCRIPTS_FOLDER, _list_checkpoints, _walk_files, script_command

SITE = str(_SCRIPTS_FOLDER / "staging.py")


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
        member("./link", tarfile.SYMTYPE, "../outside"),
        member("link", tarfile.SYMTYPE, "a/b/../../.."),
        member("hard", tarfile.LNKTYPE, "../../../seed"),
        member("pipe", tarfile.FIFOTYPE),
        member("disk", tarfile.BLKTYPE),
    ],
    ids=lambda bad: f"{bad.name}-{bad.linkname}",
)
def test_what_leads_outside_is_left_out(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    """Nothing that a host sends is written outside of the folder, and the rest comes all the same."""
    unpack_archive(tmp_path / "run" / "files", io.BytesIO(), tar(bad, member("good")))
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "files", "good"]


def chain() -> list[tarfile.TarInfo]:
    """Links that each stay inside, and one after the other lead six folders up."""
    deep = "/".join("abcdef")
    made = [member(deep, tarfile.DIRTYPE), member("down", tarfile.SYMTYPE, deep)]
    for number in range(6):
        made.append(member(f"{'down' if not number else f'up{number - 1}'}/up{number}", tarfile.SYMTYPE, ".."))
    return [*made, member("up", tarfile.SYMTYPE, "down/../../../../../../.."), member("up/outside")]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "bad",
    [
        chain(),
        [member("a", tarfile.SYMTYPE, "p/q/../.."), *(member(each, tarfile.SYMTYPE, ".") for each in "pq")],
        [member("p", tarfile.SYMTYPE, "."), member("a", tarfile.SYMTYPE, "p/p/..")],
    ],
    ids=["down-and-up", "before-its-parts", "after-its-parts"],
)
def test_no_chain_of_links_leads_outside(tmp_path: Path, bad: list[tarfile.TarInfo], times: int) -> None:
    """Where each of many links stays inside, all of them together do, also over two tars; nothing is outside then."""
    files = tmp_path / "1" / "2" / "3" / "4" / "5" / "6" / "files"
    for _ in range(times):
        unpack_archive(files, io.BytesIO(), tar(*bad))
    links = [path for path in files.rglob("*") if path.is_symlink()]
    assert [path for path in links if not path.resolve().is_relative_to(files)] == []
    assert [path for path in tmp_path.rglob("outside") if not path.is_relative_to(files)] == []


@pytest.mark.parametrize(
    "new", [member("link"), member("link/new"), member("link", tarfile.SYMTYPE, "good")], ids=["file", "folder", "link"]
)
def test_link_of_an_earlier_tar_is_not_followed(tmp_path: Path, new: tarfile.TarInfo) -> None:
    """What stands where a tar brings something gives way to it: nothing is written through a link."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "link").symlink_to(tmp_path / "outside")
    unpack_archive(tmp_path / "files", io.BytesIO(), tar(new, member("good")))
    assert list((tmp_path / "outside").iterdir()) == []
    assert not (tmp_path / "files" / "link").resolve().is_relative_to(tmp_path / "outside")


def test_links_inside_come_home(tmp_path: Path) -> None:
    """A link to a neighbour, as programs make to their last checkpoint, and a second name of a file are kept."""
    hard = member("checkpoints/best", tarfile.LNKTYPE, "checkpoints/5.pt")
    soft = member("checkpoints/last", tarfile.SYMTYPE, "../checkpoints/5.pt")
    for _ in range(2):
        unpack_archive(tmp_path / "files", io.BytesIO(), tar(member("checkpoints/5.pt"), hard, soft))
    there = tmp_path / "files" / "checkpoints"
    assert os.readlink(there / "last") == "../checkpoints/5.pt"
    assert (there / "best").samefile(there / "last")


def huge(name: str) -> tarfile.TarInfo:
    made = member(name)
    made.size = 1 << 60
    return made


@pytest.mark.parametrize(("bad", "said"), [
    (huge("big"), "no room here for big: "),
    (member("n" * 2000), "a name of more than 1024 bytes: nnn"),
    (member("n" * 100_000), "no tar of ours: a header of 100"),
], ids=["size", "name", "header"])  # fmt: skip
def test_tar_that_is_too_large_is_refused(tmp_path: Path, bad: tarfile.TarInfo, said: str) -> None:
    """What would fill the disk or the memory stays on its host, and what came before stays here."""
    unpack_archive(tmp_path / "files", io.BytesIO(), tar(member("first")))
    with pytest.raises(OSError, match=said):
        unpack_archive(tmp_path / "files", io.BytesIO(), tar(bad))
    assert [path.name for path in tmp_path.rglob("*")] == ["files", "first"]


def test_link_is_no_way_to_send_a_file_of_this_machine(tmp_path: Path) -> None:
    """Of what a host has sent, nothing goes to the next one that a link finds elsewhere on this machine."""
    (tmp_path / "secret").write_text("")
    brought = tmp_path / "attempt-1" / "node-0" / "files" / "checkpoints"
    brought.mkdir(parents=True)
    (brought / "5.pt").touch()
    (brought / "last").symlink_to("5.pt")
    (brought / "leak").symlink_to(tmp_path / "secret")
    assert sorted(name for _, name in _list_checkpoints([f"{tmp_path}/attempt-1/node-*/files"])) == [
        "checkpoints/5.pt",
        "checkpoints/last",
    ]


def test_absolute_name_stays_inside(tmp_path: Path) -> None:
    """A name that begins at the root is one of the folder."""
    unpack_archive(tmp_path / "files", io.BytesIO(), tar(member("/etc/torchyard")))
    assert (tmp_path / "files" / "etc" / "torchyard").exists()


def test_torn_tar_changes_nothing(tmp_path: Path) -> None:
    """What does not come whole is not taken, and what came before stays."""
    unpack_archive(tmp_path / "files", io.BytesIO(), tar(member("first")))
    with pytest.raises(OSError, match="torn"):
        unpack_archive(tmp_path / "files", io.BytesIO(), tar(member("second"), whole=False))
    assert [path.name for path in tmp_path.rglob("*")] == ["files", "first"]


def test_place_takes_only_what_is_whole(tmp_path: Path) -> None:
    """A site is there as a whole, or not at all."""
    stream = tar(member("work/x.py"), whole=False).read()
    argv = [sys.executable, SITE, "place", str(tmp_path / "site-1"), '{"carrier": "here:/runs/a"}']
    done = subprocess.run(argv, input=stream, capture_output=True, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])


def test_old_python_says_so(tmp_path: Path) -> None:
    """A host's interpreter that is too old is told with its version and the one that is needed."""
    words = script_command("far", "python3", "facts.py").argv
    old = words[2].replace("(3, 8)", "(9, 9)")
    done = subprocess.run([sys.executable, "-c", old, words[3]], capture_output=True, text=True, check=False)
    assert done.stderr.endswith(", and 3.8 or newer is needed\n")


def test_what_is_no_program_stays_here(tmp_path: Path) -> None:
    """Of a folder goes what a program needs: no history, no virtual environment, no dangling link."""
    for name in (".git/config", ".venv/bin/python", "models/net.py", "train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gone").symlink_to("nowhere")
    assert sorted(name for _, name in _walk_files(tmp_path)) == ["models/net.py", "train.py"]
