"""What the events of a job's objects mean, and when they were seen."""

import functools
import math
import re
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import part, seconds, text
from torchyard.diagnosis.pod_reasons import SHOWN, Reason

GO = re.compile(r'Message:"((?:[^"\\]|\\.)*)"')


class Sign(NamedTuple):
    """What an event means; one that stays so for longer than the reason's patience ends a job that has not started."""

    event: str
    says: str
    reason: Reason


VOLUME = "FailedMount|FailedAttachVolume|FailedMapVolume"
# Kubelets say these of a pod, controllers the last ones of what should have pods.
SIGNS = (
    Sign(
        VOLUME,
        r'(?:secret|configmap|persistentvolumeclaim) "?[^ ]* ?not found|non-existent',
        Reason("volume-mount", "one of its volumes names what is not there", patience=90),
    ),
    Sign(VOLUME, "", Reason("volume-mount", "one of its volumes cannot be mounted", True, math.inf)),
    Sign(
        "FailedCreatePodSandBox",
        "(?i)network-?attachment",
        Reason("pod-network", "a network that it names is not there", patience=90),
    ),
    Sign(
        "FailedCreatePodSandBox|NetworkNotReady",
        "",
        Reason("pod-network", "its node cannot connect it to a network", True, math.inf),
    ),
    Sign(
        r"FailedCreate\w*",
        r"exceeded quota.*used: (?:[^ =,]+=0,)*[^ =,]+=0, ",
        Reason("quota", "its pods may not be created, each asks for more than the namespace's quota", patience=60),
    ),
    Sign(
        r"FailedCreate\w*",
        "exceeded quota",
        Reason("quota", "its pods may not be created, the namespace's quota is used up", patience=math.inf),
    ),
    Sign(r"FailedCreate\w*", "", Reason("pod-refused", "its pods cannot be created", patience=60)),
)


@functools.lru_cache(maxsize=256)
def signs_of(reason: str) -> tuple[Sign, ...]:
    """What an event with this reason may be a sign of; most warnings are a sign of nothing."""
    return tuple(sign for sign in SIGNS if re.fullmatch(sign.event, reason))


def shows(event: Any, sign: Sign) -> bool:
    return sign in signs_of(text(event.get("reason"))) and bool(re.search(sign.says, text(event.get("message"))))


def short(message: Any) -> str:
    """A controller's message, in one line; of an error that Go has printed with all its parts, the message in it."""
    inner = GO.search(text(message))
    said = inner[1].replace('\\"', '"') if inner else text(message)
    return re.sub(r"\s+", " ", said)[:SHOWN]


def first_seen(event: Any) -> float:
    made = part(event, "metadata").get("creationTimestamp")
    return next(
        (at for each in (event.get("firstTimestamp"), event.get("eventTime"), made) if (at := seconds(each))), 0.0
    )


def last_seen(event: Any) -> float:
    series = part(event, "series").get("lastObservedTime")
    return max(first_seen(event), seconds(event.get("lastTimestamp")), seconds(series))
