"""`torchyard demo`: a first run in the current folder, with a profile and a program that the user can change.

It requires only this package and, for the training, torch: no server, no checkout, no cluster.
"""

import shutil
import sys
from pathlib import Path

from torchyard.cli.exit_codes import ExitCode
from torchyard.cli.run import run_new
from torchyard.common.packages import need
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import load_profile
from torchyard.model.errors import FolderError

_FOLDER = Path("torchyard-demo")
PROGRAMS = {"digits": "digits.py", "pi": "plain_pi.py", "fails": "plain_pi.py"}
_INSTALL_TORCH = """
  pip install torch scikit-learn    with CUDA, a download of about 2.6 GB
  or without CUDA, much smaller: pip install torch scikit-learn --extra-index-url https://download.pytorch.org/whl/cpu
Or see a run without torch: torchyard demo --without-torch"""

_NEXT = """
next:
  {logs:<46}the output of rank 0
  torchyard demo --fail                         a run that fails, explained
  torchyard plan {profile:<31}the plan; change the file, or one key: --set nodes=3
  torchyard run {profile:<32}the same run again, without this text
  torchyard profiles                            profiles for clusters and other machines
  torchyard profiles yolov5-volcano > my.yaml   one of them, to start with"""
_NEXT_AFTER_FAILURE = """
The report above names the process that failed, the cause, and the line that proves it.
next:
  touch {data:<40}the missing file
  torchyard run {profile:<32}the same run again: now it succeeds"""

_NEXT_WITHOUT_FAILURE = """
The run succeeded, because {data} exists: remove it to see the failure."""


def run_demo(*, fail: bool, without_torch: bool, as_json: bool) -> int:
    """Run the demo and print the next steps if it ended as intended. Returns 0 then, else the exit code of the run.

    `fail` runs the demo of a failure, which needs no torch. Raises MissingPackageError if a package of the training is
    missing.
    """
    if fail:
        name = "fails"
    elif without_torch:
        name = "pi"
    else:
        name = "digits"
        need("the training of the demo", "torch", "sklearn", remedy=_INSTALL_TORCH)
    path = copy_files(name)
    profile = load_profile(str(path))
    stream = sys.stderr if as_json else sys.stdout
    print(f"{path}: {profile.about}", file=stream, flush=True)
    run_name, exit_code = run_new(profile, as_json=as_json)
    text = ""
    if fail and exit_code == ExitCode.FAILED:
        text = _NEXT_AFTER_FAILURE
        exit_code = ExitCode.SUCCESS
    elif fail and exit_code == ExitCode.SUCCESS:
        text = _NEXT_WITHOUT_FAILURE
        exit_code = ExitCode.FAILED
    elif exit_code == ExitCode.SUCCESS:
        text = _NEXT
    logs = f"torchyard logs {run_name}"
    print(text.format(logs=logs, data=str(path.parent / "shard-1.bin"), profile=str(path)), file=stream)
    return exit_code


def copy_files(name: str) -> Path:
    """Copy the profile and its program into the demo's folder, without replacing an existing file.

    FolderError if the folder cannot be written.
    """
    path = _FOLDER / f"{name}.yaml"
    try:
        _FOLDER.mkdir(exist_ok=True)
        for source in (ROOT / "profiles" / "demo" / path.name, ROOT / "programs" / PROGRAMS[name]):
            if not (_FOLDER / source.name).exists():
                shutil.copyfile(source, _FOLDER / source.name)
    except OSError as error:
        raise FolderError(
            str(_FOLDER), error.strerror or str(error), "call the demo in a folder that you can write"
        ) from error
    return path
