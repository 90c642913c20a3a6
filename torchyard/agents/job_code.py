"""The code of a job: where each attempt finds the folder that the profile names as `code`."""

import platform
from typing import TypeVar

from torchyard.model.finding import warning_check
from torchyard.model.plan import CodeClaim, StagedCode
from torchyard.model.profile import Profile
from torchyard.model.requirements import Advice
from torchyard.model.run import Run

MAX_PACKED_BYTES = 900 << 10  # a ConfigMap holds 1 MiB, of which the program that unpacks needs a few KiB
CLAIM_ROOT = "torchyard-code"  # in the volume of a claim
_POD_FOLDER = "/code"
P = TypeVar("P", bound=Profile)


def plan_code(profile: Profile, run: Run) -> StagedCode | None:
    """The code of a run; None if the profile has none. All attempts of a run that have the same code share its path."""
    if profile.code is None:
        return None
    archive = profile.code.archive
    path = f"{run.folder}/code-{archive.short_digest}.tar.gz"
    url = None
    if profile.code.store and archive.packed_bytes > MAX_PACKED_BYTES:
        url = f"{profile.code.store.rstrip('/')}/{archive.digest}.tar.gz"
    return StagedCode(archive=archive, path=path, url=url, claim=find_claim(profile))


def find_claim(profile: Profile) -> CodeClaim | None:
    """The claim from which the pods get the code; None if they get it from somewhere else."""
    code = profile.code
    if code is None or code.claim is None or code.archive.packed_bytes <= MAX_PACKED_BYTES:
        return None
    return CodeClaim(name=code.claim, folder=f"{CLAIM_ROOT}/{code.archive.digest}")


def get_pod_folder(profile: Profile) -> str | None:
    """The folder with the code in the pods, in which their container starts; None if the profile has no code."""
    return profile.pod.workdir or _POD_FOLDER if profile.code else None


def locate_program(profile: P, folder: str | None) -> P:
    """The profile with the path of its program in the folder with the code; unchanged without code, or a program."""
    if folder is None or not profile.program or profile.has_image_entrypoint:
        return profile
    return profile.model_copy(update={"program": f"{folder}/{profile.program}"})


def list_code_advice(profile: Profile) -> list[Advice]:
    """A warning if the launcher's Python cannot parse the program of the job's code."""
    if profile.code is None or profile.code.syntax_error is None:
        return []
    problem = f"{profile.program}, {profile.code.syntax_error} (Python {platform.python_version()})"
    return [Advice(finding=warning_check("program", problem, "correct it, unless the job's Python is newer"))]
