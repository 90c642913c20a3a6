"""Load a profile from YAML. All mistakes are reported at once, each with its file, line and key.

A mistake in a file that the profile names is a ProfileKeyError, which has the key but not the line.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from torchyard.common.extensions import find_extension, get_folder
from torchyard.common.project_root import ROOT, is_utf8
from torchyard.launchers import registry
from torchyard.loading.findings import Findings
from torchyard.loading.key_places import list_key_places
from torchyard.loading.local_files import read_local_files
from torchyard.loading.manifest_file import read_manifest
from torchyard.loading.yaml_document import merge_mappings, merge_overrides, read_document
from torchyard.loading.yaml_errors import (
    ProfileKeyError,
    explain_error,
    find_position,
    shorten_value,
    suggest_name,
)
from torchyard.model import rules
from torchyard.model.checkpoint import ResumePoint
from torchyard.model.errors import ExtensionError, ProfileError
from torchyard.model.finding import Finding
from torchyard.model.hardware import Hardware
from torchyard.model.plan import Plan
from torchyard.model.profile import METRICS_FORMATS, NAME_PATTERN, Code, CodeFolder, Profile
from torchyard.model.requirements import THIS_MACHINE, ProgramFile
from torchyard.model.run import TRIAL_RUN
from torchyard.notify.targets import describe_invalid_address

# For required keys with a wrong value, while the other keys are checked.
_PLACEHOLDERS = {"name": "placeholder", "about": "", "launcher": "baremetal", "program": "program.py"}
# Its plan has all findings that the plan of a later run may have, such as the variable that a manifest gets then.
_RESUMING_RUN = TRIAL_RUN.model_copy(update={"resume": ResumePoint(path="/checkpoint")})
_FILE_KEYS = frozenset({"code", "hardware", "manifest", "files"})
_FILE_NAME_REFUSAL = (
    "the file's name is that of the profile, which has lower-case letters, digits and hyphens, at most 40: rename the "
    "file, for example to {}.yaml"
)
_NAME_REFUSAL = "the name comes from the file's, {}.yaml: remove this key, or rename the file"


def resolve_file(name: str) -> Path:
    """The file of a profile, or of a hardware file such as `hardware/oke/bm-gpu-h100-8`.

    ProfileError if it does not exist.
    """
    folder, _, hardware_name = name.partition("/")
    if folder != "hardware" or not hardware_name:
        return _resolve_profile(name)
    path = _find_hardware_file(hardware_name)
    if path is None:
        message = _describe_unknown("there is no such hardware file", hardware_name, list_hardware())
        raise ProfileError(name, (Finding("", message),))
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

    ProfileError lists every mistake, each with its file, line and key: in one key, between several keys, in the files
    that the profile names, in the options of its launcher, and in what its launcher cannot plan.
    """
    path = _resolve_profile(name)
    document, root = read_document(path, path.stem)
    findings = Findings(path, root, overrides or {})
    profile = _build_profile(merge_overrides(document, overrides or {}), path, findings)
    # Values files set many keys: without them nothing more can be said about the others.
    if "values" not in findings.wrong_keys:
        for finding in rules.list_findings(profile, findings.wrong_keys):
            findings.add(finding)
        _check_notify_address(profile, findings)
        _check_metrics(profile, findings)
        _check_trackers(profile, findings)
        profile = _check_launcher(profile, path, findings)
    if findings.listed:
        raise ProfileError(path.stem, tuple(findings.listed))
    if findings.manifest:
        profile = profile.with_manifest_warnings(findings.manifest.warnings)
    if profile.resume:  # whether a run can continue from it is checked when the run starts
        profile = profile.with_positions({"resume": findings.locate(("resume",))})
    return profile


