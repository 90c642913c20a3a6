"""The exit codes of the command, a stable contract for scripts."""

from enum import IntEnum

from torchyard.model.errors import (
    DetachedError,
    ExtensionError,
    HolderGoneError,
    NoRunError,
    ProfileError,
    RunInUseError,
    SelectionError,
    SettingError,
    TorchyardError,
)
from torchyard.model.run import End


class ExitCode(IntEnum):
    """What the command's end means, and what a script can do; `meaning` is the row of the table in the docs."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> "ExitCode":
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    SUCCESS = (0, "the run succeeded, all checks passed, or the command printed what was requested")
    FAILED = (
        1,
        "the run or a check of preflight failed, or the command itself did: a server, a host or a package is missing",
    )
    USAGE = (2, "the command line is wrong; nothing was started")
    INVALID = (3, "the profile, a setting, or a name on the command line is wrong; nothing was started")
    STILL_RUNNING = (4, "another process owns the run, or this one had to leave it: the job may be running")
    STOPPED = (130, "stopped by Ctrl-C, SIGTERM or a cancel; a run is torn down before the command exits")


class UsageError(TorchyardError):
    """The command line is wrong. `usage`: the usage of the verb, which precedes the message."""

    def __init__(self, usage: str, message: str) -> None:
        super().__init__(usage, message)
        self.usage = usage
        self.message = message

    def __str__(self) -> str:
        return f"{self.usage}error: {self.message}"


def get_error_code(error: Exception) -> ExitCode:
    """The exit code of a command that ends by an error."""
    match error:
        case UsageError():
            return ExitCode.USAGE
        case ProfileError() | SettingError() | ExtensionError() | NoRunError() | SelectionError():
            return ExitCode.INVALID
        case DetachedError() | RunInUseError() | HolderGoneError():
            return ExitCode.STILL_RUNNING
        case _:
            return ExitCode.FAILED


def get_run_code(end: End) -> ExitCode:
    """The exit code of a command that has taken a run to its end."""
    match end:
        case "succeeded":
            return ExitCode.SUCCESS
        case "stopped" | "cancelled":
            return ExitCode.STOPPED
        case "failed" | "swept" | "gave-up":
            return ExitCode.FAILED
