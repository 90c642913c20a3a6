"""A recording of a job: what is kept of it, how it is written, and how it is read again."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from torchyard.launchers import registry
from torchyard.model.run import Observation

OBSERVED = Path(__file__).parent / "observed"
BRIEF = 0.4  # seconds between two pods that do the same thing together
EPOCH = 1_700_000_000  # the creation time of every recorded job
Seen = Mapping[str, Mapping[str, Any]]
Case = dict[str, Any]
NODES = re.compile(r"\b((?:cpu|epfl|oke|v100|vela)(?:-[a-z0-9]+)*)-\d+\b")  # fake nodes: cpu, or a hardware file's name
RANDOM = re.compile(r"\b(job-worker-\d+-\d+)-[a-z0-9]{5}\b")  # the random end of the name of a JobSet's pod
UIDS = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
TIMES = re.compile(r'(?<=")\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z(?=")')
META = {"name", "creationTimestamp", "deletionTimestamp"}
TRIES = {"workload.codeflare.dev.appwrapper/retryLimit"}
NOISE = {
    "template",
    "minResources",
    "minTaskMember",
    "plugins",
    "selector",
    "hostIPs",
    "podIPs",
    "startTime",
    "runningDuration",
    "transitionID",
    "lastUpdateTime",
    "lastProbeTime",
    "observedGeneration",
}
POD = {"phase", "reason", "message", "conditions", "initContainerStatuses", "containerStatuses"}
# Events that depend on a race: one recording of a case has them and the next does not.
RACES = re.compile(r" (Unschedulable|PodGroupPending|FailedToUpdateEndpoint):")
CONDITIONS = {"PodScheduled", "Ready", "DisruptionTarget"}
CONTAINER = {"name", "restartCount", "state", "lastState"}


class Moment(NamedTuple):
    """What was seen since a time, and the state that was read from it then."""

    at: float
    seen: Seen
    state: str


def normal(seen: Seen, names: Mapping[str, str]) -> Seen:
    """What was seen, without what is never read or differs from run to run; the times stay."""
    found: Seen = json.loads(plain(json.dumps({name: trimmed(seen[name]) for name in ordered(seen)}), names))
    return found


def plain(text: str, names: Mapping[str, str]) -> str:
    """A text without the names that differ from run to run."""
    for name, instead in names.items():
        text = text.replace(name, instead)
    return UIDS.sub("UID", NODES.sub(r"\1-N", RANDOM.sub(r"\1-xxxxx", text)))


def ordered(seen: Seen) -> list[str]:
    """The objects sorted by name; removed pods stay in the order of their removal."""
    return sorted(seen, key=lambda name: "Removed" if name.startswith("Removed/") else name)


def trimmed(thing: Mapping[str, Any]) -> Case:
    """The parts of an object that its readers may use."""
    spec, status = thing.get("spec", {}), thing.get("status", {})
    if "containers" in spec:
        spec = {"containers": [{"name": spec["containers"][0]["name"]}], "restartPolicy": spec["restartPolicy"]}
        status = only(status, POD)
        status["conditions"] = [each for each in status.get("conditions", ()) if each["type"] in CONDITIONS]
        lists = {key: [only(each, CONTAINER) for each in status[key]] for key in status if key.endswith("Statuses")}
        status |= lists
    metadata = only(thing["metadata"], META)
    if tries := only(thing["metadata"].get("annotations", {}), TRIES):
        metadata["annotations"] = tries
    return {"metadata": metadata, "spec": quiet(spec) | sizes(spec), "status": quiet(status)}


def sizes(spec: Mapping[str, Any]) -> Case:
    """The number of pods of each Job in a JobSet."""
    jobs = [
        only(each, {"name", "replicas"}) | {"template": {"spec": only(each["template"]["spec"], {"parallelism"})}}
        for each in spec.get("replicatedJobs", ())
    ]
    return {"replicatedJobs": jobs} if jobs else {}


def only(thing: Mapping[str, Any], keys: set[str]) -> Case:
    return {key: thing[key] for key in thing.keys() & keys}


def quiet(thing: Any) -> Any:
    """A value without noise, and without the repetitions in a Volcano Job's history."""
    if isinstance(thing, list):
        kept = [quiet(each) for each in thing]
        phases = all(isinstance(each, dict) and each.keys() == {"status", "lastTransitionTime"} for each in kept)
        return [next(same) for _, same in groupby(kept, lambda each: each["status"])] if phases and kept else kept
    if isinstance(thing, dict):
        return {key: quiet(each) for key, each in thing.items() if key not in NOISE}
    return thing


def facts(thing: Mapping[str, Any]) -> str:
    """The status words of an object, without times and counts."""
    status = thing["status"]
    true = [(each.get("type"), each.get("reason")) for each in status.get("conditions", ()) if each["status"] == "True"]
    waits = [each.get("reason") for each in status.get("conditions", ()) if each.get("type") == "PodScheduled"]
    containers = [
        (each["restartCount"], kind, state.get("reason"), state.get("exitCode"))
        for each in status.get("containerStatuses", ())
        for kind, state in each["state"].items()
    ]
    phase = status.get("phase") or status.get("state", {}).get("phase")
    return str((phase, sorted(map(str, true)), waits, containers, "deletionTimestamp" in thing["metadata"]))


