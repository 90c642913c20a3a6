"""Causes that only events show: why the pods of a job are not created, or do not start."""

import math

from torchyard.model.causes.cause import Cause, CauseFacts, EventRule, PodRule
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
        "(?i)network-?attachment.{0,200}(?:not found|cannot find|does not exist)|cannot find a network-attachment",
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
    EventRule(
        r"FailedCreate\w*",
        "",
        PodRule(cause=PodCause.POD_REFUSED, description="its pods cannot be created", patience_s=60),
    ),
)
