"""Jobs on hosts behind ssh: a program without torch, and the logs and files that such a job left here."""

from collections.abc import Callable
from pathlib import Path

from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Collected, Outcome
from torchyard.steps.collect import collect
from torchyard.steps.preflight import run_checks
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.submit import submit
from torchyard.steps.wait import wait

# A program without torch, for a job without agents; it prints lines and saves files.
PROGRAM = """
import os, sys, time
from pathlib import Path
rank, seconds = os.environ["RANK"], float(sys.argv[1])
saved = Path(os.environ["TORCHYARD_CHECKPOINTS"])
print("found", *sorted(path.name for path in saved.iterdir()))
(saved / f"rank-{rank}").write_text(os.getcwd())
for number in range(int(seconds * 100)):
    print("line", number)
    time.sleep(0.01)
"""
Planned = Callable[..., CommandPlan]


def run_steps(plan: CommandPlan) -> tuple[Outcome, Collected]:
    """Run the steps from the rendezvous to collect; return their results."""
    ensure_rendezvous(plan)
    outcome = wait(submit(plan, Deadlines()))
    return outcome, collect(plan, outcome)


def read_log_texts(plan: CommandPlan, node: int) -> list[str]:
    """What the program of a node printed; its recorder adds lines if the machine is slow."""
    texts = [line.partition(" | ")[2] for line in Path(plan.processes[node].log).read_text().splitlines()]
    return [text for text in texts if RECORD_PREFIX not in text]


def read_fetched_files(plan: CommandPlan, node: int) -> dict[str, str]:
    """The files fetched from a node, and their content."""
    folder = Path(plan.processes[node].log).parent / "files"
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def describe_failed_checks(plan: CommandPlan) -> str:
    return "\n".join(
        f"{check.where}: {check.what} {check.remedy}" for check in run_checks(plan) if check.verdict == "failed"
    )


def describe_checks(plan: CommandPlan) -> str:
    return "\n".join(check.what for check in run_checks(plan))