def _suggest_file_name(name: str) -> str:
    """The name that a profile can have and that is most similar to `name`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-") or "train"


def _build_profile(raw: Mapping[str, Any], path: Path, findings: Findings) -> Profile:
    """The profile of these keys; a key with a finding has its default, or a placeholder if it is required."""
    keys = dict(raw)
    if "name" in keys:
        findings.add(Finding("name", _NAME_REFUSAL.format(path.stem)))
        del keys["name"]
    try:
        keys = _apply_values(keys, path)
    except (ProfileError, ProfileKeyError) as error:
        findings.add_error("values", error)
    for key, value in _load_named_files(keys, path, findings).items():
        keys[key] = value
    keys = {key: value for key, value in keys.items() if key not in findings.wrong_keys}
    if re.search(NAME_PATTERN, path.stem):
        keys["name"] = path.stem
    else:
        findings.add_file_error(_FILE_NAME_REFUSAL.format(_suggest_file_name(path.stem)))
        keys["name"] = _PLACEHOLDERS["name"]
    try:
        return Profile.model_validate(keys)
    except ValidationError as error:
        findings.key_places = list_key_places(_find_options(keys.get("launcher")))
        findings.wrong_keys |= findings.add_validation_error(error, Profile)
    keys = {key: value for key, value in keys.items() if isinstance(key, str) and key not in findings.wrong_keys}
    for key in _PLACEHOLDERS.keys() & findings.wrong_keys:
        keys[key] = _PLACEHOLDERS[key]
    return Profile.model_validate(keys)


def _find_options(launcher: Any) -> type[BaseModel] | None:
    """The model of the options of the launcher with this name; None if there is none."""
    try:
        return registry.load_launcher(str(launcher)).Options
    except ExtensionError:
        return None


def _check_notify_address(profile: Profile, findings: Findings) -> None:
    """Add a finding if a message could not be sent to an address of `notify`."""
    problem = describe_invalid_address(profile.notify) if profile.notify else None
    if problem:
        findings.add(Finding("notify", problem), ("notify", "to"))


def _check_metrics(profile: Profile, findings: Findings) -> None:
    """Add a finding for a format of another package that cannot be used, and for a pattern that is refused."""
    if profile.metrics in METRICS_FORMATS or "metrics" in findings.wrong_keys:
        return
    from torchyard.metrics.registry import find_metrics_problem

    finding = find_metrics_problem(profile.metrics)
    if finding:
        findings.add(finding)


def _check_trackers(profile: Profile, findings: Findings) -> None:
    """Add a finding for a tracker of another package that cannot be used."""
    for name in profile.metrics_to.package_trackers:
        from torchyard.trackers.registry import find_unusable_tracker

        error = find_unusable_tracker(name)
        if error:
            findings.add(Finding("metrics_to", error.problem, error.remedy))


def _check_launcher(profile: Profile, path: Path, findings: Findings) -> Profile:
    """Check the launcher, its options, and what it can plan.

    Return the profile with the path of its program, or with that of the folder in which its module starts.
    """
    if "launcher" in findings.wrong_keys:
        return profile
    try:
        launcher = registry.load_launcher(profile.launcher)
    except ExtensionError as error:
        findings.add(Finding("", error.problem, error.remedy), ("launcher",))
        return profile
    profile, has_valid_options = _check_options(profile, launcher.Options, findings)
    if profile.code:
        # A profile without code is loaded faster.
        from torchyard.loading.code_folder import find_program_fault, find_syntax_error

        fault = find_program_fault(profile, findings.code_names)
        if fault:
            findings.add(fault)
        else:
            code = profile.code.model_copy(update={"syntax_error": find_syntax_error(profile)})
            profile = profile.model_copy(update={"code": code})
    elif launcher.PROGRAM_IS_A_FILE:
        profile = _locate_program(profile, path, has_valid_options=has_valid_options)
    if not has_valid_options or findings.wrong_keys & _FILE_KEYS:  # the plan depends on the content of these files
        return profile
    return _check_plan(profile, findings)


def _check_plan(profile: Profile, findings: Findings) -> Profile:
    """Check what the launcher can plan; return the profile with the places of the plan's findings in its manifest."""
    try:
        plan = registry.make_plan(profile, _RESUMING_RUN)
    except ProfileError as error:
        findings.add_plan_error(error)
        return profile
    except Exception:
        if not findings.listed:
            raise
        # The values that have a finding were left out, and a launcher may rely on the rules between keys.
        return profile
    _check_local_program(profile, plan, findings)
    return profile.with_positions(findings.list_manifest_positions(plan))


