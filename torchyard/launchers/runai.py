"""Run:ai: a distributed PyTorch workload through its CLI, of either generation, or a PyTorchJob through Kubernetes."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from torchyard.agents import command
from torchyard.diagnosis.pod_facts import get_mapping
from torchyard.launchers import pytorchjob
from torchyard.model.base import FrozenModel
from torchyard.model.causes.pods import POD_RULES, RUNAI_RULES
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding, warning_check
from torchyard.model.plan import CommandPlan, HostScript, ManifestPlan, Plan, Process
from torchyard.model.pod import Pod
from torchyard.model.profile import Cluster
from torchyard.model.requirements import Advice, ScriptCheck, WritableFolder
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Failure, Observation, Run, Status
from torchyard.pods import requirements, runai_flags, template
from torchyard.pods.runai_flags import Generation

PROGRAM_IS_A_FILE = False
_RUNAI_SCRIPT_PATH = str(Path(__file__).resolve().parent.parent / "host" / "runai.py")
_SUBMIT_ARGS = {"cli-v1": ("submit-dist", "pytorch", "--name"), "cli-v2": ("training", "pytorch", "submit")}
_SCHEDULER_NAME = "runai-scheduler"
_CLUSTER_GRACE_S = 30.0  # of a pod whose author sets none: Kubernetes' default
# Reasons of Kubernetes and of Run:ai itself, which no log shows.
_STATUS_RULES = {status.lower(): rule for status, rule in POD_RULES.items()} | RUNAI_RULES


class Options(FrozenModel):
    """The options of this launcher."""

    project: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", description="the project, with its quota and namespace"
    )
    through: Literal["cli-v2", "cli-v1", "kubernetes"] = Field(
        "cli-v2", description="runai training pytorch; runai submit-dist pytorch; or a PyTorchJob in runai-PROJECT"
    )
    cli: str = Field("runai", description="the CLI's program, if each cluster has a separate one")
    node_pools: tuple[str, ...] = Field((), description="node pools in order of preference; v1 accepts one")
    backoff_limit: int = Field(0, ge=0, description="Run:ai's own restarts, which lose a log: use attempts instead")
    interactive: bool = Field(False, description="a session: within the project's quota, and not preempted")
    preemptible: bool = Field(False, description="allow a session to exceed the quota, as a training may")

    @model_validator(mode="after")
    def validate_combinations(self) -> "Options":
        if self.preemptible and not self.interactive:
            raise ValueError("preemptible: requires interactive; a training can always be preempted")
        if self.through == "cli-v1" and len(self.node_pools) > 1:
            raise ValueError("node_pools: must have one entry with through: cli-v1")
        if self.through == "kubernetes" and (self.node_pools or self.backoff_limit):
            raise ValueError(
                "node_pools, backoff_limit: cannot be combined with through: kubernetes: use pod.node_selector and "
                "attempts"
            )
        return self


def plan(profile: ResolvedProfile, run: Run) -> Plan:
    """A Run:ai job with one process per pod, of which the first submits and deletes the job; or a PyTorchJob."""
    options = Options.model_validate(profile.options)
    template.validate_pod_profile(profile)
    if profile.manifest:
        raise ProfileError(
            profile.name, (Finding("manifest", "use launcher pytorchjob, and set schedulerName in the manifest"),)
        )
    if options.through == "kubernetes":
        return _plan_pytorchjob(profile, run, options)
    findings = tuple(runai_flags.find_unsupported_settings(profile, options.through))
    if findings:
        raise ProfileError(profile.name, findings)
    cli_requirement = ScriptCheck(
        host="localhost",
        script="runai_check.py",
        settings={"cli": options.cli, "generation": options.through, "project": options.project},
    )
    return CommandPlan(
        launcher="runai",
        job=run.job(profile),
        label=f"{run.name(profile)}/{run.attempt}/",
        processes=tuple(_build_pod_process(profile, run, options, node) for node in range(profile.nodes.max)),
        ranks=command.rank_source(profile),
        expect=profile.expect,
        on_fabric=profile.on_fabric,
        on_hang=profile.on_hang,
        requires=(WritableFolder(host="localhost", path=run.folder), cli_requirement, *_list_advice(profile, run)),
    )


# --- through the CLI


def _list_advice(profile: ResolvedProfile, run: Run) -> list[Advice]:
    """Warnings about the pods that the CLI creates: they have what the profile's own pods would have, but the grace."""
    container = {"name": "pytorch", "resources": template.build_resources(profile)}
    advice = requirements.list_pod_advice(profile, template.build_pod_template(profile, run, container))
    grace_s = profile.deadlines.grace
    if grace_s > _CLUSTER_GRACE_S:
        problem = (
            f"{grace_s:g} s do not hold: no flag of Run:ai's CLI is known to set it, so the cluster's own grace holds "
            f"({_CLUSTER_GRACE_S:g} s, Kubernetes' default), and a longer save is lost"
        )
        remedy = f"save within {_CLUSTER_GRACE_S:g} s, or use options.through: kubernetes"
        advice.append(Advice(finding=warning_check("deadlines.grace", problem, remedy)))
    return advice


