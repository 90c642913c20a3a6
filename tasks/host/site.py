#!/usr/bin/env python3
"""A run's folder on a host that ssh reaches: made, emptied, removed. Standard library only, Python 3.8 or newer.

Its text goes with each call, as `python3 -I -S -c TEXT VERB FOLDER`, so that a host needs nothing of ours before:

    place   prints whether FOLDER is wanted, or there; then makes it of the tar on stdin, whole or not at all
    bring   prints a tar of what the job left: its checkpoints, and what is new or changed where it ran
    clear   removes FOLDER; prints what is left

A tar is whole where its last member is called `whole`: a stream that breaks between two files looks like its end.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import sys
import tarfile
from typing import Any, Iterator

Json = Any
WHOLE = "whole"


def place(folder: str) -> Json:
    wanted = not os.path.isdir(folder)
    print(json.dumps({"wanted": wanted}), flush=True)
    if not wanted:
        return {"created": False}
    part = "%s.part-%d" % (folder, os.getpid())
    os.makedirs(part)
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            archive.extraction_filter = lambda member, path: member
            archive.extractall(part)
        os.unlink(os.path.join(part, WHOLE))
        os.makedirs(os.path.join(part, "checkpoints"), exist_ok=True)
        with open(os.path.join(part, "sent.json"), "w") as file:
            json.dump({name: mark(os.path.join(part, name)) for name in names(part, "work")}, file)
        os.rename(part, folder)
    except OSError:
        if not os.path.isdir(folder):  # else another host, with the same disk, was first
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {"created": True}


def names(folder: str, below: str) -> Iterator[str]:
    """Every file below, relative to the folder; links too, what Python has compiled not."""
    for at, folders, files in os.walk(os.path.join(folder, below)):
        folders[:] = [each for each in folders if each != "__pycache__"]
        links = [each for each in folders if os.path.islink(os.path.join(at, each))]
        for name in files + links:
            path = os.path.join(at, name)
            if os.path.isfile(path) or os.path.islink(path):  # no socket, no pipe
                yield os.path.relpath(path, folder)


def mark(path: str) -> Json:
    found = os.lstat(path)
    return [found.st_size, found.st_mtime_ns]


def bring(folder: str) -> None:
    sent: Json = {}
    if os.path.exists(os.path.join(folder, "sent.json")):
        with open(os.path.join(folder, "sent.json")) as file:
            sent = json.load(file)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for below in ("checkpoints", "work"):
            for name in names(folder, below):
                path = os.path.join(folder, name)
                if sent.get(name) != mark(path):
                    archive.add(path, name, recursive=False)
        archive.addfile(tarfile.TarInfo(WHOLE))


def clear(folder: str) -> Json:
    for path in [folder] + glob.glob(glob.escape(folder) + ".part-*"):
        shutil.rmtree(path, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(folder))
    except OSError:
        pass  # of other runs, or not ours
    return {"left": ["folder %s" % os.path.abspath(folder)] if os.path.lexists(folder) else []}


if __name__ == "__main__":
    verb, at = sys.argv[1:]
    try:
        if verb == "bring":
            bring(at)
        else:
            print(json.dumps(place(at) if verb == "place" else clear(at)))
    except (OSError, tarfile.TarError) as error:
        sys.exit("%s: %s" % (getattr(error, "strerror", None) or error, getattr(error, "filename", None) or at))
