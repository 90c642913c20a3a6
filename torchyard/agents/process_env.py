"""What a program is told of its job: in its arguments, in its environment, and by a file."""

import re
from typing import Any, assert_never

from torchyard.agents.torchrun import LOCAL_ADDR_VARIABLE, JobNode
from torchyard.model.profile import Profile
from torchyard.model.run import Run

NODE_VARIABLE = "TORCHYARD_NODE"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def escape_dollars(text: str) -> str:
    """The text as the kubelet makes it the same again: it takes `$(NAME)` for a variable, and `$$` for one `$`."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def command_word(text: str, place: JobNode) -> str:
    """A text of the profile's as a word of a command: in pods the kubelet reads every word."""
    return escape_dollars(text) if isinstance(place.node, str) else text


def program_arguments(profile: Profile, run: Run, place: JobNode) -> tuple[str, ...]:
    """The program's arguments, with what it is told in the place of `{nodes}`, `{node_rank}` and the like."""
    told = {
        "nodes": str(profile.nodes),
        "processes": str(profile.processes),
        "world_size": str(profile.world_size),
        "node_rank": place.rank,
        "master_addr": place.endpoint.address,
        "master_port": str(place.endpoint.port),
        "rendezvous": _init_method_url(profile, run, place),
    }
    given = (command_word(each, place) for each in profile.args)
    return tuple(_PLACEHOLDER.sub(lambda found: told.get(found[1], found[0]), each) for each in given)


def _init_method_url(profile: Profile, run: Run, place: JobNode) -> str:
    """Where a program without an agent meets: what torch calls its init_method."""
    match profile.rendezvous:
        case "file":
            return f"file://{command_word(rendezvous_file(profile, run, run.attempt), place)}"
        case "env":
            return "env://"
        case "static" | "c10d" | "etcd-v2":
            return f"tcp://{place.endpoint}"
        case _:
            assert_never(profile.rendezvous)


def rendezvous_file(profile: Profile, run: Run, attempt: int) -> str:
    """A file of the attempt's own: torch waits for ever in one that another attempt has used."""
    return f"{profile.shared_file}.{run.name(profile)}-{attempt}"


def program_environment(profile: Profile, place: JobNode) -> dict[str, str]:
    """What a program without an agent is told, be it one process or many: RANK is that of its node."""
    if profile.starter != "none":
        return {}
    return {
        "MASTER_ADDR": place.endpoint.address,
        "MASTER_PORT": str(place.endpoint.port),
        "WORLD_SIZE": str(profile.world_size),
        "RANK": place.rank,
    }


def pod_environment(profile: Profile, place: JobNode, index: str) -> list[dict[str, Any]]:
    """The same in a pod, after TORCHYARD_NODE, which the kubelet reads from the field `index` of the pod.

    An agent is told the pod's own address here, because older ones end at an option that they do not know.
    """
    node = {"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": index}}}
    own = {LOCAL_ADDR_VARIABLE: place.address} if place.address and profile.starter != "none" else {}
    return [
        node,
        *({"name": name, "value": value} for name, value in {**own, **program_environment(profile, place)}.items()),
    ]
