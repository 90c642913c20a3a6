"""The pages of a run that has not started: its plan, and the checks of its preflight."""

from collections.abc import Sequence

import yaml

from torchyard.common import page
from torchyard.common.escaping import shorten_text, single_line
from torchyard.common.page import Block, Entries, Folded, Page, Paragraph, Table
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
    return page.render_markdown(build_plan_page(profile, plan))


def build_plan_page(profile: Profile, plan: Plan) -> Page:
    rows = [[key, single_line(str(value), _MAX_VALUE_CHARS)] for key, value in _list_properties(profile, plan) if value]
    document = mask_document(summarize_files(plan.model_dump(mode="json", exclude_none=True)))
    text = yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False, width=120)
    lines = text[:_MAX_DOCUMENT_CHARS].splitlines()
    blocks: list[Block] = [
        Paragraph(shorten_text(profile.about, _MAX_VALUE_CHARS)),
        Entries(("", ""), mask_document(rows)),
        Folded("the whole plan", lines),
    ]
    return Page(profile.name, blocks)


def _describe_program(profile: Profile) -> str:
    """What the job's processes run, without its arguments."""
    if profile.manifest:
        return "a job of the profile's manifest"
    if profile.has_image_entrypoint:
        return "the image's entrypoint"
    return f"-m {profile.module}" if profile.module else str(profile.program)


def _list_properties(profile: Profile, plan: Plan) -> list[tuple[str, object]]:
    """The rows of the table: names and values. The caller leaves out empty values."""
    fabric = profile.network
    hardware = f"{profile.hardware.name}, fabric {profile.fabric}" if profile.hardware else ""
    deadlines = ", ".join(f"{key} {value:g} s" for key, value in profile.deadlines.model_dump().items())
    return [
        ("launcher", profile.launcher),
        ("job", plan.job),
        ("nodes x processes", f"{profile.nodes} x {profile.processes}, started by {profile.resolved_agent}"),
        ("program", " ".join([_describe_program(profile), *profile.args])),
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
    return page.render_markdown(build_checks_page(checks))


def build_checks_page(checks: Sequence[Finding]) -> Page:
    passed = [check for check in checks if check.verdict == "ok"]
    not_passed = [check for check in checks if check.verdict != "ok"]
    blocks: list[Block] = []
    if not_passed:
        blocks.append(_tabulate_checks(not_passed))
    if len(passed) > _MAX_VISIBLE_CHECKS:
        blocks.append(Folded(f"{len(passed)} in order", [f"{check.where}: {check.what}" for check in passed]))
    elif passed:
        blocks.append(_tabulate_checks(passed))
    return Page(f"preflight: {len(passed)} of {len(checks)} checks are in order", blocks)


def _tabulate_checks(checks: Sequence[Finding]) -> Table:
    rows: list[list[str]] = []
    for check in checks:
        cells = (check.where, check.verdict, check.what, check.remedy)
        rows.append([single_line(cell, _MAX_DETAIL_CHARS) for cell in cells])
    return Table(["need", "verdict", "found", "what to do"], rows)
