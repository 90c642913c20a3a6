"""`python -m tests.steady -n 2 tests/local`: runs pytest, and once more, alone, the few tests that failed.

The tests of whole runs are played by real processes that share this machine's time. A test that fails only beside
others is named as unsteady, so that somebody looks into it, and the tests count as passed; one that fails alone as well
fails them, and so do more than `MOST` failures.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

MOST = 2
_TIMEOUT_S = 900  # of one test: some play several whole runs
_ALONE = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none")


def play_tests(*words: str) -> int:
    """Run pytest with these words in the current folder. Returns its exit code."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", "--timeout", str(_TIMEOUT_S), *words]
        code = subprocess.run(command, check=False).returncode
        failed = _list_failed(Path(cache))
        if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST:
            return code
        print(f"once more, alone: {', '.join(failed)}", flush=True)
        if again := subprocess.run([*command, *_ALONE], check=False).returncode:
            return again
    for test in failed:
        print(f"UNSTEADY: {test} failed beside other tests and passed alone; its failure is above", flush=True)
    return 0


def _list_failed(cache: Path) -> Sequence[str]:
    try:
        return sorted(json.loads((cache / "v" / "cache" / "lastfailed").read_bytes()))
    except FileNotFoundError:
        return ()


if __name__ == "__main__":
    sys.exit(play_tests(*sys.argv[1:]))
