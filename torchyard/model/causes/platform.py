"""Causes in the platform: Kubernetes, slurm, Ray, and the scheduler of a cluster."""

from torchyard.model.causes.cause import Cause, CauseFacts, Distance, LogRule, list_exit_code_patterns

_PULL_FAILED = "(?:ErrImagePull|ImagePullBackOff|[Ff]ailed to pull|pulling image)"
_STOP_CODES = (-15, -2, -3)
_NOT_CONDITIONAL = r"(?!.{0,300}\b(?:[Ii]f|IF|[Ww]hen|(?:will|can|may|could) be)\b)"


class PlatformCause(Cause):
    """The platform on which the job runs."""

    VOLUME_ACCESS_DENIED = CauseFacts("volume-access-denied", advice="let the server export it to this node")
    VOLUME_MOUNT = CauseFacts("volume-mount", advice="check the claim and the storage")
    IMAGE_PULL = CauseFacts(
        "image-pull", advice="correct its name, the pull secret, or the registry", points_at_node=False
    )
    UNSCHEDULABLE_SELECTOR = CauseFacts("unschedulable-selector")
    UNSCHEDULABLE = CauseFacts("unschedulable", advice="request less, or wait until nodes are free")
    TAINT = CauseFacts("taint")
    HOST_PORT = CauseFacts("host-port", retry=True)
    QUEUE_FULL = CauseFacts("queue-full")
    QUEUE_CLOSED = CauseFacts("queue-closed")
    CONTROLLER_SILENT = CauseFacts("controller-silent", retry=True)
    EVICTED = CauseFacts("evicted", advice="request the resources that it uses", retry=True)
    PREEMPTED = CauseFacts("preempted", retry=True, points_at_node=False, requeue=True)
    NODE_LOST = CauseFacts("node-lost", retry=True)
    WORKER_LOST = CauseFacts(
        "worker-lost", advice="read that worker's own log, and look for the OOM killer", retry=True
    )
    TIME_LIMIT = CauseFacts("time-limit", advice="request more time, or resume from the last checkpoint")
    CANCELLED = CauseFacts("cancelled")
    TERMINATED = CauseFacts("terminated", retry=True)


# What a scheduler reports about the nodes; the first pattern that is found in it decides. A claim without a volume fits
# no node. Another attempt has another port, and Volcano also calls a node short of a resource that it does not have at
# all, so a port comes before a shortage. A node that is only busy may become free, so a shortage comes before what
# excludes the other nodes. The taints and labels of nodes that are not for this job come last.
SHORTAGE_PATTERN = "Insufficient |[Tt]oo many pods|resources|topology|anti-affinity|volume count|all claims"
SCHEDULER_RULES = (
    ("(?i)persistentvolumeclaim", PlatformCause.VOLUME_MOUNT),
    ("free ports", PlatformCause.HOST_PORT),
    (SHORTAGE_PATTERN, PlatformCause.UNSCHEDULABLE),
    ("had volume node affinity conflict|find available persistent volumes", PlatformCause.VOLUME_MOUNT),
    ("match Pod's node affinity|match node selector", PlatformCause.UNSCHEDULABLE_SELECTOR),
    ("taint", PlatformCause.TAINT),
)