def _check_local_program(profile: Profile, plan: Plan, findings: Findings) -> None:
    """Add a finding if a program that the plan reads on this machine does not exist, or cannot be read.

    Preflight checks it again when the run starts, and checks a program on another host.
    """
    key = "program" if profile.program else "options.source"
    for requirement in plan.requires:
        if isinstance(requirement, ProgramFile) and requirement.host in THIS_MACHINE:
            from torchyard.host.facts import probe_file

            check = probe_file(requirement.to_probe())
            if check["verdict"] == "failed":
                findings.add(Finding(key, f"{requirement.path}: {check['what']}", check["remedy"]))


def _locate_program(profile: Profile, path: Path, *, has_valid_options: bool) -> Profile:
    """The profile with the path of its program here, or with that of the folder in which its module starts."""
    if profile.program and not profile.has_image_entrypoint:
        return profile.model_copy(update={"program": str(_locate_file(profile.program, path.parent))})
    if profile.module and has_valid_options and profile.options.get("source"):
        source = os.path.normpath(path.parent / os.path.expanduser(profile.options["source"]))
        return profile.model_copy(update={"options": profile.options | {"source": source}})
    return profile


def _check_options(profile: Profile, model: type[BaseModel], findings: Findings) -> tuple[Profile, bool]:
    """Check the options; return the profile without the wrong ones, and whether the launcher accepts the others."""
    try:
        model.model_validate(profile.options)
    except ValidationError as error:
        findings.key_places = list_key_places(model)
        wrong_options = findings.add_validation_error(error, model, ("options",))
    else:
        return profile, True
    options = {key: value for key, value in profile.options.items() if key not in wrong_options}
    try:
        model.model_validate(options)
    except ValidationError:  # a required option has no value, or a rule between options is broken
        return profile, False
    return profile.model_copy(update={"options": options}), True


