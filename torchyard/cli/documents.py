"""What `--json` prints: one document per verb, on stdout. Each model is the schema of its document.

`torchyard schema --of VERB` prints the schema. Keys may be added; the name and the meaning of a key do not change. A
number that is nan or infinite is null. With an error, the document is an ErrorDocument.
"""

import json
import math
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from torchyard.common.escaping import single_line
from torchyard.common.secrets import mask_text
from torchyard.listing.listed_run import RunList
from torchyard.model.base import FrozenModel
from torchyard.model.benchmark import Benchmark
from torchyard.model.errors import list_findings
from torchyard.model.fabric import FabricVerdict
from torchyard.model.finding import Finding, Verdict
from torchyard.model.hang import Hang, RankRecord, Straggler
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import BadLoss, End, EndedRun, Failure, Report, RunResult
from torchyard.model.trend import Trend
from torchyard.pages.plan import build_plan_document, list_masked_properties, list_plan_findings
from torchyard.run.result import build_result
from torchyard.trend.records import HistoryKey, Record


class FindingDocument(FrozenModel):
    """What was examined, the result, and what to do."""

    where: str = Field(description="a key of the profile, an object and its key, or what was checked; may be empty")
    what: str = Field(description="what is the case there")
    remedy: str = Field(description="what to do; empty if there is nothing to do, or if `what` contains it")
    verdict: Verdict = Field(description="ok, warning or failed: only failed prevents a run")
    file: str = Field(description="the file with the mistake, or `override` for --set; empty if it is not in a file")
    line: int | None = Field(description="the line in this file, from 1; null if it is not known")


class ErrorDetails(FrozenModel):
    """Why a command could not do its work."""

    type: str = Field(description="the name of the error: UsageError, ProfileError, PreflightError, ClusterError ...")
    message: str = Field(description="what failed, where, why, and what to do, as stderr has it")
    remedy: str = Field("", description="what to do, if the error has it apart from its message")
    findings: tuple[FindingDocument, ...] = Field((), description="each mistake in a profile, or each failed check")


class ErrorDocument(FrozenModel):
    """The document of every verb that ends by an error."""

    error: ErrorDetails = Field(description="see below")
    exit_code: int = Field(description="that of the command")


class PlanDocument(FrozenModel):
    """What a run of the profile would start and create. Secrets are masked, and files are their sizes and digests."""

    profile: str = Field(description="the name of the profile")
    about: str = Field(description="its description")
    properties: dict[str, str] = Field(description="the rows that `torchyard plan` prints: launcher, where, image ...")
    findings: tuple[FindingDocument, ...] = Field(description="replacements in a manifest, traps, exposed secrets")
    plan: Plan = Field(description="all objects, or all commands")


class ChecksDocument(FrozenModel):
    """The results of preflight."""

    profile: str = Field(description="the name of the profile")
    passed: bool = Field(description="whether no check has failed; warnings do not prevent a run")
    checks: tuple[FindingDocument, ...] = Field(description="every check and its verdict")


class RunDocument(RunResult):
    """How a run ended, why, and where its files are."""

    folder: str = Field(description="the run's folder, on the machine of the launcher")
    failure: Failure | None = Field(None, description="the cause of a failed run; null if the job did not fail")
    findings: tuple[FindingDocument, ...] = Field(
        (),
        description="each failed check of preflight, or each mistake in the profile, that prevented the next attempt; "
        "empty if an attempt ended the run",
    )
    remedy: str = Field(
        "",
        description="the remedies of `findings`, in one line; without findings the usual remedy of the cause; empty if "
        "only `sentence` has one",
    )
    hang: Hang | None = Field(None, description="the ranks that hung when the job ended, and why")
    bad_loss: BadLoss | None = Field(None, description="the first loss that was nan or infinite")
    leftovers: tuple[str, ...] = Field((), description="objects and processes that could not be removed")
    logs: dict[str, str] = Field({}, description="the path of each node's log")


class BenchmarkDocument(FrozenModel):
    """The bandwidths of a profile over several fabrics."""

    benchmark: Benchmark = Field(description="the curve of each fabric")
    failure: str | None = Field(description="the fabrics without a bandwidth, with the reasons; null if all have one")
    folder: str = Field(description="of benchmark.json, table.txt and plot.svg")


