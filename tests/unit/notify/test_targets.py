"""The addresses of messages are checked before the run, and never shown."""

import sys

import pytest

from tests.conftest import Write, load
from torchyard.common import secrets
from torchyard.common.secrets import mask_text
from torchyard.model.errors import ProfileError
from torchyard.model.observe import Notify
from torchyard.notify.targets import (
    AddressError,
    check_addresses,
    describe_address,
    list_exposed_addresses,
    remember_addresses,
    resolve_address,
)

SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general"


@pytest.mark.parametrize(
    "address", ["slak://T1JJ3T3L2/secretsecret", "secretsecret", "json://", "mailto://secretsecret"]
)
def test_wrong_address_is_refused_and_not_quoted(write: Write, address: str) -> None:
    """An address that apprise does not support is an error of the profile, which does not repeat a secret in it."""
    path = write(notify=["json://127.0.0.1/x", address])
    with pytest.raises(
        ProfileError, match="is not an address that apprise supports: use one such as slack://…"
    ) as error:
        load(path)
    assert str(error.value).startswith(f"profile sample: {path}:")
    assert "secretsecret" not in str(error.value)


def test_missing_apprise_is_an_error_of_the_profile(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without apprise no address can be checked: the error has the key's line and the command that installs it."""
    monkeypatch.setitem(sys.modules, "apprise", None)  # as if it were not installed
    with pytest.raises(ProfileError, match=r"notify needs apprise, which is not installed in .*pip install apprise"):
        load(write(notify=["json://127.0.0.1/x"]))


@pytest.mark.parametrize(
    ("written", "resolved"),
    [
        ("$HOOK", "json://host/hook"),
        ("json://${WHERE}/a", "json://host/a"),
        ("mailto://me:$WORD@gmail.com", "mailto://me:pass@gmail.com"),
    ],
)
def test_variable_stands_for_its_value(write: Write, written: str, resolved: str) -> None:
    """A variable of the launcher's environment may be the whole address or a part of it."""
    environ = {"HOOK": "json://host/hook", "WHERE": "host", "WORD": "pass"}
    assert load(write(notify=[written])).notify == Notify(to=(written,))
    assert resolve_address(written, environ) == resolved
    assert list(check_addresses(Notify(to=(written,)), environ)) == []


@pytest.mark.parametrize(
    ("environ", "detail"),
    [
        ({}, "$HOOK: HOOK is not set in the launcher's environment"),
        ({"HOOK": "slak://x"}, "$HOOK is not an address that apprise supports"),
    ],
)
def test_variable_without_a_valid_address_fails_preflight(environ: dict[str, str], detail: str) -> None:
    """The value of a variable is known only where the launcher runs: preflight checks it there."""
    (check,) = check_addresses(Notify(to=("$HOOK",)), environ)
    assert (check.verdict, check.what) == ("failed", detail)
    with pytest.raises(AddressError):
        resolve_address("$HOOK", environ)


def test_secret_in_an_address_gets_a_warning() -> None:
    """A token that is written out gives a warning without the token; an address without a secret does not."""
    notify = Notify(to=(SLACK, "json://127.0.0.1/x", "$HOOK"))
    assert list_exposed_addresses(notify) == [SLACK]
    (check,) = check_addresses(notify, {"HOOK": "json://x"})
    assert (check.verdict, check.where) == ("warning", "secret notify")
    assert check.what == "the address slack://… is written out in the profile"


def test_secrets_of_an_address_are_masked_everywhere() -> None:
    """A token in an address, or in a variable that one names, is masked in everything that the run prints later."""
    secrets.forget_values()
    remember_addresses(
        Notify(to=(SLACK, "$HOOK", "json://127.0.0.1:8080/x")), {"HOOK": "json://me:longpassword@host1234/"}
    )
    masked = mask_text("posted TIiajkdnlazkcOXrIdevi7FQ and longpassword to host1234, 127.0.0.1")
    assert masked == "posted **** and **** to host1234, 127.0.0.1"
    secrets.forget_values()


@pytest.mark.parametrize(
    ("address", "description"), [(SLACK, "slack://…"), ("$HOOK", "$HOOK"), ("x", "an address without a service")]
)
def test_address_is_shown_by_its_service(address: str, description: str) -> None:
    """Logs and reports show only the service of an address, or its variable."""
    assert describe_address(address) == description
