"""The pages of a run that has not begun: what would run and where, and what preflight found."""

from collections.abc import Sequence

import yaml

from torchyard.common.escaping import escape_paragraph, fold_lines, format_markdown_table, single_line
from torchyard.common.secrets import mask_document
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.requirements import Check
from torchyard.pods.files import summarize_files

_MAX_VALUE_CHARS, _MAX_DETAIL_CHARS = 500, 1000
_MAX_SHOWN_CHECKS = 5  # that are in order
_MAX_DOCUMENT_CHARS = 100_000  # of the whole plan as YAML


def render_plan_page(profile: Profile, plan: Plan) -> str:
    """What would run, as a table that a person reads; the whole plan is folded below it."""
    rows = [[key, single_line(str(value), _MAX_VALUE_CHARS)] for key, value in _list_facts(profile, plan) if value]
    document = mask_document(summarize_files(plan.model_dump(mode="json", exclude_none=True)))
    text = yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False, width=120)
    shown = text[:_MAX_DOCUMENT_CHARS].splitlines()
    return "\n".join(
        [
            f"# {profile.name}",
            escape_paragraph(profile.about, _MAX_VALUE_CHARS),
            "",
            *format_markdown_table(["", ""], mask_document(rows)),
            "",
            fold_lines("the whole plan", shown),
        ]
    )


def _list_facts(profile: Profile, plan: Plan) -> list[tuple[str, object]]:
    network = profile.network
    where = f"{profile.hardware.name}, fabric {profile.fabric}" if profile.hardware else ""
    deadlines = ", ".join(f"{key} {value:g} s" for key, value in profile.deadlines.model_dump().items())
    return [
        ("launcher", profile.launcher),
        ("job", plan.job),
        ("nodes x processes", f"{profile.nodes} x {profile.processes}, started by {profile.starter}"),
        ("program", " ".join(map(str, (profile.program or "a job of the profile's manifest", *profile.args)))),
        ("image", profile.image),
        ("rendezvous", profile.rendezvous),
        ("hardware", where),
        ("network promised", network.expect.transport if network and network.expect else ""),
        ("resources", ", ".join(f"{key} {value}" for key, value in profile.resources.items())),
        ("environment", ", ".join(profile.env)),
        ("deadlines", deadlines),
        ("attempts", profile.attempts),
    ]


def render_checks_page(checks: Sequence[Check]) -> str:
    """What preflight found for each need, what failed first; what is in order is folded if there is much of it."""
    wrong = [check for check in checks if check.verdict != "ok"]
    right = [check for check in checks if check.verdict == "ok"]
    head = f"# preflight: {len(right)} of {len(checks)} checks are in order"
    lines = [head, "", *_tabulate_checks(wrong)] if wrong else [head]
    told = [f"{check.need}: {check.detail}" for check in right]
    shown = [fold_lines(f"{len(right)} in order", told)] if len(right) > _MAX_SHOWN_CHECKS else _tabulate_checks(right)
    return "\n".join([*lines, "", *shown])


def _tabulate_checks(checks: Sequence[Check]) -> list[str]:
    rows = [[check.need, check.verdict, check.detail, check.remedy] for check in checks]
    cut = [[single_line(cell, _MAX_DETAIL_CHARS) for cell in row] for row in rows]
    return format_markdown_table(["need", "verdict", "found", "what to do"], cut) if rows else []
