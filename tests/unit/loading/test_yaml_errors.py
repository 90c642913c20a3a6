"""Mistakes in a profile: each gets one sentence with its location."""

from pathlib import Path

import pytest

from tests.conftest import Write
from tests.inputs.user_files import get_refusal

VALID = "about: a test\nlauncher: baremetal\nprogram: x.py\n"
MISTAKES = {
    "about: x\nlauncher: 'job\nprogram: x.py\n": ":2: the quote that opens here is not closed (column 11); close it",
    "about: [x\n": ":2: did not find expected ',' or ']'",
    "- a\n": ":1: a profile is a mapping",
    "\tabout: x\n": ":1: found character",
    "": ":1: a profile is a mapping",
    VALID + "about: again\n": ":4: the key about appears here a second time, after line 1; write it once",
    VALID + "ndoes: 2\n": ":4: unknown key ndoes: did you mean nodes?",
    VALID + "hosts: [n1, n2]\n": ":4: unknown key hosts: write it as options.hosts",
    VALID + "gpus: 8\n": ":4: unknown key gpus: write it as resources.gpus",
    VALID + "nodeSelector: {a: b}\n": ":4: unknown key nodeSelector: write it as pod.node_selector",
    VALID + "labels: {a: b}\n": ":4: unknown key labels: write it as pod.labels or job.labels",
    VALID + "pod: {image: torch}\n": ":4: unknown key pod.image: write it as image, at the top level",
    VALID + "options: {nodes: 2}\n": ":4: unknown key options.nodes: write it as nodes, at the top level",
    VALID.replace("baremetal", "slurm") + "hosts: [n1]\n": ":4: unknown key hosts: did you mean",
    VALID + "env:\n  A: {image: x}\n": ":5: unknown key env.A.image: there are: config_map",
    VALID + "deadlines:\n  start: 1m\n  rnu: 2m\n": ":6: unknown key deadlines.rnu: did you mean run? there are: grace",
    VALID + "options: {hots: []}\n": ":4: unknown key options.hots: did you mean hosts?",
    VALID.replace("baremetal", "volcano")
    + "options: {local_queue: team}\n": ":4: unknown key options.local_queue: it is a LocalQueue of Kueue, which jobs "
    "of this launcher cannot be in; queue is a queue of Volcano; there are: etcd_image, queue",
    VALID + "options: {hosts: [-oPort=1]}\n": ":4: options.hosts.0.host: must match pattern",
    VALID + "nodes: 0\n": ":4: nodes: must be 1 or more, not 0",
    VALID + "nodes: yes\n": ":4: nodes: must be one number, or {min: 2, max: 8}, not True",
    VALID + "processes: auto\n": ":4: processes: must be a whole number, not 'auto'",
    VALID + "processes: 1.5\n": ":4: processes: must be a whole number, not 1.5",
    VALID + "pod: {privileged: 3}\n": ":4: pod.privileged: must be true or false, not 3",
    VALID + "min_busbw: fast\n": ":4: min_busbw: must be a number, not 'fast'",
    VALID
    + "checkpoints: saved\n": ":4: checkpoints: must match pattern '^/' (the folder for checkpoints, on a disk that "
    "all nodes share), not 'saved'",
    VALID + "notify: {to: []}\n": ":4: notify.to: must have at least 1 item, not []",
    VALID + "nodes: {min: 3, max: 2}\n": ":4: nodes: min is 3 and max is 2",
    VALID + "deadlines: {run: 5 parsecs}\n": ":4: deadlines.run: a duration is a number with a unit",
    VALID + "deadlines: {run: 1.1.1h}\n": ":4: deadlines.run: a duration is a number with a unit",
    VALID + "env: {A: yes}\n": ":4: env.A: true is a boolean in YAML",
    VALID + "args: [a, [b]]\n": ":4: args.1: must be a text",
    VALID + "args: --lr=0.1\n": ":4: args: must be a list, such as [A, B], not '--lr=0.1'",
    VALID + "mounts: [a]\n": ":4: mounts: must be a mapping, such as {KEY: VALUE}, not ['a']",
    VALID + "args: [--n, {nodes}]\n": ":4: args.1: {nodes} is a mapping in YAML: put the text in quotes, as in",
    VALID + "hardware: 5\n": ":4: hardware: must be the name of a file, not 5",
    VALID + "hardware: oke/bm-gpu-b4\n": ":4: hardware: there is no oke/bm-gpu-b4; did you mean oke/bm-gpu-b4-8? there",
    VALID
    + "hardware: oke/bm-gpu-b4-8\nfabric: hosts\n": ":5: fabric: hosts is not a fabric of this hardware: use host",
    VALID + "hardware: oke/bm-gpu-b4-8\n": ":1: fabric: none is not a fabric of this hardware: use host, vf, no-rdma",
    VALID + "fabric: host\n": ":4: fabric: requires hardware, whose file lists the fabrics",
    VALID + "manifest: none.yaml\n": ":4: manifest: there is no file ",
    VALID + "manifest: [a]\n": ":4: manifest: must be the name of a file, not ['a']",
    VALID + "env: {A: {secret: hub}}\n": ":4: the key env.A.key is missing",
    VALID + "env: {A: {key: token}}\n": ":4: env.A: must name either a secret or a config_map",
    VALID + "env: {A: {secret: s, config_map: c, key: k}}\n": ":4: env.A: must name either a secret or a config_map",
    VALID + "env:\n  A: {secret: s, kye: k, key: k}\n": ":5: unknown key env.A.kye: did you mean key?",
    VALID + "env: {A: [1]}\n": ":4: env.A: must be a text",
    VALID + "mounts:\n  /data: {}\n": ":5: mounts./data: must have exactly one of claim, config_map, secret",
    VALID + "mounts: {/data: {claim: a, host: /b}}\n": ":4: mounts./data: must have exactly one of claim",
    VALID + "mounts: {/data: {clam: a}}\n": ":4: unknown key mounts./data.clam: did you mean claim?",
    VALID + "resources: {gpu: 1}\n": ":4: resources: unknown resource gpu: use gpus, cpu, memory, ephemeral-storage",
    VALID + "resources: {memory: 5 GB}\n": ":4: resources.memory: an amount is a number with or without a unit",
    VALID + "resources: {cpu: yes}\n": ":4: resources.cpu: an amount is a number",
    VALID + "resources: {cpu: -1}\n": ":4: resources.cpu: an amount is a number",
    VALID + "pod: {shm: large}\n": ":4: pod.shm: an amount is a number",
    VALID + "pod: {host_netwrok: true}\n": ":4: unknown key pod.host_netwrok: did you mean host_network?",
    VALID + "rendezvous: zookeeper\n": ":4: rendezvous: must be 'c10d', 'etcd-v2', 'static', 'env' or 'file'",
    VALID.replace("baremetal", "slurm"): ":2: launcher: slurm does not exist; use one of appwrapper, baremetal",
    VALID.replace(
        "program: x.py\n", ""
    ): ":1: a profile must name one of program, module (both with an image, in pods) and manifest",
}


