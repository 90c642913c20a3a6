"""Causes in the status of pods, which only the controllers and kubelets report and no log shows."""

from torchyard.model.causes.cause import Cause, CauseFacts, PodRule
from torchyard.model.causes.platform import PlatformCause


class PodCause(Cause):
    """A pod that its node or its controller does not run."""

    POD_CONFIG = CauseFacts("pod-config")
    START_ERROR = CauseFacts("start-error")
    INIT_FAILED = CauseFacts("init-failed", points_at_node=False)
    CRASH_LOOP = CauseFacts("crash-loop")
    OOM_POD = CauseFacts("oom-pod")
    DEVICE_LOST = CauseFacts("device-lost", retry=True)
    POD_REFUSED = CauseFacts("pod-refused")
    NUMA_TOPOLOGY = CauseFacts("numa-topology", retry=True)
    POD_DEADLINE = CauseFacts("pod-deadline")
    POD_DELETED = CauseFacts("pod-deleted", retry=True, points_at_node=False)


IMAGE_PULL_FAILED = PodRule(cause=PlatformCause.IMAGE_PULL, description="its image cannot be pulled", patience_s=90)
_IMAGE_UNUSABLE = PodRule(cause=PlatformCause.IMAGE_PULL, description="its image cannot be pulled")
_REGISTRY_UNREACHABLE = PodRule(
    cause=PlatformCause.IMAGE_PULL,
    description="its image cannot be pulled, because its registry does not respond",
    own_retry=True,
    patience_s=300,
)
_IMAGE_REFUSED = PodRule(
    cause=PlatformCause.IMAGE_PULL,
    description="its registry refuses it the image: see pod.pull_secrets and the image's name",
    patience_s=90,
)
_IMAGE_NOT_FOUND = PodRule(
    cause=PlatformCause.IMAGE_PULL,
    description="its registry has no such image: correct its name or tag",
    patience_s=90,
)
_CONTAINER_NOT_CREATED = PodRule(
    cause=PodCause.POD_CONFIG, description="its container cannot be created", patience_s=60
)
_COMMAND_FAILED = PodRule(cause=PodCause.START_ERROR, description="its command cannot be started", patience_s=30)
_COMMAND_NOT_STARTED = PodRule(cause=PodCause.START_ERROR, description="its command cannot be started")
_NODE_SHUT_DOWN = PodRule(cause=PlatformCause.NODE_LOST, description="its node was shut down", is_planned=True)

INIT_ERROR = "InitError"  # torchyard's own reason: Kubernetes reports only `Error` of the container
OUT_OF_RESOURCE = "OutOf*"  # with the name of a resource: OutOfcpu, OutOfnvidia.com/gpu
# Kubernetes' own reasons: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and kubelet's sources.
POD_RULES = {
    "ErrImagePull": IMAGE_PULL_FAILED,
    "ImagePullBackOff": IMAGE_PULL_FAILED,
    "RegistryUnavailable": _REGISTRY_UNREACHABLE,
    "InvalidImageName": _IMAGE_UNUSABLE,
    "ErrImageNeverPull": _IMAGE_UNUSABLE,
    "ImageInspectError": IMAGE_PULL_FAILED,
    "SignatureValidationFailed": PodRule(
        cause=PlatformCause.IMAGE_PULL, description="its image's signature is not accepted"
    ),
    "CreateContainerConfigError": _CONTAINER_NOT_CREATED,
    "CreateContainerError": _CONTAINER_NOT_CREATED,
    "RunContainerError": _COMMAND_FAILED,
    "ContainerCannotRun": _COMMAND_NOT_STARTED,
    "StartError": _COMMAND_NOT_STARTED,
    "PostStartHookError": PodRule(cause=PodCause.START_ERROR, description="its postStart hook failed"),
    INIT_ERROR: PodRule(cause=PodCause.INIT_FAILED, description="a container that starts before the job's failed"),
    "CrashLoopBackOff": PodRule(cause=PodCause.CRASH_LOOP, description="it crashes repeatedly"),
    "OOMKilled": PodRule(cause=PodCause.OOM_POD, description="it used more memory than its limit"),
    "Evicted": PodRule(cause=PlatformCause.EVICTED, description="its node evicted it"),
    "NodeLost": PodRule(cause=PlatformCause.NODE_LOST, description="its node was lost"),
    "NodeShutdown": _NODE_SHUT_DOWN,
    "Shutdown": _NODE_SHUT_DOWN,
    "Terminated": _NODE_SHUT_DOWN,
    "ContainerStatusUnknown": PodRule(
        cause=PlatformCause.NODE_LOST, description="its node lost its container, for example in a reboot"
    ),
    "Preempting": PodRule(cause=PlatformCause.PREEMPTED, description="it was preempted"),
    "UnexpectedAdmissionError": PodRule(
        cause=PodCause.DEVICE_LOST, description="its node had no working device for it"
    ),
    OUT_OF_RESOURCE: PodRule(cause=PodCause.DEVICE_LOST, description="its node had no room left for it"),
    "NodeAffinity": PodRule(
        cause=PodCause.POD_REFUSED, description="its node's labels changed and do not match it", own_retry=True
    ),
    "TopologyAffinityError": PodRule(
        cause=PodCause.NUMA_TOPOLOGY,
        description="its node's topology manager found no NUMA node for it: request the resources of one",
    ),
    "DeadlineExceeded": PodRule(cause=PodCause.POD_DEADLINE, description="its own activeDeadlineSeconds ended it"),
    "PreemptionByScheduler": PodRule(
        cause=PlatformCause.PREEMPTED, description="it was preempted for a pod of higher priority"
    ),
    "DeletionByTaintManager": PodRule(cause=PlatformCause.NODE_LOST, description="its node does not respond"),
    "EvictionByEvictionAPI": PodRule(cause=PlatformCause.EVICTED, description="its node was drained", is_planned=True),
    "DeletionByPodGC": PodRule(cause=PlatformCause.NODE_LOST, description="its node is gone"),
    "TerminationByKubelet": PodRule(cause=PlatformCause.EVICTED, description="its node evicted it"),
    "Evict": PodRule(cause=PlatformCause.PREEMPTED, description="Volcano evicted it for another job"),
}
# Messages of containerd and CRI-O about an image that could not be pulled.
PULL_RULES = (
    (
        r"denied|(?i:unauthorized)|no basic auth|authentication required|\b401\b|\b403\b",
        _IMAGE_REFUSED,
    ),
    (
        r"no such host|dial tcp|connection re(?:fused|set)|timed? ?out|EOF|50[0234] |429 |toomanyrequests",
        _REGISTRY_UNREACHABLE,
    ),
    (r"not found|manifest unknown|does not exist|404 ", _IMAGE_NOT_FOUND),
)
# States of Run:ai, in addition to those of Kubernetes.
RUNAI_RULES = {
    "preempted": PodRule(cause=PlatformCause.PREEMPTED, description="Run:ai preempted it"),
    "timedout": PodRule(cause=PodCause.POD_DEADLINE, description="Run:ai ended it at one of its own time limits"),
}
