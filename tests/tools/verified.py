"""`make e2e`: runs the suites of complete runs, and records for which files each has passed as a whole.

    python -m tests.tools.verified [--changed] [--workers N] [SUITE ...]

tests/tools/verified.json holds, for each suite, a digest of the files that it covers. With `--changed`, as in CI, a
suite is left out if this digest is still theirs: it has passed for exactly these files. Only a machine on which no test
may be skipped writes the record.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tests.cluster import launcher_image, nodes
from tests.support.caller import CLUSTER
from tests.tools import skips
from torchyard.common.project_root import ROOT

RECORD = ROOT / "tests" / "tools" / "verified.json"
# What no suite of complete runs reads.
_UNREAD = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    ".ci/",
    ".github/",
    "tests/bench/",
    "tests/chaos/",
    "tests/hang/",
    "tests/stop/",
    "tests/unit/",
    "tests/tools/verified.json",
)


class Suite(NamedTuple):
    """A suite of complete runs.

    command: the arguments of this Python.
    workers: how many processes keep two cores busy.
    unread: the starts of the paths that it does not cover.
    read: exceptions from `unread`.
    """

    command: Sequence[str]
    workers: int
    unread: Sequence[str]
    read: Sequence[str] = ()

    def covers(self, path: str) -> bool:
        return path in self.read or not path.startswith(tuple(self.unread))


SUITES = {
    "local": Suite(
        ["-m", "tests.tools.rerun_alone", "--dist", "loadfile", "--no-loadscope-reorder", "-rfEs", "tests/local"],
        4,
        [*_UNREAD, "tests/cluster/"],
    ),
    "cluster": Suite(
        ["tests/cluster/e2e.py"],
        6,  # they wait more than they compute
        [*_UNREAD, "tests/local/", "docs/"],
        ["docs/small.json", "docs/kubernetes.md"],
    ),
}


def compute_digest(suite: Suite) -> str:
    """The digest of the paths and contents of all files that a suite covers, committed or not."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256()
    for name in sorted(set(filter(None, listing.split("\0")))):
        path = ROOT / name
        if suite.covers(name) and path.is_file():
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def read_record() -> dict[str, str]:
    """The digest with which each suite has passed; empty if there is no record."""
    try:
        record: dict[str, str] = json.loads(RECORD.read_text())
    except FileNotFoundError:
        return {}
    return record


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.tools.verified", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"only these: {', '.join(SUITES)}")
    parser.add_argument("--changed", action="store_true", help="leave out what has passed for the same files")
    parser.add_argument("--workers", type=int, help="processes that run tests, instead of each suite's number")
    args = parser.parse_args(argv)
    unknown_names = sorted(set(args.suites) - SUITES.keys())
    if unknown_names:
        parser.error(f"no suite is named {unknown_names[0]}; there are: {', '.join(SUITES)}")
    for name in args.suites or SUITES:
        suite = SUITES[name]
        digest = compute_digest(suite)
        if args.changed and read_record().get(name) == digest:
            print(f"tests/{name} has passed for these files ({RECORD.name}): left out; `make e2e` runs it", flush=True)
            continue
        code = run_suite(name, suite, args.workers or suite.workers)
        if code:
            return code
        if can_run_all(name):
            record = read_record() | {name: digest}
            RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    return 0


def run_suite(name: str, suite: Suite, workers: int) -> int:
    """Run a suite; return its exit code. tests/cluster determines by itself which tests may be skipped."""
    environment = dict(os.environ)
    if name == "local":
        environment.setdefault(skips.MAY_SKIP, skips.format_reasons())
        environment.pop(CLUSTER, None)  # it is given to the other suite alone
    command = [sys.executable, *suite.command, "-n", str(workers)]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def can_run_all(name: str) -> bool:
    """Whether no test of a suite was skipped for what this machine, or another cluster, lacks."""
    if name == "local":
        return not skips.list_missing()
    return not (os.environ.get(CLUSTER) or nodes.describe_obstacle() or launcher_image.describe_obstacle())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
