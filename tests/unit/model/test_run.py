"""The names that an attempt gets from its run."""

import re

from hypothesis import assume, given

from tests.drawn import RUNS, plan
from tests.drawn_plans import ANY, at
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.profile import Profile
from torchyard.model.requirements import FreePort
from torchyard.model.run import Run


def test_short_names_differ_for_runs_of_one_minute() -> None:
    """Time-ordered ids with the same beginning give different short names."""
    ids = ("0190c7f0-1111-7000-8000-0000a1b2c3d4", "0190c7f0-1111-7000-8000-0000a1b2c3d5")
    assert len({Run(id=each, attempt=1, folder="").short for each in ids}) == 2


def names(made: Plan) -> set[str]:
    ids = set(re.findall(r"--rdzv_id=([\w-]+)|'rdzvId': '([\w-]+)'", str(made)))
    if isinstance(made, ManifestPlan):
        return {*map(str, ids), made.folder, *at(made, r"metadata\.name")}
    own = {f"port {each.port}" for each in made.requires if isinstance(each, FreePort)}
    return {*map(str, ids), made.label, *made.logs.values(), *own}


@given(ANY, RUNS)
def test_two_attempts_share_no_name(profile: Profile, run: Run) -> None:
    """Attempts share no objects, folders, rendezvous ids or ports: the previous one may still be shutting down."""
    assume("port" not in profile.options)
    first, second = (
        names(plan(profile, run.model_copy(update={"attempt": try_}))) for try_ in (run.attempt, run.attempt + 1)
    )
    assert first & second == set()
