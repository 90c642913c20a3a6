"""Tars as a host may send them."""

import io
import tarfile


def build_tar(*members: tarfile.TarInfo, with_regular_file: bool = True) -> io.BytesIO:
    """A tar of members without content, as a host may send it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|") as archive:
        for member in [*members, *([tarfile.TarInfo("whole")] if with_regular_file else [])]:
            archive.addfile(member)
    return io.BytesIO(buffer.getvalue())


def build_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info
