#!/usr/bin/env python3
"""A run's folder on a host that ssh reaches: made, emptied, removed. Standard library only, Python 3.8 or newer.

Its text goes with each call, as `python3 -I -S -c TEXT VERB FOLDER`, so that a host needs nothing of ours before:

    place   prints whether FOLDER is wanted, or there; then makes it of the tar on stdin, whole or not at all;
            prints instead who else carries the run, where that one lives (the third argument says who asks: JSON)
    bring   prints a tar of what the job left: its checkpoints, and what is new or changed where it ran
    clear   removes FOLDER; prints what is left
    begun   prints the numbers of the run's attempts that are here

A tar is whole where its last member is called `whole`: a stream that breaks between two files looks like its end.
`looked` in it says who carries the run, as `host:folder`; its mtime is when that one looked after it last.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import sys
import tarfile
import time
from typing import Any, Iterator

Json = Any
_END_MEMBER = "whole"
HEARTBEAT_FILE = "looked"
_HEARTBEAT_BYTES = 512  # bytes of it, written when it is made: a full disk must not end a run that is looked after
_HOLDER_DEAD_AFTER_S = 60.0  # seconds without a look after which whoever carried a run is dead


def _stage_in_folder(folder: str, asked: str) -> Json:
    who = json.loads(asked)["carrier"]
    other = _find_other_holder(folder, who)
    wanted = not other and not os.path.isdir(folder)
    print(json.dumps({"wanted": wanted, "carrier": other}), flush=True)
    if not wanted:
        return {"created": False, "carrier": other or record_heartbeat(os.path.join(folder, HEARTBEAT_FILE), who)}
    part = "%s.part-%d" % (folder, os.getpid())
    os.makedirs(part)
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            archive.extraction_filter = lambda member, path: member
            archive.extractall(part)
        os.unlink(os.path.join(part, _END_MEMBER))
        os.makedirs(os.path.join(part, "checkpoints"), exist_ok=True)
        record_heartbeat(os.path.join(part, HEARTBEAT_FILE), who)
        with open(os.path.join(part, "sent.json"), "w", encoding="utf-8") as file:
            json.dump({name: _fingerprint_file(os.path.join(part, name)) for name in _list_files(part, "work")}, file)
        os.rename(part, folder)
    except OSError:
        if not os.path.isdir(folder):  # else another host, with the same disk, was first
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {"created": True}


# --- who carries the run


def record_heartbeat(file: str, who: str) -> str:
    """Say that `who` looks after what is beside the file. Who else does, where another one has looked a moment ago.

    Nobody (an empty `who`) may look without taking the run over.
    """
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        before, found = _read_heartbeat(fd)
        if who and before not in ("", who) and abs(time.time() - found) < _HOLDER_DEAD_AFTER_S:
            return before
        if who != before or not os.fstat(fd).st_size:
            with contextlib.suppress(OSError):
                os.pwrite(fd, (who or before).ljust(_HEARTBEAT_BYTES - 1).encode() + b"\n", 0)
        os.utime(fd)
    finally:
        os.close(fd)
    return ""


def _read_heartbeat(fd: int) -> tuple[str, float]:
    """Who carries the run, and when that one looked last, by this host's clock."""
    return os.pread(fd, _HEARTBEAT_BYTES, 0).decode(errors="replace").strip("\0 \n"), os.fstat(fd).st_mtime


def _find_other_holder(folder: str, who: str) -> str:
    """Who else carries any attempt of the run, and looks again. One that does not is waited for until it is dead."""
    seen: dict[str, float] = {}
    while True:
        young = [
            each
            for each in _list_heartbeats(folder)
            if each[1] not in ("", who) and abs(time.time() - each[2]) < _HOLDER_DEAD_AFTER_S
        ]
        alive = [other for file, other, at in young if seen.setdefault(file, at) != at]
        if alive or not young:
            return alive[0] if alive else ""
        time.sleep(0.5)


def _list_heartbeats(folder: str) -> Iterator[tuple[str, str, float]]:
    """Each attempt's file here, who looked after it, and when."""
    for file in glob.glob(os.path.join(glob.escape(folder.rpartition("-")[0]) + "-*", HEARTBEAT_FILE)):
        with contextlib.suppress(OSError), open(file, "rb") as opened:
            yield (file, *_read_heartbeat(opened.fileno()))


# --- what is in it


def _list_files(folder: str, below: str) -> Iterator[str]:
    """Every file below, relative to the folder; links too, what Python has compiled not."""
    for at, folders, files in os.walk(os.path.join(folder, below)):
        folders[:] = [each for each in folders if each != "__pycache__"]
        links = [each for each in folders if os.path.islink(os.path.join(at, each))]
        for name in files + links:
            path = os.path.join(at, name)
            if os.path.isfile(path) or os.path.islink(path):  # no socket, no pipe
                yield os.path.relpath(path, folder)


def _fingerprint_file(path: str) -> Json:
    found = os.lstat(path)
    return [found.st_size, found.st_mtime_ns]


def _stage_out_folder(folder: str) -> None:
    sent: Json = {}
    if os.path.exists(os.path.join(folder, "sent.json")):
        with open(os.path.join(folder, "sent.json"), encoding="utf-8") as file:
            sent = json.load(file)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for below in ("checkpoints", "work"):
            for name in _list_files(folder, below):
                path = os.path.join(folder, name)
                if sent.get(name) != _fingerprint_file(path):
                    archive.add(path, name, recursive=False)
        archive.addfile(tarfile.TarInfo(_END_MEMBER))


def _remove_folder(folder: str) -> Json:
    for path in [folder] + glob.glob(glob.escape(folder) + ".part-*"):
        shutil.rmtree(path, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(folder))
    except OSError:
        pass  # of other runs, or not ours
    return {"left": ["folder %s" % os.path.abspath(folder)] if os.path.lexists(folder) else []}


def _list_attempts(folder: str) -> Json:
    run = folder.rpartition("-")[0]
    ends = [each[len(run) + 1 :] for each in glob.glob(glob.escape(run) + "-*")]
    return {"attempts": [int(end) for end in ends if end.isdigit()]}


VERBS: dict[str, Any] = {"place": _stage_in_folder, "clear": _remove_folder, "begun": _list_attempts}

if __name__ == "__main__":
    verb, at = sys.argv[1:3]
    os.umask(0o077)  # logs, programs and checkpoints are the user's alone
    try:
        if verb == "bring":
            _stage_out_folder(at)
        else:
            print(json.dumps(VERBS[verb](*sys.argv[2:])))
    except (OSError, tarfile.TarError) as error:
        sys.exit("%s: %s" % (getattr(error, "strerror", None) or error, getattr(error, "filename", None) or at))
