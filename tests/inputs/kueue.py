"""Workloads of Kueue, with the conditions that Kueue 0.17 gave a preempted job."""

from typing import Any

EVICTED_AT = 1_700_000_000.0
_TIME = "2023-11-14T22:13:20Z"
WAITING = {
    "type": "QuotaReserved",
    "status": "False",
    "reason": "Pending",
    "lastTransitionTime": _TIME,
    "message": (
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor any, 1 more needed"
    ),
}
PREEMPTED = {
    "type": "Evicted",
    "status": "True",
    "reason": "Preempted",
    "lastTransitionTime": _TIME,
    "message": (
        "Preempted to accommodate a workload (UID: 03a2ea89-98d8-4d37-8aeb-4fc189e4719a, JobUID: "
        "176bde50-3ae2-4cac-ad0b-b4be2f026a96) due to prioritization in the ClusterQueue; preemptor path: /try; "
        "preemptee path: /try"
    ),
}


def build_workload(*conditions: dict[str, Any], active: bool = True) -> dict[str, Any]:
    """A Workload with these conditions. `active`: False if an administrator has deactivated it."""
    return {"spec": {"active": active, "queueName": "q"}, "status": {"conditions": list(conditions)}}