def _build_pod_process(profile: ResolvedProfile, run: Run, options: Options, node: int) -> Process:
    """One pod: node 0 is the job's master."""
    name = f"node-{node}"
    folder = f"{run.folder}/attempt-{run.attempt}"
    job_argv = (folder, str(profile.nodes.max), options.through, options.project, options.cli, run.job(profile))
    spec = None
    if node == 0:
        spec = {"argv": list(_build_submit_command(profile, run, options)), "run": run.name(profile)}
    return Process(
        name=name,
        script=HostScript(host="localhost", argv=(sys.executable, "-I", "-S", _RUNAI_SCRIPT_PATH, *job_argv)),
        folder=f"{folder}/{name}",
        log=run.log(name),
        copies_log=True,
        spec=spec,
        grace=profile.deadlines.grace,
    )


def _build_submit_command(profile: ResolvedProfile, run: Run, options: Options) -> tuple[str, ...]:
    """The command line that submits the job. Its pods stay when it ends, so that their logs can be read."""
    generation: Generation = "cli-v1" if options.through == "cli-v1" else "cli-v2"
    argv = [options.cli, *_SUBMIT_ARGS[generation], run.job(profile)]
    argv += ["--project", options.project]
    argv += ["--image", str(profile.image)]
    argv += ["--workers", str(profile.nodes.max - 1)]
    argv += ["--clean-pod-policy", "None"]
    argv += ["--backoff-limit", str(options.backoff_limit)]
    argv += _build_pool_flags(options)
    argv += _build_session_flags(options, generation)
    argv += runai_flags.build_cli_flags(profile, run, generation)
    return tuple(argv)


def _build_pool_flags(options: Options) -> list[str]:
    flags: list[str] = []
    for pool in options.node_pools:
        flags += ["--node-pools", pool]
    return flags


def _build_session_flags(options: Options, generation: Generation) -> tuple[str, ...]:
    """The flags of an interactive session, which in v2 is a training that cannot be preempted."""
    if not options.interactive:
        return ()
    if generation == "cli-v2":
        return "--preemptibility", "preemptible" if options.preemptible else "non-preemptible"
    return ("--interactive", "--preemptible") if options.preemptible else ("--interactive",)


# --- through Kubernetes


