"""Jobs of real processes, each with its own labels.

Labels are searched on the whole machine: with one name, parallel tests would find and end each other's processes.
"""

from pathlib import Path
from uuid import uuid4

from tests.conftest import Write, load
from torchyard.launchers import registry
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Profile
from torchyard.model.run import Run


def build_lone_profile(write: Write, code: str = "import time; time.sleep(60)") -> Profile:
    """A profile with a new name, of one process without an agent, which sleeps for a minute."""
    return load(write(f"lone-{uuid4().hex[:8]}", code=code, agent="none", rendezvous="env"))


def build_lone_plan(profile: Profile, folder: Path) -> CommandPlan:
    """The plan of a new run, with its own ports."""
    run = Run(id=str(uuid4()), attempt=1, folder=str(folder))
    plan = registry.make_plan(profile, run)
    assert isinstance(plan, CommandPlan)
    return plan
