"""`torchyard`: plan, check, run or benchmark a profile; list profiles; read a run's log; say why it hangs;
compare runs; serve metrics.

Begin with `torchyard demo`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from torchyard.common.escaping import single_line, strip_control_codes
from torchyard.common.secrets import check_exposed_secrets, mask_document
from torchyard.launchers import registry
from torchyard.loading import catalog
from torchyard.loading.profile import find_file, list_profiles, load_profile
from torchyard.model.errors import ProfileError, TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.model.trend import Trend
from torchyard.pods.files import summarize_files
from torchyard.run.folder import runs_folder

_TRIAL_RUN_ID = "00000000-0000-0000-0000-000000000000"
_CATALOG_FORMATS = {"table": catalog.format_catalog_table, "deployments": catalog.format_deployments}
_VERDICT_LABELS = {"ok": "ok      ", "warning": "warning ", "failed": "FAILED  "}


def main(words: list[str] | None = None) -> int:
    """Run the command. Exit code 0, or 1 if a check or the profile failed, with one clear message on stderr."""
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
    top.add_argument("--version", action=_ShowVersion, nargs=0, help="print the version and exit")
    verbs = top.add_subparsers(required=True, metavar="VERB")
    made = {}
    for name, run in VERBS.items():
        made[name] = verbs.add_parser(name, help=run.__doc__)
        made[name].set_defaults(run=run)
    for name in ("plan", "check", "run", "benchmark"):
        made[name].add_argument("profile", help="a name from `torchyard profiles`, or a path")
        add_overrides(made[name])
    made["benchmark"].add_argument(
        "--fabric",
        action="append",
        default=[],
        metavar="FABRIC",
        help="one to compare, once for each (default: the profile's own, then the shape's TCP)",
    )
    made["profiles"].add_argument("name", nargs="?", metavar="NAME", help="print this one's file; or hardware/NAME")
    made["profiles"].add_argument(
        "--as",
        dest="form",
        choices=_CATALOG_FORMATS,
        help="as the table of docs/profiles.md, or as prefect.yaml's entries",
    )
    dumps = "; or FOLDER/ with dumps of torch's flight recorder"
    for name in ("logs", "why", "attach"):
        which = f"a run's name, such as digits-local-a1b2c3d4{dumps if name == 'why' else ''}"
        made[name].add_argument("run_name", metavar="RUN", help=which)
    made["why"].add_argument("--json", action="store_true", help="print every rank's record as well, as JSON")
    made["trend"].add_argument("history", nargs="?", metavar="PROFILE", help="or the name of one history")
    made["trend"].add_argument("--value", help="the number to compare; by default the one that the last runs compared")
    made["trend"].add_argument("--lower", action="store_true", help="a lower --value is better")
    made["trend"].add_argument("--plot", metavar="FILE", help="write the plot as SVG")
    made["metrics"].add_argument("--port", type=int, default=9464)
    made["metrics"].add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    made["metrics"].add_argument("--once", action="store_true", help="print what a scrape would get, and exit")
    made["service"].add_argument("verb", choices=["install", "uninstall", "status"])
    made["demo"].add_argument("--fail", action="store_true", help="a run that fails, and how it is explained")
    made["demo"].add_argument("--without-torch", action="store_true", help="a run that needs no torch")
    return top


class _ShowVersion(argparse.Action):
    """`--version`: what is installed; read only if it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"torchyard {version('torchyard')}")
        parser.exit()


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


def _load_profile(asked: argparse.Namespace) -> Profile:
    return load_profile(asked.profile, read_overrides(asked.set))


def _make_plan(profile: Profile) -> Plan:
    run = Run(id=_TRIAL_RUN_ID, attempt=1, folder="")
    return registry.load_launcher(profile.launcher).plan(
        profile, run.model_copy(update={"folder": str(runs_folder() / run.name(profile))})
    )


def _show_plan(asked: argparse.Namespace) -> int:
    """show what would run, without running it"""
    plan = _make_plan(_load_profile(asked))
    dumped = mask_document(summarize_files(plan.model_dump(mode="json", exclude_none=True)))
    print(yaml.dump(dumped, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False, width=120), end="")
    for found in check_exposed_secrets(plan):
        print(f"{found.name}: {found.detail}; {found.remedy}", file=sys.stderr)
    return 0


def _show_checks(asked: argparse.Namespace) -> int:
    """run preflight only; exit code 1 if a check failed"""
    profile = _load_profile(asked)
    from torchyard.run.notifications import check_notifications
    from torchyard.steps.preflight import run_checks

    checks = (*run_checks(_make_plan(profile)), *check_notifications(profile))
    for found in checks:
        remedy = f"\n        {found.remedy}" if found.remedy else ""
        print(strip_control_codes(f"{_VERDICT_LABELS[found.verdict]}{found.name}: {found.detail}{remedy}"))
    failed = sum(found.verdict == "failed" for found in checks)
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


