"""A helm chart's user files, as keys of a profile."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Write, load, manifest_plan_of
from torchyard.cli.main import main
from torchyard.loading.helm_values import ChartValues
from torchyard.loading.profile import ROOT
from torchyard.model.errors import ProfileError
from torchyard.model.profile import Profile

GUIDE = Path(__file__).parent / "values"
JOB: dict[str, Any] = {"jobName": "train", "containerImage": "train:v1", "mainProgram": "train.py"}
PROFILE = {"about": "a test"}


def files(folder: Path, *documents: dict[str, Any], **keys: Any) -> Path:
    """A profile of nothing but these values, and the given keys."""
    names = [f"values-{index}.yaml" for index in range(len(documents))]
    for name, document in zip(names, documents, strict=True):
        (folder / name).write_text(yaml.safe_dump(document, sort_keys=False))
    path = folder / "sample.yaml"
    path.write_text(yaml.safe_dump({**PROFILE, "values": names, **keys}))
    return path


def said(folder: Path, *documents: dict[str, Any], **keys: Any) -> Profile:
    """The profile of a job with these values."""
    return load(files(folder, JOB, *documents, **keys))


def refused(path: Path) -> str:
    with pytest.raises(ProfileError) as error:
        load(path)
    return str(error.value)


def at(profile: Profile, place: str) -> Any:
    """The value at a key of the profile and those inside it."""
    found: Any = profile.model_dump(mode="json", exclude_none=True)
    for part in place.split():
        found = found.get(part)
    return found


# --- the guide's files


def test_user_file_of_the_guide(tmp_path: Path) -> None:
    """The first user file is four pods of eight processes, with its setup and its program."""
    profile = load(files(tmp_path, yaml.safe_load((GUIDE / "user_file.yaml").read_text())))
    assert (profile.launcher, profile.rendezvous, profile.cluster.namespace) == ("appwrapper", "static", "my-namespace")
    assert (str(profile.nodes), profile.processes, profile.program, profile.args) == ("4", 8, "helloworld.py", ())
    assert profile.resources == {"cpu": "8", "gpus": "8", "memory": "1Gi"}
    assert profile.setup == ("git clone https://github.com/dbarnett/python-helloworld", "cd python-helloworld")


def test_vela_file_of_the_guide(tmp_path: Path) -> None:
    """The second one has a second network, and NCCL's variables as texts."""
    profile = load(files(tmp_path, yaml.safe_load((GUIDE / "user_file_vela.yaml").read_text())))
    assert profile.pod.networks == {"multi-nic-network": 1}
    assert profile.resources == {"cpu": "64", "gpus": "8", "memory": "1Ti"}
    assert profile.env == {
        "NCCL_SOCKET_IFNAME": "net1-0,net1-1",
        "NCCL_MIN_NCHANNELS": "1",
        "NCCL_ALGO": "Ring",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_NTHREADS": "2",
        "NCCL_NSOCKS_PERTHREAD": "1",
        "NCCL_DEBUG": "WARN",
    }


@pytest.mark.parametrize("launcher", ["appwrapper", "pytorchjob", "volcano"])
@pytest.mark.parametrize("name", ["user_file", "user_file_vela"])
def test_files_of_the_guide_can_be_planned(tmp_path: Path, name: str, launcher: str) -> None:
    """What they say is a job for every launcher on Kubernetes."""
    document = yaml.safe_load((GUIDE / f"{name}.yaml").read_text())
    plan = manifest_plan_of(load(files(tmp_path, document, launcher=launcher)), tmp_path)
    assert len(plan.nodes) == 4


# --- layers


def test_later_file_wins(tmp_path: Path) -> None:
    """Of two files the later one counts, and the profile over both."""
    profile = said(tmp_path, {"numPods": 2, "numGpusPerPod": 8}, {"numPods": 3, "numGpusPerPod": 4}, nodes=5)
    assert (str(profile.nodes), profile.processes) == ("5", 4)


