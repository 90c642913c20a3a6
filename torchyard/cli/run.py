"""A run without a server: its log on the terminal, its folder like that of any other run."""

import gc
import logging
import sys
import uuid

from pydantic import ValidationError

from torchyard.common.log import LOGGER_NAME
from torchyard.common.log_filter import SafeText
from torchyard.common.private_files import make_private_folder, write_private_text
from torchyard.model.errors import LeftError, ProfileError
from torchyard.model.profile import Profile
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.reporter import LocalReporter
from torchyard.run.runner import Runner
from torchyard.steps.descriptors import raise_file_limit

_PROFILE_FILE = "profile.json"  # what `attach` goes on with


def run_profile(profile: Profile) -> int:
    """Carry a new run to its end. Exit code 0 where it succeeded."""
    run_id = str(uuid.uuid4())
    folder = RunFolder.of(profile, run_id)
    make_private_folder(folder.path)
    write_private_text(folder.path / _PROFILE_FILE, profile.model_dump_json(exclude_unset=True) + "\n")
    return _carry_run(Runner(profile, run_id, LocalReporter()))


def attach_run(name: str) -> int:
    """Go on with a run whose launcher was lost; one that has ended tells its end once more."""
    folder = RunFolder(runs_folder() / name)
    start = folder.last("start") if folder.path.is_dir() else {}
    if not start:
        known = ", ".join(sorted(each.parent.name for each in runs_folder().glob(f"*/{_PROFILE_FILE}"))) or "none"
        raise ProfileError(name, (f"there is no such run in {runs_folder()}; there are: {known}",))
    try:
        profile = Profile.model_validate_json((folder.path / _PROFILE_FILE).read_bytes())
    except FileNotFoundError as error:
        raise ProfileError(name, (f"Prefect carries it: prefect flow-run retry {start['run']}",)) from error
    except ValidationError as error:
        raise ProfileError(
            str(folder.path / _PROFILE_FILE), (f"it cannot be read: {error.errors()[0]['msg']}",)
        ) from error
    count = sum(event["event"] == "start" for event in folder.events()) + 1
    return _carry_run(Runner(profile, str(start["run"]), LocalReporter(count, asked_again=False)))


def _carry_run(runner: Runner) -> int:
    gc.enable()  # the short verbs do without (console.py)
    _log_to_terminal()
    raise_file_limit()
    try:
        end, _ = runner.run()
    except LeftError:
        print(f"go on with it: torchyard attach {runner.folder.name}", file=sys.stderr)
        return 1
    return 0 if end == "succeeded" else 1


def _log_to_terminal() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s | %(levelname)-7s | %(message)s", "%H:%M:%S"))
    handler.addFilter(SafeText())
    log = logging.getLogger(LOGGER_NAME)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
