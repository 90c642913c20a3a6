"""Tars as a host may send them."""

import io
import tarfile


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