def test_mappings_are_merged_and_lists_replaced(tmp_path: Path) -> None:
    """A file adds a key to an earlier file's mapping, and takes the place of its list."""
    first = {"mountNVMe": {"storage": "1Gi", "mountPath": "/a"}, "setupCommands": ["one", "two"]}
    profile = said(tmp_path, first, {"mountNVMe": {"storage": "2Gi"}, "setupCommands": ["three"]})
    assert (profile.mounts["/a"].ephemeral, profile.setup) == ("2Gi", ("three",))


def test_null_takes_a_key_away(tmp_path: Path) -> None:
    """A null is as if no file had said the key, also inside a mapping."""
    first = {"numPods": 4, "multiNicNetworkName": "net", "mountNVMe": {"storage": "1Gi", "mountPath": "/a"}}
    profile = said(tmp_path, first, {"numPods": None, "multiNicNetworkName": None, "mountNVMe": {"mountPath": None}})
    assert (str(profile.nodes), profile.pod.networks) == ("1", {})
    assert list(profile.mounts) == ["/workspace/scratch-nvme"]


def test_null_takes_the_default_away(tmp_path: Path) -> None:
    """Without a queue and a priority the job is nobody's but the namespace's."""
    profile = said(tmp_path, {"queueName": None, "priority": None})
    assert (profile.options, profile.pod.priority_class) == ({}, None)


def test_profile_has_the_last_word(tmp_path: Path) -> None:
    """One variable of the profile stands beside the files', and its program comes without their arguments."""
    values = {"environmentVariables": [{"name": "A", "value": 1}, {"name": "B", "value": 1}], "mainProgram": "a.py -x"}
    profile = said(tmp_path, values, env={"B": 2}, program="b.py")
    assert profile.env == {"A": "1", "B": "2"}
    assert (profile.program, profile.args) == ("b.py", ())


# --- each key

