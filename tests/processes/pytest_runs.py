"""Runs pytest in a separate process."""

import os
import subprocess
import sys

from tests.support.caller import CLUSTER
from tests.tools.skips import MAY_SKIP
from torchyard.common.project_root import ROOT


def run_pytest(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    inherited = {name: value for name, value in os.environ.items() if name not in (CLUSTER, MAY_SKIP)}
    return subprocess.run(command, env=inherited | environment, cwd=ROOT, capture_output=True, text=True, check=False)
