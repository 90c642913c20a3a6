"""Profiles and runs of every kind, drawn by hypothesis: all of them are valid, and no launcher refuses one."""

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from torchyard.launchers import registry
from torchyard.loading.profile import _list_hardware, _load_hardware
from torchyard.model.hardware import Hardware
from torchyard.model.plan import Plan
from torchyard.model.pod import _PLAIN_RESOURCES
from torchyard.model.profile import _WITHOUT_AGENT, WITH_AGENT, Profile
from torchyard.model.run import Run

POD_LAUNCHERS = (
    "volcano",
    "pytorchjob",
    "appwrapper",
    "jobset",
    "runai",
)  # add a new launcher here to have the properties tested for it
SHIPPED_HARDWARE = {name: _load_hardware(name) for name in sorted(_list_hardware())}
Keys = st.SearchStrategy[dict[str, Any]]
TEXTS = st.sampled_from(["", "1", "two words", "it's", "$(A) $$", "é", "{world_size}", "a\nb", "-x={node_rank}"])
NAMES = st.sampled_from(["a", "data", "hub-token", "x1", "n" * 63])
KEYS = st.sampled_from(["app", "example.com/kind", "a_b.c", "k" * 63])
VALUES = st.sampled_from(["", "v1", "A_b.c-9", "v" * 63])
VARIABLES = st.sampled_from(["A", "B_2", "NCCL_DEBUG", "NCCL_IB_HCA", "LOGLEVEL", "MASTER_ADDR", "TORCHYARD_RUN"])
AMOUNTS = st.sampled_from(["0", "1", "500m", "64Gi"])
PATHS = st.sampled_from(["/data", "/scratch", "/dev/shm", "/dev/infiniband", "/a b"])
DURATIONS = st.one_of(st.floats(0.001, 3e8), st.sampled_from(["1ms", "90s", "1.5h", "2d"]))
DEVICES = ("gpus", "rdma/rdma", "nvidia.com/gpu")
RESOURCES = st.builds(
    lambda amounts, devices: {**amounts, **devices},
    st.dictionaries(st.sampled_from([name for name in _PLAIN_RESOURCES if name not in DEVICES]), AMOUNTS),
    st.dictionaries(st.sampled_from(DEVICES), st.sampled_from(["0", "1"])),
)


def optional_keys(**keys: st.SearchStrategy[Any]) -> Keys:
    """Any of these keys, or none."""
    return st.fixed_dictionaries({}, optional=keys)


def exactly_one_key(**kinds: st.SearchStrategy[Any]) -> Keys:
    """Exactly one of these keys."""
    return st.one_of(*(st.fixed_dictionaries({kind: value}) for kind, value in kinds.items()))


def short_lists(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, max_size=2, unique_by=str)


BUNDLE = exactly_one_key(secret=NAMES, config_map=NAMES)
SOURCE = st.builds(lambda bundle, key: {**bundle, "key": key}, BUNDLE, NAMES)
ENV = st.dictionaries(VARIABLES, TEXTS | SOURCE, max_size=3)
VOLUMES = exactly_one_key(claim=NAMES, config_map=NAMES, secret=NAMES, host=PATHS, scratch=AMOUNTS, ephemeral=AMOUNTS)
MOUNTS = st.dictionaries(PATHS, VOLUMES, max_size=3)
POD_KEYS: dict[str, st.SearchStrategy[Any]] = dict(
    host_network=st.booleans(),
    host_ipc=st.booleans(),
    spread=st.booleans(),
    privileged=st.booleans(),
    capabilities=short_lists(st.sampled_from(["IPC_LOCK", "SYS_RESOURCE"])),
    devices=short_lists(PATHS),
    shm=AMOUNTS,
    resources=RESOURCES,
    limits=RESOURCES,
    networks=st.dictionaries(st.sampled_from(["sriov", "kube-system/vf"]), st.integers(0, 3)),
    node_selector=st.dictionaries(KEYS, VALUES, max_size=2),
    avoid=st.dictionaries(KEYS, short_lists(VALUES), max_size=2),
    tolerations=short_lists(KEYS),
    scheduler=NAMES,
    env_from=short_lists(BUNDLE),
    annotations=st.dictionaries(KEYS, TEXTS, max_size=2),
    labels=st.dictionaries(KEYS, VALUES, max_size=2),
    workdir=PATHS,
    pull_policy=st.sampled_from(["Always", "Never"]),
    pull_secrets=short_lists(NAMES),
    service_account=NAMES,
    priority_class=NAMES,
)
INIT = st.lists(
    st.fixed_dictionaries({"name": NAMES, "image": st.just("i:1")}, optional={"command": short_lists(TEXTS)}),
    max_size=2,
    unique_by=lambda container: str(container["name"]),
)
POD = optional_keys(init=INIT, **POD_KEYS)
DEADLINES = optional_keys(**dict.fromkeys(("start", "run", "silence", "lease", "grace"), DURATIONS))
JOB_KEYS = optional_keys(args=st.lists(TEXTS, max_size=3), processes=st.integers(1, 16), deadlines=DEADLINES)
POD_JOB_KEYS = optional_keys(env=ENV, resources=RESOURCES, setup=short_lists(TEXTS), mounts=MOUNTS, pod=POD)
FABRIC = st.builds(
    lambda fabric_keys, env_keys: {"about": "drawn", "expect": {"transport": "roce"}, **fabric_keys, **env_keys},
    optional_keys(
        pod=optional_keys(**POD_KEYS), mounts=MOUNTS, compute_domain=NAMES, device_plugin=st.just("app=plugin")
    ),
    st.sampled_from([{}, {"env": {"NCCL_IB_HCA": "=mlx5_0:1"}, "find_gid": True}, {"env": {"NCCL_IB_HCA": "mlx5"}}]),
)
HARDWARE = st.builds(
    lambda match, gpus, fabric: Hardware.model_validate(
        {
            **{"about": "drawn", "source": "here", "line_rate": None, "fabrics": {"one": fabric}},
            **{"match": match, "gpus": {"resource": gpus, "per_node": 8}},
        }
    ),
    *(st.dictionaries(KEYS, VALUES, max_size=2), st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]), FABRIC),
)
OPTIONS: dict[str, Keys] = {
    "volcano": optional_keys(queue=NAMES),
    "pytorchjob": optional_keys(queue=NAMES, suspend=st.booleans()),
    "appwrapper": optional_keys(
        api=st.sampled_from(["workload.codeflare.dev/v1beta2", "mcad.ibm.com/v1beta1"]),
        queue=NAMES,
        retries=st.integers(0, 100),
        priority=st.integers(-10, 10),
        admission=DURATIONS,
        success_ttl=DURATIONS,
    ),
    "runai": st.fixed_dictionaries(
        {"project": st.just("vision"), "through": st.just("kubernetes")}, optional={"interactive": st.booleans()}
    ),
    "jobset": optional_keys(queue=NAMES, suspend=st.booleans()),
    "baremetal": optional_keys(port=st.integers(1024, 65533)),
}


