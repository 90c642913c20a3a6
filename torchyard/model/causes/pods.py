"""Causes in the status of pods, which only the controllers and kubelets report and no log shows."""

import math

from torchyard.model.causes.cause import Cause, CauseFacts, PodRule
from torchyard.model.causes.gpu import GpuCause
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
_PULL_LIMITED = PodRule(
    cause=PlatformCause.IMAGE_PULL,
    description="its image cannot be pulled yet, because pulls are limited",
    own_retry=True,
    patience_s=300,
)
_NODE_CANNOT_STORE = PodRule(
    cause=PlatformCause.IMAGE_PULL, description="its node cannot store its image", own_retry=True, patience_s=300
)
_WRONG_PLATFORM = PodRule(
    cause=PlatformCause.IMAGE_PULL,
    description="its image has no build for its node's platform",
    patience_s=90,
)
_CONTAINER_NOT_CREATED = PodRule(
    cause=PodCause.POD_CONFIG, description="its container cannot be created", patience_s=60
)
_COMMAND_FAILED = PodRule(cause=PodCause.START_ERROR, description="its command cannot be started", patience_s=30)
_COMMAND_NOT_STARTED = PodRule(cause=PodCause.START_ERROR, description="its command cannot be started")
_NODE_CANNOT_START = PodRule(
    cause=PodCause.START_ERROR, description="its node cannot start its container", own_retry=True, patience_s=300
)
_DRIVER_BROKEN = PodRule(
    cause=GpuCause.DRIVER_BROKEN, description="its node's GPU driver does not respond", patience_s=300
)
_DRIVER_TOO_OLD = PodRule(
    cause=GpuCause.DRIVER_TOO_OLD, description="its node's GPU driver is too old for its image", patience_s=30
)
_NODE_SHUT_DOWN = PodRule(cause=PlatformCause.NODE_LOST, description="its node was shut down", is_planned=True)
_NODE_PREEMPTED = PodRule(cause=PlatformCause.PREEMPTED, description="it was preempted")
_OWN_STORAGE_LIMIT = PodRule(
    cause=PlatformCause.EVICTED,
    description="its node evicted it, because it stored more than its own limit",
    own_retry=False,
)

# torchyard's own reasons. Their messages begin with what Kubernetes reports.
INIT_ERROR = "InitError"  # Kubernetes reports only `Error` of the container
POD_REJECTED = "PodRejected"  # of a pod that failed before a container started, for a reason that is not listed
DISRUPTION = "Disruption"  # of a pod that is being ended, for a reason that is not listed
CONTAINER_WAITING = "ContainerWaiting"  # of a container that does not start, for a reason that is not listed
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
    "Preempting": _NODE_PREEMPTED,
    "UnexpectedAdmissionError": PodRule(
        cause=PodCause.DEVICE_LOST, description="its node could not allocate what it requests"
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
    POD_REJECTED: PodRule(cause=PodCause.POD_REFUSED, description="its node refused it", own_retry=True),
    DISRUPTION: PodRule(cause=PlatformCause.TERMINATED, description="the cluster ended it", is_planned=True),
    CONTAINER_WAITING: PodRule(
        cause=PodCause.START_ERROR, description="its container does not start", own_retry=True, patience_s=math.inf
    ),
}
_NO_ANSWER = r"dial tcp|connection re(?:fused|set)|timed out|(?:i/o|request) timeout|context deadline exceeded|\bEOF\b"
_DISK_FAULT = "no space left on device|input/output error"
_OVERLOAD = "cannot allocate memory|resource temporarily unavailable|too many open files|device or resource busy"
_MISSING_COMMAND = "executable file not found|permission denied|no such file or directory|not a directory|exec format"
# Messages of containerd, CRI-O, Docker and kubelets about an image that could not be pulled.
PULL_RULES = (
    (
        r"no match for .{0,60}platform|no matching manifest for|no image found in (?:manifest list|image index)",
        _WRONG_PLATFORM,
    ),
    (r"\b429\b|(?i:too ?many ?requests|QPS exceeded|quota exceeded|rate exceeded)", _PULL_LIMITED),
    (
        r"denied|(?i:unauthorized)|no basic auth|authentication required|\b401\b|\b403\b",
        _IMAGE_REFUSED,
    ),
    (f"{_DISK_FAULT}|read-only file system", _NODE_CANNOT_STORE),
    (
        _NO_ANSWER
        + "|no such host|server misbehaving|name resolution|(?i:time ?out)|context canceled|http2: |stream error|"
        + "unexpected commit|50[0234] ",
        _REGISTRY_UNREACHABLE,
    ),
    (r"not found|manifest unknown|does not exist|404 ", _IMAGE_NOT_FOUND),
)
_DRIVER_RULES = (
    ("unsatisfied condition: cuda", _DRIVER_TOO_OLD),
    (
        "nvidia-container-cli: (?:initialization|detection|device|container) error|nvml error|unresolvable CDI device",
        _DRIVER_BROKEN,
    ),
)
_NODE_RULES = (
    (
        f"{_NO_ANSWER}|{_DISK_FAULT}|{_OVERLOAD}|failed to sync .{{0,60}}cache|not yet been read|is reserved",
        _NODE_CANNOT_START,
    ),
)
# What the pod names comes before what its node lacks: a name may contain any word.
_CREATE_RULES = (*_DRIVER_RULES, ("not found|couldn't find key", _CONTAINER_NOT_CREATED), *_NODE_RULES)
_START_RULES = (*_DRIVER_RULES, (_MISSING_COMMAND, _COMMAND_FAILED), *_NODE_RULES)
_STORAGE_RULES = ((r"exceeds the (?:total )?limit|exceeded its local ephemeral storage limit", _OWN_STORAGE_LIMIT),)
# Reasons whose message shows more: the first pattern that is found in it decides. If none is, the reason alone counts.
MESSAGE_RULES = {
    "ErrImagePull": PULL_RULES,
    "ImagePullBackOff": PULL_RULES,
    "ImageInspectError": PULL_RULES,
    "CreateContainerConfigError": _CREATE_RULES,
    "CreateContainerError": _CREATE_RULES,
    "RunContainerError": _START_RULES,
    "ContainerCannotRun": _START_RULES,
    "StartError": _START_RULES,
    "UnexpectedAdmissionError": (
        (
            r"(?i)\bdevices?\b",
            PodRule(cause=PodCause.DEVICE_LOST, description="its node had no working device for it"),
        ),
    ),
    "Evicted": _STORAGE_RULES,
    "TerminationByKubelet": (
        ("node shutdown", _NODE_SHUT_DOWN),
        ("admit critical pod", _NODE_PREEMPTED),
        *_STORAGE_RULES,
    ),
}
# States of Run:ai, in addition to those of Kubernetes.
RUNAI_RULES = {
    "preempted": PodRule(cause=PlatformCause.PREEMPTED, description="Run:ai preempted it"),
    "timedout": PodRule(cause=PodCause.POD_DEADLINE, description="Run:ai ended it at one of its own time limits"),
}
