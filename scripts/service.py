"""`make service`: a systemd user unit that runs the server and the worker of this folder, also after a reboot.

The unit's processes include the supervisors of jobs, which must outlive it: systemd stops only the main process, which
stops the server and the worker. Jobs that lose their launcher this way keep running under their lease, and their runs
are resumed at the next start.
"""

import argparse
import os
import pwd
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.api import YardError
from scripts.processes import PREFECT_HOME, YARD_SCRIPT
from scripts.server import create_prefect_home, write_private_file
from torchyard.common.pool import DEFAULT_POOL, read_pool
from torchyard.common.project_root import ROOT
from torchyard.model.errors import TorchyardError

# Variables of the installing shell that have no meaning outside of its session, or that systemd sets itself. The
# service gets all others, as the worker of `make up` does: runs need an unknown number of credentials, such as HF_TOKEN
# or the variables of an address in `notify`.
_SESSION_VARIABLES = frozenset(
    [
        "_",
        "COLORTERM",
        "DBUS_SESSION_BUS_ADDRESS",
        "DESKTOP_SESSION",
        "DISPLAY",
        "HOME",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "LOGNAME",
        "LS_COLORS",
        "MAIL",
        "MAKEFLAGS",
        "MAKELEVEL",
        "MFLAGS",
        "OLDPWD",
        "PS1",
        "PWD",
        "SHELL",
        "SHLVL",
        "SUDO_COMMAND",
        "SYSTEMD_EXEC_PID",
        "TERM",
        "TMUX",
        "TMUX_PANE",
        "USER",
        "WAYLAND_DISPLAY",
        "WINDOWID",
        "XAUTHORITY",
    ]
)
_SESSION_PREFIXES = ("XDG_", "SSH_C", "SSH_TTY", "TERM_", "VSCODE_", "GNOME_")  # of SSH_, not SSH_AUTH_SOCK
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # functions that a shell exports have other names
_MAX_OPEN_FILES = 65_536
_OWNER_PREFIX = "# torchyard of "  # the first line of a unit that this script has written; its folder follows


def install_service(*, take_over: bool = False) -> None:
    """Write the unit, start it, and enable it for every boot. YardError if the unit belongs to another folder.

    `take_over`: let the service take over the deployments of another folder.
    """
    _check_systemd()
    path = get_unit_path()
    _check_unit_owner(path)
    create_prefect_home()
    write_environment()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build_unit(take_over=take_over), encoding="utf-8")
    for arguments in (("daemon-reload",), ("enable", path.name), ("restart", path.name)):
        _run_systemctl(*arguments)
    print(f"{path.name} runs the server and the worker of {ROOT}; its log: journalctl --user -u {path.name}")
    print(_describe_linger())


def uninstall_service() -> None:
    """Stop the unit and remove it. Jobs keep running under their lease: the next `make up` resumes their runs."""
    path = get_unit_path()
    if not path.exists():
        print(f"{path.name} is not installed")
        return
    _check_unit_owner(path)
    _check_systemd()
    _run_systemctl("disable", "--now", path.name)
    path.unlink()
    _get_environment_path().unlink(missing_ok=True)
    _run_systemctl("daemon-reload")
    print(f"{path.name} is stopped and removed; `make up` resumes the runs that have not ended")


class UnitState(NamedTuple):
    """The unit, and its states as systemctl reports them; they are empty if it is not installed."""

    unit: str
    installed: bool
    active: str
    enabled: str


def read_unit_state() -> UnitState:
    """The state of this folder's unit. YardError if the unit belongs to another folder, or without systemd."""
    path = get_unit_path()
    if not path.exists():
        return UnitState(path.name, installed=False, active="", enabled="")
    _check_unit_owner(path)
    _check_systemd()
    active, enabled = (_query_systemctl(verb, path.name).stdout.strip() for verb in ("is-active", "is-enabled"))
    return UnitState(path.name, installed=True, active=active, enabled=enabled)


def show_service() -> int:
    """Print whether the unit is installed and active; return 0 if it is active, else 1."""
    state = read_unit_state()
    if not state.installed:
        print(f"{state.unit} is not installed: make service")
        return 1
    print(f"{state.unit}: {state.active}, {state.enabled}; its log: journalctl --user -u {state.unit}")
    print(_describe_linger())
    return 0 if state.active == "active" else 1


