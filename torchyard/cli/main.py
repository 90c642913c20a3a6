"""`torchyard`: plan, check, run or benchmark a profile; list profiles; read a run's log; explain a hang;
look into a run's nodes; compare runs; serve metrics.

Start with `torchyard demo`.
"""

import argparse
import errno
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from torchyard.cli.exit_codes import ExitCode, UsageError, get_error_code
from torchyard.common.escaping import strip_control_codes
from torchyard.common.extensions import list_extensions
from torchyard.common.project_root import ROOT
from torchyard.launchers import registry
from torchyard.loading import catalog
from torchyard.loading.overrides import OVERRIDES_HELP, read_overrides
from torchyard.loading.profile import load_profile
from torchyard.model.errors import TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.profile import METRICS_FORMATS, Profile
from torchyard.model.run import TRIAL_RUN
from torchyard.model.trend import Trend
from torchyard.run.folder import RunFolder, runs_folder

_CATALOG_FORMATS = {"table": catalog.format_catalog_table, "deployments": catalog.format_deployments}
# The verbs with a document in torchyard/cli/documents.py, which is imported only for a document: it takes a moment.
JSON_VERBS = (
    "demo",
    "plan",
    "check",
    "run",
    "benchmark",
    "attach",
    "stop",
    "profiles",
    "ps",
    "logs",
    "why",
    "trend",
    "archive",
    "service",
)
_JSON_HELP = "print one JSON document, and everything else on stderr (docs/json.md)"
_RUN_HELP = "a run's name, such as digits-local-a1b2c3d4"
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_VERDICT_LABELS = {"ok": "ok      ", "warning": "warning ", "failed": "FAILED  "}


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code (ExitCode). An error is a message on stderr, and with --json a document."""
    argv = sys.argv[1:] if argv is None else argv
    args = argparse.Namespace(json="--json" in argv)  # for a command line that cannot be parsed
    try:
        build_parser().parse_args(argv, args)
        return int(args.run_verb(args))
    except TorchyardError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        print(strip_control_codes(text), file=sys.stderr)
        return _report_error(error, as_json=args.json)
    except BrokenPipeError:
        return ExitCode.SUCCESS
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL_DISK:
            return report_write_error(error)
        if not args.json:
            raise
        traceback.print_exc()
        return _report_error(error, as_json=True)


def report_write_error(error: OSError) -> ExitCode:
    """Print that the output or a file cannot be written, and the remedy if the disk is full; return the exit code."""
    remedy = "; free some space" if error.errno in _FULL_DISK else ""
    print(f"cannot write the output or a file: {error}{remedy}", file=sys.stderr, flush=True)
    return ExitCode.FAILED


def _report_error(error: Exception, *, as_json: bool) -> int:
    """Print the document of an error, if one was requested; return the exit code."""
    exit_code = get_error_code(error)
    if as_json:
        from torchyard.cli.documents import describe_error, print_document

        print_document(describe_error(error, exit_code))
    return exit_code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors."""

    def error(self, message: str) -> NoReturn:
        if "are required" in message and "--cluster" in self._option_string_actions:
            message += " (a word after --cluster is its CONTEXT: write --cluster last)"
        raise UsageError(f"{self.format_usage()}{self.prog}: ", message)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="torchyard", description=__doc__, epilog=f"For scripts and agents: {ROOT / 'SKILL.md'}")
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    verb_parsers: dict[str, argparse.ArgumentParser] = {}
    for name, run_verb in VERBS.items():
        verb_parsers[name] = verbs.add_parser(name, help=run_verb.__doc__)
        verb_parsers[name].set_defaults(run_verb=run_verb, json=False)
    for name in JSON_VERBS:
        verb_parsers[name].add_argument("--json", action="store_true", help=_JSON_HELP)
    for name in ("plan", "check", "run", "benchmark"):
        verb_parsers[name].add_argument("profile", help="a name from `torchyard profiles`, or a path")
        verb_parsers[name].add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=OVERRIDES_HELP)
    verb_parsers["run"].add_argument(
        "--resume", metavar="RUN", help="continue from the last complete checkpoint of this run, or from this path"
    )
    verb_parsers["plan"].add_argument(
        "--as", dest="form", choices=["yaml", "json"], help="print the complete plan; json is the same as --json"
    )
    verb_parsers["benchmark"].add_argument(
        "--fabric",
        action="append",
        default=[],
        metavar="FABRIC",
        help="a fabric to compare; repeat it for more (default: the profile's and the hardware's TCP fabric)",
    )
    verb_parsers["profiles"].add_argument(
        "name", nargs="?", metavar="NAME", help="print the file of this profile, or of hardware/NAME"
    )
    verb_parsers["profiles"].add_argument(
        "--as",
        dest="form",
        choices=_CATALOG_FORMATS,
        help="print all as the table of docs/profiles.md, or as entries of prefect.yaml",
    )
    verb_parsers["profiles"].add_argument(
        "--launchers", action="store_true", help="list the launchers instead, with the package of each"
    )
    _add_run_arguments(verb_parsers)
    verb_parsers["schema"].add_argument(
        "--of", dest="verb", choices=JSON_VERBS, metavar="VERB", help="print the schema of what VERB --json prints"
    )
    _add_node_arguments(verb_parsers)
    verb_parsers["trend"].add_argument(
        "history", nargs="?", metavar="PROFILE", help="a profile, or the name of a history"
    )
    verb_parsers["trend"].add_argument(
        "--value", help="the number to compare (default: the one that the last runs compared)"
    )
    verb_parsers["trend"].add_argument("--lower", action="store_true", help="a lower --value is better")
    verb_parsers["trend"].add_argument("--plot", metavar="FILE", help="write the plot as SVG")
    verb_parsers["metrics"].add_argument("--port", type=int, default=9464, help="the port to listen on (default: 9464)")
    verb_parsers["metrics"].add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)"
    )
    verb_parsers["metrics"].add_argument(
        "--once", action="store_true", help="print the response to one scrape, and exit"
    )
    verb_parsers["archive"].add_argument("verb", choices=["init"], help="create it, once, where its share is mounted")
    verb_parsers["service"].add_argument("verb", choices=["install", "uninstall", "status"], help="the action")
    verb_parsers["demo"].add_argument("--fail", action="store_true", help="a run that fails, with its explanation")
    verb_parsers["demo"].add_argument("--without-torch", action="store_true", help="a run without torch")
    return parser


