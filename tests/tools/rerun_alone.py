"""`python -m tests.tools.rerun_alone -n 2 tests/local`: runs pytest, and once more, alone, the few tests that failed.

The tests of whole runs use real processes, which share this machine's time. A test that fails beside others and passes
alone is reported as UNSTEADY, so that a developer examines it, and the exit code is 0. If a test fails alone too, or if
more than `MAX_RETRIED` tests fail, the exit code is pytest's.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

MAX_RETRIED = 2
_TIMEOUT_S = 900  # of one test; some start several whole runs
_ALONE = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none")


def run_tests(*args: str) -> int:
    """Run pytest with these arguments in the current folder; return the exit code."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", "--timeout", str(_TIMEOUT_S), *args]
        code = subprocess.run(command, check=False).returncode
        failed_tests = _list_failed(Path(cache))
        if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed_tests) <= MAX_RETRIED:
            return code
        print(f"once more, alone: {', '.join(failed_tests)}", flush=True)
        retry_code = subprocess.run([*command, *_ALONE], check=False).returncode
        if retry_code:
            return retry_code
    for test in failed_tests:
        print(f"UNSTEADY: {test} failed beside other tests and passed alone; its failure is above", flush=True)
    return 0


def _list_failed(cache: Path) -> Sequence[str]:
    try:
        return sorted(json.loads((cache / "v" / "cache" / "lastfailed").read_bytes()))
    except FileNotFoundError:
        return ()


if __name__ == "__main__":
    sys.exit(run_tests(*sys.argv[1:]))
