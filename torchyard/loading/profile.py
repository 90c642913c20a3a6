"""Load a profile from YAML. All mistakes are reported at once, each with its file, line and key.

Internally a mistake that pydantic does not find is a ProfileKeyError, which has the key but not the line;
`load_profile` converts it to a ProfileError.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from torchyard.common.project_root import ROOT
from torchyard.launchers import registry
from torchyard.loading.local_files import read_local_files
from torchyard.loading.yaml_document import merge_mappings, merge_overrides, read_document, read_documents
from torchyard.loading.yaml_errors import (
    Finding,
    ProfileKeyError,
    explain_error,
    format_location,
    shorten_value,
    suggest_name,
)
from torchyard.model.errors import ProfileError
from torchyard.model.hardware import Hardware
from torchyard.model.profile import Profile
from torchyard.notify.targets import describe_invalid_address

_NAME_REFUSAL = "the name comes from the file's, {}.yaml: remove this key, or rename the file"


def resolve_file(name: str) -> Path:
    """The file of a profile, or of a hardware file such as `hardware/oke/bm-gpu-h100-8`.

    ProfileError if it does not exist.
    """
    folder, _, hardware_name = name.partition("/")
    if folder != "hardware" or not hardware_name:
        return _resolve_profile(name)
    path = _find_named_file("hardware", hardware_name)
    if path is None:
        message = _describe_unknown("there is no such hardware file", hardware_name, list_hardware())
        raise ProfileError(name, (message,))
    return path


def _list_profile_folders() -> list[Path]:
    """The folders searched for profiles: the user's folders (TORCHYARD_PROFILES), then the project's."""
    setting = os.environ.get("TORCHYARD_PROFILES", "")
    folders = [Path(folder).expanduser() for folder in setting.split(os.pathsep) if folder]
    folders.append(ROOT / "profiles")
    return folders


def list_profiles() -> dict[str, Path]:
    """The file of every profile that can be named without a path, by name."""
    profiles: dict[str, Path] = {}
    for folder in _list_profile_folders():
        for path in sorted(folder.glob("*.yaml")):
            profiles.setdefault(path.stem, path)
    return profiles


def load_profile(name: str, overrides: Mapping[str, Any] | None = None) -> Profile:
    """Read a profile by name or path. `overrides` are keys with dots (`deadlines.run`) or nested mappings.

    ProfileError lists every unknown key, wrong value and missing file, each with its line.
    """
    path = _resolve_profile(name)
    name = path.stem
    document, root = read_document(path, name)
    raw = merge_overrides(document, overrides or {})
    try:
        _check_no_name_key(raw, name)
        raw = _apply_values(raw, path)
        profile = Profile.model_validate(raw | _load_named_files(raw, path) | {"name": name})
        launcher = registry.load_launcher(profile.launcher)
        launcher.Options.model_validate(profile.options)
        _check_notify_address(profile)
    except ValidationError as error:
        findings = _explain_errors(error, raw)
        messages = [format_location(path, root, loc, overrides) + text for loc, text in findings]
        raise ProfileError(name, tuple(messages)) from error
    except registry.UnknownLauncherError as error:
        raise ProfileError(name, (format_location(path, root, ("launcher",), overrides) + str(error),)) from error
    except ProfileKeyError as error:
        raise ProfileError(name, (format_location(path, root, error.loc, overrides) + str(error),)) from error
    if profile.program and launcher.PROGRAM_IS_A_FILE:
        return profile.model_copy(update={"program": str(_locate_file(profile.program, path.parent))})
    return profile


def _explain_errors(error: ValidationError, raw: Mapping[str, Any]) -> list[Finding]:
    """The findings about the profile, or about its launcher's options."""
    model: type[BaseModel] = Profile
    prefix: tuple[str, ...] = ()
    if error.title == "Options":
        model = registry.load_launcher(str(raw["launcher"])).Options
        prefix = ("options",)
    return [explain_error(details, prefix, model) for details in error.errors()]


