"""Who owns a run on its hosts: this launcher as an owner, and what a host reports about another one."""

from pathlib import Path
from typing import Any

from torchyard.common.identity import identify_holder
from torchyard.host.identity import read_uptime
from torchyard.model.errors import RunInUseError

_MAX_PROOF_AGE_S = 10.0  # of a host's last confirmation; another machine waits for a minute before it takes a run over
_confirmed_at: dict[tuple[str, str], float] = {}  # seconds since boot, also suspended ones, by host and owner


def identify_owner(path: str) -> str:
    """This launcher as a run's owner: this machine and the run's locked folder, from a path in a node's folder."""
    return identify_holder(str(Path(path).parents[2]))


def record_confirmation(host: str, owner: str) -> None:
    """Record that a host has just confirmed this owner, as each response to a heartbeat does."""
    _confirmed_at[host, owner] = read_uptime()


def is_confirmed(host: str, owner: str) -> bool:
    """Whether a host has confirmed this owner a moment ago, so that it need not be asked again."""
    confirmed_at = _confirmed_at.get((host, owner))
    return confirmed_at is not None and read_uptime() - confirmed_at <= _MAX_PROOF_AGE_S


def check_response(host: str, response: Any) -> None:
    """Raise RunInUseError if a host has refused a request because another living launcher owns the run."""
    if isinstance(response, dict) and response.get("other_owner"):
        raise RunInUseError(host, str(response["other_owner"]))
