"""The pages of a run that has not started: its plan, and the checks of its preflight."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from torchyard.common import page
from torchyard.common.escaping import shorten_text, single_line
from torchyard.common.page import Block, Entries, Folded, Page, Paragraph, Table
from torchyard.common.secrets import check_exposed_secrets, mask_document, mask_text
from torchyard.model.finding import Finding, Verdict, describe_checks
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.pod import EnvValue, FieldReference, KeyReference, Mount
from torchyard.model.profile import Profile
from torchyard.model.requirements import Advice
from torchyard.model.resolved import resolve
from torchyard.pods.files import summarize_files

_MAX_VALUE_CHARS = 500
_MAX_DETAIL_CHARS = 1000
_MAX_FINDINGS = 30
_MAX_VISIBLE_CHECKS = 5  # passed ones; more of them are folded
_MAX_DOCUMENT_CHARS = 100_000  # of the whole plan as YAML
_FINDING_LABELS: dict[Verdict, str] = {"ok": "note", "warning": "warning", "failed": "failed"}


def render_plan_page(profile: Profile, plan: Plan) -> str:
    """The plan as a table, and the complete plan as YAML, folded below it. Secrets are masked."""
    title, blocks = build_plan_page(profile, plan)
    lines = format_plan(plan)[:_MAX_DOCUMENT_CHARS].splitlines()
    return page.render_markdown(Page(title, [*blocks, Folded("the whole plan", lines)]))


def describe_plan(profile: Profile, plan: Plan) -> str:
    """`2 x 1 processes with baremetal: localhost`"""
    size = f"{len(plan.nodes)} pods" if profile.manifest else f"{profile.nodes} x {profile.processes} processes"
    return single_line(mask_text(f"{size} with {profile.launcher}: {describe_location(plan)}"), _MAX_VALUE_CHARS)


def render_plan_text(profile: Profile, plan: Plan) -> str:
    """The plan as a table for the terminal. Secrets are masked."""
    return page.render_text(build_plan_page(profile, plan))


def build_plan_page(profile: Profile, plan: Plan) -> Page:
    """What the plan will run and create, its findings, and what to do about them."""
    properties = list_masked_properties(profile, plan)
    rows = [[label, single_line(text, _MAX_VALUE_CHARS)] for label, text in properties.items()]
    findings = list_plan_findings(plan)
    for finding in findings[:_MAX_FINDINGS]:
        text = mask_text(str(finding))
        rows.append([_FINDING_LABELS[finding.verdict], single_line(text, _MAX_DETAIL_CHARS)])
    if len(findings) > _MAX_FINDINGS:
        rows.append(["", f"and {len(findings) - _MAX_FINDINGS:,} more: torchyard plan --as yaml prints all"])
    about = shorten_text(profile.about, _MAX_VALUE_CHARS)
    return Page(profile.name, [Paragraph(about), Entries(("", ""), rows)])


def build_plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as data to show: secrets are masked, and each file is its size and digest."""
    document: dict[str, Any] = mask_document(summarize_files(plan.model_dump(mode="json", exclude_none=True)))
    return document


def format_plan(plan: Plan) -> str:
    """The complete plan as YAML to show: secrets are masked, and each file is its size and digest.

    A script is a block of its lines, as people write it.
    """
    return str(yaml.dump(build_plan_document(plan), Dumper=_PlanDumper, sort_keys=False, width=120))


class _PlanDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # the faster one, if there is one
    pass


