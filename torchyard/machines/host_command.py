"""Command lines that run a script of torchyard/host: on this machine, and on hosts that have none of our files."""

import base64
import re
import zlib
from pathlib import Path

from torchyard.machines.processes import Command
from torchyard.model.requirements import THIS_MACHINE

SCRIPTS_FOLDER = Path(__file__).resolve().parents[1] / "host"  # the scripts that run on hosts
_HOST_IMPORT = re.compile(r"^from torchyard\.host\.(\w+) import", re.MULTILINE)
# One line, for every login shell. The script is compiled after the check: an old Python must get that far.
_BOOTSTRAP_CODE = (
    "import sys; sys.version_info < (3, 8) and sys.exit('is Python %d.%d, and 3.8 or newer is needed' "
    "% sys.version_info[:2]); import base64, zlib; "
    "exec(zlib.decompress(base64.b64decode(sys.argv.pop(1))))"
)


def script_command(host: str, python: str, name: str, *script_argv: str) -> Command:
    """Runs a script of torchyard/host: its file on this machine, its text on hosts that have none of our files."""
    if host in THIS_MACHINE:
        return Command(argv=(python, str(SCRIPTS_FOLDER / name), *script_argv))
    return Command(argv=_inline_script(python, name, *script_argv))


def _inline_script(python: str, name: str, *script_argv: str) -> tuple[str, ...]:
    """A command line that contains a script of torchyard/host and needs no file."""
    packed = base64.b64encode(zlib.compress(_join_texts(name).encode())).decode()
    return (python, "-c", _BOOTSTRAP_CODE, packed, *script_argv)


def _join_texts(name: str) -> str:
    """A program with the text of a script, and of each module of torchyard/host that it imports at its start."""
    text = (SCRIPTS_FOLDER / name).read_text("utf-8")
    module_names = _HOST_IMPORT.findall(text)
    if not module_names:
        return text
    lines = ["import sys, types"]
    for module_name in module_names:
        full_name = f"torchyard.host.{module_name}"
        module_text = (SCRIPTS_FOLDER / f"{module_name}.py").read_text("utf-8")
        lines.append(f"module = sys.modules[{full_name!r}] = types.ModuleType({full_name!r})")
        lines.append(f"exec(compile({module_text!r}, {module_name + '.py'!r}, 'exec'), module.__dict__)")
    lines.append(f"exec(compile({text!r}, {name!r}, 'exec'))")
    return "\n".join(lines)