def _add_run_arguments(verb_parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """Add the arguments of the verbs that show runs, or one run."""
    runs = verb_parsers["ps"]
    runs.add_argument("--all", action="store_true", help="also the runs that have ended")
    runs.add_argument("--watch", action="store_true", help="refresh the list until Ctrl-C")
    _add_cluster_option(runs, "also the runs of a cluster, whichever machine started them")
    for name in ("logs", "attach", "stop"):
        verb_parsers[name].add_argument("run_name", metavar="RUN", help=_RUN_HELP)
    for name in ("run", "attach"):
        verb_parsers[name].add_argument(
            "-f", "--follow", action="store_true", help="also print each line of rank 0, instead of summaries of them"
        )
    lines = verb_parsers["logs"].add_mutually_exclusive_group()
    lines.add_argument("--rank", type=_parse_rank, default=0, metavar="N", help="of this global rank (default: 0)")
    lines.add_argument("--node", metavar="NODE", help="all lines of a node, such as worker-1, the agent's too")
    verb_parsers["logs"].add_argument(
        "-f", "--follow", action="store_true", help="print new lines until the run is over, or until Ctrl-C"
    )
    for name in ("logs", "why"):
        _add_cluster_option(verb_parsers[name], "read the pods of a run that another machine started")
    why_help = f"{_RUN_HELP}; or FOLDER/ with dumps of torch's flight recorder"
    verb_parsers["why"].add_argument("run_name", metavar="RUN", help=why_help)


def _add_cluster_option(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add `--cluster`: None without it, "" for the current context."""
    parser.add_argument(
        "--cluster", nargs="?", const="", metavar="CONTEXT", help=f"{help_text} (default: of the current context)"
    )


def _parse_rank(text: str) -> int:
    """A global rank. ArgumentTypeError, which the parser reports, if it is not one."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank, which is a number from 0")
    return int(text)


def _add_node_arguments(verb_parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """Add the arguments of the verbs that look into the nodes of a run."""
    for name in ("shell", "exec", "forward"):
        verb_parsers[name].add_argument("run_name", metavar="RUN", help=_RUN_HELP)
        group = verb_parsers[name].add_mutually_exclusive_group()
        group.add_argument("--node", help="the node, by name or number (default: the first one)")
        if name == "exec":
            group.add_argument("--all", action="store_true", help="run it in all nodes at once, without input")
        _add_cluster_option(verb_parsers[name], "enter the pods of a run that another machine started")
    verb_parsers["exec"].add_argument("command", nargs="+", metavar="COMMAND", help="the command, after `--`")
    verb_parsers["forward"].add_argument("ports", metavar="PORT[:REMOTE]", help="the port here, and that of the node")


class _ShowVersion(argparse.Action):
    """`--version`: prints the installed version, which takes a moment to read."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"torchyard {version('torchyard')}")
        parser.exit()


def _load_profile(args: argparse.Namespace) -> Profile:
    return load_profile(args.profile, read_overrides(args.set))


def _create_plan(profile: Profile) -> Plan:
    """The plan of a run that is not started. ProfileError if it cannot continue from what `resume` names."""
    folder = runs_folder() / TRIAL_RUN.name(profile)
    fields: dict[str, Any] = {"folder": str(folder)}
    if profile.resume:
        from torchyard.run.next_attempt import find_resume_point  # it takes a moment

        fields["resume"] = find_resume_point(RunFolder(folder), profile)
    return registry.make_plan(profile, TRIAL_RUN.model_copy(update=fields))


def _show_plan(args: argparse.Namespace) -> int:
    """print what a run would start and create, without running it"""
    args.json = args.json or args.form == "json"
    profile = _load_profile(args)
    plan = _create_plan(profile)
    from torchyard.pages.plan import format_plan, list_plan_findings, render_plan_text

    if args.json:
        from torchyard.cli.documents import describe_plan, print_document

        print_document(describe_plan(profile, plan))
        return ExitCode.SUCCESS
    if args.form == "yaml":
        print(format_plan(plan), end="")
        for finding in list_plan_findings(plan):
            if finding.verdict != "ok":
                print(strip_control_codes(str(finding)), file=sys.stderr)
        return ExitCode.SUCCESS
    print(render_plan_text(profile, plan))
    return ExitCode.SUCCESS


def _show_checks(args: argparse.Namespace) -> int:
    """run preflight only"""
    profile = _load_profile(args)
    from torchyard.assembly import list_sinks
    from torchyard.run.services import Sinks
    from torchyard.steps.preflight import run_checks

    checks = (*run_checks(_create_plan(profile)), *Sinks(list_sinks(profile, TRIAL_RUN.id, "")).check())
    failed_count = sum(check.verdict == "failed" for check in checks)
    if args.json:
        from torchyard.cli.documents import ChecksDocument, describe_finding, print_document

        findings = tuple(map(describe_finding, checks))
        print_document(ChecksDocument(profile=profile.name, passed=not failed_count, checks=findings))
    else:
        for check in checks:
            remedy = f"\n        {check.remedy}" if check.remedy else ""
            print(strip_control_codes(f"{_VERDICT_LABELS[check.verdict]}{replace(check, remedy='')}{remedy}"))
        print(f"{len(checks) - failed_count} of {len(checks)} checks passed")
    return ExitCode.FAILED if failed_count else ExitCode.SUCCESS


def _run_profile(args: argparse.Namespace) -> int:
    """run a profile to its end without a Prefect server"""
    if args.resume:
        args.set.append(f"resume={json.dumps(args.resume)}")
    profile = _load_profile(args)
    from torchyard.cli.run import run_profile

    return run_profile(profile, is_following=args.follow, as_json=args.json)


def _attach_run(args: argparse.Namespace) -> int:
    """resume a run of `torchyard run` that has lost its process; of one that has ended, print the result again"""
    from torchyard.cli.run import attach_run

    return attach_run(args.run_name, is_following=args.follow, as_json=args.json)


def _stop_run(args: argparse.Namespace) -> int:
    """end a run that a process of this machine owns, as Ctrl-C there does, and print how it has ended"""
    from torchyard.cli.run import stop_run

    return stop_run(args.run_name, as_json=args.json)


def _run_benchmark(args: argparse.Namespace) -> int:
    """run a profile over several fabrics, one after the other, and compare their bandwidths"""
    from torchyard.cli.run import run_comparison

    return run_comparison(args.profile, read_overrides(args.set), args.fabric, as_json=args.json)


def _show_profiles(args: argparse.Namespace) -> int:
    """list all profiles, or print the file of one; or list the launchers"""
    if args.form and not args.json:
        print("\n".join(_CATALOG_FORMATS[args.form](catalog.load_catalog())))
        return ExitCode.SUCCESS
    from torchyard.cli.profiles import show_file, show_launchers, show_profiles

    if args.launchers:
        return show_launchers(as_json=args.json)
    if args.name:
        return show_file(args.name, as_json=args.json)
    return show_profiles(as_json=args.json)


def _show_schema(args: argparse.Namespace) -> int:
    """print the JSON Schema of a profile, for editors, or that of the output of a verb"""
    if args.verb:
        from torchyard.cli.documents import build_schema

        print(json.dumps(build_schema(args.verb), indent=1))
        return ExitCode.SUCCESS
    schema = Profile.model_json_schema()
    schema["properties"].pop("name")
    schema["required"] = [key for key in schema["required"] if key not in ("name", "launcher")]
    schema["anyOf"] = [{"required": ["launcher"]}, {"required": ["values"]}]
    usable_launchers = [launcher.name for launcher in registry.describe_launchers() if launcher.problem is None]
    schema["properties"]["launcher"]["enum"] = usable_launchers
    formats = [extension.name for extension in list_extensions("metrics")]
    schema["properties"]["metrics"]["anyOf"][0]["enum"] = [*METRICS_FORMATS, *formats]
    options = {name: registry.load_launcher(name).Options.model_json_schema() for name in usable_launchers}
    for options_schema in options.values():
        schema["$defs"] |= options_schema.pop("$defs", {})  # references are resolved from the root
    schema["allOf"] = [
        {"if": {"properties": {"launcher": {"const": name}}}, "then": {"properties": {"options": options_schema}}}
        for name, options_schema in options.items()
    ]
    print(json.dumps(schema, indent=1))
    return ExitCode.SUCCESS


def _show_runs(args: argparse.Namespace) -> int:
    """list the active runs: their state, progress and time left, and where they run"""
    from torchyard.cli.ps import show_runs, watch_runs

    if args.watch:
        watch_runs(with_finished=args.all, context=args.cluster, as_json=args.json)
    return show_runs(with_finished=args.all, context=args.cluster, as_json=args.json)


def _show_logs(args: argparse.Namespace) -> int:
    """print the output of a rank or of a node, and follow it; and the network that was used"""
    from torchyard.steps.rank_output import LogSelection

    selection = LogSelection(args.rank, args.node)
    if args.json and (args.follow or args.cluster is not None):
        raise UsageError(
            "torchyard logs: ", "--json prints the lines of a run of this machine: use it without -f and --cluster"
        )
    if args.cluster is not None:
        from torchyard.cli.pod_logs import show_pod_logs

        return show_pod_logs(args.run_name, selection, context=args.cluster, is_following=args.follow)
    from torchyard.cli.logs import show_logs, show_logs_as_json

    if args.json:
        return show_logs_as_json(args.run_name, selection)
    return show_logs(args.run_name, selection, is_following=args.follow)


def _explain_run(args: argparse.Namespace) -> int:
    """show which rank of a run hangs, where, and why; or the state of each rank"""
    from torchyard.cli.why import explain_dumps, explain_leased_run, explain_run

    if "/" in args.run_name:
        if args.cluster is not None:
            raise UsageError("torchyard why: ", "--cluster reads the pods of a run: use it without FOLDER/")
        return explain_dumps(args.run_name, as_json=args.json)
    if args.cluster is not None:
        return explain_leased_run(args.run_name, args.cluster, as_json=args.json)
    return explain_run(args.run_name, as_json=args.json)


def _open_shell(args: argparse.Namespace) -> int:
    """open a shell in a node of a run, with the environment of its program"""
    from torchyard.cli.enter import open_shell

    return open_shell(args.run_name, args.node, context=args.cluster)


def _run_command(args: argparse.Namespace) -> int:
    """run a command in a node of a run, or in all; exit code of the command"""
    from torchyard.cli.enter import run_command, run_everywhere

    if args.all:
        return run_everywhere(args.run_name, args.command, context=args.cluster)
    return run_command(args.run_name, args.node, args.command, context=args.cluster)


def _forward_port(args: argparse.Namespace) -> int:
    """forward a port of this machine to a node of a run, until Ctrl-C"""
    from torchyard.cli.enter import forward_port

    return forward_port(args.run_name, args.node, args.ports, context=args.cluster)


def _show_trend(args: argparse.Namespace) -> int:
    """list the histories of all profiles, or show how a profile's number has changed from run to run"""
    from torchyard.cli.trend import show_histories, show_history

    if not args.history:
        return show_histories(as_json=args.json)
    trend = None
    if args.lower and not args.value:
        raise UsageError("torchyard trend: ", "--lower describes the number of --value: use it with --value NAME")
    if args.value:
        trend = Trend(value=args.value, better="lower" if args.lower else "higher")
    return show_history(args.history, trend, args.plot, as_json=args.json)


def _serve_metrics(args: argparse.Namespace) -> int:
    """serve the state of all runs to Prometheus, until it is stopped"""
    from torchyard.cli.metrics import print_metrics, serve_until_stopped

    return print_metrics() if args.once else serve_until_stopped(args.host, args.port)


def _create_archive(args: argparse.Namespace) -> int:
    """create the archive that TORCHYARD_ARCHIVE names"""
    from torchyard.cli.archive import create_archive

    return create_archive(as_json=args.json)


def _run_service(args: argparse.Namespace) -> int:
    """run a checkout's Prefect server and worker as a systemd user unit, also after a reboot"""
    from torchyard.cli.service import run_service

    return run_service(args.verb, as_json=args.json)


def _run_demo(args: argparse.Namespace) -> int:
    """run an example in this folder, in ./torchyard-demo: two agents learn handwritten digits"""
    from torchyard.cli.demo import run_demo

    return run_demo(fail=args.fail, without_torch=args.without_torch, as_json=args.json)


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": _run_demo,
    "plan": _show_plan,
    "check": _show_checks,
    "run": _run_profile,
    "benchmark": _run_benchmark,
    "attach": _attach_run,
    "stop": _stop_run,
    "profiles": _show_profiles,
    "schema": _show_schema,
    "ps": _show_runs,
    "logs": _show_logs,
    "why": _explain_run,
    "shell": _open_shell,
    "exec": _run_command,
    "forward": _forward_port,
    "trend": _show_trend,
    "metrics": _serve_metrics,
    "archive": _create_archive,
    "service": _run_service,
}
