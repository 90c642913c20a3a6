"""`python -m tests.tools.same_behaviour OLD NEW`: compares the plans and statuses of two checkouts for one input.

    plans       each shipped profile, as it is and with twenty changes, for two attempts, refusals included
    statuses    each recorded moment of tests/observed, and three copies of each with random damage
    manifests   each golden job and tests/manifests, whole and damaged, under four launchers

A refactoring changes none of them. OLD and NEW are folders of two checkouts; each is imported in a separate process by
the Python that runs this module. The Python files that a command contains (the recorder, rdma_facts.py) are code of the
checkout: only their names are compared. `--renames FILE` is for names that a change replaces on purpose: a JSON object
`{"/path/of/keys": "new name"}`, applied to the output of OLD. Differences are grouped by their path and values, with
the number of cases; long values are shown from the first character that differs. Exit code 1 if any case differs.
"""

import argparse
import base64
import copy
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

RUN = {"id": "0197a5c1-0000-7000-8000-0000a1b2c3d4", "folder": "/runs/RUN"}
OVERRIDES: dict[str, dict[str, Any]] = {
    "unchanged": {},
    "c10d": {"rendezvous": "c10d"},
    "etcd": {"rendezvous": "etcd-v2"},
    "static": {"rendezvous": "static"},
    "env": {"rendezvous": "env"},
    "elastic": {"rendezvous": "c10d", "nodes": {"min": 1, "max": 4}},
    "1 node": {"nodes": 1},
    "8 nodes": {"nodes": 8},
    "no agent": {"rendezvous": "static", "agent": "none"},
    "on_hang off": {"on_hang": "off"},
    "on_stuck_pod force": {"on_stuck_pod": "force"},
    "attempts": {"attempts": 3, "on_hang": "restart"},
    "on_fabric fail": {"on_fabric": "fail"},
    "queue": {"options": {"queue": "q1"}},
    "no queue": {"options": {"queue": None}},
    "suspend": {"options": {"suspend": True}},
    "through kubernetes": {"options": {"through": "kubernetes"}},
    "pod": {"pod": {"tolerations": ["a"], "spread": False, "host_network": True}},
    "shm": {"pod": {"shm": "1Gi"}},
    "mcad": {"options": {"api": "workload.codeflare.dev/v1beta1"}},
}
_JUNK: tuple[Any, ...] = (None, "", "x", 0, -1, True, [], [None], {}, {"x": None}, "Failed")
_MANIFEST_LAUNCHERS = ("volcano", "pytorchjob", "jobset", "appwrapper")
_SEED = 7  # the same damage in both checkouts
_DAMAGED_COPIES = 3
_DAMAGED_MANIFESTS = 5
_MAX_GROUPS = 40
_PACKED_FILES = re.compile(r"[A-Za-z0-9+/]{200,}={0,2}")
_RDMA_FACTS = re.compile(r"(<<\S{0,16}RDMA_FACTS).*?\\nRDMA_FACTS")  # a here-document, in JSON
_CONTEXT_CHARS = 60


class Difference(NamedTuple):
    """One leaf that differs: its path with `*` for each index, and both values as JSON."""

    path: str
    old: str
    new: str


# --- the cases of one checkout, in a separate process --------------------------------------------------------------


