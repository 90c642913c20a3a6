"""The addresses that get a run's messages: which are valid, which hold secrets, and what `$NAME` in one stands for.

An address is a secret as a whole: only its service is ever shown.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchyard.common.secrets import remember_values
from torchyard.model.observe import Notify
from torchyard.model.requirements import Check, failed_check, warning_check

_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_SERVICE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
_ALLOWED = (
    "use one such as slack://…, mailto://… or json://host/path (github.com/caronc/apprise lists them), or $NAME of a "
    "variable in the launcher's environment that holds one"
)


class AddressError(Exception):
    """An address to which nothing can be sent; the message does not quote it."""


def describe_address(address: str) -> str:
    """An address without its secrets: `slack://…`, or `$NAME`."""
    if _REFERENCE.fullmatch(address):
        return address
    service = _SERVICE.match(address)
    return f"{service[0]}://…" if service else "an address without a service"


def resolve_address(address: str, environ: Mapping[str, str]) -> str:
    """The address with the values of its variables; AddressError if one is not set, or if apprise does not know it."""
    missing = [name for name in list_variables(address) if not environ.get(name)]
    if missing:
        raise AddressError(f"{describe_address(address)}: {missing[0]} is not set in the launcher's environment")
    found = _REFERENCE.sub(lambda match: environ[match[1] or match[2]], address)
    if not _is_known(found):
        raise AddressError(f"{describe_address(address)} is no address that apprise knows")
    return found


def list_variables(address: str) -> list[str]:
    """The variables that an address names."""
    return [match[1] or match[2] for match in _REFERENCE.finditer(address)]


def find_wrong_address(notify: Notify) -> str:
    """What is wrong with the addresses as written; one that names a variable is known only where the launcher runs."""
    wrong = [each for each in notify.to if not list_variables(each) and not _is_known(each)]
    return f"{describe_address(wrong[0])} is no address that apprise knows: {_ALLOWED}" if wrong else ""


def check_addresses(notify: Notify, environ: Mapping[str, str]) -> Iterator[Check]:
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
    return [each for each in notify.to if not _REFERENCE.fullmatch(each) and _has_secret(each)]


def remember_addresses(notify: Notify, environ: Mapping[str, str]) -> None:
    """Mask the addresses, and the secret words in them, from now on wherever they occur."""
    for address in notify.to:
        found = _REFERENCE.sub(lambda match: environ.get(match[1] or match[2], ""), address)
        if secrets := _list_secret_words(found):
            remember_values((found, *secrets))


def _is_known(address: str) -> bool:
    return make_receiver(address) is not None


def _has_secret(address: str) -> bool:
    return bool(_list_secret_words(_REFERENCE.sub("", address)))


def _list_secret_words(address: str) -> set[str]:
    """The words of an address that apprise itself masks where it shows the address."""
    receiver = make_receiver(address)
    if receiver is None:
        return set()
    shown = set(_split_words(receiver.url(privacy=True)))
    return {word for word in _split_words(receiver.url(privacy=False)) if word not in shown}


def _split_words(url: str) -> list[str]:
    return re.split("[/:@?&#]+", url)


def make_receiver(address: str) -> Any:
    """What apprise makes of an address; None if it does not know it."""
    import apprise  # takes half a second; few profiles need it

    return apprise.Apprise.instantiate(address)