KEYS: list[tuple[dict[str, Any], str, Any]] = [
    ({"jobName": "my-job"}, "pod labels", {"app.kubernetes.io/name": "my-job"}),
    ({"namespace": "ml"}, "cluster namespace", "ml"),
    ({}, "options", {"queue": "default-queue"}),
    ({"queueName": "team"}, "options queue", "team"),
    ({}, "pod priority_class", "default-priority"),
    ({"priority": "high-priority"}, "pod priority_class", "high-priority"),
    (
        {"customLabels": [{"key": "team", "value": "vision"}], "jobName": None},
        "pod labels",
        {"team": "vision"},
    ),
    ({"containerImage": "a:1"}, "image", "a:1"),
    ({"imagePullSecrets": [{"name": "hub"}]}, "pod pull_secrets", ["hub"]),
    ({}, "pod pull_policy", "IfNotPresent"),
    ({"imagePullPolicy": "Always"}, "pod pull_policy", "Always"),
    ({"numPods": 4}, "nodes", {"min": 4, "max": 4}),
    ({"numCpusPerPod": 8}, "resources cpu", "8"),
    ({"numCpusPerPod": "500m"}, "resources cpu", "500m"),
    ({"numGpusPerPod": 8}, "resources gpus", "8"),
    ({"numGpusPerPod": 8}, "processes", 8),
    ({}, "processes", 1),
    ({}, "resources", {"cpu": "1", "memory": "1Gi"}),
    ({"totalMemoryPerPod": "1Ti"}, "resources memory", "1Ti"),
    ({"limitCpusPerPod": 9}, "pod limits", {"cpu": "9"}),
    ({"limitMemoryPerPod": "2Gi"}, "pod limits", {"memory": "2Gi"}),
    ({"limitGpusPerPod": 8, "numGpusPerPod": 8}, "pod limits", {}),
    ({"environmentVariables": [{"name": "A", "value": 0}, {"name": "A", "value": ""}]}, "env", {"A": ""}),
    ({"environmentVariables": [{"name": "A", "value": False}]}, "env", {"A": "false"}),
    (
        {"environmentVariables": [{"name": "A", "secret": {"name": "s", "key": "k"}}]},
        "env A",
        {"secret": "s", "key": "k"},
    ),
    (
        {"environmentVariables": [{"name": "A", "configmap": {"name": "c", "key": "k"}}]},
        "env A",
        {"config_map": "c", "key": "k"},
    ),
    (
        {"envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}]},
        "pod env_from",
        [{"config_map": "c"}, {"secret": "s"}],
    ),
    (
        {"sshGitCloneConfig": {"secretName": "s", "configMapName": "c"}},
        "env GIT_SSH_COMMAND",
        "ssh -i /tmp/.ssh/keys/id_rsa -o UserKnownHostsFile=/tmp/.ssh/hosts/known_hosts -vv",
    ),
    (
        {"sshGitCloneConfig": {"secretName": "s", "configMapName": "c", "secretMountPath": "/k", "sshCmd": "ssh"}},
        "mounts",
        {"/k": {"secret": "s", "read_only": True}, "/tmp/.ssh/hosts": {"config_map": "c", "read_only": False}},
    ),
    ({"setupCommands": ["cd x && ls", "export A=1"]}, "setup", ["cd x && ls", "export A=1"]),
    ({"mainProgram": "dir/train.py -x"}, "program", "dir/train.py"),
    ({"mainProgram": "-m train --name 'a b' \\\n --x=\"*\"\n"}, "args", ["train", "--name", "a b", "--x=*"]),
    (
        {"volumes": [{"name": "v", "claimName": "data", "mountPath": "/data"}]},
        "mounts",
        {"/data": {"claim": "data", "read_only": False}},
    ),
    ({"numRoceGdr": 2, "numPods": 2}, "resources nvidia.com/roce_gdr", "2"),
    ({"numRoceGdr": 2, "numPods": 2, "roceGdrResName": "x.y/z"}, "resources x.y/z", "2"),
    ({"numRoceGdr": 2, "numPods": 2}, "pod capabilities", ["IPC_LOCK"]),
    ({"roceGdrResName": "x.y/z"}, "pod capabilities", []),
    ({"topologyFileConfigMap": "topo"}, "env NCCL_TOPO_FILE", "/var/run/nvidia-topologyd/virtualTopology.xml"),
    (
        {"topologyFileConfigMap": "topo"},
        "mounts",
        {"/var/run/nvidia-topologyd": {"config_map": "topo", "read_only": False}},
    ),
    ({"ncclGdrEnvConfigMap": "nccl"}, "pod env_from", [{"config_map": "nccl"}]),
    ({"multiNicNetworkName": "a, ns/b,a"}, "pod networks", {"a": 2, "ns/b": 1}),
    ({"totalMemoryPerPod": "8Gi"}, "pod shm", "8Gi"),
    ({"totalMemoryPerPod": "8Gi", "limitMemoryPerPod": "9Gi"}, "pod shm", "9Gi"),
    ({"disableSharedMemory": True}, "pod shm", None),
    (
        {"mountNVMe": {"storage": "800Gi"}},
        "mounts",
        {"/workspace/scratch-nvme": {"ephemeral": "800Gi", "storage_class": "odf-lvm-vg1", "read_only": False}},
    ),
    ({"mountNVMe": {"storage": "800Gi", "mountPath": "/n"}}, "env NVME_MOUNT_PATH", "/n"),
    (
        {"initContainers": [{"name": "a", "image": "b:1", "command": ["ls"]}]},
        "pod init",
        [{"name": "a", "image": "b:1", "command": ["ls"]}],
    ),
    ({"autopilotHealthChecks": ["pciebw"], "jobName": None}, "pod labels", {"autopilot": "", "pciebw": ""}),
    ({}, "pod avoid", {"autopilot.ibm.com/gpuhealth": ["ERR", "TESTING", "EVICT"]}),
    ({"hostIgnoreList": ["node-1"]}, "pod avoid kubernetes.io/hostname", ["node-1"]),
    ({"schedulerName": "sakkara"}, "pod scheduler", "sakkara"),
    ({"serviceAccountName": "gdr"}, "pod service_account", "gdr"),
    ({"serviceAccountName": "gdr"}, "pod capabilities", ["IPC_LOCK"]),
    ({"restartPolicy": "Never"}, "attempts", 1),
    ({"terminationGracePeriodSeconds": 60}, "deadlines grace", 60.0),
    ({"admissionGracePeriodDuration": "30m"}, "options admission", "30m"),
    ({"warmupGracePeriodDuration": "1d"}, "options warmup", "1d"),
    ({"failureGracePeriodDuration": "30s"}, "options failure", "30s"),
    ({"retryPausePeriodDuration": "30s"}, "options retry_pause", "30s"),
    ({"forcefulDeletionGracePeriodDuration": "30s"}, "options forceful_deletion", "30s"),
    ({"deletionOnFailureGracePeriodDuration": "30s"}, "options deletion_on_failure", "30s"),
    ({"successTTLDuration": "30s"}, "options success_ttl", "30s"),
    ({"retryLimit": 0}, "options retries", 0),
]


@pytest.mark.parametrize(("values", "place", "expected"), KEYS, ids=range(len(KEYS)))
def test_key_is_told_in_the_profile(tmp_path: Path, values: dict[str, Any], place: str, expected: Any) -> None:
    """Each key of the chart, or its default, becomes the key of the profile that says the same."""
    assert at(said(tmp_path, values), place) == expected


def test_every_key_is_tried() -> None:
    """The cases above leave out no key of the chart."""
    assert {key for values, _, _ in KEYS for key in values} == set(ChartValues.model_fields)


def test_every_key_is_explained() -> None:
    """docs/values.md has one row for each key, and no other."""
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "values.md").read_text(), re.MULTILINE)
    assert rows == list(ChartValues.model_fields)


