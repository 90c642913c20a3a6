"""The error tree. Each one says what is missing, where, what is allowed and what to do.

TorchyardError
    ProfileError       the profile cannot be read or does not hold together
    PreflightError     something that must be true is not; carries all findings
    HostError          a command on a host failed
      UnreachedError     ssh did not bring us there
    ClusterError       the API server refused a request, or cannot be reached
    RendezvousError    the rendezvous store does not serve
    FolderError        the run's folder cannot be used
    LeftError          this process cannot go on, and leaves the job alone
    RunInUseError         another process carries this run

They survive pickle: the fields go to `super().__init__`, the text is made in `__str__`.
"""

from torchyard.model.requirements import Check


class TorchyardError(Exception):
    """A fault with a sentence for a person; shown without a traceback."""


class ProfileError(TorchyardError):
    """Findings about one profile, all at once; each is `where: what`."""

    def __init__(self, profile: str, findings: tuple[str, ...]) -> None:
        super().__init__(profile, findings)
        self.profile, self.findings = profile, findings

    def __str__(self) -> str:
        head = f"profile {self.profile}:"
        return f"{head} {self.findings[0]}" if len(self.findings) == 1 else "\n  ".join((head, *self.findings))


class PreflightError(TorchyardError):
    """What failed, with the remedy, and how many checks there were."""

    def __init__(self, checks: tuple[Check, ...]) -> None:
        super().__init__(checks)
        self.checks = checks

    def __str__(self) -> str:
        failed = [check for check in self.checks if check.verdict == "failed"]
        lines = [f"preflight: {len(failed)} of {len(self.checks)} checks failed"]
        lines += [f"{check.need}: {check.detail}{'; ' if check.remedy else ''}{check.remedy}" for check in failed]
        return "\n  ".join(lines)


class HostError(TorchyardError):
    """A command on a host did not do its work."""

    def __init__(self, host: str, what: str, said: str) -> None:
        super().__init__(host, what, said)
        self.host, self.what, self.said = host, what, said

    def __str__(self) -> str:
        return f"{self.host}: {self.what}: {self.said}"


class UnreachedError(HostError):
    """ssh itself failed: a host that is down, a connection that was cut, a key that is not accepted."""


class ClusterError(TorchyardError):
    """The API server's refusal, in its own words; `status` 0 where it could not be asked."""

    def __init__(self, host: str, what: str, said: str, status: int) -> None:
        super().__init__(host, what, said, status)
        self.host, self.what, self.said, self.status = host, what, said, status

    def __str__(self) -> str:
        return f"{self.host}: {self.what}: {self.said}"

    @property
    def is_away(self) -> bool:
        """Whether the same question may be answered later; who logs in again meanwhile need not begin anew."""
        return self.status in (0, 401, 429, 500, 502, 503, 504)


class RendezvousError(TorchyardError):
    """The store was asked and did not serve; `retry`: another attempt may have more luck."""

    def __init__(self, url: str, found: str, remedy: str, retry: bool = False) -> None:
        super().__init__(url, found, remedy, retry)
        self.url, self.found, self.remedy, self.retry = url, found, remedy, retry

    def __str__(self) -> str:
        return f"rendezvous store {self.url}: {self.found}; {self.remedy}"


class FolderError(TorchyardError):
    """A run's folder that cannot be made, read or written."""

    def __init__(self, path: str, why: str, remedy: str = "choose another place with TORCHYARD_RUNS") -> None:
        super().__init__(path, why, remedy)
        self.path, self.why, self.remedy = path, why, remedy

    def __str__(self) -> str:
        return f"run folder {self.path}: {self.why}; {self.remedy}"


class LeftError(TorchyardError):
    """This process cannot go on, for a reason that says nothing of the job."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"{self.why}: this process ends and leaves the job under its lease, for the next one to come back to"


class RunInUseError(TorchyardError):
    """Another living process carries the run."""

    def __init__(self, folder: str, owner: str) -> None:
        super().__init__(folder, owner)
        self.folder, self.owner = folder, owner

    def __str__(self) -> str:
        return f"{self.folder} is carried by {self.owner}; this process ends and leaves the run alone"