class ProfileEntry(FrozenModel):
    """A profile, or the file of one."""

    name: str
    path: str
    about: str = Field("", description="its description; empty if NAME was given, or if it cannot be loaded")
    problem: str = Field("", description="why it cannot be loaded; empty if it can")
    text: str | None = Field(None, description="the content of the file, if NAME was given")


class LauncherEntry(FrozenModel):
    """A launcher, and the package that it comes from."""

    name: str
    package: str
    description: str
    problem: str = Field("", description="why it cannot be used; empty if it can")


class ProfilesDocument(FrozenModel):
    """All profiles, or the one of this name; with --launchers all launchers."""

    profiles: tuple[ProfileEntry, ...] = Field((), description="name, path, about, problem and, with NAME, text")
    launchers: tuple[LauncherEntry, ...] = Field((), description="name, package, description and problem")


class LogsDocument(FrozenModel):
    """The output of a rank or a node in the last attempt of a run."""

    run: str = Field(description="the name of the run")
    attempt: int = Field(description="the last one")
    lines: tuple[str, ...] = Field(description="the lines of the selected rank or node; of rank 0 by default")
    fabric: FabricVerdict | None = Field(description="the network that was used; null if it is not known")


class WhyDocument(FrozenModel):
    """Why a run failed or hangs, and the state of each rank."""

    run: str = Field(description="the run, or the folder of torch's dumps")
    attempt: int | None = Field(
        None, description="the last one; null for dumps, and for a run that ended before its first"
    )
    end: End | None = Field(None, description="how the run ended; null while it runs, or if it was lost")
    sentence: str = Field("", description="why it ended this way")
    failure: Failure | None = Field(None, description="the cause of the last attempt's failure; null if none is known")
    remedy: str = Field("", description="the usual remedy of the cause; empty if only `sentence` has one")
    bad_loss: BadLoss | None = Field(None, description="the first loss that was nan or infinite")
    hang: Hang | None = Field(description="the ranks that hang, and why; null if none is known to hang")
    straggler: Straggler | None = Field(description="the rank for which the others waited most")
    world: int = Field(description="the number of ranks; 0 if none has reported")
    ranks: tuple[RankRecord, ...] = Field(description="the last record of each rank")
    missing_logs: tuple[str, ...] = Field(
        (), description="the nodes whose logs, and so the records of whose ranks, could not be read completely"
    )


class TrendRun(FrozenModel):
    """A run of a history; the comparison is null for a run that was not compared."""

    record: Record
    value: float | None = Field(None, description="the number that is compared")
    usual_low: float | None = Field(None, description="the lower end of its usual range")
    usual_high: float | None = Field(None, description="the upper end of its usual range")
    verdict: str | None = Field(None, description="usual, worse, better or unknown")


class HistoryDocument(FrozenModel):
    """The runs of one profile on one hardware."""

    name: str
    path: str
    key: HistoryKey = Field(description="what its runs have in common")
    run_count: int
    unreadable_lines: int = Field(description="lines of the file that cannot be parsed")
    trend: Trend | None = Field(description="the number that is compared; null if none is")
    runs: tuple[TrendRun, ...] = Field((), description="in order of time, if PROFILE was given")
    plot: str = Field("", description="the file that --plot has written")


class TrendDocument(FrozenModel):
    """All histories without their runs, or the one that was named, with them."""

    histories: tuple[HistoryDocument, ...] = Field(
        description="name, path, key, run_count, trend and, with PROFILE, runs with record, value and verdict"
    )


class ArchiveDocument(FrozenModel):
    """The archive that TORCHYARD_ARCHIVE names."""

    url: str = Field(description="its URL")
    created: bool = Field(description="false: it existed")


class ServiceDocument(FrozenModel):
    """The systemd unit of this checkout, after the action."""

    unit: str = Field(description="the name of the unit")
    installed: bool = Field(description="whether its file exists")
    active: str = Field(description="as systemctl reports it: active, failed ...; empty if it is not installed")
    enabled: str = Field(description="as systemctl reports it; empty if it is not installed")


