"""`torchyard service`: the systemd unit of a checkout, which has the server and the worker that it runs."""

import runpy
import sys

from torchyard.common.project_root import ROOT
from torchyard.model.errors import TorchyardError


def run_service(verb: str) -> int:
    """Install, remove or show the unit. TorchyardError for a wheel, which has neither flows nor deployments."""
    script = ROOT / "scripts" / "service.py"
    if not script.exists():
        raise TorchyardError(
            "the service runs the Prefect server and worker of a checkout, and this is an installed package: "
            "clone the project, and call `torchyard service` or `make service` there"
        )
    sys.argv = [str(script), verb]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0
