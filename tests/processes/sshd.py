"""Two hosts that only ssh reaches: network namespaces, each with its own OpenSSH server, address and home folder.

They share this machine's disk, so that torch is installed; their homes, networks, keys and configuration are separate.
"""

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.support.waiting import wait_until

SSHD = "/usr/sbin/sshd"
# SHLVL keeps the .bashrc of this machine's user from running on the hosts.
INSTALL = "apt-get install -y openssh-server openssh-client iproute2"
SERVER_CONFIG = """\
Port 22
HostKey {keys}/server
AuthorizedKeysFile {keys}/user.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
MaxStartups 100
SetEnv SHLVL=2
ForceCommand export HOME={home}; cd; eval "$SSH_ORIGINAL_COMMAND"
"""
CLIENT_CONFIG = """\
Host wrong-key
  IdentityFile {keys}/other
Host host-a host-b down stranger
  IdentityFile {keys}/user
Host stranger
  UserKnownHostsFile /dev/null
Host host-b
  HostName {first}.2
Host down
  HostName {first}.9
Host host-a wrong-key stranger
  HostName {first}.1
Host *
  User {user}
  Port 22
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {keys}/known
"""


def find_obstacle() -> str:
    """The reason why such hosts cannot be created here; empty if they can."""
    if os.getuid():
        return "hosts behind ssh are network namespaces, which only root can make"
    if not all(map(shutil.which, (SSHD, "ssh", "ssh-keygen", "ip", "nsenter"))):
        return f"no OpenSSH server: {INSTALL}"
    completed = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True)
    return "network namespaces are not allowed here" if completed.returncode else ""


_NUMBERS = itertools.count()  # of the hosts that this process has created


class Hosts:
    """host-a and host-b, at the first two addresses of a network; this machine has its address .254.

    `start` creates them, `stop` removes them; a host's server can be stopped and started in between.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Each has its own network and names: the kernel removes those of an earlier one some time after its `stop`.
        number = next(_NUMBERS)
        self.network = f"10.{os.getpid() % 200 + 20}.{number % 70}"
        self._bridge = f"ty{os.getpid()}-{number}"
        self.addresses = {"host-a": f"{self.network}.1", "host-b": f"{self.network}.2"}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Create the network and the keys, and start the servers."""
        keys = self.folder / "keys"
        keys.mkdir(parents=True)
        for name in ("server", "user", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
        public = " ".join((keys / "server.pub").read_text().split()[:2])
        (keys / "known").write_text("".join(f"{address} {public}\n" for address in [*self.addresses.values()]))
        user = os.environ.get("USER") or "root"
        (self.folder / "config").write_text(CLIENT_CONFIG.format(user=user, keys=keys, first=self.network))
        bridge = self._bridge
        launcher_address = f"{self.network}.254/24"
        run_ip(
            f"link add {bridge} type bridge", f"address add {launcher_address} dev {bridge}", f"link set {bridge} up"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        for name in self.addresses:
            self._create_host(name)
            self.start_server(name)

    def _create_host(self, name: str) -> None:
        """Create a host's network and its home."""
        (self.folder / name).mkdir()
        self._holders[name] = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        holder = str(self._holders[name].pid)
        wait_until(lambda: os.readlink(f"/proc/{holder}/ns/net") != os.readlink("/proc/self/ns/net"))
        link = self._link(name)
        run_ip(f"link add {link} type veth peer name eth7 netns {holder}", f"link set {link} master {self._bridge} up")
        run_ip(
            "link set lo up",
            f"address add {self.addresses[name]}/24 dev eth7",
            "link set eth7 up",
            namespace_pid=holder,
        )

    def _link(self, name: str) -> str:
        """The name of the bridge's end of a host's link."""
        return f"{self._bridge}{name[-1]}"

    def start_server(self, name: str) -> None:
        """Start a host's server, and wait until it accepts a login."""
        config = self.folder / f"{name}.sshd"
        config.write_text(SERVER_CONFIG.format(keys=self.folder / "keys", home=self.folder / name))
        argv = [*self.get_prefix(name), SSHD, "-D", "-e", "-f", str(config)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._servers[name] = subprocess.Popen(argv, stderr=log, start_new_session=True)
        wait_until(lambda: self.run(name, "true").returncode == 0, 60)

    def get_prefix(self, name: str) -> list[str]:
        """The prefix that runs a command in a host's network."""
        return ["nsenter", "--target", str(self._holders[name].pid), "--net"]

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host over ssh."""
        argv = [*shlex.split(self.ssh), name, *command]
        return subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    @property
    def ssh(self) -> str:
        """The value for TORCHYARD_SSH."""
        return f"ssh -F {self.folder}/config"

    def kill_connections(self, name: str) -> None:
        """Kill every connection of a host; its server keeps running."""
        for pid in self.list_sessions(name):
            with suppress(ProcessLookupError):  # a connection may end by itself after the look
                os.kill(pid, signal.SIGKILL)

    def list_sessions(self, name: str) -> list[int]:
        """The server processes of a host's connections: children of its server."""
        server = self._servers[name].pid
        text = Path(f"/proc/{server}/task/{server}/children").read_text()
        return [int(pid) for pid in text.split()]

    def unplug(self, name: str, seconds: float) -> None:
        """Disconnect a host from the network for some seconds."""
        run_ip(f"link set {self._link(name)} down")
        time.sleep(seconds)
        run_ip(f"link set {self._link(name)} up")

    def stop_server(self, name: str) -> None:
        """Stop a host's server and all its connections."""
        self.kill_connections(name)
        self._servers[name].kill()
        self._servers[name].wait()

    def list_processes(self, name: str) -> list[str]:
        """The command lines of the processes on a host, except for those of ssh."""
        network = os.readlink(f"/proc/{self._holders[name].pid}/ns/net")
        own_pids = {self._holders[name].pid, self._servers[name].pid}
        command_lines = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{pid}/ns/net") == network and int(pid) not in own_pids:
                    command_lines.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return [command_line for command_line in command_lines if command_line and not command_line.startswith("sshd")]

    def age_renewals(self) -> None:
        """Set the times of the hosts' renewals back to 61 s ago, as if no launcher had renewed a job since."""
        for name in self.addresses:
            for path in (self.folder / name).rglob("owner"):
                os.utime(path, (time.time() - 61,) * 2)

    def list_leftovers(self) -> list[str]:
        """The processes and files that a run has left on the hosts."""
        leftovers = []
        for name in self.addresses:
            leftovers += self.list_processes(name)
            leftovers += [str(path) for path in (self.folder / name).iterdir()]
        return leftovers

    def stop(self) -> None:
        """Stop the servers and remove the hosts and their network; what fails does not keep the rest."""
        with ExitStack() as stack:
            stack.callback(subprocess.run, ["ip", "link", "delete", self._bridge], check=False, capture_output=True)
            for holder in self._holders.values():
                stack.callback(holder.wait)
                stack.callback(holder.kill)
            for name in self._servers:
                stack.callback(self.stop_server, name)


def run_ip(*commands: str, namespace_pid: str = "") -> None:
    """Run `ip` commands here, or in the network of the process `namespace_pid`."""
    prefix = ["nsenter", "--target", namespace_pid, "--net"] if namespace_pid else []
    completed = subprocess.run(
        [*prefix, "ip", "-batch", "-"], input="\n".join(commands), text=True, capture_output=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
