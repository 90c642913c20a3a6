"""The process that holds a server's port and keeps Prefect's server, or a small one, running there."""

import base64
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

from scripts.server import find_free_port
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT

PASSWORD = "ada:the-password-of-this-start"
_NOBODY = 65534
_KEEP = """
import sys
from pathlib import Path
from scripts import listener
listener.PREFECT_HOME = Path(sys.argv[1])
if sys.argv[2]:
    listener.SERVER_SCRIPT = Path(sys.argv[2])
sys.exit(listener.keep_server_running(int(sys.argv[3])))
"""


class KeptServer(NamedTuple):
    """A running process of `keep_server_running`, and its port."""

    keeper: "subprocess.Popen[bytes]"
    port: int

    def find_server(self) -> int:
        """The process id of the server; 0 while there is none."""
        children = Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def request(self, path: str = "/api/health") -> int:
        """The status of a request with the password; 0 without a response."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        credentials = base64.b64encode(PASSWORD.encode()).decode()
        try:
            connection.request("GET", path, headers={"Authorization": f"Basic {credentials}"})
            return connection.getresponse().status
        except (OSError, HTTPException):
            return 0
        finally:
            connection.close()

    def is_port_free_for_others(self) -> bool:
        """Whether another user (as root: nobody) could listen at the port."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if os.getuid() == 0:
                    os.setuid(_NOBODY)
                with socket.socket() as listener:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    listener.bind(("127.0.0.1", self.port))
                    listener.listen()
                code = 0
            except OSError as error:
                code = error.errno or 1
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, errno.EADDRINUSE), os.strerror(code)
        return code == 0


@contextmanager
def kept_server(home: Path, script: Path | None = None) -> Iterator[KeptServer]:
    """Keep a server running, Prefect's with its data in `home`, or that of a script; it has responded once."""
    port = find_free_port()
    environment = os.environ | {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_API_AUTH_STRING": PASSWORD,
    }
    argv = [sys.executable, "-c", _KEEP, str(home), str(script or ""), str(port)]
    with subprocess.Popen(argv, cwd=ROOT, env=environment) as keeper:
        try:
            server = KeptServer(keeper, port)
            wait_until(lambda: server.request() == 200 or keeper.poll() is not None, 180)
            assert keeper.poll() is None
            yield server
        finally:
            keeper.terminate()
