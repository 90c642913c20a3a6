"""What a profile needs from the place where its job runs, read from its plan: for those who choose a profile to run."""

from collections.abc import Iterator

from torchyard.common.secrets import mask_text
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.requirements import Capacity, CrdServed, Gpus, OpenQueue, ReferencedObject, ScriptCheck
from torchyard.pages.plan import describe_location, join_items


def render_needs(profile: Profile, plan: Plan) -> str:
    """The needs as a list in Markdown, after a line that introduces it. Secrets are masked."""
    return mask_text("\n".join(["Needs:", *(f"- {line}" for line in list_needs(profile, plan))]))


def list_needs(profile: Profile, plan: Plan) -> list[str]:
    """The place, the scheduler, the nodes with their GPUs and devices, the network and the image, one text each.

    Folders, permissions and controllers are left to preflight, which reads whether they are there.
    """
    lines = [describe_location(plan), *_list_required(plan)]
    is_counted = any(isinstance(requirement, Capacity | Gpus) for requirement in plan.requires)
    if profile.resources and not is_counted:
        lines.append(f"{profile.nodes} nodes, each with {join_items(profile.resources)}")
    if profile.hardware:
        lines.append(f"hardware {profile.hardware.name}")
    if profile.network:
        lines.append(f"network {profile.network.expect.transport}: {profile.network.about}")
    if profile.image:
        lines.append(f"image {profile.image}")
    return lines


def _list_required(plan: Plan) -> Iterator[str]:
    for requirement in plan.requires:
        match requirement:
            case CrdServed():
                yield f"{requirement.crd}; to install it: {requirement.install}"
            case OpenQueue():
                yield f"queue {requirement.name}"
            case Capacity():
                yield _describe_capacity(requirement)
            case ReferencedObject():
                yield f"{requirement.object_kind} {requirement.name}"
            case Gpus():
                yield f"{requirement.count} GPUs on {requirement.host}"
            case ScriptCheck(settings={"cli": cli, "project": project}):
                yield f"the command line `{cli}`, project {project}"
            case _:
                pass


def _describe_capacity(capacity: Capacity) -> str:
    """`2 nodes, each with nvidia.com/gpu 1, labels node.kubernetes.io/instance-type=BM.GPU.B4.8`"""
    unit = "nodes" if capacity.one_per_node else "pods"
    parts = [f"{capacity.pods} {unit}"]
    if capacity.resources:
        parts.append(f"each with {join_items(capacity.resources)}")
    if capacity.labels:
        parts.append("labels " + ", ".join(f"{key}={value}" for key, value in capacity.labels.items()))
    if capacity.device_plugin:
        parts.append(f"device plugin {capacity.device_plugin}")
    return ", ".join(parts)
