#!/usr/bin/env python3
"""Create, read and remove a run's folder on a host behind ssh. Standard library only, Python 3.8 or newer.

The text of this file goes with each call, as `python3 -c TEXT VERB FOLDER`, so the host needs none of our files:

    place   prints whether it wants a tar (not if FOLDER exists); then creates FOLDER from the tar on stdin, completely
            or not at all. If another living launcher owns the run, prints which one; the third argument says who asks
    bring   prints a tar of what the job left: its checkpoints, and the new and changed files of the folder it ran in
    clear   removes FOLDER; prints what is left
    begun   prints the numbers of the run's attempts that have a folder here

A tar is whole if its last member is called `whole`: a stream that breaks between two files looks like a short tar.
FOLDER/looked names the launcher that owns the run, as `host:folder`; its mtime is the launcher's last heartbeat.
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
_HEARTBEAT_BYTES = 512  # bytes of the file, written at its creation: a full disk must not end a run that is watched
_OWNER_DEAD_AFTER_S = 60.0  # seconds without a heartbeat after which a run's owner counts as dead


def _stage_in_folder(folder: str, request: str) -> Json:
    owner = json.loads(request)["carrier"]
    other_owner = _find_other_owner(folder, owner)
    is_wanted = not other_owner and not os.path.isdir(folder)
    print(json.dumps({"wanted": is_wanted, "carrier": other_owner}), flush=True)
    if not is_wanted:
        return {
            "created": False,
            "carrier": other_owner or record_heartbeat(os.path.join(folder, HEARTBEAT_FILE), owner),
        }
    temp_folder = "%s.part-%d" % (folder, os.getpid())
    os.makedirs(temp_folder)
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            archive.extraction_filter = lambda member, path: member
            archive.extractall(temp_folder)
        os.unlink(os.path.join(temp_folder, _END_MEMBER))
        os.makedirs(os.path.join(temp_folder, "checkpoints"), exist_ok=True)
        record_heartbeat(os.path.join(temp_folder, HEARTBEAT_FILE), owner)
        with open(os.path.join(temp_folder, "sent.json"), "w", encoding="utf-8") as file:
            json.dump(
                {name: _fingerprint_file(os.path.join(temp_folder, name)) for name in _list_files(temp_folder, "work")},
                file,
            )
        os.rename(temp_folder, folder)
    except OSError:
        if not os.path.isdir(folder):  # else another host that shares the disk was first
            raise
    finally:
        shutil.rmtree(temp_folder, ignore_errors=True)
    return {"created": True}


# --- who owns the run


def record_heartbeat(path: str, owner: str) -> str:
    """Record a heartbeat of `who` in the file. Returns the owner instead, if another one has a recent heartbeat.

    An empty `who` renews the lease without taking the run over.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        recorded_owner, heartbeat_at = _read_heartbeat(fd)
        if owner and recorded_owner not in ("", owner) and abs(time.time() - heartbeat_at) < _OWNER_DEAD_AFTER_S:
            return recorded_owner
        if owner != recorded_owner or not os.fstat(fd).st_size:
            with contextlib.suppress(OSError):
                os.pwrite(fd, (owner or recorded_owner).ljust(_HEARTBEAT_BYTES - 1).encode() + b"\n", 0)
        os.utime(fd)
    finally:
        os.close(fd)
    return ""


def _read_heartbeat(fd: int) -> tuple[str, float]:
    """The run's owner and the time of its last heartbeat, by this host's clock."""
    return os.pread(fd, _HEARTBEAT_BYTES, 0).decode(errors="replace").strip("\0 \n"), os.fstat(fd).st_mtime


def _find_other_owner(folder: str, owner: str) -> str:
    """Another owner of any attempt of the run, once it sends a new heartbeat; empty once all others count as dead."""
    first_heartbeats: dict[str, float] = {}
    while True:
        recent = [
            heartbeat
            for heartbeat in _list_heartbeats(folder)
            if heartbeat[1] not in ("", owner) and abs(time.time() - heartbeat[2]) < _OWNER_DEAD_AFTER_S
        ]
        living_owners = [
            name
            for path, name, heartbeat_at in recent
            if first_heartbeats.setdefault(path, heartbeat_at) != heartbeat_at
        ]
        if living_owners or not recent:
            return living_owners[0] if living_owners else ""
        time.sleep(0.5)


def _list_heartbeats(folder: str) -> Iterator[tuple[str, str, float]]:
    """The heartbeat file of each attempt here, its owner, and the time of the last heartbeat."""
    for path in glob.glob(os.path.join(glob.escape(folder.rpartition("-")[0]) + "-*", HEARTBEAT_FILE)):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            yield (path, *_read_heartbeat(file.fileno()))


# --- the folder's files


def _list_files(folder: str, subfolder: str) -> Iterator[str]:
    """Every file and link under `below`, relative to the folder, without __pycache__."""
    for directory, folders, files in os.walk(os.path.join(folder, subfolder)):
        folders[:] = [name for name in folders if name != "__pycache__"]
        links = [name for name in folders if os.path.islink(os.path.join(directory, name))]
        for name in files + links:
            path = os.path.join(directory, name)
            if os.path.isfile(path) or os.path.islink(path):  # not a socket or a pipe
                yield os.path.relpath(path, folder)


def _fingerprint_file(path: str) -> Json:
    stat = os.lstat(path)
    return [stat.st_size, stat.st_mtime_ns]


def _stage_out_folder(folder: str) -> None:
    sent: Json = {}
    if os.path.exists(os.path.join(folder, "sent.json")):
        with open(os.path.join(folder, "sent.json"), encoding="utf-8") as file:
            sent = json.load(file)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for subfolder in ("checkpoints", "work"):
            for name in _list_files(folder, subfolder):
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
        pass  # it holds other runs, or is not ours
    return {"left": ["folder %s" % os.path.abspath(folder)] if os.path.lexists(folder) else []}


def _list_attempts(folder: str) -> Json:
    run = folder.rpartition("-")[0]
    suffixes = [path[len(run) + 1 :] for path in glob.glob(glob.escape(run) + "-*")]
    return {"attempts": [int(suffix) for suffix in suffixes if suffix.isdigit()]}


VERBS: dict[str, Any] = {"place": _stage_in_folder, "clear": _remove_folder, "begun": _list_attempts}

if __name__ == "__main__":
    verb, folder = sys.argv[1:3]
    os.umask(0o077)  # logs, programs and checkpoints are the user's alone
    try:
        if verb == "bring":
            _stage_out_folder(folder)
        else:
            print(json.dumps(VERBS[verb](*sys.argv[2:])))
    except (OSError, tarfile.TarError) as error:
        sys.exit("%s: %s" % (getattr(error, "strerror", None) or error, getattr(error, "filename", None) or folder))