def _run_profile(asked: argparse.Namespace) -> int:
    """run a profile to its end without a Prefect server; exit code 1 if the run does not succeed"""
    profile = _load_profile(asked)
    from torchyard.cli.run import run_profile

    return run_profile(profile)


def _attach_run(asked: argparse.Namespace) -> int:
    """resume a run of `torchyard run` that has lost its process"""
    from torchyard.cli.run import attach_run

    return attach_run(asked.run_name)


def _run_benchmark(asked: argparse.Namespace) -> int:
    """run a profile over several fabrics, one after the other, and compare their bandwidths"""
    from torchyard.cli.run import run_comparison

    return run_comparison(asked.profile, read_overrides(asked.set), asked.fabric)


def _show_profiles(asked: argparse.Namespace) -> int:
    """list every profile that can be named, or print the file of one"""
    if asked.name:
        print(find_file(asked.name).read_text(encoding="utf-8"), end="")
        return 0
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
    """print the JSON Schema of a profile, for editors"""
    schema = Profile.model_json_schema()
    schema["properties"].pop("name")
    schema["required"] = [key for key in schema["required"] if key not in ("name", "launcher")]
    schema["anyOf"] = [{"required": ["launcher"]}, {"required": ["values"]}]
    schema["properties"]["launcher"]["enum"] = registry.list_launchers()
    options = {name: registry.load_launcher(name).Options.model_json_schema() for name in registry.list_launchers()}
    for each in options.values():
        schema["$defs"] |= each.pop("$defs", {})  # references are resolved from the root
    schema["allOf"] = [
        {"if": {"properties": {"launcher": {"const": name}}}, "then": {"properties": {"options": each}}}
        for name, each in options.items()
    ]
    print(json.dumps(schema, indent=1))
    return 0


def _show_logs(asked: argparse.Namespace) -> int:
    """show what global rank 0 of a run printed, without the other ranks and the agents; and which network was used"""
    from torchyard.cli.find import find_run
    from torchyard.steps.log_reader import read_rank_zero

    folder = find_run(asked.run_name)
    plan = folder.plans()[-1]
    safe: Callable[[str], str] = strip_control_codes if sys.stdout.isatty() else str  # a file or a pipe gets every byte
    for text in read_rank_zero(plan):
        print(safe(text))
    ended = folder.ended(folder.attempts()[-1])
    if ended and (found := ended.collected.fabric):  # apart from the program's own lines, which may go into a pipe
        print(f"fabric: {found.verdict}: {single_line(found.sentence)}", file=sys.stderr)
    return 0


def _explain_run(asked: argparse.Namespace) -> int:
    """show which rank of a run hangs, where, and why; or what each rank does now"""
    from torchyard.cli.why import explain_dumps, explain_run

    if "/" in asked.run_name:
        return explain_dumps(asked.run_name, as_json=asked.json)
    return explain_run(asked.run_name, as_json=asked.json)


def _show_trend(asked: argparse.Namespace) -> int:
    """list the histories of all profiles, or show how a profile's number has changed from run to run"""
    from torchyard.cli.trend import show_histories, show_history

    trend = Trend(value=asked.value, better="lower" if asked.lower else "higher") if asked.value else None
    return show_history(asked.history, trend, asked.plot) if asked.history else show_histories()


def _serve_metrics(asked: argparse.Namespace) -> int:
    """serve the state of all runs to Prometheus, until it is stopped"""
    from torchyard.cli.metrics import print_metrics, serve_until_stopped

    return print_metrics() if asked.once else serve_until_stopped(asked.host, asked.port)


def _run_service(asked: argparse.Namespace) -> int:
    """run a checkout's Prefect server and worker as a systemd user unit, also after a reboot"""
    from torchyard.cli.service import run_service

    return run_service(asked.verb)


def _run_demo(asked: argparse.Namespace) -> int:
    """run an example in this folder, in ./torchyard-demo: two agents learn handwritten digits"""
    from torchyard.cli.demo import run_demo

    return run_demo(fail=asked.fail, without_torch=asked.without_torch)


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": _run_demo,
    "plan": _show_plan,
    "check": _show_checks,
    "run": _run_profile,
    "benchmark": _run_benchmark,
    "attach": _attach_run,
    "profiles": _show_profiles,
    "schema": _show_schema,
    "logs": _show_logs,
    "why": _explain_run,
    "trend": _show_trend,
    "metrics": _serve_metrics,
    "service": _run_service,
}
