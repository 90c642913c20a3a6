#!/usr/bin/env python3
"""Create, read and remove a run's folder on a host behind ssh. Standard library only, Python 3.8 or newer.

The text of this file and of its imports goes with each call, as `python3 -c TEXT VERB FOLDER`, so the host needs none
of our files:

    place     prints whether it wants a tar (not if FOLDER exists); then creates FOLDER from the tar on stdin, complete
              or not at all. If another living launcher owns the run, prints its name; the third argument names the
              caller
    bring     prints a tar of what the job left: its checkpoints, and the new and changed files of the folder it ran in.
              The content of the last member is the size and mtime of each file that was there, by its name
    clear     removes FOLDER, if it has no other files than those in that content, which is on stdin; prints the
              leftovers. The third argument names the caller
    attempts  prints the run's attempts that have a folder here, each as [number, how many of its ports were held]
    owner     prints another living launcher that owns the run, if there is one; the third argument names the caller
    look      prints {"site": false} if the script that the third argument names does not exist, at two looks seconds
              apart, and whether a process of the attempt lives all the same
    end       ends the processes with a label; prints the leftovers. Its arguments: the caller, the label, and the
              seconds between SIGTERM and SIGKILL

`place`, `clear` and `end` take the run over from a launcher that is dead. While another one is alive they do nothing,
and print its name as `other_owner`.

A failed read does not prove absence: only ENOENT shows that a file or a folder does not exist. Every other error ends
the call with exit code 1, and nothing is removed.

FOLDER/../code has the archives of code that came last, by their digests: the tar has the archive only if it is not
there. Each attempt unpacks its own copy.

A tar is complete if its last member is called `whole`: a stream that breaks between two files looks like a short tar.
FOLDER/owner names the launcher that owns the run, as `host:folder`; its mtime is the launcher's last heartbeat.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import time
from typing import Any, Iterator, NamedTuple, NoReturn

if __name__ == "__main__" and "__file__" in globals():  # a text that was sent has its imports with it
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from torchyard.host.processes import end_processes, is_label_alive, parse_label

Json = Any
HEARTBEAT_FILE = "owner"
_END_MEMBER = "whole"
_CODE_MEMBER = "code.tar.gz"
_ARCHIVES_FOLDER = "code"
_PART_SUFFIX = ".part-"  # and a random text: the name of a folder that is not complete yet
_MAX_ARCHIVES = 10
_SYNC_THREADS = 16  # a file system writes its journal once for all that wait: alone, each file takes milliseconds
_PORT_TRY_FILE = "port-try.json"
_SENT_FILE = "sent.json"  # size and mtime of each file that was staged in
_HEARTBEAT_BYTES = 512  # bytes of the file, written at its creation: a full disk must not end a run that is watched
_OWNER_DEAD_AFTER_S = 60.0  # seconds without a heartbeat after which a run's owner counts as dead
_RENEW_INTERVAL_S = 2.0  # between two heartbeats of a launcher whose verb takes long
_LOOK_PAUSE_S = 2.0  # between two looks: a share that is mounted again may show an empty folder first
_CONFIRM_S = 5.0  # more than two heartbeats of a launcher, which sends one every two seconds


def _stage_in_folder(folder: str, request: str) -> Json:
    """Create the folder from the tar on stdin, if it does not exist and no other living launcher owns the run.

    The folder gets its name once its files are on disk: one that exists is complete, also after a power cut. Prints
    whether a tar is wanted, whether with the archive of the code, and the other owner, if any. Returns whether the
    folder was created. Raises OSError or TarError if the tar is incomplete or cannot be unpacked; nothing is left then.
    """
    fields = json.loads(request)
    owner = fields["owner"]
    other_owner = _find_other_owner(folder, owner)
    is_wanted = not other_owner and is_missing(folder)
    if not is_wanted:
        print(json.dumps({"wanted": False, "other_owner": other_owner}), flush=True)
        owner_file = OwnerFile(os.path.join(folder, HEARTBEAT_FILE))
        other_owner = other_owner or owner_file.record_heartbeat(owner, is_confirmed=True)
        return {"created": False, "other_owner": other_owner}
    parent, name = os.path.split(os.path.abspath(folder))
    os.makedirs(parent, exist_ok=True)
    # Other hosts that share the disk have their own.
    temp_folder = tempfile.mkdtemp(prefix=name + _PART_SUFFIX, dir=parent)
    try:
        _receive_files(folder, temp_folder, fields["code"])
        OwnerFile(os.path.join(temp_folder, HEARTBEAT_FILE)).record_heartbeat(owner)
        _write_json(os.path.join(temp_folder, _PORT_TRY_FILE), fields["port_try"])
        _write_json(os.path.join(temp_folder, _SENT_FILE), dict(list_files(temp_folder, "work")))
        sync_files(temp_folder)
        os.rename(temp_folder, folder)
    except OSError:
        if is_missing(folder):  # else another host that shares the disk was first
            raise
    finally:
        shutil.rmtree(temp_folder, ignore_errors=True)
    return {"created": True}


def _receive_files(folder: str, temp_folder: str, digest: str | None) -> None:
    """Request the tar, and unpack it and the code into `temp_folder`. OSError or TarError.

    `digest`: of the code; None without code.
    """
    is_code_wanted = digest is not None and not _take_archive(folder, temp_folder, digest)
    print(json.dumps({"wanted": True, "code_wanted": is_code_wanted, "other_owner": ""}), flush=True)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        archive.extraction_filter = _trust_member
        archive.extractall(temp_folder)
    os.unlink(os.path.join(temp_folder, _END_MEMBER))  # raises if the tar broke off before its end
    if digest is not None:
        _unpack_code(folder, temp_folder, digest)
    os.makedirs(os.path.join(temp_folder, "checkpoints"), exist_ok=True)


def _write_json(path: str, value: Json) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def sync_files(folder: str) -> None:
    """Sync a new folder, and every file and folder in it, to disk. OSError if a file cannot be written."""
    folders: list[str] = []
    files: list[str] = []
    for directory, _, names in os.walk(folder, onerror=_raise_error):
        folders.append(directory)
        paths = [os.path.join(directory, name) for name in names]
        files += [path for path in paths if stat.S_ISREG(os.lstat(path).st_mode)]  # opening a pipe blocks
    from concurrent.futures import ThreadPoolExecutor  # only the placing of a job needs it

    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(_sync, files))  # `list` raises a thread's error
    for path in folders:
        with contextlib.suppress(OSError):  # not every file system can sync a folder
            _sync(path)


def _raise_error(error: OSError) -> NoReturn:
    raise error


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _trust_member(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """Extract each member as it is: the tar comes from the user's own launcher."""
    return member


