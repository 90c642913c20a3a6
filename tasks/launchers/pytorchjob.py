"""Kubeflow's Training Operator, version 1: a PyTorchJob of kubeflow.org/v1, of workers only."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from tasks.launchers import _pod, _pod_facts, _pod_status, _store, _torchrun
from tasks.launchers._torchrun import Endpoint
from tasks.model import ManifestPlan, Observation, Run, Status, Watched
from tasks.needs import ClusterNeed, Controller, OpenQueue, Right, Served
from tasks.spec import Noun, Profile

API, KIND = "kubeflow.org/v1", "PyTorchJob"
INSTALL = (
    "kubectl apply --server-side -k "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.8.1'"
)
INDEX = "metadata.labels['training.kubeflow.org/replica-index']"
CONTAINER = "pytorch"  # the operator looks for this name


class Options(Noun):
    """What only this launcher knows."""

    queue: str | None = Field(None, description="of the gang scheduler, where the operator has one")
    etcd_image: str = Field(_store.IMAGE, description="of the run's own store: one that serves the v2 API")


def plan(profile: Profile, run: Run) -> ManifestPlan:
    """One PyTorchJob of workers; with etcd-v2 a store of the run's own before it."""
    options = Options.model_validate(profile.options)
    _pod.refuse(profile)
    if profile.manifest:
        from tasks.launchers import _manifest

        return _manifest.plan(
            profile, run, _manifest.Frame(API, KIND, "pytorchjob", watch(), requires(queue_of(profile)))
        )
    job = pytorch_job(profile, run, options)
    etcd = _store.objects(profile, run, options.etcd_image) if profile.rendezvous == "etcd-v2" else ()
    return ManifestPlan(
        launcher="pytorchjob",
        job=run.job(profile),
        labels=_pod.labels(profile, run),
        cluster=profile.cluster,
        store=etcd,
        objects=(job,),
        tasks={"worker": profile.nodes.max},
        container=CONTAINER,
        template=("spec", "pytorchReplicaSpecs", "Worker", "template"),
        watch=watch(),
        folder=f"{run.folder}/attempt-{run.attempt}",
        requires=(*requires(options.queue), *_store.requires(profile), *_pod.requires(profile, run)),
    )


def pytorch_job(profile: Profile, run: Run, options: Options) -> dict[str, Any]:
    """The PyTorchJob. A failed pod stays, with its log; a new try is ours."""
    env = _pod.environment(profile, run, INDEX)
    container = _pod.container(profile, CONTAINER, command(profile, run), env)
    # The operator adds 23456 where no port has this name: under the host's network, one such job a node.
    container["ports"] = [{"name": "pytorchjob-port", "containerPort": _torchrun.first_port(run)}]
    policy = {"minAvailable": profile.nodes.min, "queue": options.queue}
    worker = {
        "replicas": profile.nodes.max,
        "restartPolicy": "Never",
        "template": _pod.template(profile, run, container),
    }
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": run.job(profile), "labels": _pod.labels(profile, run)},
        "spec": {
            **elastic(profile, run),
            "nprocPerNode": str(profile.processes),
            "runPolicy": {
                "cleanPodPolicy": "None",
                "ttlSecondsAfterFinished": int(profile.deadlines.lease) or 1,
                "schedulingPolicy": {key: value for key, value in policy.items() if value},
            },
            "pytorchReplicaSpecs": {"Worker": worker},
        },
    }


def elastic(profile: Profile, run: Run) -> dict[str, Any]:
    """The rendezvous as the operator knows it; it has no word for static.

    Without an id every job would be called `none`, and a store refuses an id that another job has closed.
    """
    if profile.rendezvous == "static":
        return {}
    meets = endpoint(profile, run)
    return {
        "elasticPolicy": {
            "rdzvBackend": profile.rendezvous,
            "rdzvId": _torchrun.rendezvous_id(profile, run),
            "rdzvHost": meets.address,
            "rdzvPort": meets.port,
            "minReplicas": profile.nodes.min,
            "maxReplicas": profile.nodes.max,
            "maxRestarts": 0,
        }
    }


def endpoint(profile: Profile, run: Run) -> Endpoint:
    """The store's Service, or the first worker's: the operator makes one for each pod."""
    if profile.rendezvous == "etcd-v2":
        return Endpoint(address=_store.name(profile, run), port=_store.PORT)
    return Endpoint(address=f"{run.job(profile)}-worker-0", port=_torchrun.first_port(run))


def command(profile: Profile, run: Run) -> tuple[str, ...]:
    address = f"{run.job(profile)}-worker-{_torchrun.NODE}"
    return _torchrun.pod_command(profile, run, endpoint(profile, run), address)


def watch() -> tuple[Watched, ...]:
    return (
        Watched(api=API, kind=KIND),
        Watched(api="v1", kind="Pod"),
        Watched(api="scheduling.volcano.sh/v1beta1", kind="PodGroup", by_name=True),
    )


def queue_of(profile: Profile) -> str | None:
    """The queue that a manifest's PyTorchJob names for its PodGroup."""
    job = next((each for each in profile.manifest if each["kind"] == KIND), {})
    queue = _pod_facts.part(job, "spec", "runPolicy", "schedulingPolicy").get("queue")
    return str(queue) if queue else None


def requires(queue: str | None) -> tuple[ClusterNeed, ...]:
    """A closed queue leaves a PyTorchJob Created for ever: no object says why, so it is asked before."""
    return (
        Served(crd="pytorchjobs.kubeflow.org", version="v1", install=INSTALL),
        Controller(label="control-plane=kubeflow-training-operator", gang="--gang-scheduler-name"),
        Right(verbs=("create", "get", "list", "watch", "delete", "patch"), resource="pytorchjobs.kubeflow.org"),
        *((OpenQueue(name=queue),) if queue else ()),
    )


def read_status(observed: Observation) -> Status:
    """How the PyTorchJob is: Failed is the operator's word, Succeeded is believed when every pod has succeeded.

    An elastic job is Succeeded to the operator as soon as one worker is, and Running while a worker never fits.
    """
    job = _pod_status.main(observed, KIND)
    if job is None or _pod_facts.leaving(job):
        return _pod_status.deleted(KIND)
    conditions = _pod_facts.rows(job, "status", "conditions")
    true = {each.get("type"): each for each in conditions if each.get("status") == "True"}
    pods = _pod_status.job_pods(observed)
    if "Failed" in true:
        return _pod_status.failed(observed, f"the PyTorchJob failed: {true['Failed'].get('message', '')}")
    if "Succeeded" in true:
        return _pod_status.succeeded(observed)
    if "Suspended" in true:
        return Status(state="pending", reason="the PyTorchJob is suspended (runPolicy.suspend)")
    return _pod_status.under_way(observed, pods, gang_of(job))


def gang_of(job: Mapping[str, Any]) -> _pod_status.Gang:
    """An elastic job goes on with minReplicas workers."""
    specs = _pod_facts.part(job, "spec", "pytorchReplicaSpecs").values()
    total = sum(_pod_facts.part(spec).get("replicas") or 1 for spec in specs)
    least = _pod_facts.part(job, "spec", "elasticPolicy").get("minReplicas") or total
    return _pod_status.Gang(total, min(least, total))
