"""Read the folder that a profile names as `code`, when it is loaded: a run gets the files that it had then."""

import os.path
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torchyard.code.archive import find_secrets, pack_folder, store_archive
from torchyard.code.listing import list_files
from torchyard.common.project_root import runs_folder
from torchyard.loading.yaml_errors import ProfileKeyError, shorten_value
from torchyard.model.finding import Finding
from torchyard.model.profile import Code, CodeFolder, Profile


class LoadedCode(NamedTuple):
    """The code of a profile, and the names of its files, relative to the folder."""

    code: Code
    names: frozenset[str]


def read_code(value: object, locate: Callable[[str], Path]) -> LoadedCode:
    """List, check, pack and store a folder. `locate` converts its name in the profile to a path here.

    ValidationError if a key of the mapping is wrong, ProfileKeyError if the folder cannot be a job's code.
    """
    if not isinstance(value, str | Mapping):
        message = f"must be a folder, or {{path: FOLDER, exclude: [PATTERN]}}, not {shorten_value(repr(value))}"
        raise ProfileKeyError("code", message)
    setting = CodeFolder.model_validate({"path": value} if isinstance(value, str) else value)
    folder = locate(setting.path)
    if not os.path.isdir(folder):
        problem = "is a file: name its folder, and the file as program" if os.path.exists(folder) else "does not exist"
        raise ProfileKeyError("code", f"{folder} {problem}")
    try:
        listing = list_files(folder, setting.exclude, runs_folder())
        problems = list(listing.problems)
        secrets = None if problems else find_secrets(folder, listing.names)
        if secrets:
            problems.append(secrets)
        if problems:
            raise ProfileKeyError("code", f"{folder}: {'; '.join(problems)}")
        packed = pack_folder(folder, listing.names)
    except OSError as error:
        raise ProfileKeyError("code", f"{error.filename or folder} cannot be read: {error.strerror}") from error
    try:
        store_archive(packed)
    except OSError as error:
        message = f"its archive cannot be written to {runs_folder()}: {error.strerror}; use another TORCHYARD_RUNS"
        raise ProfileKeyError("code", message) from error
    code = Code(archive=packed.archive, **setting.model_dump() | {"path": str(folder)})
    return LoadedCode(code, frozenset(listing.names))


def find_program_fault(profile: Profile, names: frozenset[str]) -> Finding | None:
    """A finding for a program that is not among the files of the code, or cannot be started; None if there is none."""
    program = profile.program
    if profile.code is None or not program or profile.has_image_entrypoint:
        return None
    path = Path(profile.code.path, program)
    if os.path.normpath(program) not in names:
        problem = f"{program} is not a file of the code in {profile.code.path}"
        remedy = "name it relative to that folder"
        if os.path.isfile(path) and not program.startswith(("/", "..")):
            remedy = f"it exists, but is ignored by git or by code.exclude: add '!{program}' to code.exclude"
        return Finding("program", problem, remedy)
    is_executed = profile.resolved_agent == "none" and not program.endswith(".py")
    if is_executed and not path.stat().st_mode & 0o100:
        return Finding("program", f"{path} is not executable", f"chmod +x {path}")
    return None


def find_syntax_error(profile: Profile) -> str | None:
    """The place and the reason why this Python cannot parse the program of the code, as `line 3: invalid syntax`.

    None if it can, and if there is no such program. The job may have another Python, whose syntax is newer.
    """
    program = profile.program or ""
    if profile.code is None or not program.endswith(".py"):
        return None
    try:
        source = Path(profile.code.path, program).read_bytes()
        with warnings.catch_warnings():  # such as an invalid escape sequence
            warnings.simplefilter("ignore")
            compile(source, program, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno or 1}: {error.msg}"
    except (OSError, RecursionError, MemoryError):  # removed since it was packed; nested too deeply for this parser
        return None
    except ValueError as error:  # null bytes, in older versions
        return str(error)
    return None
