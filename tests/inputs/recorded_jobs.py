"""Recorded statuses of real jobs, moment by moment, intact and damaged at random."""

import copy
import json
from typing import Any

from hypothesis import strategies as st

from tests.inputs.recording import OBSERVED, load_moments
from torchyard.model.run import Observation
from torchyard.testing.sample_observations import JUNK

FILES = {file.stem: load_moments(file.stem, json.loads(file.read_text())) for file in sorted(OBSERVED.glob("*.json"))}
MOMENTS = [moment for moments in FILES.values() for moment in moments]
_JUNK_TYPES = sorted({type(value) for value in JUNK}, key=lambda kind: kind.__name__)
_JUNK_OF_TYPE = {kind: [value for value in JUNK if type(value) is kind] for kind in _JUNK_TYPES}
# States that the launchers on machines read from their supervisors and from Run:ai's CLI.
HOST_STATES: dict[str, dict[str, Any]] = {
    "baremetal": {"node-0": {"phase": "exited", "exit": 0}, "etcd": {"phase": "running"}},
    "runai": {
        "node-0": {"phase": "exited", "exit": 1, "status": "Failed", "ended": 5.0},
        "node-1": {"phase": "starting", "status": "ErrImagePull", "since": 3.0, "detail": "no route"},
    },
}


@st.composite
def damaged_observations(draw: st.DrawFn, *, with_host_states: bool = True) -> tuple[str, Observation]:
    """A case and an observation of it, with some values or whole objects removed or replaced by any JSON."""
    moment = draw(st.sampled_from(MOMENTS))
    # A seed is drawn, not each value: hypothesis prefers the first values of a list, and some types would be rare.
    random = draw(st.randoms(use_true_random=True))
    case = moment.case
    states = copy.deepcopy(dict(moment.observed.states))
    if with_host_states and draw(st.integers(0, 9)) == 0:
        case = draw(st.sampled_from(sorted(HOST_STATES)))
        states = copy.deepcopy(HOST_STATES[case])
    for _ in range(draw(st.integers(0, 6)) if states else 0):
        container, key = draw(nested_keys(states))
        if draw(st.booleans()):
            del container[key]
        else:
            container[key] = copy.deepcopy(random.choice(_JUNK_OF_TYPE[random.choice(_JUNK_TYPES)]))
        if not states:
            break
    return case, Observation(states, frozenset(), moment.observed.observed_at)


@st.composite
def nested_keys(draw: st.DrawFn, container: Any) -> tuple[Any, Any]:
    """A dict or list inside a value and one of its keys, at the top level as often as deep inside."""
    while True:
        key = draw(st.sampled_from(range(len(container)) if isinstance(container, list) else sorted(container)))
        if not isinstance(container[key], dict | list) or not container[key] or draw(st.integers(0, 3)) == 0:
            return container, key
        container = container[key]
