"""`torchyard`: what a profile would do, whether it could, and what profiles there are."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from torchyard.common.escaping import strip_control_codes
from torchyard.common.secrets import check_exposed_secrets, mask_document
from torchyard.launchers import registry
from torchyard.loading import catalog
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.errors import ProfileError, TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.run.folder import runs_folder

_TRIAL_RUN_ID = "00000000-0000-0000-0000-000000000000"
_CATALOG_FORMATS = {"table": catalog.format_catalog_table, "deployments": catalog.format_deployments}
_VERDICT_LABELS = {"ok": "ok      ", "warning": "warning ", "failed": "FAILED  "}


def main(words: list[str] | None = None) -> int:
    """Exit code 0; 1 where a check or the profile failed, with one clear message on stderr."""
    asked = _build_parser().parse_args(words)
    try:
        return int(asked.run(asked))
    except TorchyardError as error:
        print(strip_control_codes(str(error)), file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 0


def _build_parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="torchyard", description=__doc__)
    verbs = top.add_subparsers(required=True, metavar="VERB")
    made = {}
    for name, run in VERBS.items():
        made[name] = verbs.add_parser(name, help=run.__doc__)
        made[name].set_defaults(run=run)
    for name in ("plan", "check", "run"):
        made[name].add_argument("profile", help="a name from `torchyard profiles`, or a path")
        add_overrides(made[name])
    made["profiles"].add_argument(
        "--as", dest="form", choices=_CATALOG_FORMATS, help="README's table; prefect.yaml's entries"
    )
    for name in ("logs", "attach"):
        made[name].add_argument("run_name", metavar="RUN", help="a run's name, such as digits-local-a1b2c3d4")
    return top


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one key of the profile")


def read_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """`deadlines.run=2h` as `{"deadlines.run": "2h"}`; values are read as YAML."""
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            overrides[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ProfileError(
                "--set", (f"{pair!r}: the value is not YAML: {getattr(error, 'problem', error)}",)
            ) from error
        if not (key and equals):
            raise ProfileError("--set", (f"{pair!r} is not KEY=VALUE, such as nodes=4 or deadlines.run=2h",))
    return overrides


def _make_plan(asked: argparse.Namespace) -> Plan:
    profile = load_profile(asked.profile, read_overrides(asked.set))
    run = Run(id=_TRIAL_RUN_ID, attempt=1, folder="")
    return registry.load_launcher(profile.launcher).plan(
        profile, run.model_copy(update={"folder": str(runs_folder() / run.name(profile))})
    )


def _show_plan(asked: argparse.Namespace) -> int:
    """what would run, without running it"""
    plan = _make_plan(asked)
    dumped = mask_document(plan.model_dump(mode="json", exclude_none=True))
    print(yaml.dump(dumped, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False, width=120), end="")
    for found in check_exposed_secrets(plan):
        print(f"{found.need}: {found.detail}; {found.remedy}", file=sys.stderr)
    return 0


def _show_checks(asked: argparse.Namespace) -> int:
    """preflight only; exit code 1 where a check failed"""
    plan = _make_plan(asked)
    from torchyard.steps.preflight import run_checks

    checks = run_checks(plan)
    for found in checks:
        remedy = f"\n        {found.remedy}" if found.remedy else ""
        print(strip_control_codes(f"{_VERDICT_LABELS[found.verdict]}{found.need}: {found.detail}{remedy}"))
    failed = sum(found.verdict == "failed" for found in checks)
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


def _run_profile(asked: argparse.Namespace) -> int:
    """the whole line without a server; exit code 1 where the run does not succeed"""
    profile = load_profile(asked.profile, read_overrides(asked.set))
    from torchyard.cli.run import run_profile

    return run_profile(profile)


def _attach_run(asked: argparse.Namespace) -> int:
    """go on with a run of `torchyard run` that has lost its process"""
    from torchyard.cli.run import attach_run

    return attach_run(asked.run_name)


def _show_profiles(asked: argparse.Namespace) -> int:
    """every profile that can be named"""
    if asked.form:
        print("\n".join(_CATALOG_FORMATS[asked.form](catalog.load_catalog())))
        return 0
    found = list_profiles()
    width = max(map(len, found), default=0)
    for name, path in found.items():
        try:
            print(f"{name:<{width}}  {load_profile(str(path)).about}")
        except ProfileError as error:
            print(f"{name:<{width}}  (does not load: {error})")
    return 0


def _show_schema(_: argparse.Namespace) -> int:
    """JSON Schema of a profile, for editors"""
    schema = Profile.model_json_schema()
    schema["properties"].pop("name")
    schema["required"] = [key for key in schema["required"] if key not in ("name", "launcher")]
    schema["anyOf"] = [{"required": ["launcher"]}, {"required": ["values"]}]
    schema["properties"]["launcher"]["enum"] = registry.list_launchers()
    options = {name: registry.load_launcher(name).Options.model_json_schema() for name in registry.list_launchers()}
    for each in options.values():
        schema["$defs"] |= each.pop("$defs", {})  # a reference begins at the root
    schema["allOf"] = [
        {"if": {"properties": {"launcher": {"const": name}}}, "then": {"properties": {"options": each}}}
        for name, each in options.items()
    ]
    print(json.dumps(schema, indent=1))
    return 0


def _show_logs(asked: argparse.Namespace) -> int:
    """what global rank 0 of a run printed, without the other ranks and the agents"""
    from torchyard.run.folder import RunFolder
    from torchyard.steps.log_reader import read_rank_zero

    path = runs_folder() / asked.run_name
    folder = RunFolder(path)
    if not folder.attempts():
        known = ", ".join(sorted(each.name for each in runs_folder().glob("*") if each.is_dir())) or "none"
        raise ProfileError(asked.run_name, (f"there is no such run in {runs_folder()}; there are: {known}",))
    plan = folder.plans()[-1]
    safe: Callable[[str], str] = strip_control_codes if sys.stdout.isatty() else str  # a file or a pipe gets every byte
    for text in read_rank_zero(plan):
        print(safe(text))
    return 0


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "plan": _show_plan,
    "check": _show_checks,
    "run": _run_profile,
    "attach": _attach_run,
    "profiles": _show_profiles,
    "schema": _show_schema,
    "logs": _show_logs,
}