def damage(value: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A copy in which one to four values are replaced by junk."""
    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, 4)):
        parent: Any = value
        while keys := list(range(len(parent))) if isinstance(parent, list) else sorted(parent, key=str):
            key = chance.choice(keys)
            child = parent[key]
            if not isinstance(child, dict | list) or not child or chance.random() < 0.2:
                parent[key] = copy.deepcopy(chance.choice(_JUNK))
                break
            parent = child
    return value


def make_cases(root: str) -> dict[str, str]:
    """The JSON or the error of each case in the checkout at `root`, by the case's name."""
    sys.path.insert(0, root)
    results: dict[str, str] = {}

    def keep(name: str, make: Callable[[], str]) -> None:
        try:
            text = make()
        except Exception as error:  # a refusal is a result, and so is a fault of one of the checkouts
            text = json.dumps({"error": type(error).__name__, "message": str(error)})
        text = _RDMA_FACTS.sub(r"\1", _PACKED_FILES.sub(_name_packed_files, text))
        results[name] = text.replace(sys.executable, "PYTHON").replace(root, "ROOT")

    for name, make in itertools.chain(_list_plans(), _list_statuses(), _list_manifests(Path(root))):
        keep(name, make)
    return results


def _name_packed_files(match: re.Match[str]) -> str:
    """The names of the files in a base64 text; the text itself if it does not contain files."""
    try:
        files = json.loads(zlib.decompress(base64.b64decode(match[0])))
    except (ValueError, zlib.error):
        return match[0]
    return f"FILES({' '.join(files)})"


def _plan(profile: Any, attempt: int = 1) -> str:
    from torchyard.launchers import registry
    from torchyard.model.run import Run

    plan = registry.make_plan(profile, Run(**RUN, attempt=attempt))
    return str(plan.model_dump_json())


def _list_plans() -> Iterator[tuple[str, Callable[[], str]]]:
    from torchyard.loading.profile import list_profiles, load_profile

    for name, (change, overrides), attempt in itertools.product(sorted(list_profiles()), OVERRIDES.items(), (1, 2)):

        def make(name: str = name, overrides: dict[str, Any] = overrides, attempt: int = attempt) -> str:
            return _plan(load_profile(name, overrides), attempt)

        yield f"plan {name} {change} {attempt}", make


def _list_statuses() -> Iterator[tuple[str, Callable[[], str]]]:
    from tests.inputs.recording import EPOCH, OBSERVED
    from torchyard.launchers import registry
    from torchyard.model.run import Observation

    chance = random.Random(_SEED)
    for path in sorted(OBSERVED.glob("*.json")):
        launcher = registry.load_launcher(path.stem.partition("-")[0])
        for moment, (seconds, states) in enumerate(_read_moments(path)):
            observed_states = [states]
            for _ in range(_DAMAGED_COPIES):
                damaged = damage(states, chance)
                observed_states.append({key: obj if isinstance(obj, dict) else {} for key, obj in damaged.items()})
            for number, case_states in enumerate(observed_states):
                observation = Observation(case_states, frozenset(), EPOCH + seconds)

                def make(launcher: Any = launcher, observation: Any = observation) -> str:
                    return str(launcher.read_status(observation).model_dump_json())

                yield f"status {path.stem} {moment} {number}", make


def _read_moments(path: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each moment of a recording: its seconds after the job's creation, and its objects.

    Recordings are read here, because the names in tests/inputs/recording.py may differ between the two checkouts.
    """
    objects: dict[str, Any] = {}
    for moment in json.loads(path.read_text())["moments"]:
        for key, changes in moment["news"].items():
            if changes is None:
                objects.pop(key, None)
            else:
                objects[key] = objects.get(key, {}) | changes
        yield moment["after"], dict(objects)


def _list_manifests(root: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    import yaml

    from torchyard.model.profile import Profile

    chance = random.Random(_SEED)
    documents: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((root / "tests" / "manifests").glob("*.yaml")):
        documents[path.name] = [item for item in yaml.safe_load_all(path.read_text()) if item]
    for path in sorted((root / "tests" / "golden").glob("*.json")):
        golden = json.loads(path.read_text())
        if golden.get("kind") == "manifests":
            documents[path.name] = [*golden.get("store", []), golden["objects"][-1]]
    for (name, items), launcher in itertools.product(documents.items(), _MANIFEST_LAUNCHERS):
        manifests = [copy.deepcopy(items)]
        for _ in range(_DAMAGED_MANIFESTS):
            manifests.append([damage({"item": items[-1]}, chance)["item"]])
        for number, manifest in enumerate(manifests):
            fields = {"name": "m", "about": "x", "launcher": launcher, "manifest": tuple(manifest)}

            def make(fields: dict[str, Any] = fields) -> str:
                return _plan(Profile.model_validate(fields))

            yield f"manifest {name} {launcher} {number}", make


# --- the comparison ------------------------------------------------------------------------------------------------


def rename_keys(value: Any, renames: Mapping[str, str], path: str = "") -> Any:
    """A copy with the keys, and the texts that are whole values, renamed where their path matches a rule.

    `/nodes/*/age` renames that key; `/state=gone` replaces that value. The step into a list is the item's `kind` if it
    has one, else `-`: `/requires/object/name`, `/args/-=--verbose`. `*` in a rule matches any text.
    """
    if isinstance(value, list):
        return [rename_keys(item, renames, f"{path}/{_name_item(item)}") for item in value]
    if isinstance(value, dict):
        return {
            _find_rename(f"{path}/{key}", renames) or key: rename_keys(item, renames, f"{path}/{key}")
            for key, item in value.items()
        }
    return _find_rename(f"{path}={value}", renames) or value


def _name_item(item: Any) -> str:
    kind = item.get("kind") if isinstance(item, dict) else None
    return kind if isinstance(kind, str) else "-"


def _find_rename(path: str, renames: Mapping[str, str]) -> str | None:
    """The new name for a path, None if no rule matches."""
    for pattern, name in renames.items():
        if fnmatchcase(path, pattern):
            return name
    return None


def list_differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """The leaves of two JSON values that differ. Lists are compared index by index."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from list_differences(before.get(key, "ABSENT"), after.get(key, "ABSENT"), f"{path}/{key}")
        if list(before) != list(after) and before.keys() == after.keys():
            yield Difference(f"{path} (order of keys)", json.dumps(list(before)), json.dumps(list(after)))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for old_item, new_item in zip(before, after, strict=True):
            yield from list_differences(old_item, new_item, f"{path}/*")
    elif before != after:
        yield Difference(path, json.dumps(before), json.dumps(after))


def _find_start(difference: Difference) -> int:
    """Where to start printing both values: shortly before the first character that differs."""
    pairs = enumerate(zip(difference.old, difference.new, strict=False))
    shorter = min(len(difference.old), len(difference.new))
    first_index = next((index for index, (before, after) in pairs if before != after), shorter)
    return max(first_index - _CONTEXT_CHARS, 0)


def _dump(root: Path) -> dict[str, str]:
    """Run this module in a separate process for one checkout; return its cases."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        argv = [sys.executable, __file__, "--dump", file.name, str(root.resolve())]
        subprocess.run(argv, check=True, cwd=root)
        cases: dict[str, str] = json.loads(Path(file.name).read_text())
    return cases


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="same_behaviour", description=__doc__.splitlines()[0])
    parser.add_argument("roots", nargs="+", type=Path, help="the folders OLD and NEW")
    parser.add_argument("--renames", type=Path, help="JSON: the keys that were renamed on purpose")
    parser.add_argument("--only", default="", help="compare only the cases whose name contains this")
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.dump:
        args.dump.write_text(json.dumps(make_cases(str(args.roots[0]))))
        return 0
    if len(args.roots) != 2:
        parser.error("two folders are required: OLD NEW")

    old_cases, new_cases = (_dump(root) for root in args.roots)
    renames = json.loads(args.renames.read_text()) if args.renames else {}
    names = sorted(name for name in old_cases.keys() | new_cases.keys() if args.only in name)
    differing = 0
    groups: Counter[Difference] = Counter()
    examples: dict[Difference, str] = {}
    for name in names:
        before = rename_keys(json.loads(old_cases.get(name, '"ABSENT"')), renames)
        after = json.loads(new_cases.get(name, '"ABSENT"'))
        differences = set(list_differences(before, after))
        differing += bool(differences)
        groups.update(differences)
        for difference in differences:
            examples.setdefault(difference, name)
    for difference, count in groups.most_common(_MAX_GROUPS):
        print(f"{count} times {difference.path}, such as {examples[difference]!r}")
        start = _find_start(difference)
        print(f"  old: {difference.old[start : start + 300]}\n  new: {difference.new[start : start + 300]}")
    print(f"{len(names)} compared, {differing} differ, in {len(groups)} ways")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
