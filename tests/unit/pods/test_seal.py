"""The proof that a launcher of the run wrote something on its Lease."""

import hashlib
import hmac

import pytest

from torchyard.pods import seal
from torchyard.pods.seal import is_valid_seal, make_seal

KEY = "a" * 64


def test_seal_is_an_hmac_of_the_facts() -> None:
    """Any process with the key can compute it: HMAC-SHA256 over the facts as JSON, whatever the order of their keys."""
    text = b'["sample","1",{"a":1,"b":2}]'
    expected = hmac.new(KEY.encode(), text, hashlib.sha256).hexdigest()
    assert make_seal(KEY, "sample", "1", {"b": 2, "a": 1}) == expected
    assert is_valid_seal(KEY, expected, "sample", "1", {"a": 1, "b": 2})


@pytest.mark.parametrize("values", [("sample", "2"), ("sample",), ("sample", "1", ""), ("sam", "ple1"), ("sample", 1)])
def test_seal_of_other_facts_is_not_valid(values: tuple[object, ...]) -> None:
    """A seal fits exactly the facts that it was made for."""
    seal_text = make_seal(KEY, "sample", "1")
    assert (is_valid_seal(KEY, seal_text, "sample", "1"), is_valid_seal(KEY, seal_text, *values)) == (True, False)


@pytest.mark.parametrize(
    "candidate", ["", make_seal(KEY, "sample"), hmac.new(b"", b'["sample"]', "sha256").hexdigest(), None]
)
def test_nothing_is_sealed_without_a_key(candidate: object) -> None:
    """A run without a key creates no seal and accepts none, not even an empty one."""
    assert make_seal("", "sample") == ""
    assert not is_valid_seal("", candidate, "sample")


@pytest.mark.parametrize("candidate", [None, 7, "", "\ud800", ["x"], make_seal("b" * 64, "sample")])
def test_malformed_seal_is_not_valid(candidate: object) -> None:
    """A seal that is not text, or is of another key, is not valid, and raises nothing."""
    assert not is_valid_seal(KEY, candidate, "sample")


def test_key_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of keys, which may be a slow server, is queried once per run, also if the run has none."""
    run_ids = list[str]()

    def source(run_id: str) -> str:
        run_ids.append(run_id)
        return KEY if run_id == "one" else ""

    seal.get_run_key.cache_clear()
    monkeypatch.setattr(seal, "key_source", source)
    assert [seal.get_run_key(run_id) for run_id in ("one", "two", "one", "two")] == [KEY, "", KEY, ""]
    assert run_ids == ["one", "two"]
    seal.get_run_key.cache_clear()