def test_plan_holds_what_the_files_say(tmp_path: Path) -> None:
    """The keys of the profile reach the pod: a spare disk, an init container, nodes to keep away from."""
    values = {"mountNVMe": {"storage": "1Gi"}, "initContainers": [{"name": "a", "image": "b:1", "command": ["ls"]}]}
    pod = manifest_plan_of(said(tmp_path, values), tmp_path).pod["spec"]
    assert pod["initContainers"] == [{"name": "a", "image": "b:1", "command": ["ls"]}]
    assert any("ephemeral" in each for each in pod["volumes"])
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [each["key"] for each in term["matchExpressions"]] == ["autopilot.ibm.com/gpuhealth"]


# --- mistakes

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"numPod": 4}, "unknown key numPod: did you mean numPods?"),
    ({"mountNVMe": {"storage": "1Gi", "mount": "/a"}}, "unknown key mountNVMe.mount: did you mean mountPath?"),
    ({"envFrom": [{"prefix": "A"}]}, "unknown key envFrom.0.prefix"),
    ({"numPods": "4"}, "numPods: input should be a valid integer, not '4'"),
    ({"numPods": True}, "numPods: input should be a valid integer"),
    ({"numPods": 0}, "numPods: input should be greater than or equal to 1"),
    ({"totalMemoryPerPod": 1}, "totalMemoryPerPod: input should be a valid string"),
    ({"totalMemoryPerPod": "1 GB"}, "totalMemoryPerPod: string should match pattern"),
    ({"jobName": "My_Job"}, "jobName: string should match pattern"),
    ({"jobName": "a" * 51}, "jobName: string should have at most 50 characters"),
    ({"jobName": None, "priority": "urgent"}, "priority: input should be 'default-priority', 'low-priority' or"),
    ({"environmentVariables": [{"name": "A"}]}, "a variable has a name and one of value, secret, configmap"),
    ({"disableSharedMemory": "yes"}, "disableSharedMemory: input should be a valid boolean"),
    ({"warmupGracePeriodDuration": "1w"}, "warmupGracePeriodDuration: string should match pattern"),
    ({"restartPolicy": "OnFailure"}, "restartPolicy: only Never"),
    ({"limitGpusPerPod": 4, "numGpusPerPod": 8}, "limitGpusPerPod: GPUs are not shared: leave it out, or say 8"),
    ({"numRoceGdr": 2}, "numRoceGdr: one pod has no other to reach"),
    ({"mainProgram": "train.py --out=$OUT"}, "mainProgram: '$' is for a shell"),
    ({"mainProgram": 'train.py "$OUT"'}, "mainProgram: '$' is for a shell"),
    ({"mainProgram": "train.py && echo"}, "mainProgram: '&' is for a shell"),
    ({"mainProgram": "train.py 'a"}, "mainProgram: a quote has no end"),
    ({"mainProgram": None}, "mainProgram: is missing: torchrun needs a program"),
]