def _plan_pytorchjob(profile: ResolvedProfile, run: Run, options: Options) -> ManifestPlan:
    """The PyTorchJob for Run:ai's scheduler, in the project's namespace, with the labels that name its queue."""
    namespace = f"runai-{options.project}"
    if profile.cluster.namespace not in (None, namespace):
        problem = (
            f"must be {namespace}, that of project {options.project}, not {profile.cluster.namespace}: remove the key"
        )
        raise ProfileError(profile.name, (Finding("cluster.namespace", problem),))
    runai_settings = {"scheduler": _SCHEDULER_NAME}
    if options.preemptible:
        runai_settings["priority_class"] = "interactive-preemptible"
    elif options.interactive:
        runai_settings["priority_class"] = "build"
    labels = {"project": options.project, "runai/queue": options.project}
    pod = profile.pod.merge_over(Pod.model_validate(runai_settings))
    pod = pod.model_copy(update={"labels": profile.pod.labels | labels})
    cluster = Cluster(context=profile.cluster.context, namespace=namespace)
    job_plan = pytorchjob.plan(profile.model_copy(update={"options": {}, "pod": pod, "cluster": cluster}), run)
    *dependencies, job = job_plan.objects
    metadata = job["metadata"] | {"labels": job["metadata"]["labels"] | labels}
    objects = (*dependencies, job | {"metadata": metadata})
    return job_plan.model_copy(update={"launcher": "runai", "objects": objects})


# --- the job's status


def read_status(observed: Observation) -> Status:
    """The job's status from the state of each pod. A pod without a state has that of the job.

    As with a PyTorchJob, Succeeded counts only once every pod has succeeded, and a pod that fails ends the others.
    """
    pods = {name: get_mapping(state) for name, state in observed.states.items() if name.startswith("node-")}
    if not pods:
        return pytorchjob.read_status(observed)
    end_status = next(_find_job_endings(pods, observed.observed_at), None)
    if end_status:
        return end_status
    succeeded = [name for name, state in pods.items() if state.get("phase") == "exited"]
    started = [name for name, state in pods.items() if state.get("phase") in ("running", "exited")]
    if len(succeeded) == len(pods):
        return Status(state="succeeded", reason=f"{len(succeeded)} of {len(pods)} pods succeeded")
    reason = f"{len(started)} of {len(pods)} pods run"
    if not any(pods.values()):
        reason += "; Run:ai has reported no state so far"
    return Status(state="running" if len(started) == len(pods) else "pending", reason=reason)


def _find_job_endings(pods: Mapping[str, Mapping[str, Any]], now: float) -> Iterator[Status]:
    """The reasons for the job's end: the pod that failed first, then one that can never run, then a deletion."""
    failed = [name for name, state in pods.items() if state.get("phase") == "exited" and state.get("exit") != 0]
    stuck = [name for name, state in pods.items() if state.get("phase") == "starting" and _is_hopeless(state, now)]
    for name in (*sorted(failed, key=lambda name: _read_time(pods[name], "ended")), *stuck):
        state_name = str(pods[name].get("status"))
        rule = _STATUS_RULES.get(state_name.lower())
        if rule:
            sentence = f"{name}: {rule.description} ({state_name})"
            failure = Failure(cause=rule.cause, sentence=sentence, node=name, retry=rule.retry, requeue=rule.requeue)
            yield Status(state="failed", reason=sentence, failure=failure)
        yield Status(state="failed", reason=f"{name} ended as {state_name}")
    if any(state.get("phase") == "absent" for state in pods.values()):
        yield Status(state="gone", reason="the job was deleted from Run:ai by another user")


def _is_hopeless(state: Mapping[str, Any], now: float) -> bool:
    """Whether a pod has been in a state from which it can never run for longer than that state is tolerated."""
    rule = _STATUS_RULES.get(str(state.get("status")).lower())
    if rule is None:
        return False
    started_at = _read_time(state, "since") or now
    return now - started_at >= rule.patience_s


def _read_time(state: Mapping[str, Any], key: str) -> float:
    """A time that a pod's status command reported, in seconds since the epoch; 0 if it reported none."""
    timestamp = state.get(key)
    return float(timestamp) if isinstance(timestamp, float | int) else 0.0
