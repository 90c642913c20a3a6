"""The command `torchyard` as a process: most verbs take 0.2 s, so it neither collects garbage nor cleans up."""

import contextlib
import gc
import os
import signal
import sys

gc.disable()
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for them reads every installed package

from torchyard.cli.exit_codes import ExitCode  # noqa: E402
from torchyard.cli.main import main as run  # noqa: E402
from torchyard.cli.main import report_write_error  # noqa: E402
from torchyard.common.escaping import escape_unencodable_output  # noqa: E402
from torchyard.run.control import Terminated  # noqa: E402


def main() -> None:
    """Run `torchyard VERB …` and exit without cleaning up, which saves a tenth of the time."""
    escape_unencodable_output()
    try:
        code = run()
    except SystemExit as exit:  # argparse: help, or usage
        code = exit.code if isinstance(exit.code, int) else 0
    except (KeyboardInterrupt, Terminated):  # outside a run: nothing was started, so nothing must be reported
        code = 128 + signal.SIGINT
    os._exit(_flush_output(code))


def _flush_output(code: int) -> int:
    """Write what is buffered; return the exit code, which is a failure if the output is incomplete.

    A stream that was closed before the start is None. A reader that is gone, such as `head`, has what it wanted.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            continue
        except OSError as error:
            code = code or ExitCode.FAILED
            with contextlib.suppress(OSError):  # of stderr, which may be on the same disk
                report_write_error(error)
    return code
