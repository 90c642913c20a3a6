"""`make soak`: runs a suite of tests many times, some of them under load, and counts the failures of each test.

A test that fails sometimes is a defect of the test or of the program. One round shows neither, so a suite is trusted
only after many rounds, on a quiet and on a busy machine. A failed test is not repeated, unlike in
tests/tools/rerun_alone.py.

    python -m tests.tools.soak unit --rounds 20 --loaded 5
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.tools.skips import MAY_SKIP, NEVER_INSTALLED, list_missing

ROOT = Path(__file__).resolve().parents[2]
SUITES = {
    "unit": ("-n", "4", "--dist", "loadfile", "tests/unit"),
    "local": ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "--timeout", "900", "tests/local"),
    "cluster": ("-n", "6", "--dist", "loadfile", "--no-loadscope-reorder", "--timeout", "900", "tests/cluster"),
}
_PYTEST_FAILED = 1  # tests ran and some failed; a higher code is an error of the run itself


class Round(NamedTuple):
    """The result of one round: counts of tests, the ids of those that failed, and the seconds that it took."""

    passed: int
    skipped: int
    failed: tuple[str, ...]
    seconds: float


def parse_junit(path: Path, seconds: float) -> Round:
    """Read pytest's JUnit file. An error of a fixture counts as a failure of its test."""
    passed = 0
    skipped = 0
    failed: list[str] = []
    for case in ElementTree.parse(path).iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in outcomes:
            skipped += 1
        else:
            passed += 1
    return Round(passed, skipped, tuple(failed), seconds)


def play_round(suite: str, folder: Path) -> Round:
    """Run the suite once; its output and JUnit file go to `folder`. CalledProcessError if pytest itself fails."""
    folder.mkdir(parents=True, exist_ok=True)
    junit = folder / "junit.xml"
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junit-xml", str(junit), *SUITES[suite]]
    started_at = time.monotonic()
    with (folder / "output").open("wb") as output:
        pytest = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        exit_code = pytest.wait()
    except KeyboardInterrupt:
        pytest.wait()  # Ctrl-C has reached it too: killed now, it would leave its workers behind
        raise
    if exit_code > _PYTEST_FAILED:
        raise subprocess.CalledProcessError(exit_code, argv)
    return parse_junit(junit, time.monotonic() - started_at)


@contextmanager
def burn_processors(count: int) -> Iterator[None]:
    """Keep `count` processes busy within the block, so that the load of the machine is at least `count`."""
    burners = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(count)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _burn() -> None:
    while True:
        pass


def describe_failures(rounds: list[Round]) -> list[str]:
    """One line for each test that failed in any round, the most frequent first."""
    failures = Counter(test for played in rounds for test in played.failed)
    return [f"{count} of {len(rounds)}  {test}" for test, count in failures.most_common()]


def _list_loads(args: argparse.Namespace) -> list[int]:
    """The load of each round: quiet ones first."""
    return [0] * (args.rounds - args.loaded) + [args.load] * args.loaded


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--rounds", type=int, default=20, help="how often to run the suite")
    parser.add_argument("--loaded", type=int, help="how many of the rounds run under load (default: at most 5)")
    parser.add_argument("--load", type=int, default=8, help="busy processes during those rounds")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "soak", help="folder for the output of each round")
    args = parser.parse_args(argv)
    if args.loaded is None:
        args.loaded = min(5, args.rounds)
    if not 0 <= args.loaded <= args.rounds:
        parser.error(f"--loaded must be between 0 and {args.rounds}, the number of rounds")

    reasons = [reason for _, reason in list_missing()]
    os.environ.setdefault(MAY_SKIP, ",".join(["none", NEVER_INSTALLED, *reasons]))
    rounds: list[Round] = []
    with ExitStack() as stack:
        if args.suite == "cluster":
            from tests.cluster import e2e

            os.environ[MAY_SKIP] = e2e.may_skip()
            stack.enter_context(e2e.cluster())
        for number, load in enumerate(_list_loads(args), start=1):
            with burn_processors(load):
                played = play_round(args.suite, args.out / args.suite / str(number))
            rounds.append(played)
            print(
                f"round {number} of {args.rounds}, load {load}: {played.passed} passed, {len(played.failed)} failed, "
                f"{played.skipped} skipped in {played.seconds:.0f} s",
                flush=True,
            )
            for test in played.failed:
                print(f"  {test}: {args.out / args.suite / str(number) / 'output'}", flush=True)
    failures = describe_failures(rounds)
    print("\n".join(failures or [f"no failure in {len(rounds)} rounds"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
