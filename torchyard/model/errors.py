"""The error tree. Each error says what is missing, where, what is allowed and what to do.

TorchyardError
    ProfileError       the profile cannot be read or contradicts itself
    PreflightError     a requirement is not met; holds all findings
    HostError          a command on a host failed
      UnreachedError     ssh did not reach the host
    ClusterError       the API server refused a request, or cannot be reached
    RendezvousError    the rendezvous store does not serve
    FolderError        the run's folder cannot be used
    ArchiveError       the archive of run folders refuses, fails or cannot be reached
    LeftError          this process cannot go on, and leaves the job alone
    RunInUseError      another process owns this run
    HolderGoneError    the machine that holds this run does not come back
    BenchmarkError     the runs of a benchmark cannot be compared
      NoReportError      the run over one fabric has left no report
    SettingError       an environment variable has a value that cannot be used
    TrainingError      a training in somebody's flow did not succeed; holds its result
    ResultError        a run has left no result that this process can read
    EndpointError      metrics cannot be served

They can be pickled: the fields go to `super().__init__`, and `__str__` builds the text.
"""

from torchyard.model.requirements import Check
from torchyard.model.result import RunResult


class TorchyardError(Exception):
    """An error whose message is written for the user; shown without a traceback."""


class ProfileError(TorchyardError):
    """All findings about one profile; each reads `where: what`, as loading/yaml_errors.py words it."""

    def __init__(self, profile: str, findings: tuple[str, ...]) -> None:
        super().__init__(profile, findings)
        self.profile, self.findings = profile, findings

    def __str__(self) -> str:
        head = f"profile {self.profile}:"
        return f"{head} {self.findings[0]}" if len(self.findings) == 1 else "\n  ".join((head, *self.findings))


class PreflightError(TorchyardError):
    """All checks of a preflight; the message lists those that failed, each with its remedy."""

    def __init__(self, checks: tuple[Check, ...]) -> None:
        super().__init__(checks)
        self.checks = checks

    def __str__(self) -> str:
        failed = [check for check in self.checks if check.verdict == "failed"]
        lines = [f"preflight: {len(failed)} of {len(self.checks)} checks failed"]
        lines += [f"{check.need}: {check.detail}{'; ' if check.remedy else ''}{check.remedy}" for check in failed]
        return "\n  ".join(lines)


class HostError(TorchyardError):
    """A command on a host failed."""

    def __init__(self, host: str, what: str, said: str) -> None:
        super().__init__(host, what, said)
        self.host, self.what, self.said = host, what, said

    def __str__(self) -> str:
        return f"{self.host}: {self.what}: {self.said}"


class UnreachedError(HostError):
    """ssh itself failed: the host is down, the connection was cut, or the key was not accepted."""


class ClusterError(TorchyardError):
    """The API server's refusal, in its own words; `status` is 0 if it could not be reached."""

    def __init__(self, host: str, what: str, said: str, status: int) -> None:
        super().__init__(host, what, said, status)
        self.host, self.what, self.said, self.status = host, what, said, status

    def __str__(self) -> str:
        return f"{self.host}: {self.what}: {self.said}"

    @property
    def is_away(self) -> bool:
        """Whether the same request may succeed later; 401 is included, since the user may log in again."""
        return self.status in (0, 401, 429, 500, 502, 503, 504)


class RendezvousError(TorchyardError):
    """The rendezvous store was probed and did not serve; `retry`: another attempt may succeed."""

    def __init__(self, url: str, found: str, remedy: str, retry: bool = False) -> None:
        super().__init__(url, found, remedy, retry)
        self.url, self.found, self.remedy, self.retry = url, found, remedy, retry

    def __str__(self) -> str:
        return f"rendezvous store {self.url}: {self.found}; {self.remedy}"


class FolderError(TorchyardError):
    """A run's folder cannot be created, read or written."""

    def __init__(self, path: str, why: str, remedy: str = "choose another place with TORCHYARD_RUNS") -> None:
        super().__init__(path, why, remedy)
        self.path, self.why, self.remedy = path, why, remedy

    def __str__(self) -> str:
        return f"run folder {self.path}: {self.why}; {self.remedy}"


class ArchiveError(TorchyardError):
    """The archive of run folders cannot be used: that never means that it is empty."""

    def __init__(self, url: str, why: str, remedy: str = "see docs/archive.md") -> None:
        super().__init__(url, why, remedy)
        self.url, self.why, self.remedy = url, why, remedy

    def __str__(self) -> str:
        return f"archive {self.url}: {self.why}; {self.remedy}"


class LeftError(TorchyardError):
    """This process cannot go on, for a reason that says nothing about the job."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"{self.why}: this process ends and leaves the job under its lease, for the next process to resume"


class HandedOnError(LeftError):
    """The orchestrator has stopped this process, and another one goes on with the run."""


class RunInUseError(TorchyardError):
    """Another living process owns the run."""

    def __init__(self, folder: str, owner: str) -> None:
        super().__init__(folder, owner)
        self.folder, self.owner = folder, owner

    def __str__(self) -> str:
        return f"{self.folder} is owned by {self.owner}; this process ends and leaves the run alone"


class HolderGoneError(TorchyardError):
    """The machine that holds a run has not taken it back, and cannot be seen from here; `lease_s` is the run's."""

    def __init__(self, machine: str, lease_s: float) -> None:
        super().__init__(machine, lease_s)
        self.machine, self.lease_s = machine, lease_s

    def __str__(self) -> str:
        return (
            f"this run's processes are on {self.machine}, which has not taken the run back for its lease of "
            f"{self.lease_s:.0f} s: whether they have ended cannot be seen from here. If that machine is gone, retry "
            "this run: it then starts from the beginning"
        )


class BenchmarkError(TorchyardError):
    """The runs of a benchmark cannot be started or compared."""


class NoReportError(BenchmarkError):
    """The run over one fabric has left no report; those over the others may have."""

    def __init__(self, run: str, why: str) -> None:
        super().__init__(run, why)
        self.run, self.why = run, why

    def __str__(self) -> str:
        return f"the run {self.run} has no report: {self.why}"


class SettingError(TorchyardError):
    """An environment variable has a value that cannot be used; `allowed` says what can."""

    def __init__(self, variable: str, value: str, allowed: str) -> None:
        super().__init__(variable, value, allowed)
        self.variable, self.value, self.allowed = variable, value, allowed

    def __str__(self) -> str:
        return f"{self.variable}: {self.value!r} cannot be used: {self.allowed}"


class TrainingError(TorchyardError):
    """A training that a flow asked for did not succeed; its result holds what it measured until then."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return f"{self.result.run} {self.result.end}: {self.result.sentence}"


class ResultError(TorchyardError):
    """A run has left no result that can be read from here."""


class EndpointError(TorchyardError):
    """Metrics cannot be served at this address."""
