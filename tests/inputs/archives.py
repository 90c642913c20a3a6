"""Tar archives as a host may send them."""

import io
import tarfile


def build_tar(*members: tarfile.TarInfo, with_regular_file: bool = True) -> io.BytesIO:
    """A tar of members without content; by default an empty regular file named `whole` is the last one."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|") as archive:
        for member in members:
            archive.addfile(member)
        if with_regular_file:
            archive.addfile(tarfile.TarInfo("whole"))
    return io.BytesIO(buffer.getvalue())


def build_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info
