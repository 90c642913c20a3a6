"""The program that runs Prefect's server on a socket of its parent, with a small server in place of Prefect's."""

import subprocess
import sys
from pathlib import Path

from scripts import listener
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT

# Stands in for uvicorn and Prefect: prints the port of the socket that it is given, and waits.
CHILD = """
import sys, time
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

def serve(sockets):
    print(sockets[0].getsockname()[1], flush=True)
    time.sleep(60)

uvicorn = ModuleType("uvicorn")
uvicorn.Config = MagicMock()
uvicorn.Server = lambda config: SimpleNamespace(run=serve)
sys.modules["uvicorn"] = uvicorn
for name in ("prefect", "prefect.server", "prefect.server.api", "prefect.server.api.server", "prefect.settings"):
    sys.modules[name] = MagicMock()
from scripts import prefect_server
prefect_server.main()
"""
PARENT = """
import subprocess, sys
fd = int(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(fd)], pass_fds=[fd])
print(child.pid, flush=True)
child.wait()
"""


def test_server_uses_the_socket_and_dies_with_its_parent() -> None:
    """The server serves the socket that it inherits, and does not outlive the process that holds it."""
    with listener.open_listener(0) as held:
        fd = held.fileno()
        argv = [sys.executable, "-c", PARENT, CHILD, str(fd)]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, pass_fds=[fd]) as parent:
            assert parent.stdout
            child = int(parent.stdout.readline())
            assert int(parent.stdout.readline()) == held.getsockname()[1]
            parent.kill()
            wait_until(lambda: not Path(f"/proc/{child}").exists())