def settled(moments: Sequence[Moment]) -> list[Moment]:
    """Moments that differ in words; a brief one only if its job or state is new, or a pod has failed in it."""
    kept: list[Moment] = []
    for moment, later in pairwise([*moments, None]):
        assert moment
        before = kept[-1:]
        near = [aspect(each) for each in (*before, later) if each]
        brief = later and later.at - moment.at < BRIEF and aspect(moment) in near
        if (brief and not dead(moment) - dead(*before)) or words(moment) in [words(each) for each in before]:
            continue
        kept.append(moment)
    return kept


def aspect(moment: Moment) -> tuple[str, ...]:
    """The state, and the status words of the job's own objects."""
    return (moment.state, *(facts(moment.seen[key]) for key in moment.seen if not key.startswith("Pod")))


def words(moment: Moment) -> dict[str, str]:
    return {key: facts(thing) for key, thing in moment.seen.items()}


def dead(*moments: Moment) -> set[str]:
    """The pods that have failed."""
    return {key for each in moments for key, thing in each.seen.items() if thing["status"].get("phase") == "Failed"}


def clocked(moments: Sequence[Moment]) -> list[Seen]:
    """Replace the times by a clock that ticks once per moment, so that two recordings have the same times."""
    texts = [json.dumps(moment.seen) for moment in moments]
    first: dict[str, int] = {}
    for tick, text in enumerate(texts):
        for stamp in TIMES.findall(text):
            first.setdefault(stamp, tick)
    least = len(texts)
    for stamp in sorted(first, reverse=True):
        least = first[stamp] = min(least, first[stamp])
    return [json.loads(TIMES.sub(lambda found: stamped(first[found[0]]), text)) for text in texts]


def stamped(tick: int) -> str:
    return datetime.fromtimestamp(EPOCH + tick, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def written(moments: Sequence[Seen], case: Case) -> Iterator[Case]:
    """The changes of each moment, with the state and reason that are read from it."""
    read = registry.load_launcher(case["launcher"]).read_status
    ticks = [(float(tick), seen) for tick, seen in enumerate(moments)]
    ticks += [(len(moments) + case["later"], moments[-1])] if "later" in case else []
    before: Seen = {}
    for tick, seen in ticks:
        status = read(Observation(seen, frozenset(), EPOCH + tick))
        news = {key: novel(before.get(key), seen.get(key)) for key in ordered({**before, **seen})}
        news = {key: each for key, each in news.items() if each != {}}
        yield {"after": tick, "expected": status.state, "reason": status.reason, "news": news}
        before = seen


def novel(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Case | None:
    """The parts of an object that have changed; None if it is gone."""
    return now if now is None else {key: each for key, each in now.items() if each != (before or {}).get(key)}


def printed(made: Case) -> str:
    """The recording as JSON with one line per part of an object, so that a diff of two recordings is readable."""
    head = [
        f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made.items() if key not in ("events", "moments")
    ]
    events = ",\n".join(f"  {json.dumps(each)}" for each in made["events"])
    moments = ",\n".join(printed_moment(each) for each in made["moments"])
    return "{\n" + ",\n".join([*head, f'"events": [\n{events}]', f'"moments": [\n{moments}\n]']) + "\n}\n"


def printed_moment(moment: Case) -> str:
    head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in moment.items() if key != "news"]
    news = ",\n".join(f"  {json.dumps(key)}: {printed_object(value)}" for key, value in moment["news"].items())
    return " {" + ", ".join([*head, f'"news": {{\n{news}}}']) + "}"


def printed_object(thing: Case | None) -> str:
    parts = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in (thing or {}).items()]
    return "null" if thing is None else "{" + ",\n   ".join(parts) + "}"


# --- reading a recording


class Recorded(NamedTuple):
    """One complete moment of a recording."""

    case: str
    number: int
    observed: Observation
    expected: str
    reason: str


def recorded(name: str, made: Case) -> list[Recorded]:
    """The moments of a recording."""
    seen: Seen = {}
    found = []
    for number, moment in enumerate(made["moments"]):
        news = moment["news"]
        seen = {key: {**seen.get(key, {}), **news.get(key, {})} for key in seen | news if news.get(key, {}) is not None}
        observed = Observation(seen, frozenset(), EPOCH + moment["after"])
        found.append(Recorded(name, number, observed, moment["expected"], moment["reason"]))
    return found


def newer(old: Case, made: Case) -> Case:
    """The new recording, or the old one's moments if they say the same: no two recordings are quite alike."""
    read = registry.load_launcher(made["launcher"]).read_status
    again = [read(each.observed) for each in recorded("", old)]
    moments = [
        {**moment, "expected": status.state, "reason": status.reason}
        for moment, status in zip(old["moments"], again, strict=True)
    ]
    same = {**made, "moments": moments, "events": old.get("events", [])}
    return same if essence(same) == essence(made) else made


def essence(made: Case) -> object:
    """What two equal recordings share: the order of states and of the job's words, all of the end, the events."""
    found = [Moment(each.observed.observed_at, each.observed.states, each.expected) for each in recorded("", made)]
    states = [state for state, _ in groupby(each.state for each in found)]
    jobs = [job for job, _ in groupby(aspect(each)[1:] for each in found)]
    events = {re.sub(r"-\d+ |:.*", " ", each) for each in made.get("events", ()) if not RACES.search(each)}
    return states, jobs, sorted(words(found[-1]).values()), set(places(found[-1].seen)), events


def places(thing: Any, place: str = "") -> Iterator[str]:
    """The paths of all values inside, regardless of the number of pods."""
    if isinstance(thing, dict):
        for key, each in thing.items():
            yield from places(each, f"{place}.{key.rstrip('0123456789')}")
    elif isinstance(thing, list):
        for each in thing:
            yield from places(each, place)
    else:
        yield place