@st.composite
def rendezvous_keys(draw: st.DrawFn, max_nodes: int, elastic: bool) -> dict[str, Any]:
    """A rendezvous with an agent and a number or range of nodes that fit it."""
    rendezvous = draw(st.sampled_from(["c10d", "etcd-v2", "static", "env", "file"]))
    agents = (
        ["torchrun", "launch"]
        if rendezvous in WITH_AGENT
        else ["none"]
        if rendezvous in _WITHOUT_AGENT
        else ["launch", "none"]
    )
    nodes: Any = draw(st.integers(1, max_nodes))
    if rendezvous in WITH_AGENT and elastic and draw(st.booleans()):
        nodes = {"min": draw(st.integers(1, nodes)), "max": nodes}
    file_keys = (
        {"shared_file": draw(st.sampled_from(["/shared/meet", "/it's here/a b"]))} if rendezvous == "file" else {}
    )
    return {"rendezvous": rendezvous, "nodes": nodes, **draw(optional_keys(agent=st.sampled_from(agents))), **file_keys}


@st.composite
def profiles(draw: st.DrawFn, launcher: str) -> Profile:
    """A valid profile of a launcher."""
    in_pods = launcher in POD_LAUNCHERS
    max_length = 32 if launcher == "jobset" else 40
    name = st.sampled_from(["a", "n" * max_length]) | st.from_regex(
        rf"[a-z]([a-z0-9-]{{0,{max_length - 2}}}[a-z0-9])?", fullmatch=True
    )
    keys: dict[str, Any] = {"name": draw(name), "about": "drawn", "launcher": launcher, "program": "train.py"}
    keys |= (
        draw(rendezvous_keys(1000 if in_pods else 4, launcher not in ("jobset", "baremetal")))
        | draw(JOB_KEYS)
        | {"options": draw(OPTIONS[launcher])}
    )
    if in_pods:
        keys |= {"image": draw(st.sampled_from(["i:1", "r:5/i", "i@sha256:0"]))} | draw(POD_JOB_KEYS)
    if in_pods and draw(st.booleans()):
        shape = draw(st.sampled_from([*SHIPPED_HARDWARE.values()]) | HARDWARE)
        keys |= {"hardware": shape, "fabric": draw(st.sampled_from(sorted(shape.fabrics)))}
    if keys.get("resources", {}).get("gpus") == "1":
        keys["processes"] = 1
    return Profile.model_validate(keys)


RUNS = st.builds(
    lambda number, attempt: Run(id=str(UUID(int=number)), attempt=attempt, folder="/runs/here"),
    *(st.integers(0, 2**128 - 1), st.integers(1, 20)),
)


def build_plan(profile: Profile, run: Run) -> Plan:
    return registry.load_launcher(profile.launcher).plan(profile, run)