@pytest.mark.parametrize(("values", "expected"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistake_is_told_with_its_line(tmp_path: Path, values: dict[str, Any], expected: str) -> None:
    """Each mistake is told with the file that says it, and its line."""
    path = files(tmp_path, JOB, {"namespace": "ml", **values})
    assert re.search(rf"values-1\.yaml:[2-5]: .*{re.escape(expected)}", refused(path))


def test_mistake_is_of_the_file_that_says_it(tmp_path: Path) -> None:
    """All findings come at once, each with the last file that has the key."""
    told = refused(files(tmp_path, {**JOB, "numPods": "a", "priorty": "x"}, {"namespace": "A"}))
    assert f"{tmp_path}/values-0.yaml:4: numPods" in told
    assert f"{tmp_path}/values-0.yaml:5: unknown key priorty: did you mean priority?" in told
    assert f"{tmp_path}/values-1.yaml:1: namespace" in told


def test_other_launcher_has_no_admission(tmp_path: Path) -> None:
    """What only AppWrappers have is an error for another launcher, where a file says it and not the chart's default."""
    told = refused(files(tmp_path, JOB, {"queueName": "team", "retryLimit": 3}, launcher="volcano"))
    assert "values-1.yaml:1: queueName: only AppWrappers have it" in told
    assert "values-1.yaml:2: retryLimit: only AppWrappers have it" in told
    assert said(tmp_path, {"queueName": None}, launcher="volcano").options == {}


@pytest.mark.parametrize("path", ["volumes", "nvme"])
def test_two_volumes_at_one_path_are_refused(tmp_path: Path, path: str) -> None:
    """A path holds one volume; the second would hide the first."""
    volume = {"name": "v", "claimName": "data", "mountPath": "/data"}
    other = {"volumes": [volume] * 2} if path == "volumes" else {"mountNVMe": {"storage": "1Gi", "mountPath": "/data"}}
    assert "volumes: 2 volumes are mounted at /data" in refused(files(tmp_path, JOB, {"volumes": [volume]}, other))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"values": "a.yaml"}, ":4: values: it is a list of files, not 'a.yaml'"),
        ({"values": ["a.yaml"]}, ":4: values: there is no file"),
        ({"values": ["sample.py"], "manifest": "job.yaml"}, ":5: values: a manifest is a whole job"),
    ],
)
def test_files_that_cannot_be_read_are_told(write: Write, keys: dict[str, Any], expected: str) -> None:
    """`values` is a list of files, beside the profile, and not for a job that is written out."""
    path = write(**keys)
    assert f"{path}{expected}" in refused(path)


def test_schema_knows_values(capsys: pytest.CaptureFixture[str]) -> None:
    """For editors a profile with values needs no launcher, and one without them does."""
    main(["schema"])
    schema = json.loads(capsys.readouterr().out)
    assert (schema["properties"]["values"]["type"], "launcher" in schema["required"]) == ("array", False)
    assert {"required": ["launcher"]} in schema["anyOf"]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(values=st.dictionaries(st.sampled_from(sorted(ChartValues.model_fields)), ANY, max_size=5))
def test_wrong_values_are_told_and_never_crash(tmp_path: Path, values: dict[str, Any]) -> None:
    """Whatever stands behind the chart's keys, the profile loads or says what is wrong with it."""
    with suppress(ProfileError):
        said(tmp_path, values)