DOCUMENTS: dict[str, type[FrozenModel]] = {
    "demo": RunDocument,
    "plan": PlanDocument,
    "check": ChecksDocument,
    "run": RunDocument,
    "benchmark": BenchmarkDocument,
    "attach": RunDocument,
    "stop": RunDocument,
    "profiles": ProfilesDocument,
    "ps": RunList,
    "logs": LogsDocument,
    "why": WhyDocument,
    "trend": TrendDocument,
    "archive": ArchiveDocument,
    "service": ServiceDocument,
}


def print_document(document: BaseModel) -> None:
    """Print a document on stdout, in ASCII, as text that every reader of JSON accepts."""
    print(json.dumps(_replace_non_finite(document.model_dump(mode="json")), indent=1, allow_nan=False), flush=True)


def _replace_non_finite(value: Any) -> Any:
    """A copy in which None replaces nan and the infinities, which JSON does not have."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _replace_non_finite(child) for key, child in value.items()}
        case list() | tuple():
            return [_replace_non_finite(child) for child in value]
        case _:
            return value


def build_schema(verb: str) -> dict[str, Any]:
    """The JSON Schema of what a verb prints: its document, or that of an error."""
    schema = DOCUMENTS[verb].model_json_schema(mode="serialization", schema_generator=_DocumentSchema)
    error_schema = ErrorDocument.model_json_schema(mode="serialization", schema_generator=_DocumentSchema)
    definitions = schema.pop("$defs", {}) | error_schema.pop("$defs")
    return {"anyOf": [schema, error_schema], "$defs": definitions}


class _DocumentSchema(GenerateJsonSchema):
    """The schema of documents as `print_document` prints them: a float may be null."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return super().float_schema(schema) | {"type": ["number", "null"]}


def describe_finding(finding: Finding) -> FindingDocument:
    return FindingDocument(
        where=finding.where,
        what=finding.what,
        remedy=finding.remedy,
        verdict=finding.verdict,
        file=finding.file,
        line=finding.line,
    )


def describe_error(error: Exception, exit_code: int) -> ErrorDocument:
    """The document of a command that ends by an error. Notes of the error are remedies."""
    remedies = [getattr(error, "remedy", ""), *getattr(error, "__notes__", ())]
    details = ErrorDetails(
        type=type(error).__name__,
        message=str(error),
        remedy="; ".join(remedy for remedy in remedies if remedy),
        findings=tuple(map(describe_finding, list_findings(error))),
    )
    return ErrorDocument(error=details, exit_code=exit_code)


def describe_plan(profile: Profile, plan: Plan) -> PlanDocument:
    """The document of a plan, with its secrets masked."""
    fields = {
        "profile": profile.name,
        "about": mask_text(profile.about),
        "properties": list_masked_properties(profile, plan),
        "findings": tuple(map(describe_finding, list_plan_findings(plan))),
        "plan": build_plan_document(plan),
    }
    return PlanDocument.model_validate(fields)


def describe_run(run: str, profile: str, folder: str, ended: EndedRun, report: Report | None) -> RunDocument:
    """The document of a run that has ended. `report`: None if the run has left none, as after a loss of its folder."""
    if report is None:
        return RunDocument(
            profile=profile, run=run, end=ended.end, sentence=ended.sentence, seconds=0.0, attempts=0, folder=folder
        )
    failure = find_failure(report)
    outcome = report.attempts[-1].outcome if report.attempts else None
    logs = report.collected.logs if report.collected else ()
    fields = {
        "folder": report.folder,
        "failure": failure,
        "findings": tuple(map(describe_finding, report.findings)),
        "remedy": _describe_remedy(report.findings, failure),
        "hang": outcome.hang if outcome else None,
        "bad_loss": outcome.bad_loss if outcome else None,
        "leftovers": report.leftovers,
        "logs": {log.node: log.path for log in logs},
    }
    return RunDocument.model_validate(build_result(report).model_dump() | fields)


def _describe_remedy(findings: Iterable[Finding], failure: Failure | None) -> str:
    """What to do, in one line: about what prevented an attempt, else about the cause of the last one's failure."""
    remedies = dict.fromkeys(finding.remedy for finding in findings if finding.remedy)
    if remedies:
        return single_line("; ".join(remedies))
    return failure.cause.advice if failure else ""


def find_failure(report: Report) -> Failure | None:
    """The cause of a run that failed; None if it did not, or if its job did not."""
    return report.collected.failure if report.collected and report.end == "failed" else None
