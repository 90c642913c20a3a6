"""The settings of a pod: those of the fabric and the profile together."""

import pytest

from tests.conftest import Planned, Write, load
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ProfileError
from torchyard.model.pod import Mount, Pod
from torchyard.model.profile import Profile


def test_mappings_of_two_pods_are_merged() -> None:
    """Labels of the profile are added to those of the fabric, and replace them if both set the same one."""
    merged = Pod(labels={"team": "vision", "tier": "gold"}).merge_over(Pod(labels={"fabric": "host", "tier": "any"}))
    assert merged.labels == {"fabric": "host", "tier": "gold", "team": "vision"}


def test_lists_of_two_pods_are_merged() -> None:
    """Capabilities of the profile are added to those of the fabric."""
    assert Pod(capabilities=("SYS_PTRACE", "IPC_LOCK")).merge_over(Pod(capabilities=("IPC_LOCK",))).capabilities == (
        "IPC_LOCK",
        "SYS_PTRACE",
    )


def test_empty_list_removes_that_of_the_fabric() -> None:
    """`capabilities: []` in a profile is a pod without capabilities."""
    assert Pod(capabilities=()).merge_over(Pod(capabilities=("IPC_LOCK",))).capabilities == ()
    assert Pod().merge_over(Pod(capabilities=("IPC_LOCK",))).capabilities == ("IPC_LOCK",)


def test_patches_are_stored(write: Write) -> None:
    """A process that resumes a run reads the patches of its profile as they were."""
    patch = {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["head"]}]}}
    profile = load_profile(
        str(write(launcher="job", image="a:1", program="x.py", pod={"patch": patch}, job={"patch": patch}))
    )
    assert Profile.model_validate_json(profile.model_dump_json(exclude_unset=True)) == profile
    with pytest.raises(ProfileError, match="must be a mapping, with a part of the Kubernetes object"):
        load_profile(str(write(launcher="job", image="a:1", program="x.py", pod={"patch": [patch]})))


@pytest.mark.parametrize("kind", ["claim", "config_map", "secret", "host"])
def test_mount_has_a_name(kind: str) -> None:
    """An empty name is refused: the API server would mount an empty folder that is lost with the pod."""
    with pytest.raises(ValueError, match="at least 1 character"):
        Mount.model_validate({kind: ""})


@pytest.mark.parametrize("keys", [{}, {"claim": "data", "host": "/data"}], ids=["none", "two"])
def test_mount_has_exactly_one_kind(keys: dict[str, str]) -> None:
    """A mount without a volume, or with two, is refused."""
    with pytest.raises(ValueError, match="must have exactly one of claim, config_map"):
        Mount.model_validate(keys)


def test_number_of_interfaces_is_limited(write: Write) -> None:
    """The annotation names a network once for each interface: an absurd number is one sentence and not 22 GB."""
    with pytest.raises(ProfileError, match=r"pod\.networks\.a/b: must be less than or equal to 256"):
        load(write(launcher="volcano", image="train:v1", pod={"networks": {"a/b": 2**31}}))


def test_single_values_are_replaced() -> None:
    """A single value of the profile replaces the fabric's, even if it is false."""
    merged = Pod(shm="64Gi", privileged=False).merge_over(Pod(shm="32Gi", privileged=True))
    assert (merged.shm, merged.privileged) == ("64Gi", False)


def test_shared_memory_is_a_volume_in_memory() -> None:
    """`shm` is the size of /dev/shm, and without it the pod has no volume in memory."""
    assert (Pod(shm="64Gi").memory_volumes, Pod().memory_volumes) == ({"/dev/shm": "64Gi"}, {})


def test_settings_of_the_fabric_are_kept(planned: Planned) -> None:
    """A profile that adds to the pod keeps all settings of the fabric."""
    fabric = load_profile("yolov5-volcano").network
    assert fabric
    added = Pod(labels={"a": "b"}, tolerations=("spot",), devices=("/dev/gdrdrv",), workdir="/w").merge_over(fabric.pod)
    unchanged = {key: value for key, value in added if key not in ("labels", "tolerations", "devices", "workdir")}
    assert unchanged.items() <= dict(fabric.pod).items()
    assert added.devices == ("/dev/infiniband", "/dev/gdrdrv")


def test_resource_may_have_a_full_name(write: Write) -> None:
    """A resource of a device plugin is requested by its full name."""
    assert (
        load(write(launcher="volcano", image="i:1", resources={"rdma/rdma": 1, "hugepages-2Mi": "1Gi"})).resources[
            "rdma/rdma"
        ]
        == "1"
    )
