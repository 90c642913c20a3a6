"""The pages of a run that has not started: its plan, and the checks of its preflight."""

from collections.abc import Sequence

import yaml

from torchyard.common.escaping import escape_paragraph, fold_lines, format_markdown_table, single_line
from torchyard.common.secrets import mask_document
from torchyard.model.finding import Finding
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.pods.files import summarize_files

_MAX_VALUE_CHARS = 500
_MAX_DETAIL_CHARS = 1000
_MAX_VISIBLE_CHECKS = 5  # passed ones; more of them are folded
_MAX_DOCUMENT_CHARS = 100_000  # of the whole plan as YAML


def render_plan_page(profile: Profile, plan: Plan) -> str:
    """The plan as a table, and the complete plan as YAML, folded below it. Secrets are masked."""
    rows = [[key, single_line(str(value), _MAX_VALUE_CHARS)] for key, value in _list_properties(profile, plan) if value]
    document = mask_document(summarize_files(plan.model_dump(mode="json", exclude_none=True)))
    text = yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False, width=120)
    lines = text[:_MAX_DOCUMENT_CHARS].splitlines()
    return "\n".join(
        [
            f"# {profile.name}",
            escape_paragraph(profile.about, _MAX_VALUE_CHARS),
            "",
            *format_markdown_table(["", ""], mask_document(rows)),
            "",
            fold_lines("the whole plan", lines),
        ]
    )


def _list_properties(profile: Profile, plan: Plan) -> list[tuple[str, object]]:
    """The rows of the table: names and values. The caller leaves out empty values."""
    fabric = profile.network
    hardware = f"{profile.hardware.name}, fabric {profile.fabric}" if profile.hardware else ""
    deadlines = ", ".join(f"{key} {value:g} s" for key, value in profile.deadlines.model_dump().items())
    return [
        ("launcher", profile.launcher),
        ("job", plan.job),
        ("nodes x processes", f"{profile.nodes} x {profile.processes}, started by {profile.resolved_agent}"),
        ("program", " ".join(map(str, (profile.program or "a job of the profile's manifest", *profile.args)))),
        ("image", profile.image),
        ("rendezvous", profile.rendezvous),
        ("hardware", hardware),
        ("network promised", fabric.expect.transport if fabric else ""),
        ("resources", ", ".join(f"{key} {value}" for key, value in profile.resources.items())),
        ("environment", ", ".join(profile.env)),
        ("deadlines", deadlines),
        ("attempts", profile.attempts),
    ]


def render_checks_page(checks: Sequence[Finding]) -> str:
    """The results of preflight: checks that did not pass first; many passed ones are folded."""
    passed = [check for check in checks if check.verdict == "ok"]
    not_passed = [check for check in checks if check.verdict != "ok"]
    lines = [f"# preflight: {len(passed)} of {len(checks)} checks are in order"]
    if not_passed:
        lines += ["", *_tabulate_checks(not_passed)]
    lines.append("")
    if len(passed) > _MAX_VISIBLE_CHECKS:
        details = [f"{check.where}: {check.what}" for check in passed]
        lines.append(fold_lines(f"{len(passed)} in order", details))
    else:
        lines += _tabulate_checks(passed)
    return "\n".join(lines)


def _tabulate_checks(checks: Sequence[Finding]) -> list[str]:
    """A table of checks; no lines without a check."""
    if not checks:
        return []
    rows: list[list[str]] = []
    for check in checks:
        cells = (check.where, check.verdict, check.what, check.remedy)
        rows.append([single_line(cell, _MAX_DETAIL_CHARS) for cell in cells])
    return format_markdown_table(["need", "verdict", "found", "what to do"], rows)