def _check_no_name_key(raw: Mapping[str, Any], stem: str) -> None:
    """Raise ProfileKeyError if a profile, or an override of it, has the key `name`: the file's name counts."""
    if "name" in raw:
        raise ProfileKeyError("name", _NAME_REFUSAL.format(stem))


def _check_notify_address(profile: Profile) -> None:
    """Raise ProfileKeyError if a message could not be sent to an address of `notify`."""
    problem = describe_invalid_address(profile.notify) if profile.notify else None
    if problem:
        raise ProfileKeyError("notify", problem, "to")


def _resolve_profile(name: str) -> Path:
    """The file of a profile: the path if `name` looks like one, else the file of that name in the profile folders.

    ProfileError if it does not exist.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(os.path.expanduser(name)).absolute()
        if not _is_file(path):
            raise ProfileError(name, (_describe_missing_file(path),))
        return path
    named_path = _find_named_file("", name)
    if named_path is None:
        raise ProfileError(name, (_describe_unknown("there is no such profile", name, list_profiles()),))
    return named_path


def _describe_unknown(problem: str, name: str, choices: Mapping[str, Path]) -> str:
    """The problem, the nearest of the choices, and a hint if TORCHYARD_PROFILES is not set."""
    hint = "" if os.environ.get("TORCHYARD_PROFILES") else " (TORCHYARD_PROFILES names no folder of your own)"
    return f"{problem}; {suggest_name(name, choices)}{hint}"


def _describe_missing_file(path: Path) -> str:
    """Why a path cannot be read as a file."""
    if path.is_dir():
        return f"{path} is a folder: name a file in it"
    if os.path.islink(path):
        return f"{path} is a link to a file that does not exist: {os.readlink(path)}"
    if os.path.exists(path):
        return f"{path} is not a regular file: name a YAML file"
    return f"there is no file {path}"


def _find_named_file(subfolder: str, name: str) -> Path | None:
    """The file of a name in the profile folders, the user's before the project's; None if there is none.

    None also for a name with `..`, which could lead out of the folders.
    """
    if ".." in name:
        return None
    for folder in _list_profile_folders():
        path = folder / subfolder / f"{name}.yaml"
        if _is_file(path):
            return path
    return None


def _apply_values(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The profile's keys merged over those of its `values` files.

    ProfileKeyError if one of the files does not exist, ProfileError if they contain a mistake.
    """
    names = raw.get("values")
    if not names:
        return dict(raw)
    from torchyard.loading.helm_files import read_values  # 5 % of the time of `torchyard plan`; few profiles need it

    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ProfileKeyError("values", f"it is a list of files, not {shorten_value(repr(names))}")
    if raw.get("manifest"):
        raise ProfileKeyError("values", "a manifest is a whole job, which values do not change: name one of the two")
    paths = [_resolve_relative_path(path, name) for name in names]
    for values_path in paths:
        if not _is_file(values_path):
            raise ProfileKeyError("values", f"there is no file {values_path}")
    return merge_mappings(read_values(paths, path.stem, raw), raw)


def _resolve_relative_path(profile: Path, name: str) -> Path:
    """The path of a file that a profile names, relative to the profile's folder unless it begins with / or ~."""
    if name.startswith(("/", "~")):
        return Path(os.path.expanduser(name))
    return profile.parent / name


def _is_file(path: Path) -> bool:
    """Whether a regular file exists; False, and no error, also for a name that cannot be a file's."""
    return os.path.isfile(path)