# --- the archives of code


def _locate_archive(folder: str, digest: str) -> str:
    """The path of an archive beside the folders of all attempts."""
    return os.path.join(os.path.dirname(folder), _ARCHIVES_FOLDER, digest + ".tar.gz")


def _take_archive(folder: str, temp_folder: str, digest: str) -> bool:
    """Link an archive into the attempt's folder, because another run may remove it here; returns whether it exists."""
    path = _locate_archive(folder, digest)
    own_path = os.path.join(temp_folder, _CODE_MEMBER)
    try:
        os.utime(path)  # the oldest are removed
        try:
            os.link(path, own_path)
        except OSError:  # removed meanwhile, or a file system without hard links
            shutil.copyfile(path, own_path)
    except FileNotFoundError:
        return False
    return True


def _unpack_code(folder: str, temp_folder: str, digest: str) -> None:
    """Unpack the attempt's archive with the program that came in the tar, and move it to those of the host. OSError."""
    sys.path.insert(0, os.path.join(temp_folder, "supervisor"))
    sys.dont_write_bytecode = True
    from torchyard.host.code.old_archives import remove_old_archives
    from torchyard.host.code.unpack import unpack_code

    own_path = os.path.join(temp_folder, _CODE_MEMBER)
    path = _locate_archive(folder, digest)
    try:
        with open(own_path, "rb") as archive:
            unpack_code(archive, os.path.join(temp_folder, "work"), digest)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)  # it may be damaged: the next attempt sends it again
        raise
    os.makedirs(os.path.dirname(path), exist_ok=True)
    _sync(own_path)  # else a power cut may leave an empty archive, with which the next attempt fails
    os.replace(own_path, path)
    with contextlib.suppress(FileNotFoundError):  # two links of one file: replacing the one by the other keeps both
        os.unlink(own_path)
    remove_old_archives(os.path.dirname(path), _MAX_ARCHIVES)


