"""The addresses that get a run's messages: which are valid, which contain secrets, and the value of `$NAME` in one.

A whole address is a secret: only its service is ever shown.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchyard.common.packages import need
from torchyard.common.secrets import remember_values
from torchyard.model.errors import MissingPackageError
from torchyard.model.finding import Finding, failed_check, warning_check
from torchyard.model.observe import Notify

_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_SERVICE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
_ALLOWED = (
    "use one such as slack://…, mailto://… or json://host/path (github.com/caronc/apprise lists them), or $NAME of a "
    "variable in the launcher's environment that holds one"
)


class AddressError(Exception):
    """An address that cannot be used; the message does not quote it."""


def describe_address(address: str) -> str:
    """An address without its secrets: `slack://…`, or `$NAME`."""
    if _REFERENCE.fullmatch(address):
        return address
    service = _SERVICE.match(address)
    return f"{service[0]}://…" if service else "an address without a service"


def resolve_address(address: str, environ: Mapping[str, str]) -> str:
    """The address with the values of its variables. AddressError if one is not set, or apprise does not support it."""
    missing = [name for name in list_variables(address) if not environ.get(name)]
    if missing:
        raise AddressError(f"{describe_address(address)}: {missing[0]} is not set in the launcher's environment")
    resolved = _REFERENCE.sub(lambda match: environ[match[1] or match[2]], address)
    if not _is_supported(resolved):
        raise AddressError(f"{describe_address(address)} is not an address that apprise supports")
    return resolved


def list_variables(address: str) -> list[str]:
    """The variables that an address names."""
    return [match[1] or match[2] for match in _REFERENCE.finditer(address)]


def describe_invalid_address(notify: Notify) -> str | None:
    """The error of the first invalid address, or that apprise, which knows them, is missing; None if all are valid.

    An address that names a variable is valid here: its value is known only where the launcher runs.
    """
    try:
        for address in notify.to:
            if not list_variables(address) and not _is_supported(address):
                return f"{describe_address(address)} is not an address that apprise supports: {_ALLOWED}"
    except MissingPackageError as error:
        return str(error)
    return None


def check_addresses(notify: Notify, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Preflight's findings: an address that cannot be used here, and a secret that is written out."""
    for address in notify.to:
        try:
            resolve_address(address, environ)
        except AddressError as error:
            yield failed_check("notify", str(error), _ALLOWED)
    for address in list_exposed_addresses(notify):
        yield warning_check(
            "secret notify",
            f"the address {describe_address(address)} is written out in the profile",
            "put it into a variable of the launcher's environment, and write $NAME",
        )


def list_exposed_addresses(notify: Notify) -> list[str]:
    """The addresses with a secret that is written out."""
    return [address for address in notify.to if not _REFERENCE.fullmatch(address) and _has_secret(address)]


def remember_addresses(notify: Notify, environ: Mapping[str, str]) -> None:
    """Mask the addresses, and the secrets in them, from now on in everything that is shown."""
    for address in notify.to:
        resolved = _REFERENCE.sub(lambda match: environ.get(match[1] or match[2], ""), address)
        secrets = _list_secrets(resolved)
        if secrets:
            remember_values((resolved, *secrets))


def _is_supported(address: str) -> bool:
    return create_receiver(address) is not None


def _has_secret(address: str) -> bool:
    return bool(_list_secrets(_REFERENCE.sub("", address)))


def _list_secrets(address: str) -> set[str]:
    """The parts of an address that apprise itself masks when it shows the address."""
    receiver = create_receiver(address)
    if receiver is None:
        return set()
    visible = set(_split_url(receiver.url(privacy=True)))
    return set(_split_url(receiver.url(privacy=False))) - visible


def _split_url(url: str) -> list[str]:
    return re.split("[/:@?&#]+", url)


def create_receiver(address: str) -> Any:
    """apprise's object for an address; None if apprise does not support it. MissingPackageError without apprise."""
    need("notify", "apprise")
    import apprise  # takes half a second; few profiles need it

    return apprise.Apprise.instantiate(address)