def _represent_text(dumper: _PlanDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_PlanDumper.add_representer(str, _represent_text)


def list_plan_findings(plan: Plan) -> tuple[Finding, ...]:
    """What planning has found, before any check: replacements in a manifest, its traps, and secrets in the plan."""
    advice = [requirement.finding for requirement in plan.requires if isinstance(requirement, Advice)]
    return (*advice, *check_exposed_secrets(plan))


def list_masked_properties(profile: Profile, plan: Plan) -> dict[str, str]:
    """The rows of the table: names and values, without empty ones. Secrets are masked.

    Resources, networks, environment and volumes include those that the fabric of the hardware file adds.
    """
    resolved = resolve(profile)
    properties = {
        "launcher": profile.launcher,
        "options": join_items(profile.options),
        "where": describe_location(plan),
        "job": plan.job,
        "processes": _describe_processes(profile, plan),
        "code": _describe_code(profile),
        "program": " ".join([_describe_program(profile), *profile.args]),
        "image": profile.image or "",
        "rendezvous": "" if profile.manifest else profile.rendezvous,
        "hardware": f"{profile.hardware.name}, fabric {profile.fabric}" if profile.hardware else "",
        "network": f"{profile.network.expect.transport} promised" if profile.network else "",
        "networks": join_items(resolved.pod.networks),
        "resources": join_items(resolved.resources),
        "environment": _describe_env(mask_document(resolved.env)),
        "volumes": ", ".join(f"{path} {_describe_mount(mount)}" for path, mount in resolved.mounts.items()),
        "files": ", ".join(f"{path} ({len(file.content):,} bytes)" for path, file in profile.files.items()),
        "metrics": "" if profile.metrics == "none" else str(profile.metrics),
        "deadlines": ", ".join(f"{key} {value:g} s" for key, value in profile.deadlines.model_dump().items()),
        "attempts": str(profile.attempts),
        "starts" if isinstance(plan, CommandPlan) else "creates": _describe_parts(plan),
    }
    masked: dict[str, str] = mask_document({label: text for label, text in properties.items() if text})
    return masked


def join_items(mapping: Mapping[str, object]) -> str:
    """`cpu 4, memory 8Gi`"""
    return ", ".join(f"{key} {value}" for key, value in mapping.items())


def _describe_processes(profile: Profile, plan: Plan) -> str:
    """`2 x 4, started by torchrun`; of a manifest, whose pods start what they like, `2 pods of the manifest`."""
    if profile.manifest:
        noun = "pod" if len(plan.nodes) == 1 else "pods"
        return f"{len(plan.nodes)} {noun} of the manifest"
    return f"{profile.nodes} x {profile.processes}, started by {profile.resolved_agent}"


def _describe_code(profile: Profile) -> str:
    """`37 files, 112 KB, digest 0123456789ab, of /home/me/train`; empty without code."""
    return f"{profile.code.archive}, of {profile.code.path}" if profile.code else ""


def _describe_program(profile: Profile) -> str:
    """What the job's processes run, without its arguments."""
    if profile.manifest:
        return "a job of the profile's manifest"
    if profile.has_image_entrypoint:
        return "the image's entrypoint"
    return f"-m {profile.module}" if profile.module else str(profile.program)


def describe_location(plan: Plan) -> str:
    """The cluster and the namespace, or the hosts."""
    match plan:
        case ManifestPlan():
            context = f"context {plan.cluster.context}" if plan.cluster.context else "the kubeconfig's current context"
            namespace = f"namespace {plan.cluster.namespace}" if plan.cluster.namespace else "its namespace"
            return f"{context}, {namespace}"
        case CommandPlan():
            if plan.launcher == "runai":
                return "Run:ai, by its command line on this machine"
            return ", ".join(dict.fromkeys(process.host for process in plan.processes))


def _describe_env(env: Mapping[str, EnvValue]) -> str:
    """`NCCL_DEBUG=INFO, HF_TOKEN from secret hf`: a value that the pods read from elsewhere is named by its source."""
    items: list[str] = []
    for name, value in env.items():
        if isinstance(value, KeyReference):
            source = f"secret {value.secret}" if value.secret else f"ConfigMap {value.config_map}"
            items.append(f"{name} from {source}")
        elif isinstance(value, FieldReference):
            items.append(f"{name} from the pod")
        else:
            items.append(f"{name}={value}")
    return ", ".join(items)


def _describe_mount(mount: Mount) -> str:
    """`claim data, read-only`"""
    fields = mount.model_dump(exclude_none=True, exclude={"read_only"})
    return join_items(fields) + (", read-only" if mount.read_only else "")


def _describe_parts(plan: Plan) -> str:
    """Each object with its kind and name, or each process with its host, in the order in which they are created."""
    match plan:
        case ManifestPlan():
            objects = (plan.lease, *plan.store, *plan.objects)
            return ", ".join(f"{obj['kind']} {obj['metadata']['name']}" for obj in objects)
        case CommandPlan():
            if plan.launcher == "runai":
                return f"Run:ai job {plan.job} of {len(plan.processes)} pods"
            return ", ".join(f"{process.name} on {process.host}" for process in plan.all_processes)


def render_checks_page(checks: Sequence[Finding]) -> str:
    """The results of preflight: checks that did not pass first; many passed ones are folded."""
    return page.render_markdown(build_checks_page(checks))


def describe_preflight(checks: Sequence[Finding]) -> str:
    """`5 of 5 checks`, or `3 of 5 checks; torch on gpu-48: not installed`, with the first check that failed."""
    for check in checks:
        if check.verdict == "failed":
            return single_line(f"{describe_checks(checks)}; {check.where}: {check.what}", _MAX_VALUE_CHARS)
    return describe_checks(checks)


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