PLATFORM_RULES = (
    LogRule(
        cause=PlatformCause.VOLUME_ACCESS_DENIED,
        symptom="has no permission to mount its volume",
        patterns=(
            r"mount[.:\w]{0,12} ?access denied",
            "access denied by server",
            r"MountVolume.{0,300}(?:denied|not permitted)",
        ),
    ),
    LogRule(
        cause=PlatformCause.VOLUME_MOUNT,
        symptom="could not mount its volume ({evidence})",
        patterns=(
            "FailedMount",
            "FailedAttachVolume",
            r"MountVolume\.\w{1,20} failed",
            "Unable to attach or mount",
            r"\bmount\.\w{2,12}: .{0,300}(?:failed|timed out|refused)\b",
        ),
    ),
    LogRule(
        cause=PlatformCause.IMAGE_PULL,
        symptom="was refused its image, or its registry has none of this name ({evidence})",
        patterns=(
            _PULL_FAILED + r".{0,400}(?:denied|[Uu]nauthorized|authentication required|no basic auth|\b40[134]\b)",
            _PULL_FAILED + ".{0,400}(?:not found|manifest unknown)",
            r"/manifests/\S{1,200} returned error code: 40[134]\b",
        ),
        failure_words=("ErrImagePull", "ImagePullBackOff", "ailed to pull", "pulling image"),
    ),
    LogRule(
        cause=PlatformCause.IMAGE_PULL,
        symptom="could not pull its image ({evidence})",
        patterns=(
            "ErrImagePull",
            "ImagePullBackOff",
            "[Ff]ail(?:ed|ing) to pull image",
            "failed to import docker image",
        ),
        own_retry=True,
    ),
    LogRule(
        cause=PlatformCause.UNSCHEDULABLE_SELECTOR,
        symptom="fits no node: no label matches its selector or affinity",
        patterns=(r"^(?!.*\bInsufficient )(?=.*(?:match Pod's node affinity|match node selector|didn't match node))",),
        failure_words=("match Pod's node affinity", "match node selector", "didn't match node"),
    ),
    LogRule(
        cause=PlatformCause.UNSCHEDULABLE,
        symptom="fits no node ({evidence})",
        patterns=("FailedScheduling", r"\d nodes are available", "Insufficient nvidia"),
    ),
    LogRule(
        cause=PlatformCause.UNSCHEDULABLE,
        symptom="was refused its nodes or a step on them by slurm ({evidence})",
        patterns=(
            "srun: error: Unable to (?:create step for job|allocate resources)",
            "srun: error: Task launch for .{1,60} failed on node .{1,80}: Unable to layout tasks",
            "sbatch: error: Batch job submission failed: ",
            "salloc: error: Job submit/allocate failed: ",
        ),
    ),
    LogRule(
        cause=PlatformCause.EVICTED,
        symptom="was evicted at its own limit of storage ({evidence})",
        patterns=("storage usage exceeds", "Usage of EmptyDir volume"),
        own_advice="raise the limit, or write less to the pod's own disk",
        own_retry=False,
        explains_signal=True,
    ),
    LogRule(
        cause=PlatformCause.EVICTED,
        symptom="was evicted from its node ({evidence})",
        patterns=(
            r"[Rr]eason\W{1,4}Evicted",
            r"\d/\d +Evicted",
            "node was low on resource",
        ),
        explains_signal=True,
    ),
    LogRule(
        cause=PlatformCause.PREEMPTED,
        symptom="was preempted",
        patterns=(
            "DUE TO PREEMPTION",
            "PreemptionByScheduler",
            rf"^{_NOT_CONDITIONAL}.{{0,300}}(?:[Jj]ob|[Pp]od|[Nn]ode|[Ii]nstance)\b.{{0,60}}\b[Pp]reempted",
            "Preempted by (?:a )?pod",
        ),
        explains_signal=True,
    ),
    LogRule(
        cause=PlatformCause.PREEMPTED,
        symptom="was taken off its nodes and queued again by its scheduler",
        patterns=("DUE TO JOB REQUEUE",),
        explains_signal=True,
    ),
    LogRule(
        cause=PlatformCause.NODE_LOST,
        symptom="was on a node that failed",
        patterns=(
            "DUE TO NODE FAILURE",
            "srun: error: Node failure on ",
            "NODE_FAIL",
            "NodeLost",
            "DeletionByTaintManager",
            "[Nn]ode .{0,100}marked dead",
            "[Nn]ode .{0,100}not responding",
            "NodeNotReady .{0,100}Node is not ready",
            r"\*\*\* .{1,200} UNCORRECTABLE MEMORY ERROR",
            "SISTER_EOF",
        ),
        explains_signal=True,
    ),
    LogRule(
        cause=PlatformCause.NODE_LOST,
        symptom="could not be started by slurm on one of its nodes ({evidence})",
        patterns=("srun: error: Task launch for .{1,60} failed on node ", r"srun: error: task \d{1,6} launch failed: "),
        own_advice="check slurmd, munge and the clock of that node",
    ),
    LogRule(
        cause=PlatformCause.WORKER_LOST,
        symptom="lost a Ray worker",
        patterns=(
            "ActorUnavailableError",
            "ActorDiedError",
            "RayActorError",
            "WorkerCrashedError",
            "worker died or was killed",
            "worker process has died",
            "The actor died unexpectedly",
            "NodeDiedError",
            "ObjectLostError",
        ),
    ),
    LogRule(
        cause=PlatformCause.TIME_LIMIT,
        symptom="was ended by its scheduler's time limit",
        patterns=(
            "DUE TO (?:JOB )?TIME ?LIMIT",
            "TERM_RUNLIMIT",
            r"[Rr]eason\W{1,4}DeadlineExceeded",
            "longer than (?:the )?specified deadline",
            "(?:walltime|time limit).{0,40}exceeded(?!: 0)",
            "exceeded.{0,20}(?:wall ?time|wall ?clock limit|time limit)",
            "PBS: job killed: cput ",
            "exceeded (?:hard|soft) wallclock time",
            r"exceeds job (?:hard|soft) limit .?[hs]_(?:rt|cpu)\b",
        ),
        distance=Distance.STOPPED,
        explains_signal=True,
    ),
    LogRule(
        cause=PlatformCause.CANCELLED,
        symptom="was ended by its scheduler at a limit of its job ({evidence})",
        patterns=(r"PBS: job killed: \w{1,30} .{1,60}exceeded limit",),
        own_advice="request more of it, or use less",
        distance=Distance.STOPPED,
        explains_signal=True,
    ),
    LogRule(
        cause=PlatformCause.CANCELLED,
        symptom="was cancelled through its scheduler",
        patterns=(r"\*\*\* (?:JOB|STEP) .{0,200}CANCELLED", "TERM_OWNER"),
        distance=Distance.STOPPED,
        explains_signal=True,
    ),
    LogRule(
        cause=PlatformCause.TERMINATED,
        symptom="was stopped by SIGHUP, as when the terminal or the ssh session that started it is closed",
        patterns=(
            "Received (?:1|SIGHUP) death signal",
            "got signal: (?:1|SIGHUP)\\b",
            "closing signal SIGHUP",
        ),
        own_advice="start it by a scheduler, or in tmux",
        distance=Distance.STOPPED,
        explains_signal=True,
        worker_codes=(-1,),
        agent_codes=(-1,),
    ),
    LogRule(
        cause=PlatformCause.TERMINATED,
        symptom="was stopped from outside: a drain, a preemption, or a user's kill",
        patterns=(
            "Received [A-Z0-9]{1,8} death signal",
            "closing signal SIG(?:INT|QUIT)",
            r"got signal: \d",
            "[Rr]eceived SIGTERM",
            "SIGTERM received",
            "terminated with signal SIGTERM",
            *list_exit_code_patterns(15),
            *list_exit_code_patterns(2),
            "KeyboardInterrupt",
            "SIGTERMException",
        ),
        distance=Distance.STOPPED,
        explains_signal=True,
        worker_codes=_STOP_CODES,
        agent_codes=_STOP_CODES,
    ),
)
