"""Two hosts that only ssh reaches: network namespaces, each with an OpenSSH server, an address and a home of its own.

They share this machine's disk, so that torch is installed; their homes, networks, keys and configuration are separate.
"""

import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

SSHD = "/usr/sbin/sshd"
# SHLVL keeps the .bashrc of this machine's user from running on the hosts.
INSTALL = "apt-get install -y openssh-server openssh-client iproute2"
SERVER = """\
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
CLIENT = """\
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


def missing() -> str:
    """Why such hosts cannot be created here; empty if they can."""
    if os.getuid():
        return "hosts behind ssh are network namespaces, which only root can make"
    if not all(map(shutil.which, (SSHD, "ssh", "ssh-keygen", "ip", "nsenter"))):
        return f"no OpenSSH server: {INSTALL}"
    done = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True)
    return "network namespaces are not allowed here" if done.returncode else ""


class Hosts:
    """host-a and host-b, at the first two addresses of a network; this machine is at .254 of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.network = folder, f"10.{os.getpid() % 200 + 20}.77"
        self._bridge = f"ty{os.getpid()}"  # other tests may have hosts of their own at the same time
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
        (keys / "known").write_text("".join(f"{each} {public}\n" for each in [*self.addresses.values()]))
        user = os.environ.get("USER") or "root"
        (self.folder / "config").write_text(CLIENT.format(user=user, keys=keys, first=self.network))
        bridge, own = self._bridge, f"{self.network}.254/24"
        ip(f"link add {bridge} type bridge", f"address add {own} dev {bridge}", f"link set {bridge} up")
        Path("/run/sshd").mkdir(exist_ok=True)
        for name in self.addresses:
            self._lay(name)
            self.serve(name)

    def _lay(self, name: str) -> None:
        """Create a host's network and its home."""
        (self.folder / name).mkdir()
        self._holders[name] = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        holder = str(self._holders[name].pid)
        until(lambda: os.readlink(f"/proc/{holder}/ns/net") != os.readlink("/proc/self/ns/net"))
        link = self._link(name)
        ip(f"link add {link} type veth peer name eth7 netns {holder}", f"link set {link} master {self._bridge} up")
        ip("link set lo up", f"address add {self.addresses[name]}/24 dev eth7", "link set eth7 up", inside=holder)

    def _link(self, name: str) -> str:
        """The name of the bridge's end of a host's link."""
        return f"{self._bridge}{name[-1]}"

    def serve(self, name: str) -> None:
        """Start a host's server, and wait until it answers."""
        config = self.folder / f"{name}.sshd"
        config.write_text(SERVER.format(keys=self.folder / "keys", home=self.folder / name))
        argv = [*self.inside(name), SSHD, "-D", "-e", "-f", str(config)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._servers[name] = subprocess.Popen(argv, stderr=log, start_new_session=True)
        until(lambda: self.run(name, "true").returncode == 0)

    def inside(self, name: str) -> list[str]:
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

    def cut(self, name: str) -> None:
        """Kill every connection of a host; its server lives on."""
        for pid in self.sessions(name):
            os.kill(pid, signal.SIGKILL)

    def sessions(self, name: str) -> list[int]:
        """The server processes of a host's connections: children of its server."""
        server = self._servers[name].pid
        text = Path(f"/proc/{server}/task/{server}/children").read_text()
        return [int(pid) for pid in text.split()]

    def unplug(self, name: str, seconds: float) -> None:
        """Take a host off the network for a while."""
        ip(f"link set {self._link(name)} down")
        time.sleep(seconds)
        ip(f"link set {self._link(name)} up")

    def shut(self, name: str) -> None:
        """Stop a host's server and all its connections."""
        self.cut(name)
        self._servers[name].kill()
        self._servers[name].wait()

    def processes(self, name: str) -> list[str]:
        """The command lines of what still runs on a host, apart from ssh."""
        network = os.readlink(f"/proc/{self._holders[name].pid}/ns/net")
        own = {self._holders[name].pid, self._servers[name].pid}
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{pid}/ns/net") == network and int(pid) not in own:
                    found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return [each for each in found if each and not each.startswith("sshd")]

    def forget(self) -> None:
        """Make it look as if no launcher has renewed a job here for a minute."""
        for name in self.addresses:
            for path in (self.folder / name).rglob("looked"):
                os.utime(path, (time.time() - 61,) * 2)

    def left(self) -> list[str]:
        """Processes and files that a run has left on either host."""
        processes = [each for name in self.addresses for each in self.processes(name)]
        return processes + [str(path) for name in self.addresses for path in (self.folder / name).iterdir()]

    def stop(self) -> None:
        for name in self._servers:
            self.shut(name)
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
        subprocess.run(["ip", "link", "delete", self._bridge], check=False, capture_output=True)


def ip(*commands: str, inside: str = "") -> None:
    """Run `ip` commands here or in the network of a process."""
    prefix = ["nsenter", "--target", inside, "--net"] if inside else []
    done = subprocess.run(
        [*prefix, "ip", "-batch", "-"], input="\n".join(commands), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def until(found: object, seconds: float = 10.0) -> None:
    assert callable(found)
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)