def _load_named_files(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The content of the files that the profile names, by key: hardware, manifest, files.

    ProfileKeyError if one does not exist, ProfileError if it contains a mistake.
    """
    loaded: dict[str, Any] = {}
    for key in ("hardware", "manifest"):
        value = raw.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ProfileKeyError(key, f"it is the name of a file, not {shorten_value(repr(value))}")
        loaded[key] = load_hardware(value) if key == "hardware" else _load_manifest(value, path)
    if raw.get("files") is not None:
        loaded["files"] = read_local_files(raw["files"], lambda name: _locate_file(name, path.parent))
    return loaded


def list_hardware() -> dict[str, Path]:
    """Every hardware file, by its name in profiles: oke/bm-gpu-b4-8."""
    hardware_paths: dict[str, Path] = {}
    for folder in _list_profile_folders():
        hardware_folder = folder / "hardware"
        for path in sorted(hardware_folder.rglob("*.yaml")):
            name = path.relative_to(hardware_folder).with_suffix("").as_posix()
            hardware_paths.setdefault(name, path)
    return hardware_paths


def load_hardware(name: str) -> Hardware:
    """Load the hardware file of this name. ProfileError if it contains a mistake, ProfileKeyError if there is none."""
    path = _find_named_file("hardware", name)
    if path is None:
        problem = f"there is no {shorten_value(name)}"
        raise ProfileKeyError("hardware", _describe_unknown(problem, name, list_hardware()))
    document, root = read_document(path, f"hardware/{name}", "a hardware file")
    if "name" in document:
        location = format_location(path, root, ("name",), {})
        raise ProfileError(f"hardware/{name}", (f"{location}name: {_NAME_REFUSAL.format(path.stem)}",))
    try:
        return Hardware.model_validate(document | {"name": name})
    except ValidationError as error:
        findings = [explain_error(details, (), Hardware) for details in error.errors()]
        messages = [format_location(path, root, loc, {}) + text for loc, text in findings]
        raise ProfileError(f"hardware/{name}", tuple(messages)) from error


def _load_manifest(name: str, profile: Path) -> tuple[dict[str, Any], ...]:
    """Load the objects of a manifest, whose path may be relative to the profile's folder.

    ProfileKeyError if there is no such file, ProfileError if one of its documents is not a Kubernetes object.
    """
    path = _resolve_relative_path(profile, name)
    if not _is_file(path):
        raise ProfileKeyError("manifest", f"there is no file {path}")
    objects: list[dict[str, Any]] = []
    try:
        for content, _ in read_documents(path, profile.stem):
            # Converted as for an API server, which reads JSON: there a key is always a string.
            obj = json.loads(json.dumps(content, allow_nan=False))
            if obj is not None:
                objects.append(obj)
    except (TypeError, ValueError) as error:
        message = f"{path}: an object may contain only values that JSON supports: {error}"
        raise ProfileError(profile.stem, (message,)) from error
    invalid_numbers = [number for number, obj in enumerate(objects, 1) if not _is_kubernetes_object(obj)]
    if invalid_numbers or not objects:
        numbers_text = ", ".join(map(str, invalid_numbers)) or "there is none"
        message = f"{path}: each document is an object with apiVersion, kind and metadata: {numbers_text}"
        raise ProfileError(profile.stem, (message,))
    return tuple(objects)


def _is_kubernetes_object(document: object) -> bool:
    """Whether a document has the fields of every Kubernetes object, each of the right type."""
    if not isinstance(document, dict):
        return False
    metadata = document.get("metadata")
    if not metadata or not isinstance(metadata, dict):
        return False
    texts = [document.get("apiVersion"), document.get("kind")]
    texts += [metadata[key] for key in ("name", "namespace") if metadata.get(key) is not None]
    maps = [metadata[key] for key in ("labels", "annotations") if metadata.get(key) is not None]
    has_texts = all(text and isinstance(text, str) for text in texts)
    return has_texts and all(isinstance(mapping, dict) for mapping in maps)


def _locate_file(name: str, folder: Path) -> Path:
    """The path of a program, or of a file for pods: in the profile's folder, else in the project.

    If it is in neither, the path in the profile's folder, for the message.
    """
    path = folder / name
    project_path = ROOT / name
    if not _is_file(path) and _is_file(project_path):
        return project_path
    return path