def build_unit(*, take_over: bool = False) -> str:
    """The text of this folder's unit file."""
    argv = [sys.executable, str(YARD_SCRIPT), "serve"]
    if take_over:
        argv.append("--take-over")
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    max_open_files = _MAX_OPEN_FILES if hard_limit == resource.RLIM_INFINITY else min(hard_limit, _MAX_OPEN_FILES)
    return f"""{_OWNER_PREFIX}{ROOT}
[Unit]
Description=torchyard's Prefect server and worker ({read_pool()})
Documentation={_escape_text((ROOT / "docs" / "operate.md").as_uri())}
StartLimitIntervalSec=0

[Service]
Type=exec
SyslogIdentifier=torchyard
ExecStart={" ".join(_quote_arg(arg) for arg in argv)}
WorkingDirectory={_escape_text(str(ROOT))}
EnvironmentFile={_escape_text(str(_get_environment_path()))}
Restart=always
RestartSec=5
# Only the main process gets a signal: the supervisors of jobs are in this group too, and must go on.
KillMode=process
TimeoutStopSec=60
# A program that runs out of memory ends its own run, not the service.
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE={max_open_files}

[Install]
WantedBy=default.target
"""


def get_unit_path() -> Path:
    """The path of this installation's unit. Each installation of a user has a separate name, from its pool."""
    pool = read_pool()
    name = "torchyard" if pool == DEFAULT_POOL else f"torchyard-{pool}"
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return folder / "systemd" / "user" / f"{name}.service"


def _get_environment_path() -> Path:
    """The file with the unit's variables. Only this user can read it, because some contain passwords."""
    return PREFECT_HOME / "service.env"


def _check_unit_owner(path: Path) -> None:
    """Raise YardError if the unit exists and was not written for this folder."""
    try:
        first_line = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except FileNotFoundError:
        return
    if first_line == f"{_OWNER_PREFIX}{ROOT}":
        return
    if first_line.startswith(_OWNER_PREFIX):
        owner = f"belongs to {first_line.removeprefix(_OWNER_PREFIX)}"
    else:
        owner = "was written by hand"
    raise YardError(
        f"{path} {owner}: it is not changed. Give this folder's service a separate name (make service POOL=team-b), or "
        "uninstall the existing one first"
    )


def _check_systemd() -> None:
    """Raise YardError if this machine has no systemd, or if it does not respond for this user."""
    if not shutil.which("systemctl"):
        raise YardError("there is no systemd on this machine (no systemctl): start server and worker with `make up`")
    completed = _query_systemctl("show-environment")
    if completed.returncode:
        reason = completed.stderr.strip() or f"exit code {completed.returncode}"
        raise YardError(
            f"systemd does not respond for this user ({reason}): log in as {_get_user_name()} by ssh or `machinectl "
            "shell` (su and sudo open no session), or start server and worker with `make up`"
        )


def _query_systemctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemctl", "--user", *arguments], capture_output=True, text=True, check=False)


def _run_systemctl(*arguments: str) -> None:
    """Run systemctl; YardError if it fails."""
    completed = _query_systemctl(*arguments)
    if completed.returncode:
        reason = completed.stderr.strip() or f"exit code {completed.returncode}"
        raise YardError(f"systemctl --user {' '.join(arguments)} failed: {reason}")


def _describe_linger() -> str:
    """Whether the service keeps running after this user has logged out."""
    user = _get_user_name()
    if Path("/var/lib/systemd/linger", user).exists():
        return "it starts at boot and keeps running when you log out (lingering is enabled)"
    return f"it stops when you log out, and starts when you log in: `loginctl enable-linger {user}` changes that"


def _get_user_name() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def write_environment() -> None:
    """Write the variables that the service gets from this shell to a file that only this user can read. OSError."""
    variables = {name: value for name, value in os.environ.items() if _is_passed(name, value)}
    variables.setdefault("PATH", os.defpath)
    lines = [f"{name}={_quote_value(value)}\n" for name, value in variables.items()]  # as in EnvironmentFile of systemd
    write_private_file(_get_environment_path(), "".join(lines))


def _is_passed(name: str, value: str) -> bool:
    """Whether the service gets a variable. systemd would refuse the whole file for a value that is not UTF-8."""
    if name in _SESSION_VARIABLES or name.startswith(_SESSION_PREFIXES) or not _VARIABLE_NAME.fullmatch(name):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quote_value(value: str) -> str:
    for special in '\\"$`':
        value = value.replace(special, f"\\{special}")
    return f'"{value}"'


def _quote_arg(arg: str) -> str:
    """An argument of ExecStart, where $ and % are special characters too."""
    escaped = _escape_text(arg).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'


def _escape_text(text: str) -> str:
    return text.replace("%", "%%")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/service.py", description=__doc__)
    parser.add_argument("verb", choices=["install", "uninstall", "status"])
    parser.add_argument("--take-over", action="store_true", help="take over the deployments of another folder")
    args = parser.parse_args()
    try:
        match args.verb:
            case "install":
                install_service(take_over=args.take_over)
                return 0
            case "uninstall":
                uninstall_service()
                return 0
            case _:
                return show_service()
    except (YardError, TorchyardError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
