"""What torchrun and its rendezvous will do in a job that its author does not expect. Measured with torch 2.13."""

import re
from collections.abc import Iterator, Sequence

from torchyard.pods.workload import ETCD, HIDDEN, Container, Found, Workload, get, is_new_etcd, listed, number, text

STOCK = re.compile(r"(?:docker\.io/)?(?:ultralytics/yolov5|pytorch/pytorch)(?:[:@].*)?")  # without python-etcd
IN_PLACE = (None, "", "Always", "OnFailure")  # left out, Kubernetes means Always and training-operator OnFailure
LASTING = ("group-name", "job-name")  # of a Volcano Job, in the fields of its pods


def options_twice(job: Workload) -> Iterator[Found]:
    for container in job.containers:
        for call in container.calls:
            names = [name for name, _ in call]
            for name in dict.fromkeys(name for name in names if names.count(name) > 1):
                happens = f"--{name} stands there {names.count(name)} times, and the last one counts"
                yield container.script_at, happens, "write it once"


def too_few_pods(job: Workload) -> Iterator[Found]:
    least, at = least_nodes(job)
    most = number(get(job.elastic, "maxReplicas")) or 0
    grows = get(job.elastic, "metrics") or job.option("nnodes") is not None
    if least > job.total > 0:
        happens = f"torchrun waits for {least} nodes, and there are pods for {job.total}: the rendezvous times out"
        yield at, happens, "write as many replicas as nodes"
    elif job.total == 1 and most > 1 and not grows:
        happens = f"the rendezvous is for up to {most} nodes, but one pod is all there will be"
        yield job.groups[0].at + ".replicas", happens, "write the number of nodes that are wanted"


def least_nodes(job: Workload) -> tuple[int, str]:
    """With how many nodes a training begins, as far as it is written down, and where."""
    for container in job.containers:
        match = re.fullmatch(r"(\d{1,9})(?::\d{1,9})?", container.option("nnodes") or "")
        if match:
            return int(match[1]), container.script_at
    return (number(get(job.elastic, "minReplicas")) or 0, "spec.elasticPolicy.minReplicas")


def no_python_etcd(job: Workload) -> Iterator[Found]:
    for container in job.containers if job.meets_in_etcd else ():
        if STOCK.fullmatch(container.image) and "python-etcd" not in " ".join(container.argv):
            happens = f"the rendezvous in etcd needs python-etcd, which `{container.image}` lacks: torchrun ends in 2 s"
            yield f"{container.at}.image", happens, "take an image that has it, or write c10d as the backend"


def no_rendezvous_id(job: Workload) -> Iterator[Found]:
    if job.meets_in_etcd and job.option("rdzv-id", "rdzvId") is None:
        at = "spec.elasticPolicy.rdzvId" if job.elastic else job.containers[0].script_at
        happens = "without an id every job is `none`: two jobs on one etcd meet each other, and a second run within "
        yield at, happens + "2 hours dies of RendezvousClosedError", "write an id that is new for every run"


def id_kept_over_restart(job: Workload) -> Iterator[Found]:
    again = restarts(job)
    if again and job.meets_in_etcd and is_kept(job):
        happens = f"{again[1]} begins again with the same rendezvous id, which etcd holds as closed for 2 hours: "
        yield again[0], happens + "every further try dies of RendezvousClosedError", again[2]


def restarts(job: Workload) -> Found | None:
    """What begins a job or one of its pods again, if something does."""
    lists = [("spec.policies", job.spec.get("policies"))]
    lists += [(f"{group.at}.policies", group.spec.get("policies")) for group in job.groups]
    for at, policies in lists if job.kind == "volcano" else ():
        action = next((each for it in listed(policies) if (each := text(get(it, "action"))).startswith("Restart")), "")
        if action:
            return at, action, "write TerminateJob, or an id that ends in the annotation volcano.sh/job-retry-count"
    for group in job.groups:
        at, spec = (group.pod_at, group.pod) if job.kind == "volcano" else (group.at, group.spec)
        if spec.get("restartPolicy") in IN_PLACE:
            return f"{at}.restartPolicy", "a container that is restarted in its pod", "write Never"
    return None


def is_kept(job: Workload) -> bool:
    """Whether the rendezvous id is known to be the same after a restart."""
    value = job.option("rdzv-id", "rdzvId")
    if value is None or HIDDEN in value:
        return False
    names = re.findall(r"\$[{(]?(\w+)", value)
    return all(any(lasts(container.env.get(name)) for container in job.containers) for name in names)


def lasts(variable: object) -> bool:
    field, value = text(get(variable, "valueFrom", "fieldRef", "fieldPath")), get(variable, "value")
    return any(name in field for name in LASTING) or (isinstance(value, str) and "$" not in value)


def without_v2(jobs: Sequence[Workload]) -> Iterator[tuple[str, Found]]:
    """An etcd beside a job that needs its v2 API, and does not serve it."""
    for job in jobs if any(job.meets_in_etcd for job in jobs) else ():
        for container in job.containers if job.kind == "pod" else ():
            if ETCD.fullmatch(container.image) and not serves_v2(container):
                happens = "this etcd does not serve the v2 API, which the rendezvous of the job asks for: it gets a 404"
                yield job.where, (container.at, happens, "write etcd 3.5 with --enable-v2 in its command")


def serves_v2(container: Container) -> bool:
    """Whether it does; one that ends because of --enable-v2 is another trap."""
    asked = any(word.startswith("--enable-v2") and not word.endswith("=false") for word in container.argv)
    said = text(get(container.env.get("ETCD_ENABLE_V2"), "value")).lower() in ("true", "1")
    old = ":v3.3." in container.image or ":3.3." in container.image
    return asked or old or (said and not is_new_etcd(container.image))


TRAPS = (options_twice, too_few_pods, no_python_etcd, no_rendezvous_id, id_kept_over_restart)
