"""How many files and connections this process may hold open, and how many a plan needs at once."""

import os
import resource

from torchyard.model.finding import Finding, failed_check
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan

# The limit that a job's processes get back: select() cannot handle descriptors above 1,024.
FORMER_LIMIT_VARIABLE = "TORCHYARD_NOFILE"
_SPARE_FILES = 100  # for Prefect, the run's folder and everything else
_FILES_PER_STREAM = 2  # per host whose processes are watched: the command's output and its stderr
_FILES_PER_COMMAND = 4  # per command that ends by itself, while it is being started


def raise_file_limit() -> None:
    """Raise this process's limit of open files as far as allowed. Nothing fails if it cannot be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS calls its hard limit infinite, and refuses it
        return
    os.environ.setdefault(FORMER_LIMIT_VARIABLE, str(soft))


def count_needed_files(plan: Plan) -> int:
    """About how many descriptors a plan needs at its busiest: everything followed, and stopped at once."""
    match plan:
        case CommandPlan():
            return _SPARE_FILES + (_FILES_PER_STREAM + _FILES_PER_COMMAND) * len(plan.scripts)
        case ManifestPlan():
            return _SPARE_FILES + len(plan.watch) + len(plan.logs)


def read_file_limit() -> int:
    """The hard limit of this process: the highest number of open files that it may allow itself."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def check_file_limit(plan: Plan, limit: int) -> tuple[Finding, ...]:
    """A failed check if the limit of open files is too low for a plan; empty if it is high enough."""
    count = count_needed_files(plan)
    if limit == resource.RLIM_INFINITY or limit >= count:
        return ()
    detail = f"a job of {len(plan.nodes)} nodes needs about {count} descriptors, and the limit is {limit}"
    remedy = (
        f"raise the hard limit where runs are launched (a worker, too): `ulimit -n {count}` as root, or limits.conf"
    )
    return (failed_check("open files", detail, remedy),)
