"""Host scripts that are a piece of Python, which sends what a test wants (the protocol is in host/watch.py)."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchyard.model.plan import HostScript, Process

MakeProcess = Callable[[str], Process]
# Defines what the code of a test uses: the process's `name`, the `offset` from which its log is wanted, and functions
# that send its state, a piece of the file `there` as its log, and the end of that log.
_PRELUDE = """\
import json, os, sys, time
folder, name, verb = sys.argv[1:]
os.chdir(folder)

def send(data=b"", **line):
    sys.stdout.buffer.write(json.dumps(line).encode() + b"\\n" + data)
    sys.stdout.buffer.flush()

def state(phase="running", **fields):
    send(process=name, state=dict(fields, phase=phase))

def tail(size=None):
    global offset
    data = open("there", "rb").read()[offset:][:size]
    if data:
        send(data, process=name, log=offset, size=len(data))
        offset += len(data)

def end():
    send(process=name, log_end=offset)

if verb != "watch":
    json.load(sys.stdin)
    open("over", "w").close()
    print(json.dumps({name: {"left": []}}))
    sys.exit()
request = json.loads(sys.stdin.readline() or "{}")
offset = request.get("logs", {}).get(name, 0)
"""


def build_host_script(folder: Path, name: str, code: str) -> HostScript:
    """A script on this machine that runs `code` in `folder` for its one process."""
    return HostScript(host="localhost", argv=(sys.executable, "-I", "-S", "-c", _PRELUDE + code, str(folder), name))


def build_process(folder: Path, code: str, **fields: Any) -> Process:
    """A process `a` whose script runs `code` in `folder`, and whose log is copied to `kept/here`."""
    process = Process(
        name="a",
        script=build_host_script(folder, "a", code),
        folder="a",
        log=str(folder / "run" / "kept" / "here"),
        copies_log=True,
        spec=None,
        grace=1.0,
    )
    return process.model_copy(update=fields)