@pytest.mark.parametrize(("text", "expected"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_mistakes_are_reported_with_their_line(tmp_path: Path, text: str, expected: str) -> None:
    """Each mistake gets one message with file, line, key and the valid values."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert f"{path}{expected}" in get_refusal(path)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """Two mistakes are reported in one error with two findings."""
    (tmp_path / "x.py").touch()
    path = tmp_path / "bad.yaml"
    path.write_text(VALID + "nodez: 2\nprocesses: 0\n")
    assert get_refusal(path).count(str(path)) == 2


def test_mistake_in_an_override_is_not_blamed_on_the_file(write: Write) -> None:
    """A wrong override is reported as an override, without the file's line."""
    assert "override: processes: must be greater" in get_refusal(write(), {"processes": 0})


def test_mistake_beside_an_override_is_blamed_on_the_file(write: Write) -> None:
    """A mistake in the file is reported with its line, not as an override of another variable."""
    path = write(env={"A": "1", "B": True})
    assert f"{path}:4: env.B: true is a boolean" in get_refusal(path, {"env.A": "2"})


@pytest.mark.parametrize("resources", [{"gpus": -1, "cpu": 8}, {"gpu": 1, "cpu": 8}])
def test_part_of_a_mapping_is_named_without_the_whole(write: Write, resources: dict[str, int]) -> None:
    """An error in one value of a mapping names its key, and does not print the whole mapping."""
    refusal = get_refusal(write(resources=resources))
    assert f"resources: {'gpus: -1' if 'gpus' in resources else 'unknown resource gpu'}" in refusal
    assert "cpu'" not in refusal
