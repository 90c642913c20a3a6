"""The volumes of a pod."""

from tests.builders.plan_parts import get_container, get_mounts
from tests.conftest import Planned
from torchyard.model.requirements import ReferencedObject

HOST = {"hardware": "oke/bm-gpu-b4-8", "fabric": "host", "on_hang": "off"}


def test_host_fabric_has_the_devices_and_shared_memory(planned: Planned) -> None:
    """The RDMA devices are the node's, and /dev/shm is 32 GiB of memory."""
    mounts = get_mounts(planned(**HOST))
    assert mounts["/dev/infiniband"] == {"hostPath": {"path": "/dev/infiniband"}}
    assert mounts["/dev/shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}


def test_mounts_become_volumes(planned: Planned) -> None:
    """Each kind of mount becomes the matching Kubernetes volume."""
    mounts = {
        "/data": {"claim": "coco"},
        "/etc/site": {"config_map": "site"},
        "/etc/keys": {"secret": "keys"},
        "/models": {"host": "/nvme/models"},
        "/scratch": {"scratch": "1Ti"},
        "/nvme": {"ephemeral": "800Gi", "storage_class": "local"},
    }
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "800Gi"}}}
    assert get_mounts(planned(mounts=mounts, on_hang="off")) == {
        "/data": {"persistentVolumeClaim": {"claimName": "coco"}},
        "/etc/site": {"configMap": {"name": "site"}},
        "/etc/keys": {"secret": {"secretName": "keys"}},
        "/models": {"hostPath": {"path": "/nvme/models"}},
        "/scratch": {"emptyDir": {"sizeLimit": "1Ti"}},
        "/nvme": {"ephemeral": {"volumeClaimTemplate": {"spec": storage | {"storageClassName": "local"}}}},
    }


def test_read_only_is_set_on_the_mount(planned: Planned) -> None:
    """A mount that is read_only cannot be written in the pod."""
    plan = planned(mounts={"/data": {"claim": "coco", "read_only": True}, "/out": {"claim": "out"}}, on_hang="off")
    assert [mount.get("readOnly", False) for mount in get_container(plan)["volumeMounts"]] == [True, False]


def test_own_shared_memory_comes_first(planned: Planned) -> None:
    """A mount of the profile replaces the fabric's at the same path, and no path is mounted twice."""
    plan = planned(**HOST, mounts={"/dev/shm": {"scratch": "1Gi"}})
    assert get_mounts(plan)["/dev/shm"] == {"emptyDir": {"sizeLimit": "1Gi"}}
    paths = [mount["mountPath"] for mount in get_container(plan)["volumeMounts"]]
    assert sorted(paths) == ["/dev/infiniband", "/dev/shm", "/run/torchyard"]


GDR = {"hardware": "vela/a100", "fabric": "gdr", "on_hang": "off"}


def test_fabric_mounts_what_it_needs(planned: Planned) -> None:
    """Vela's topology file and variables come from two ConfigMaps, which must exist before the job."""
    plan = planned(**GDR)
    paths = {mount["mountPath"] for mount in get_container(plan)["volumeMounts"]}
    assert "/var/run/nvidia-topologyd" in paths
    for name in ("topo-gdr-2vf-canary", "nccl-netwk-env-vars"):
        assert ReferencedObject(object_kind="ConfigMap", name=name) in plan.requires


def test_mount_of_the_profile_comes_first(planned: Planned) -> None:
    """A profile may mount a topology of its own in place of the fabric's."""
    plan = planned(**GDR, mounts={"/var/run/nvidia-topologyd": {"config_map": "ours"}})
    config_maps = [volume["configMap"]["name"] for volume in plan.pod["spec"]["volumes"] if "configMap" in volume]
    assert config_maps == ["ours", f"{plan.job}-files"]
