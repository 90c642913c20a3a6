"""The error tree. Each message states what failed, where, why, and what to do.

TorchyardError
    ProfileError       the profile cannot be read or contradicts itself
    PreflightError     a requirement is not met; holds all findings
    HostError          a command on a host failed
      UnreachedError     ssh did not reach the host
    AccessError        a node of a run cannot be entered now
    ClusterError       the API server refused a request, or cannot be reached
      NotFoundError      the API server reports that an object or a kind does not exist
    RendezvousError    the rendezvous store does not serve
    FolderError        the run's folder cannot be used
    CodeError          the code of a run cannot be brought into its job
    ArchiveError       the archive of run folders refuses, fails or cannot be reached
      NoArchiveError     it answers, and there is no archive at its URL
    DetachedError      this process cannot continue; the job keeps running
      HandedOverError    another process resumes the run
    NoRunError         no run has the name that the user gave
    SelectionError     the job does not have the node or rank that the user gave
    RunInUseError      another process owns this run
    HolderGoneError    the machine that holds this run has not resumed it
    NoReportError      the run over one fabric of a benchmark has no report
    SettingError       an environment variable has an invalid value
    ExtensionError     a launcher, reader, tracker or hardware file of another package cannot be used
    MissingPackageError  a feature needs a package that is not installed
    TrainingError      a training that a flow started did not succeed; holds its result
    ResultError        this process cannot read the result of a run
    PrefectError       Prefect cannot be queried
    EndpointError      metrics cannot be served

Prefect passes errors between processes, so they can be pickled: the fields go to `super().__init__`, and `__str__`
builds the message.
"""

from typing import TYPE_CHECKING

from torchyard.model.finding import Finding

if TYPE_CHECKING:  # every command raises errors, and few of them load the models of results
    from torchyard.model.run import RunResult


LEFT_CLAUSE = "this process exits; the job keeps running under its lease, and the next process resumes it"


class TorchyardError(Exception):
    """An error whose message is written for the user; shown without a traceback."""


def list_findings(error: Exception) -> tuple[Finding, ...]:
    """Each mistake in a profile, or each failed check, that an error reports; empty for every other error."""
    match error:
        case ProfileError():
            return error.findings
        case PreflightError():
            return tuple(check for check in error.checks if check.verdict == "failed")
        case _:
            return ()