# --- who owns the run


class OwnerFile:
    """The file that records the owner of a run and its last heartbeat.

    Another owner is dead once its heartbeat is a minute old by the clock, and none has come for `_CONFIRM_S` seconds
    while this process looked: a clock that was set, or that of another machine that shares the disk, ends no ownership.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen_heartbeat: float | None = None  # of another owner, at the first look
        self._seen_at = 0.0  # monotonic seconds, of the first look

    def record_heartbeat(self, owner: str, *, is_confirmed: bool = False) -> str:
        """Record a heartbeat of `owner`; returns the name of another owner that is alive, and records nothing then.

        Otherwise returns an empty text; while another owner's death is not confirmed, nothing is recorded either.
        `is_confirmed`: the caller has seen that. An empty `owner` renews the lease without taking the run over. Raises
        OSError if the file cannot be opened.
        """
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            recorded_owner, heartbeat_at = _read_heartbeat(fd)
            if owner and recorded_owner not in ("", owner):
                if _is_recent(heartbeat_at) or self._has_changed(heartbeat_at):
                    return recorded_owner
                if not is_confirmed and time.monotonic() - self._seen_at < _CONFIRM_S:
                    return ""
            self._seen_heartbeat = None
            if owner != recorded_owner or not os.fstat(fd).st_size:
                with contextlib.suppress(OSError):  # a full disk: the mtime is the heartbeat
                    os.pwrite(fd, (owner or recorded_owner).ljust(_HEARTBEAT_BYTES - 1).encode() + b"\n", 0)
            os.utime(fd)
        finally:
            os.close(fd)
        return ""

    def _has_changed(self, heartbeat_at: float) -> bool:
        """Whether another owner has sent a heartbeat since the first look."""
        if self._seen_heartbeat is None:
            self._seen_heartbeat = heartbeat_at
            self._seen_at = time.monotonic()
        return heartbeat_at != self._seen_heartbeat


class OtherOwnerError(Exception):
    """Another living launcher owns the run; its name is the message."""


class Ownership:
    """A launcher's right to end and to remove what a run has on this host.

    `acquire` first, which takes the run over from an owner that is dead; then `check` right before each signal and each
    removal, and `renew` while waiting, so that no other launcher counts this one as dead. Each raises OtherOwnerError
    if another living launcher owns the run, and OSError if the owners cannot be read.

    folder: of any attempt; it need not exist.
    """

    def __init__(self, folder: str, owner: str) -> None:
        self._folder = folder
        self._owner = owner
        self._file = OwnerFile(os.path.join(folder, HEARTBEAT_FILE))
        self._checked_at = float("-inf")  # monotonic seconds

    def acquire(self) -> None:
        """Become the owner; waits up to a minute for a heartbeat of another one."""
        other_owner = _find_other_owner(self._folder, self._owner)
        if other_owner:
            raise OtherOwnerError(other_owner)
        self._record_heartbeat(is_confirmed=True)

    def check(self) -> None:
        """Check the owner of each attempt, and record a heartbeat."""
        for heartbeat in _list_heartbeats(self._folder):
            if heartbeat.owner not in ("", self._owner) and _is_recent(heartbeat.sent_at):
                raise OtherOwnerError(heartbeat.owner)
        self._record_heartbeat(is_confirmed=False)

    def renew(self) -> None:
        """Check the owner, unless that was done a moment ago."""
        if time.monotonic() - self._checked_at >= _RENEW_INTERVAL_S:
            self.check()

    def _record_heartbeat(self, *, is_confirmed: bool) -> None:
        other_owner = ""
        with contextlib.suppress(FileNotFoundError):  # without the folder, its processes are ended by their label
            other_owner = self._file.record_heartbeat(self._owner, is_confirmed=is_confirmed)
        if other_owner:
            raise OtherOwnerError(other_owner)
        self._checked_at = time.monotonic()


def _report_owner(folder: str, owner: str) -> Json:
    """Another living owner of any attempt of the run; an empty name if there is none."""
    return {"other_owner": _find_other_owner(folder, owner)}


def _end_processes(folder: str, owner: str, label: str, grace: str) -> Json:
    """End the processes with a label; returns what is left."""
    ownership = Ownership(folder, owner)
    ownership.acquire()
    return {"left": end_processes(label, grace_s=float(grace), check=ownership.check)}


def _read_heartbeat(fd: int) -> tuple[str, float]:
    """The run's owner and the time of its last heartbeat, by this host's clock."""
    owner = os.pread(fd, _HEARTBEAT_BYTES, 0).decode(errors="replace").strip("\0 \n")
    return owner, os.fstat(fd).st_mtime


def _is_recent(heartbeat_at: float) -> bool:
    """Whether a heartbeat's sender may be alive. A time in the future is as old as one in the past."""
    return abs(time.time() - heartbeat_at) < _OWNER_DEAD_AFTER_S


