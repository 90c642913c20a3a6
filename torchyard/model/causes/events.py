"""Causes that only events show: why the pods of a job are not created, or do not start."""

import math

from torchyard.model.causes.cause import Cause, CauseFacts, EventRule, LogRule, PodRule
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.causes.pods import PodCause


class EventCause(Cause):
    """What prevents the pods of a job."""

    POD_NETWORK = CauseFacts("pod-network")
    QUOTA = CauseFacts("quota")


_VOLUME_EVENTS = "FailedMount|FailedAttachVolume|FailedMapVolume"
# Kubelets report these about a pod; controllers report the last ones about an object that should have pods.
EVENT_RULES = (
    EventRule(
        _VOLUME_EVENTS,
        r'(?:secret|configmap|persistentvolumeclaim) "?[^ ]* ?not found|non-existent',
        PodRule(
            cause=PlatformCause.VOLUME_MOUNT,
            description="one of its volumes names an object that does not exist",
            patience_s=90,
        ),
    ),
    EventRule(
        _VOLUME_EVENTS,
        "",
        PodRule(
            cause=PlatformCause.VOLUME_MOUNT,
            description="one of its volumes cannot be mounted",
            own_retry=True,
            patience_s=math.inf,
        ),
    ),
    EventRule(
        "FailedCreatePodSandBox",
        r'(?i)network-?attachment[\w.-]* "[^"]*" (?:not found|does not exist)',
        PodRule(cause=EventCause.POD_NETWORK, description="a network that it names does not exist", patience_s=90),
    ),
    EventRule(
        "FailedCreatePodSandBox|NetworkNotReady",
        "",
        PodRule(
            cause=EventCause.POD_NETWORK,
            description="its node cannot connect it to a network",
            own_retry=True,
            patience_s=math.inf,
        ),
    ),
    EventRule(
        "FailedCreatePodContainer",
        "",
        PodRule(
            cause=PodCause.START_ERROR,
            description="its node cannot start its container",
            own_retry=True,
            patience_s=math.inf,
        ),
    ),
    EventRule(
        r"FailedCreate\w*",
        r"exceeded quota.*used: (?:[^ =,]+=0,)*[^ =,]+=0, ",
        PodRule(
            cause=EventCause.QUOTA,
            description="its pods may not be created, each requests more than the namespace's quota",
            patience_s=60,
        ),
    ),
    EventRule(
        r"FailedCreate\w*",
        "exceeded quota",
        PodRule(
            cause=EventCause.QUOTA,
            description="its pods may not be created, the namespace's quota is used up",
            patience_s=math.inf,
        ),
    ),
    EventRule(
        r"FailedCreate\w*",
        "admission webhook|ValidatingAdmissionPolicy|violates PodSecurity",
        PodRule(cause=PodCause.POD_REFUSED, description="the cluster's admission rules refuse its pods", patience_s=60),
    ),
    # Faults of the API server and its webhooks, and conflicts with other writers: the controller tries again.
    EventRule(
        r"FailedCreate\w*",
        "failed calling webhook|Internal ?[Ee]rror|Operation cannot be fulfilled|status unknown for quota|etcdserver|"
        "(?i:too many requests|timed? ?out)|dial tcp|connection re(?:fused|set)|context deadline exceeded|EOF",
        PodRule(
            cause=PodCause.POD_REFUSED,
            description="its pods cannot be created yet",
            own_retry=True,
            patience_s=math.inf,
        ),
    ),
    EventRule(
        r"FailedCreate\w*",
        "",
        PodRule(cause=PodCause.POD_REFUSED, description="its pods cannot be created", patience_s=60),
    ),
)

# Events as text: a log that contains what kubectl prints about a pod.
EVENT_LOG_RULES = (
    LogRule(
        cause=EventCause.POD_NETWORK,
        symptom="could not be connected to its network ({evidence})",
        patterns=(
            r"FailedCreatePodSandBox.{0,400}(?:[Nn]etwork|\bcni\b|\bCNI\b)",
            r"(?:failed to set ?up|failed to setup) network for sandbox",
            "cni plugin not initialized",
            r"plugin type=\"[\w-]{1,60}\".{0,60} failed",
        ),
        own_advice="look at the CNI pods of its node",
        own_retry=True,
    ),
    LogRule(
        cause=PodCause.DEVICE_LOST,
        symptom="got no device from its node ({evidence})",
        patterns=(
            "UnexpectedAdmissionError",
            r"Allocate failed due to",
            "no healthy devices present",
            "cannot allocate unhealthy devices",
        ),
        own_advice="look at the device plugin of its node",
    ),
    LogRule(
        cause=PodCause.POD_REFUSED,
        symptom="was not created: the cluster's webhook does not respond ({evidence})",
        patterns=("failed calling webhook",),
        own_advice="look at the webhook's pods",
        own_retry=True,
    ),
    LogRule(
        cause=PodCause.POD_REFUSED,
        symptom="was refused by the cluster's admission rules ({evidence})",
        patterns=(
            r"admission webhook .{1,200} denied",
            "violates PodSecurity",
            r"ValidatingAdmissionPolicy .{1,200} denied",
        ),
    ),
)
