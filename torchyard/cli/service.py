"""`torchyard service`: the systemd unit of a checkout, which has the server and the worker that it runs."""

import contextlib
import runpy
import sys

from torchyard.cli.documents import ServiceDocument, print_document
from torchyard.cli.exit_codes import ExitCode
from torchyard.common.project_root import ROOT
from torchyard.model.errors import TorchyardError


def run_service(verb: str, *, as_json: bool) -> int:
    """Install, remove or show the unit; return the exit code of the script, 0 if the unit is as requested.

    TorchyardError for a wheel, which has neither flows nor deployments; with `as_json` also if the script fails.
    """
    script = ROOT / "scripts" / "service.py"
    if not script.exists():
        raise TorchyardError(
            "the service runs the Prefect server and worker of a checkout, and this is an installed package: "
            "clone the project, and call `torchyard service` or `make service` there"
        )
    if not as_json:
        return _run_script(str(script), verb)
    with contextlib.redirect_stdout(sys.stderr):
        exit_code = _run_script(str(script), verb)
        if verb != "status" and exit_code:
            raise TorchyardError(f"the service was not changed by {verb}: see stderr")
        module = runpy.run_path(str(script))
        try:
            state = module["read_unit_state"]()
        except module["YardError"] as error:
            raise TorchyardError(str(error)) from error
    print_document(ServiceDocument.model_validate(state._asdict()))
    return exit_code


def _run_script(script: str, verb: str) -> int:
    sys.argv = [script, verb]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exit:
        return int(exit.code or 0)
    return ExitCode.SUCCESS