def _find_other_owner(folder: str, owner: str) -> str:
    """Another owner of any attempt of the run, once it sends a new heartbeat; empty once all others count as dead.

    Waits for up to a minute: a recent heartbeat may be the last one of a launcher that was killed since. If all are old
    it waits for a moment, because the clock may be wrong.
    """
    first_heartbeats: dict[str, float] = {}
    confirmed_at = time.monotonic() + _CONFIRM_S
    while True:
        others = [heartbeat for heartbeat in _list_heartbeats(folder) if heartbeat.owner not in ("", owner)]
        for heartbeat in others:
            if first_heartbeats.setdefault(heartbeat.path, heartbeat.sent_at) != heartbeat.sent_at:
                return heartbeat.owner
        may_be_alive = time.monotonic() < confirmed_at or any(_is_recent(heartbeat.sent_at) for heartbeat in others)
        if not others or not may_be_alive:
            return ""
        time.sleep(0.5)


class _Heartbeat(NamedTuple):
    """The last heartbeat of an attempt's owner: the file that records it, and its time by this host's clock."""

    path: str
    owner: str
    sent_at: float


def _list_heartbeats(folder: str) -> Iterator[_Heartbeat]:
    """The last heartbeat of each attempt of the run that has a folder here, complete or not. OSError if one is unknown.

    `folder` is any attempt's.
    """
    run_prefix = _get_run_prefix(folder)
    for suffix in _list_suffixes(run_prefix):
        path = os.path.join(run_prefix + suffix, HEARTBEAT_FILE)
        if not suffix.partition(_PART_SUFFIX)[0].isdigit():
            continue
        try:
            with open(path, "rb") as file:
                owner, sent_at = _read_heartbeat(file.fileno())
        except FileNotFoundError:  # the folder is being created or removed
            continue
        yield _Heartbeat(path, owner, sent_at)


# --- the folder's files


def is_missing(path: str) -> bool:
    """Whether a path does not exist: its parent folder can be listed without it, or is missing itself.

    OSError if that cannot be found out: a failed read does not prove absence.
    """
    try:
        os.lstat(path)
        return False
    except FileNotFoundError:
        parent, name = os.path.split(os.path.abspath(path))
    try:
        return name not in os.listdir(parent)
    except FileNotFoundError:
        return is_missing(parent)


def _get_run_prefix(folder: str) -> str:
    """What the paths of all attempts of a run start with, from the folder of one."""
    return os.path.abspath(folder).rpartition("-")[0] + "-"


def _list_suffixes(prefix: str) -> list[str]:
    """The rest of each path that starts with `prefix`; empty if its parent folder does not exist. OSError."""
    parent, name = os.path.split(prefix)
    try:
        names = os.listdir(parent)
    except FileNotFoundError:
        return []
    return [other_name[len(name) :] for other_name in names if other_name.startswith(name)]


class _File(NamedTuple):
    """A file or a link in a folder: its name relative to the folder, and its size in bytes and mtime in nanoseconds."""

    name: str
    fingerprint: list[int]


def list_files(folder: str, subfolder: str) -> Iterator[_File]:
    """Every file and link under `subfolder` without __pycache__; empty if it does not exist.

    Raises OSError if one cannot be looked at. Files that are removed meanwhile are left out.
    """
    try:
        entries = list(os.scandir(os.path.join(folder, subfolder)))
    except FileNotFoundError:
        return
    for entry in entries:
        name = os.path.join(subfolder, entry.name)
        try:
            entry_stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(entry_stat.st_mode):
            if entry.name != "__pycache__":
                yield from list_files(folder, name)
        elif stat.S_ISREG(entry_stat.st_mode) or stat.S_ISLNK(entry_stat.st_mode):  # not a socket or a pipe
            yield _File(name, [entry_stat.st_size, entry_stat.st_mtime_ns])


