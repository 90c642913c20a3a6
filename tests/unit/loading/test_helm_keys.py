"""The values of a helm chart as keys of a profile."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import load, manifest_plan_of
from tests.inputs.chart_values import GUIDE, JOB, load_values, write_values
from tests.inputs.user_files import get_refusal
from torchyard.common.project_root import ROOT
from torchyard.loading.helm_values import ChartValues
from torchyard.model.profile import Profile


def get_value(profile: Profile, key_path: str) -> Any:
    """The value at a path of keys in the profile."""
    value: Any = profile.model_dump(mode="json", exclude_none=True)
    for key in key_path.split():
        value = value.get(key)
    return value


# --- the guide's files


def test_user_file_of_the_guide(tmp_path: Path) -> None:
    """The guide's first user file gives four pods of eight processes, with its setup and program."""
    profile = load(write_values(tmp_path, yaml.safe_load((GUIDE / "user_file.yaml").read_text())))
    assert (profile.launcher, profile.rendezvous, profile.cluster.namespace) == ("appwrapper", "static", "my-namespace")
    assert (str(profile.nodes), profile.processes, profile.program, profile.args) == ("4", 8, "helloworld.py", ())
    assert profile.resources == {"cpu": "8", "gpus": "8", "memory": "1Gi"}
    assert profile.setup == ("git clone https://github.com/dbarnett/python-helloworld", "cd python-helloworld")


def test_vela_file_of_the_guide(tmp_path: Path) -> None:
    """The guide's Vela file gives a second network, and NCCL's variables as text."""
    profile = load(write_values(tmp_path, yaml.safe_load((GUIDE / "user_file_vela.yaml").read_text())))
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
    """The guide's user files can be planned for three launchers on Kubernetes."""
    document = yaml.safe_load((GUIDE / f"{name}.yaml").read_text())
    plan = manifest_plan_of(load(write_values(tmp_path, document, launcher=launcher)), tmp_path)
    assert len(plan.nodes) == 4


# --- each key


KEYS: list[tuple[dict[str, Any], str, Any]] = [
    ({"jobName": "my-job"}, "pod labels", {"app.kubernetes.io/name": "my-job"}),
    ({"namespace": "ml"}, "cluster namespace", "ml"),
    ({}, "options", {"local_queue": "default-queue"}),
    ({"queueName": "team"}, "options local_queue", "team"),
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
    ({"limitCpusPerPod": 9}, "pod limits", {"cpu": "9", "memory": "1Gi"}),
    ({"limitMemoryPerPod": "2Gi"}, "pod limits", {"cpu": "1", "memory": "2Gi"}),
    ({"limitGpusPerPod": 8, "numGpusPerPod": 8}, "pod limits", {"cpu": "1", "memory": "1Gi"}),
    ({"numCpusPerPod": "4", "totalMemoryPerPod": "8Gi"}, "pod limits", {"cpu": "4", "memory": "8Gi"}),
    ({"numPods": 4}, "pod spread", False),
    ({}, "deadlines grace", 30),
    ({"terminationGracePeriodSeconds": 5}, "deadlines grace", 5),
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
    ({"mainProgram": "-m my.train -x"}, "module", "my.train"),
    ({"mainProgram": "-m train --name 'a b' \\\n --x=\"*\"\n"}, "args", ["--name", "a b", "--x=*"]),
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
        [
            {
                "name": "a",
                "image": "b:1",
                "command": ["ls"],
                "sidecar": False,
                "capabilities": [],
                "env": {},
                "mounts": {},
            }
        ],
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
    ({"retryPausePeriodDuration": "0s"}, "options retry_pause", "0s"),
    ({"forcefulDeletionGracePeriodDuration": "30s"}, "options forceful_deletion", "30s"),
    ({"deletionOnFailureGracePeriodDuration": "30s"}, "options deletion_on_failure", "30s"),
    ({"successTTLDuration": "30s"}, "options success_ttl", "30s"),
    ({"retryLimit": 0}, "options retries", 0),
]


@pytest.mark.parametrize(("values", "key_path", "expected"), KEYS, ids=range(len(KEYS)))
def test_key_becomes_a_key_of_the_profile(tmp_path: Path, values: dict[str, Any], key_path: str, expected: Any) -> None:
    """Each key of the chart, or its default, becomes the corresponding key of the profile."""
    assert get_value(load_values(tmp_path, values), key_path) == expected


def test_every_key_is_tested() -> None:
    """The cases above cover every key of the chart."""
    assert {key for values, _, _ in KEYS for key in values} == set(ChartValues.model_fields)


def test_every_key_is_documented() -> None:
    """docs/values.md has one row for each key, and no other."""
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "values.md").read_text(), re.MULTILINE)
    assert rows == list(ChartValues.model_fields)


def test_plan_contains_the_values(tmp_path: Path) -> None:
    """The keys reach the pod: an NVMe volume, an init container, nodes to avoid."""
    values = {"mountNVMe": {"storage": "1Gi"}, "initContainers": [{"name": "a", "image": "b:1", "command": ["ls"]}]}
    pod = manifest_plan_of(load_values(tmp_path, values), tmp_path).pod["spec"]
    assert pod["initContainers"] == [{"name": "a", "image": "b:1", "command": ["ls"]}]
    assert any("ephemeral" in volume for volume in pod["volumes"])
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [expression["key"] for expression in term["matchExpressions"]] == ["autopilot.ibm.com/gpuhealth"]


# --- what a profile cannot express


def test_other_launcher_has_no_admission(tmp_path: Path) -> None:
    """A key that only AppWrappers have is an error for other launchers if a file sets it, not if the chart does."""
    message = get_refusal(write_values(tmp_path, JOB, {"queueName": "team", "retryLimit": 3}, launcher="volcano"))
    assert "values-1.yaml:1: queueName: only AppWrappers have it" in message
    assert "values-1.yaml:2: retryLimit: only AppWrappers have it" in message
    assert load_values(tmp_path, {"queueName": None}, launcher="volcano").options == {}


@pytest.mark.parametrize("path", ["volumes", "nvme"])
def test_two_volumes_at_one_path_are_refused(tmp_path: Path, path: str) -> None:
    """Two volumes at one path are refused: the second would hide the first."""
    volume = {"name": "v", "claimName": "data", "mountPath": "/data"}
    other = {"volumes": [volume] * 2} if path == "volumes" else {"mountNVMe": {"storage": "1Gi", "mountPath": "/data"}}
    assert "volumes: 2 volumes are mounted at /data" in get_refusal(
        write_values(tmp_path, JOB, {"volumes": [volume]}, other)
    )
