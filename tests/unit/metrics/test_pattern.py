"""Metrics by a pattern in the profile: what it reads, and how the time of its search is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.metrics.pattern import MAX_LINE_CHARS, PatternReader, find_pattern_problem, read_pattern

EPOCH = r"epoch (?P<epoch>\d+)/(?P<epochs>\d+).*?loss[=:] ?(?P<loss>\S+)"


@pytest.mark.parametrize(
    "pattern",
    [
        EPOCH,
        "loss=(?P<loss>[^ ,]+)|acc=(?P<acc>[^ ,]+)",
        r"(?P<loss>\d+(?:\.\d+)?)",
        r"(?:train|val) loss (?P<loss>\S+)",
        r"(?P<month>\d{2}) (?P<loss>\d{1,3})",
    ],
)
def test_pattern_can_be_used(pattern: str) -> None:
    """Usual patterns, with optional parts and alternatives, can be used."""
    assert find_pattern_problem(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("loss=(?P<loss>", "is not a regular expression of Python: missing )"),
        (r"loss=(\S+)", "needs a named group for each value"),
        (r"(?P<loss>(\d+)+)x", "has a repeat or an alternative inside a repeat"),
        (r"(?P<loss>(a|ab)*)c", "has a repeat or an alternative inside a repeat"),
        (r"(?P<loss>(\w?){30}x)", "has a repeat or an alternative inside a repeat"),
        (r"(?=(?P<loss>(a*)*b))", "has a repeat or an alternative inside a repeat"),
        (r"(?P<loss>\d*)", "must not match an empty text"),
        ("(" * 101 + "(?P<loss>x)" + ")" * 101, "must have at most 100 groups"),
        ("(?P<loss>x)" + "y" * 1000, "must have at most 1,000 characters, not 1,011"),
    ],
)
def test_pattern_that_is_refused(pattern: str, problem: str) -> None:
    """An invalid pattern, one without a value, and one whose search may take forever are refused with the reason."""
    assert str(find_pattern_problem(pattern)).startswith(problem)


def test_groups_are_the_values_of_a_row() -> None:
    """A group that is a number becomes one, without punctuation; nan is None, and another group is a text."""
    reader = PatternReader(r"step (?P<step>\d+) (?P<split>\w+): loss=(?P<loss>\S+) lr=(?P<lr>\S+)")
    assert reader("step 3 train: loss=0.25, lr=1e-4") == {"step": 3, "split": "train", "loss": 0.25, "lr": 0.0001}
    assert reader("step 4 train: loss=nan, lr=inf") == {"step": 4, "split": "train", "loss": None, "lr": None}
    assert reader("saved") == {}


def test_all_matches_of_a_line_are_one_row() -> None:
    """Alternatives find their values in any order, and in any part of a line."""
    pattern = r"loss=(?P<loss>[^ ,]+)|acc=(?P<acc>[^ ,]+)|epoch (?P<epoch>\d+)"
    assert PatternReader(pattern)("acc=0.5, epoch 2, loss=1.5") == {"acc": 0.5, "epoch": 2, "loss": 1.5}


def test_rows_without_a_key_are_numbered() -> None:
    """A pattern without an epoch, step, trial or size numbers its rows, also the states of a progress bar."""
    metrics = read_pattern(r"loss=(?P<loss>\S+)", ["loss=3", "other", "\rloss=2\rloss=1"])
    assert metrics.rows == ({"step": 1, "loss": 3}, {"step": 2, "loss": 2}, {"step": 3, "loss": 1})


def test_line_without_its_key_belongs_to_the_last_one() -> None:
    """A value on a line of its own belongs to the epoch above it; before the first epoch, to the whole run."""
    pattern = r"epoch (?P<epoch>\d+)|test (?P<test>\S+)"
    metrics = read_pattern(pattern, ["test 0.1", "epoch 1", "test 0.5", "epoch 2", "test 0.7", "epoch 2"])
    assert metrics.rows == ({"epoch": 1, "test": 0.5}, {"epoch": 2, "test": 0.7})
    assert metrics.summary == {"test": 0.1}


def test_long_line_is_searched_up_to_a_limit() -> None:
    """What is behind the first characters of a line is not read."""
    reader = PatternReader(r"loss=(?P<loss>\S+)")
    assert reader("x" * (MAX_LINE_CHARS - 6) + "loss=1")["loss"] == 1
    assert reader("x" * MAX_LINE_CHARS + "loss=1") == {}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "pattern",
    [
        r"(?P<loss>.*.*.*.*.*\d)[=:]",
        r"(?P<loss>" + "[ab]?" * 100 + "[ab]" * 50 + "[=:])",
        r"(?P<loss>a.*.*.*\d)=|a",
    ],
)
def test_slow_pattern_is_given_up(pattern: str, caplog: pytest.LogCaptureFixture) -> None:
    """A pattern that needs too long for a line is given up with one warning."""
    assert find_pattern_problem(pattern) is None
    reader = PatternReader(pattern)
    assert [reader("ab" * (MAX_LINE_CHARS // 2)), reader("loss=")] == [{}, {}]
    assert caplog.text.count("metrics: the pattern is too slow") == 1


@given(st.text())
def test_any_line_can_be_read(line: str) -> None:
    """No line makes the reader fail."""
    for pattern in (EPOCH, r"(?P<loss>\S+)"):
        assert isinstance(PatternReader(pattern)(line), dict)
