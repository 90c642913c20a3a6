"""A table of file descriptors that one thread of the recorder has for itself."""

from __future__ import annotations

import contextlib
import os
from typing import Collection

try:
    # Before a thread of the recorder runs: no thread imports anything. If the program changes sys.path meanwhile, the
    # thread may skip a folder and fail, and the program then gets the module half-initialized: `ctypes` without `CDLL`.
    import ctypes
except ImportError:  # this Python was built without libffi
    ctypes = None  # type: ignore[assignment]

_CLONE_FILES = 0x400  # of unshare(2)


def own_descriptors(keep: Collection[int] = ()) -> bool:
    """Give the calling thread its own table, with copies of the descriptors in `keep` alone; False if it is refused.

    What the thread opens afterwards has a number that means nothing to the program: the program can neither close it
    nor get it for a file of its own while the thread uses it. Without privileges the kernel allows that; the seccomp
    profile of a container may refuse it.
    """
    try:
        if ctypes is None or ctypes.CDLL(None).unshare(_CLONE_FILES) != 0:
            return False
    except Exception:  # no such function in this libc
        return False
    with contextlib.suppress(OSError):
        # The copies would keep pipes open that the program closes.
        for name in os.listdir("/proc/thread-self/fd"):
            if int(name) not in keep:
                with contextlib.suppress(OSError):
                    os.close(int(name))
    return True
