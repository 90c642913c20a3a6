"""Runs whose machine was lost: the records in their Lease, and their folder after this machine has taken over."""

from tests.conftest import RUN_ID
from tests.doubles.fake_api import FakeApi
from tests.doubles.leases import RUN, build_lease
from torchyard.model.profile import Profile
from torchyard.model.run import Outcome, Status
from torchyard.pods import lease_record
from torchyard.run.folder import RunFolder
from torchyard.run.takeover import adopt_run

KEY = "a" * 64


OUTCOME = Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exit_codes={"worker-0": 0})


def put_lease(fake_api: FakeApi, ago: float = 140.0, **entries: str) -> None:
    """Create the Lease of a lost machine, with these annotations (`flow_run` is `torchyard/flow-run`)."""
    annotations = {f"torchyard/{key.replace('_', '-')}": value for key, value in entries.items()}
    fake_api.put(build_lease(ago=ago, annotations=annotations))


def adopt_folder(profile: Profile) -> RunFolder:
    folder = RunFolder.of(profile, RUN_ID)
    folder.path.mkdir(parents=True, exist_ok=True)
    adopt_run(folder, profile, RUN_ID)
    return folder


def seal_outcome(secret: str, attempt: str = "2") -> str:
    return lease_record.seal_outcome(RUN, attempt, OUTCOME, secret)


def seal_ending(secret: str, attempt: str = "2") -> str:
    recorded_ending = lease_record.RecordedEnding(end="succeeded", sentence="it went well")
    return lease_record.seal_ending(RUN, attempt, recorded_ending, secret)