class ProfileError(TorchyardError):
    """All findings about one profile, or the finding about another name or option that the user gave."""

    def __init__(self, profile: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(profile, findings)
        self.profile = profile
        self.findings = findings

    def __str__(self) -> str:
        title = f"profile {self.profile}:"
        if len(self.findings) == 1:
            return f"{title} {self.findings[0]}"
        return "\n  ".join((title, *map(str, self.findings)))


class PreflightError(TorchyardError):
    """All checks of a preflight; the message lists those that failed, each with its remedy."""

    def __init__(self, checks: tuple[Finding, ...]) -> None:
        super().__init__(checks)
        self.checks = checks

    def __str__(self) -> str:
        failed_checks = list_findings(self)
        lines = [f"preflight: {len(failed_checks)} of {len(self.checks)} checks failed"]
        lines += map(str, failed_checks)
        return "\n  ".join(lines)


class HostError(TorchyardError):
    """A command on a host failed. `action`: what was tried, such as `submit`; `message`: what the host printed."""

    def __init__(self, host: str, action: str, message: str) -> None:
        super().__init__(host, action, message)
        self.host = host
        self.action = action
        self.message = message

    def __str__(self) -> str:
        return f"{self.host}: {self.action}: {self.message}"


class UnreachedError(HostError):
    """ssh itself failed: the host is down, the connection was cut, or the key was not accepted."""


class AccessError(TorchyardError):
    """A node of a run cannot be entered: it has not started, has ended, or the user lacks a right."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(node, reason)
        self.node = node
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}"


class SelectionError(TorchyardError):
    """A node or a rank on the command line that the job does not have."""


class ClusterError(TorchyardError):
    """The API server refused a request or was not reached.

    `action` is the request (`GET /api/v1/pods`), `message` the server's own text, `status` the HTTP status; 0 if the
    server was not reached, or the kubeconfig does not lead to it: the user may mend that while the run waits.
    """

    def __init__(self, host: str, action: str, message: str, status: int) -> None:
        super().__init__(host, action, message, status)
        self.host = host
        self.action = action
        self.message = message
        self.status = status

    def __str__(self) -> str:
        return f"{self.host}: {self.action}: {self.message}"

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later; 401 is included, since the user may log in again."""
        return self.status in (0, 401, 429, 500, 502, 503, 504)


class NotFoundError(ClusterError):
    """The API server itself reports, once, that an object or its kind does not exist (torchyard/kube/absence.py)."""


class RendezvousError(TorchyardError):
    """The rendezvous store was probed and does not serve; `retry`: another attempt may succeed."""

    def __init__(self, url: str, reason: str, remedy: str, *, retry: bool = False) -> None:
        super().__init__(url, reason, remedy)
        self.url = url
        self.reason = reason
        self.remedy = remedy
        self.retry = retry

    def __str__(self) -> str:
        return f"rendezvous store {self.url}: {self.reason}; {self.remedy}"


class FolderError(TorchyardError):
    """A run's folder cannot be created, read or written."""

    def __init__(self, path: str, reason: str, remedy: str = "choose another folder with TORCHYARD_RUNS") -> None:
        super().__init__(path, reason, remedy)
        self.path = path
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"run folder {self.path}: {self.reason}; {self.remedy}"


class CodeError(TorchyardError):
    """The code of a run is not at its location any more, or cannot be brought from there into its job."""

    def __init__(self, location: str, reason: str, remedy: str) -> None:
        super().__init__(location, reason, remedy)
        self.location = location
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"code {self.location}: {self.reason}; {self.remedy}"


class ArchiveError(TorchyardError):
    """The archive of run folders cannot be used. This never means that the archive is empty."""

    def __init__(self, url: str, reason: str, remedy: str = "see docs/archive.md") -> None:
        super().__init__(url, reason, remedy)
        self.url = url
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"archive {self.url}: {self.reason}; {self.remedy}"


class NoArchiveError(ArchiveError):
    """The store answers, and there is no archive at its URL: its share is not mounted, or it was never created."""


class DetachedError(TorchyardError):
    """This process cannot continue, for a reason that is not a fact about the job."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}: {LEFT_CLAUSE}"


class HandedOverError(DetachedError):
    """The orchestrator has stopped this process; another process resumes the run."""


class NoRunError(TorchyardError):
    """No run has the name that the user gave.

    locations: where it was looked for, such as the folder of all runs and the archive's URL.
    similar_names: of existing runs, the most similar first; empty if none is similar.
    list_command: what lists the runs of these locations.
    hint: where else such a run may be; empty if there is nothing to add.
    """

    def __init__(
        self,
        name: str,
        locations: tuple[str, ...],
        similar_names: tuple[str, ...] = (),
        list_command: str = "torchyard ps --all",
        hint: str = "",
    ) -> None:
        super().__init__(name, locations, similar_names, list_command, hint)
        self.name = name
        self.locations = locations
        self.similar_names = similar_names
        self.list_command = list_command
        self.hint = hint

    def __str__(self) -> str:
        message = f"there is no run {self.name} in {' or '.join(self.locations)}"
        if self.similar_names:
            message += f": did you mean {' or '.join(self.similar_names)}?"
        else:
            message += ";"
        message += f" `{self.list_command}` lists the runs there"
        return f"{message}; {self.hint}" if self.hint else message


class RunInUseError(TorchyardError):
    """Another living process owns the run."""

    def __init__(self, folder: str, owner: str) -> None:
        super().__init__(folder, owner)
        self.folder = folder
        self.owner = owner

    def __str__(self) -> str:
        return f"{self.folder} is owned by {self.owner}; this process exits and does not touch the run"


class HolderGoneError(TorchyardError):
    """Another machine holds the run's processes and has not resumed the run within its lease of `lease_s` seconds.

    Whether those processes have ended cannot be checked from this machine, so the run is not started here.
    """

    def __init__(self, machine: str, lease_s: float) -> None:
        super().__init__(machine, lease_s)
        self.machine = machine
        self.lease_s = lease_s

    def __str__(self) -> str:
        return (
            f"not started: this run's processes may still be running on {self.machine}, which has not resumed the run "
            f"within {self.lease_s:.0f} s (deadlines.lease). If {self.machine} is permanently gone, retry this run: it "
            "then starts from the beginning"
        )


class NoReportError(TorchyardError):
    """The run over one fabric has no report; the runs over the other fabrics may have one."""

    def __init__(self, run: str, reason: str) -> None:
        super().__init__(run, reason)
        self.run = run
        self.reason = reason

    def __str__(self) -> str:
        return f"the run {self.run} has no report: {self.reason}"


class SettingError(TorchyardError):
    """An environment variable has an invalid value; `allowed` describes the valid ones."""

    def __init__(self, variable: str, value: str, allowed: str) -> None:
        super().__init__(variable, value, allowed)
        self.variable = variable
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.variable}: {self.value!r} cannot be used: {self.allowed}"


class TrainingError(TorchyardError):
    """A training that a flow started did not succeed; `result` holds what it measured until then."""

    def __init__(self, result: "RunResult") -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return f"{self.result.run} {self.result.end}: {self.result.sentence}"


class ResultError(TorchyardError):
    """This process cannot read the result of a run."""


class PrefectError(TorchyardError):
    """Prefect cannot be queried, so that something about a flow run is unknown."""


class EndpointError(TorchyardError):
    """Metrics cannot be served at this address."""


class ExtensionError(TorchyardError):
    """What a name of a profile refers to does not exist, or belongs to another package and cannot be used."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


class MissingPackageError(TorchyardError, ImportError):
    """A feature needs packages that are not installed.

    It is an ImportError as well, because the import of a folder that needs them raises it.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}"