def _list_output(folder: str) -> Iterator[_File]:
    """Every file that the job may have left: its checkpoints, and what is in the folder that it ran in. OSError."""
    for subfolder in ("checkpoints", "work"):
        yield from list_files(folder, subfolder)


def _stage_out_folder(folder: str) -> None:
    """Print a tar of the checkpoints and of the files that are not as they were staged in. OSError."""
    sent: Json = {}
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, _SENT_FILE), encoding="utf-8") as file:
        sent = json.load(file)
    copied: dict[str, Json] = {}
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, fingerprint in _list_output(folder):
            if sent.get(name) != fingerprint:
                archive.add(os.path.join(folder, name), name, recursive=False)
            copied[name] = fingerprint
        content = json.dumps(copied).encode()
        member = tarfile.TarInfo(_END_MEMBER)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))


def _remove_folder(folder: str, owner: str = "") -> Json:
    """Remove the folder, partial folders beside it, and the folder above if it is empty; returns what is left.

    A folder with a file that is not as it was copied (stdin) is kept. OSError if a file cannot be looked at.
    """
    copied = json.loads(sys.stdin.read() or "{}")
    ownership = Ownership(folder, owner)
    ownership.acquire()
    missing = [name for name, fingerprint in _list_output(folder) if copied.get(name) != fingerprint]
    if missing:
        return {"left": ["folder %s: %d files are not copied, such as %s" % (folder, len(missing), missing[0])]}
    part_prefix = os.path.abspath(folder) + _PART_SUFFIX
    ownership.check()
    for path in [folder] + [part_prefix + suffix for suffix in _list_suffixes(part_prefix)]:
        shutil.rmtree(path, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(folder))
    except OSError:
        pass  # it holds other runs, or is not ours
    return {"left": ["folder %s" % os.path.abspath(folder)] if not is_missing(folder) else []}


def _look_for_script(folder: str, script: str) -> Json:
    """Report that a script in the folder does not exist, and whether a process of the attempt lives all the same.

    OSError if it exists, or if that cannot be found out at each of two looks.
    """
    for pause_s in (_LOOK_PAUSE_S, 0.0):
        if not is_missing(script):
            raise OSError(errno.EAGAIN, "could not be read for a moment", script)
        time.sleep(pause_s)
    label = parse_label(os.path.join(folder, "any")).rpartition("/")[0]
    return {"site": False, "is_running": bool(label) and is_label_alive(label + "/")}


def _list_attempts(folder: str) -> Json:
    """The run's attempts that have a folder here, with the number of their ports that were held before they started.

    `folder` is any attempt's.
    """
    run_prefix = _get_run_prefix(folder)
    numbers = [suffix for suffix in _list_suffixes(run_prefix) if suffix.isdigit()]
    return {"attempts": [[int(number), _read_port_try(run_prefix + number)] for number in numbers]}


def _read_port_try(folder: str) -> int:
    """How many of an attempt's ports were held; 0 if its folder was partly removed. OSError."""
    try:
        with open(os.path.join(folder, _PORT_TRY_FILE), encoding="utf-8") as file:
            return int(json.load(file))
    except (FileNotFoundError, ValueError, TypeError):
        return 0


VERBS: dict[str, Any] = {
    "place": _stage_in_folder,
    "clear": _remove_folder,
    "attempts": _list_attempts,
    "owner": _report_owner,
    "end": _end_processes,
    "look": _look_for_script,
}

if __name__ == "__main__":
    verb = sys.argv[1]
    folder = sys.argv[2]
    os.umask(0o077)  # logs, programs and checkpoints are the user's alone
    try:
        if verb == "bring":
            _stage_out_folder(folder)
        else:
            print(json.dumps(VERBS[verb](*sys.argv[2:])))
    except OtherOwnerError as error:
        print(json.dumps({"other_owner": str(error)}))
    except (OSError, tarfile.TarError) as error:
        sys.exit("%s: %s" % (getattr(error, "strerror", None) or error, getattr(error, "filename", None) or folder))
