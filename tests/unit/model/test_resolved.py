"""What a profile's fabric and hardware file add to it."""

from torchyard.model.hardware import Hardware
from torchyard.model.profile import Profile
from torchyard.model.resolved import resolve

HARDWARE = Hardware.model_validate(
    {
        "about": "a shape",
        "source": "a test",
        "match": {"pool": "train", "zone": "a"},
        "gpus": {"resource": "amd.com/gpu", "per_node": 8},
        "line_rate": None,
        "fabrics": {
            "roce": {
                "about": "RoCE",
                "pod": {"resources": {"example.com/nic": 2, "cpu": 4}, "tolerations": ["nic"]},
                "mounts": {"/fabric": {"host": "/fabric"}, "/data": {"host": "/fabric-data"}},
                "env": {"NCCL_IB_HCA": "mlx5", "NCCL_IB_TC": "41"},
                "setup": ["first"],
                "compute_domain": "domain",
                "claim_templates": ["nics"],
                "expect": {"transport": "roce"},
            }
        },
    }
)
PROFILE = Profile.model_validate(
    {
        "name": "sample",
        "about": "a test",
        "launcher": "volcano",
        "hardware": HARDWARE,
        "fabric": "roce",
        "program": "train.py",
        "env": {"NCCL_IB_TC": "106"},
        "resources": {"gpus": 8, "cpu": 16},
        "mounts": {"/data": {"host": "/own-data"}},
        "setup": ["second"],
        "pod": {"node_selector": {"zone": "b"}, "limits": {"gpus": 8}},
    }
)


def test_settings_of_the_fabric_are_merged_below_those_of_the_profile() -> None:
    """The profile's value counts where both set one; setup runs in the order fabric, profile."""
    profile = resolve(PROFILE)
    assert profile.env == {"NCCL_IB_HCA": "mlx5", "NCCL_IB_TC": "106"}
    assert profile.resources == {"example.com/nic": "2", "cpu": "16", "gpus": "8"}
    assert {path: mount.host for path, mount in profile.mounts.items()} == {
        "/fabric": "/fabric",
        "/data": "/own-data",
    }
    assert profile.setup == ("first", "second")


def test_names_are_those_of_kubernetes() -> None:
    """`gpus` is the resource of the hardware, whose taint is tolerated; what is 0 is not requested."""
    profile = resolve(PROFILE.model_copy(update={"resources": {"gpus": "8", "cpu": "0"}}))
    assert profile.requests == {"example.com/nic": "2", "amd.com/gpu": "8"}
    assert profile.limits == {"amd.com/gpu": "8"}
    assert profile.tolerations == ("amd.com/gpu", "nic")


def test_nodes_and_claims() -> None:
    """The pods' own node selector takes precedence over the hardware's labels; the domain's claim is the first."""
    profile = resolve(PROFILE)
    assert profile.node_labels == {"pool": "train", "zone": "b"}
    assert profile.claims == ("domain", "nics")


def test_profile_without_fabric_adds_nothing() -> None:
    """Without a fabric nothing is expected of the network, and the keys are those of the profile."""
    profile = resolve(PROFILE.model_copy(update={"fabric": None}))
    assert (profile.expect, profile.claims, profile.env) == (None, (), PROFILE.env)


def test_user_keys_stay_known() -> None:
    """A resolved profile still says which keys the user has set."""
    assert resolve(PROFILE).model_fields_set == PROFILE.model_fields_set