def _resolve_profile(name: str) -> Path:
    """The file of a profile: the path if `name` looks like one, else the file of that name in the profile folders.

    ProfileError if it does not exist, or if its path is not valid UTF-8.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(os.path.expanduser(name)).absolute()
        if not _is_file(path):
            raise ProfileError(name, (Finding("", _describe_missing_file(path)),))
        if not is_utf8(path):
            raise ProfileError(path.stem, (Finding("", f"the path {str(path)!r} is not UTF-8", "rename the folder"),))
        return path
    named_path = _find_named_file("", name)
    if named_path is None:
        raise ProfileError(name, (Finding("", _describe_unknown("there is no such profile", name, list_profiles())),))
    return named_path


def _describe_unknown(problem: str, name: str, choices: Mapping[str, Path]) -> str:
    """The problem, the nearest of the choices, and a hint if TORCHYARD_PROFILES is not set."""
    hint = "" if os.environ.get("TORCHYARD_PROFILES") else " (TORCHYARD_PROFILES names no folder of your own)"
    return f"{problem}; {suggest_name(name, choices)}{hint}"


def _describe_missing_file(path: Path) -> str:
    """Why a path cannot be read as a file."""
    if os.path.isdir(path):
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
        raise ProfileKeyError("values", f"must be a list of files, not {shorten_value(repr(names))}")
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


def _load_named_files(raw: Mapping[str, Any], path: Path, findings: Findings) -> dict[str, Any]:
    """The content of the files that the profile names, by key: hardware, manifest, files, code.

    What has a mistake is left out.
    """
    loaded: dict[str, Any] = {}
    for key in ("hardware", "manifest"):
        value = raw.get(key)
        if value is None:
            continue
        try:
            if not isinstance(value, str):
                raise ProfileKeyError(key, f"must be the name of a file, not {shorten_value(repr(value))}")
            loaded[key] = load_hardware(value) if key == "hardware" else _load_manifest(value, path, findings)
        except (ProfileError, ProfileKeyError) as error:
            findings.add_error(key, error)
    if raw.get("files") is not None:
        local_files = read_local_files(raw["files"], lambda name: _locate_file(name, path.parent))
        loaded["files"] = local_files.contents
        for mistake in local_files.mistakes:
            findings.add_error("files", mistake)
    code = _load_code(raw.get("code"), path, findings)
    if code:
        loaded["code"] = code
    return loaded


def _load_code(value: object, path: Path, findings: Findings) -> Code | None:
    """The packed folder that the profile names as code; None if it names none, or one with a mistake."""
    if value is None:
        return None
    from torchyard.loading.code_folder import read_code  # it takes a moment

    try:
        loaded_code = read_code(value, lambda name: _locate_folder(name, path.parent))
    except ValidationError as error:
        findings.add_validation_error(error, CodeFolder, ("code",))
        return None
    except ProfileKeyError as error:
        findings.add_error("code", error)
        return None
    findings.code_names = loaded_code.names
    return loaded_code.code


def _find_hardware_file(name: str) -> Path | None:
    """The hardware file of a name: in the profile folders, else in another package; None if there is none.

    A package's files are named by its entry point: `nimbus/h100` is h100.yaml in the package that `nimbus` names.
    ProfileKeyError if the package cannot be used.
    """
    path = _find_named_file("hardware", name)
    platform, _, shape = name.partition("/")
    if path is not None or not shape or ".." in name:
        return path
    try:
        extension = find_extension("hardware", platform)
        if extension is None:
            return None
        package_path = get_folder(extension) / f"{shape}.yaml"
    except ExtensionError as error:
        raise ProfileKeyError("hardware", str(error)) from error
    return package_path if _is_file(package_path) else None


def list_hardware() -> dict[str, Path]:
    """Every hardware file of the profile folders, by its name in profiles: oke/bm-gpu-b4-8."""
    hardware_paths: dict[str, Path] = {}
    for folder in _list_profile_folders():
        hardware_folder = folder / "hardware"
        for path in sorted(hardware_folder.rglob("*.yaml")):
            name = path.relative_to(hardware_folder).with_suffix("").as_posix()
            hardware_paths.setdefault(name, path)
    return hardware_paths


def load_hardware(name: str) -> Hardware:
    """Load the hardware file of this name. ProfileError if it contains a mistake, ProfileKeyError if there is none."""
    path = _find_hardware_file(name)
    if path is None:
        problem = f"there is no {shorten_value(name)}"
        raise ProfileKeyError("hardware", _describe_unknown(problem, name, list_hardware()))
    document, root = read_document(path, f"hardware/{name}", "a hardware file")
    if "name" in document:
        position = find_position(path, root, ("name",), {})
        finding = Finding("name", _NAME_REFUSAL.format(path.stem)).at(position)
        raise ProfileError(f"hardware/{name}", (finding,))
    try:
        return Hardware.model_validate(document | {"name": name})
    except ValidationError as error:
        findings: list[Finding] = []
        for details in error.errors():
            loc, finding = explain_error(details, (), Hardware)
            findings.append(finding.at(find_position(path, root, loc, {})))
        raise ProfileError(f"hardware/{name}", tuple(findings)) from error


def _load_manifest(name: str, profile: Path, findings: Findings) -> tuple[dict[str, Any], ...]:
    """Load the objects of a manifest, whose path may be relative to the profile's folder.

    ProfileKeyError if there is no such file, ProfileError if one of its documents is not a Kubernetes object.
    """
    path = _resolve_relative_path(profile, name)
    if not _is_file(path):
        raise ProfileKeyError("manifest", f"there is no file {path}")
    findings.manifest = read_manifest(path, profile.stem)
    return findings.manifest.objects


def _locate_folder(name: str, folder: Path) -> Path:
    """The absolute path of the folder with a job's code, which is looked up as a program is."""
    path = folder / os.path.expanduser(name)
    project_path = ROOT / name
    return Path(os.path.normpath(project_path if not os.path.exists(path) and os.path.isdir(project_path) else path))


def _locate_file(name: str, folder: Path) -> Path:
    """The path of a program, or of a file for pods: in the profile's folder, else in the project.

    If it is in neither, the path in the profile's folder, for the message.
    """
    path = folder / os.path.expanduser(name)
    project_path = ROOT / name
    if not _is_file(path) and _is_file(project_path):
        return project_path
    return path
