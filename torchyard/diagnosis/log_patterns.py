"""Why trainings fail, as a table: what the log shows, what that means, whether another attempt may succeed.

The messages come from torch, NCCL, UCX, CUDA, etcd, the shells, slurm, Ray and Kubernetes, over several versions each:
a pattern holds the part that has stayed the same. If one line shows two causes of the same distance, the first of them
in this table counts, so specific causes come first.

Each cause is shown by a line in tests/logs; torchyard/run/next_attempt.py lists the causes that no node is avoided for.
"""

import re
from enum import IntEnum
from typing import NamedTuple

COLLECTIVE_TIMEOUT = "nccl-timeout"  # the slug of the cause that collective_timeout.py explains
CLOCK_SKEW_S = 5.0  # clocks differ between nodes, and torchrun's tee delays lines


class Distance(IntEnum):
    """How far a symptom usually is from the origin of the failure: a nearer symptom explains a farther one."""

    OWN = 0  # the process itself failed
    FABRIC = 1  # its network failed, or the peer behind it
    PEER = 2  # it lost a peer
    WAIT = 3  # it waited for others in vain
    STOPPED = 4  # it was stopped, or exited
    UNKNOWN = 5


class Cause(NamedTuple):
    """A cause of failure, and what shows it.

    description: the clause after `Rank 3 on node-1`. `{evidence}` stands for the quoted line, `{code}` and `{signal}`
        for the exit code and its signal, other names for groups of `pattern`.
    pattern: matches a line that shows the cause; None if only exit codes do.
    retry: another attempt may succeed.
    explains_signal: may be the reason why the process ended by a signal.
    worker_codes: exit codes of a worker that mean this cause; negative: a signal.
    agent_codes: the same for torchrun, or for what should have started it.
    """

    slug: str
    description: str
    pattern: re.Pattern[str] | None = None
    retry: bool = False
    distance: Distance = Distance.OWN
    explains_signal: bool = False
    worker_codes: tuple[int, ...] = ()
    agent_codes: tuple[int, ...] = ()


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


# NCCL 2.30: status=IBV_WC_RETRY_EXC_ERR(12); older: status=12; oldest: with error 12
_COMPLETION = r"Got completion.{0,300}?(?:status=(?:[^ ,(\d]{0,60}\(?|\([^)]{0,60}\))|error )"
_MODIFY_QP = r"(?:ibv_modify_qp(?:\([^)]{0,40}\))? failed|[Ff]ailed to modify QP)(?!.{0,300}retrying)"
_SHM = r"(?:/dev/shm|</torch_|shared memory)"
_XID = r"\bXid\b(?: ?\(PCI:[^)]{0,20}\))?[ :=]{1,4}(?:error )?"
_STOP_CODES = (-15, -2, -1, -3)
_CUDA = r"(?:CUDA|Cuda|cuda|HIP|hip)"

CAUSES: tuple[Cause, ...] = (
    # The fabric. A new attempt would get the same nodes: what is slow between them is not known from an all-reduce.
    Cause(
        "fabric-slow",
        "measured {measured} GB/s (busbw) before the program, and check_fabric needs {required} GB/s: "
        "`programs/pairwise.py` finds a slow node",
        _any_of(
            r"allreduce\.py: all_reduce reached a busbw of (?P<measured>[\d.e+-]{1,20}) GB/s, and "
            r"(?P<required>[\d.e+-]{1,20}) GB/s are needed"
        ),
    ),
    Cause(
        "rdma-missing",
        "has no RDMA, which `on_fabric: fail` requires ({evidence})",
        _any_of("torchyard: error: this pod cannot use RDMA: .{1,300}"),
    ),
    Cause(
        "rdma-retry-exceeded",
        "got no response over RDMA (retry exceeded): check the link, the GID index, the HCAs and PFC",
        _any_of(_COMPLETION + r"12\b", "(?<!RNR_)RETRY_EXC_ERR", "[Tt]ransport retry count(?:er)? exceeded"),
        retry=True,
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    Cause(
        "rdma-not-ready",
        "found its RDMA peer not ready (RNR): look for a process on it that hangs or died",
        _any_of(_COMPLETION + r"13\b", "RNR_RETRY_EXC_ERR", "RNR retry count"),
        retry=True,
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    Cause(
        "rdma-access",
        "was refused memory by its RDMA peer: look for a process on it that died, then check GPUDirect",
        _any_of(_COMPLETION + r"10\b", "REM_ACCESS_ERR"),
        retry=True,
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    Cause(
        "rdma-flushed",
        "had its RDMA requests flushed after another error: look for the first error",
        _any_of(_COMPLETION + r"5\b", "WR_FLUSH_ERR"),
        retry=True,
        distance=Distance.PEER,
    ),
    Cause(
        "rdma-async-event",
        "reported an error of its RDMA adapter: check the link, the cable and the adapter of this node",
        _any_of(
            "async fatal event",
            "async (?:error )?event ?:.{0,40}(?:port error|catastrophic|fatal|violation|queue error)",
        ),
        retry=True,
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    Cause(
        "rdma-connect",
        "could not open an RDMA connection in time: check the GID index and the routes between the HCAs",
        _any_of(_MODIFY_QP + r"(?=.{0,120}(?:timed out|unreachable))"),
        retry=True,
        distance=Distance.FABRIC,
    ),
    Cause(
        "rdma-connect",
        "could not open an RDMA connection: set the right GID index and the HCAs that reach each other",
        _any_of(_MODIFY_QP, r"Call to ibv_query_gid\w{0,10} failed"),
    ),
    Cause(
        "rdma-memlock",
        "cannot lock memory for RDMA: give the container IPC_LOCK and an unlimited memlock",
        _any_of(
            r"ibv_(?:reg|create|alloc)\w{0,30}.{0,60}(?:Cannot allocate memory|Resource temporarily)",
            "max locked memory",
            "NET/OFI Couldn't .{0,100}Cannot allocate memory",
        ),
    ),
    Cause(
        "rdma-registration",
        "could not register memory for RDMA: load nvidia-peermem, or disable GPUDirect",
        _any_of(r"ibv_reg_\w{0,30} (?:failed|returned)"),
    ),
    Cause(
        "rdma-registration",
        "could not register memory with libfabric ({evidence}): make plugin, libfabric and driver match, or turn off "
        "GPUDirect",
        _any_of(
            r"NET/OFI.{0,100}(?:[Uu]nable to register|[Rr]egist\w{2,10} (?:of )?(?:memory |mr )?failed)",
            r"\bfi_mr_reg\w{0,10}\b.{0,60}(?:failed|RC: -|returned -)",
            r"\bcxil?\w{0,20}_map\w{0,10}\b.{0,80}(?:fail|-\d)",
        ),
    ),
    Cause(
        "rdma-error",
        "had an RDMA request fail ({evidence}): check the fabric, and look for the first error of its peer",
        _any_of(
            _COMPLETION + r"(?!(?:5|10|12|13)\b)\d",
            r"Call to ibv_(?!modify_qp|reg_)\w{1,40} failed",
            r"NET/OFI.{0,200}completed with error",
            r"NET/OFI Couldn't \w{1,20} .{0,60}RC: -?\d",
            "NET/OFI Creating new endpoint .{0,60}failed",
            r"UCX +ERROR",
        ),
        retry=True,
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    Cause(
        "nccl-no-interface",
        "found no network interface for its collectives: correct NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME",
        _any_of(
            "[Nn]o (?:usable )?(?:socket )?interface found",
            "Unable to find (?:address for|interface)",
            "unsupported gloo device",
        ),
    ),
    Cause(
        "collective-mismatch",
        "called other collectives than its peers: make every rank take the same steps",
        _any_of("mismatch between collective"),
    ),
    Cause(
        "gpu-shared",
        "shares a GPU with another rank: start at most one process per GPU and let each use its local rank",
        _any_of("Duplicate GPU detected"),
    ),
    # Memory, disk and files, of the node and of the GPU
    Cause(
        "oom-host",
        "was ended by Ray because host memory ran low: request more memory, or load less data at once",
        _any_of(r"ray\.exceptions\.OutOfMemoryError", "node running low on memory"),
    ),
    Cause(
        "oom-gpu",
        "ran out of GPU memory: lower the batch size, shard the model, or use larger GPUs",
        _any_of(
            _CUDA + ".{0,60}out of memory",
            r"\bOutOfMemoryError",
            "(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
            "OOM when allocating",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cudaErrorMemoryAllocation",
            "RESOURCE_EXHAUSTED: Out of memory",
        ),
    ),
    Cause(
        "shm-exhausted",
        "ran out of shared memory: give the pod a larger /dev/shm, or lower num_workers",
        _any_of(
            "insufficient shared memory",
            "out of shared memory",
            r"\b[Bb]us error",
            "SIGBUS",
            _SHM + ".{0,200}No space left",
            "return code = -7",
            "No space left.{0,100}/dev/shm",
            "while creating shared memory segment",
            "posix_fallocate failed",
            "failed to extend /dev/shm",
            'EmptyDir volume "?[^ ]{0,20}shm',
            "unable to (?:write to|mmap|resize|allocate shared).{0,100}" + _SHM,
        ),
        worker_codes=(-7,),
        agent_codes=(-7,),
    ),
    Cause(
        "too-many-files",
        "opened too many files: raise the limit (ulimit -n), or lower num_workers",
        _any_of("Too many open files", "received 0 items of ancdata"),
    ),
    Cause(
        "disk-full",
        "found no space left on a disk: free some, or write checkpoints and caches elsewhere",
        _any_of("No space left on device", "Disk quota exceeded", "ENOSPC", "disk is full"),
    ),
    Cause(
        "storage-error",
        "had its storage fail ({evidence}): check the mount, its server, and the node's disk",
        _any_of(
            "Stale (?:NFS )?file handle",
            "OSError.{0,20}Input/output error",
            "Remote I/O error",
            "Transport endpoint is not connected: '",
        ),
        retry=True,
    ),
    # The GPU and its software
    Cause(
        "cuda-no-kernel",
        "runs a CUDA build without code for this GPU: use an image built for its architecture",
        _any_of("no kernel image is available", "CUDA error: invalid device function"),
    ),
    # NVIDIA's Xid numbers: what the program did (13, 31, 43), what NVLink did (74), what the GPU did; 45 only follows.
    Cause(
        "cuda-error",
        "caused a fault on its GPU ({evidence}): run it again with CUDA_LAUNCH_BLOCKING=1 to find the place",
        _any_of(_XID + r"(?:13|31|43)\b"),
    ),
    Cause(
        "nvlink-fault",
        "has a broken NVLink ({evidence}): drain the node and check `nvidia-smi nvlink -e`",
        _any_of(_XID + r"74\b", "[Uu]ncorrectable NVLink", "NVLink.{0,40}error"),
        retry=True,
    ),
    Cause(
        "gpu-fault",
        "has a broken GPU ({evidence}): drain the node and look for Xid in dmesg",
        _any_of(
            _XID + r"(?:46|48|6[1-4]|79|9[2-5]|109|119|120|121|140|143)\b",
            "[Uu]ncorrectable ECC",
            "ECC error",
            "fallen off the bus",
            "GPU is lost",
            "GPU requires reset",
        ),
        retry=True,
    ),
    Cause(
        "gpu-xid",
        "had its GPU report an error ({evidence}): look the Xid up in NVIDIA's table",
        _any_of(_XID + r"(?!45\b)\d"),
    ),
    Cause(
        "driver-too-old",
        "has a GPU driver that is too old for its CUDA ({evidence}): update it, or use an image with an older CUDA",
        _any_of(
            "driver version is insufficient",
            "driver on your system is too old",
            "unsatisfied condition: cuda",
            "forward compatibility was attempted on non supported HW",
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED",
            "cudaErrorInsufficientDriver",
        ),
    ),
    Cause(
        "driver-broken",
        "has a broken GPU driver ({evidence}): reboot the node, or start its fabric manager",
        _any_of("Driver/library version mismatch", "system not yet initialized", "cudaErrorSystem[DN]"),
        retry=True,
    ),
    Cause(
        "gpu-busy",
        "found its GPU in use by another process ({evidence}): check nvidia-smi on the node",
        _any_of("devices are busy or unavailable", "cudaErrorDevicesUnavailable"),
        retry=True,
    ),
    Cause(
        "gpu-missing",
        "found no GPU it could use, or fewer than its processes need ({evidence}): request as many GPUs as processes",
        _any_of(
            "no NVIDIA driver",
            "no CUDA-capable device",
            "Error: (?:CUDA|Cuda|cuda) is not available",
            "No CUDA GPUs",
            "no GPUs found",
            "not compiled with CUDA",
            "invalid device ordinal",
            r"libcuda\.so\.1: cannot open",
            "CUDA unknown error",
            "Failed to initialize NVML",
            "could not select device driver",
        ),
    ),
    Cause(
        "cuda-error",
        "got a CUDA error ({evidence}): run it again with CUDA_LAUNCH_BLOCKING=1 to find the place",
        _any_of(
            r"(?:CUDA|HIP) (?:runtime |driver )?error\b",
            r"\bcudaError[A-Z]\w",
            "(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_(?!SUCCESS)",
            "device-side assert",
            "illegal memory access",
            "Memory access fault by GPU",
            "HSA_STATUS_ERROR",
            "unspecified launch failure",
        ),
    ),
    Cause(
        "nccl-cuda-error",
        "had NCCL fail in CUDA ({evidence}): check this GPU and its driver",
        _any_of("unhandled cuda error", "ncclUnhandledCudaError", "NCCL WARN.{0,20}Cuda failure"),
        distance=Distance.FABRIC,
    ),
    # What was started, and how
    Cause(
        "shell-syntax",
        "was started by a shell that cannot parse the script: start it with bash, or write POSIX sh",
        _any_of(
            "Syntax error: ", "syntax error near unexpected", "Bad substitution", r"\[\[: not found", "Bad fd number"
        ),
    ),
    Cause(
        "program-missing",
        "did not find the program ({evidence}): correct its path, or copy it into the image",
        _any_of("can't open file '"),
    ),
    Cause(
        "not-executable",
        "cannot execute its program: set its x bit, and build the image for this CPU",
        _any_of("cannot execute", "[Ee]xec format error"),
        worker_codes=(126,),
        agent_codes=(126,),
    ),
    Cause(
        "command-not-found",
        "did not find its command: install it in the image, or give its whole path",
        _any_of("executable file not found in", r"exec: .{1,200}: not found$"),
        worker_codes=(127,),
        agent_codes=(127,),
    ),
    Cause(
        "etcd-module-missing",
        "lacks the package that etcd rendezvous needs: install python-etcd in the job's interpreter",
        _any_of("EtcdStubError", "No module named '?etcd\\b"),
    ),
    Cause(
        "etcd-no-v2",
        "uses an etcd without the v2 API: run etcd 3.5 or older with --enable-v2",
        _any_of("Bad response ?: 404", "flag provided but not defined: -enable-v2"),
    ),
    Cause(
        "module-missing",
        "lacks the Python module {name}: install it in the job's interpreter",
        _any_of(r"No module named '?(?P<name>[\w.]{1,100})"),
    ),
    Cause(
        "library-missing",
        "could not load a shared library ({evidence}): make torch, CUDA and the extensions match",
        _any_of(
            "ImportError: .{0,300}(?:shared object|undefined symbol|GLIBC)",
            "while loading shared libraries",
            "OSError: .{0,200}shared object file",
            "undefined symbol",
        ),
    ),
    Cause(
        "file-missing",
        "did not find a file ({evidence}): correct the path, or mount the data",
        _any_of("FileNotFoundError", r"sh: .{0,200}: No such file or directory"),
    ),
    Cause(
        "permission-denied",
        "was denied access ({evidence}): correct the owner, the mode or the mount",
        _any_of("PermissionError", "Read-only file system", "(?<!rc)(?<!profile): Permission denied$"),
    ),
    Cause(
        "download-failed",
        "could not download data ({evidence}): give it network access, a token, or the data",
        _any_of(
            r"HTTPSConnectionPool\((?!.{0,200}/v2/)",
            "LocalEntryNotFoundError",
            "OfflineModeIsEnabled",
            "GatedRepoError",
            "HfHubHTTPError",
            r"^botocore\.exceptions\.",
            r"^google\.(?:api_core|auth|cloud)\b",
            "RepositoryNotFoundError",
            r"^urllib\.error\.",
            r"^requests\.exceptions\.",
            "couldn't connect to 'https",
        ),
    ),
    Cause(
        "usage",
        "was started with arguments that it does not accept ({evidence}): correct the command",
        _any_of(
            "error: (?:unrecognized|the following|argument|ambiguous|invalid)",
            "nproc_per_node value",
            "No such option",
            "invalid choice",
            "flag provided but not defined",
        ),
        worker_codes=(2,),
        agent_codes=(2,),
    ),
    # What the platform did
    Cause(
        "volume-access-denied",
        "has no permission to mount its volume: let the server export it to this node",
        _any_of(
            r"mount[.:\w]{0,12} ?access denied",
            "access denied by server",
            r"MountVolume.{0,300}(?:denied|not permitted)",
        ),
    ),
    Cause(
        "volume-mount",
        "could not mount its volume ({evidence}): check the claim and the storage",
        _any_of("FailedMount", "FailedAttachVolume", r"MountVolume\.\w{1,20} failed", "Unable to attach or mount"),
    ),
    Cause(
        "image-pull",
        "could not pull its image ({evidence}): correct its name, the pull secret, or the registry",
        _any_of("ErrImagePull", "ImagePullBackOff", "[Ff]ailed to pull image"),
        retry=True,
    ),
    Cause(
        "unschedulable-selector",
        "fits no node: no label matches its selector or affinity",
        _any_of(r"^(?!.*\bInsufficient )(?=.*(?:match Pod's node affinity|match node selector|didn't match node))"),
    ),
    Cause(
        "unschedulable",
        "fits no node ({evidence}): request less, or wait until nodes are free",
        _any_of("FailedScheduling", r"\d nodes are available", "Insufficient nvidia"),
    ),
    Cause(
        "evicted",
        "was evicted from its node ({evidence}): request the resources that it uses",
        _any_of(
            r"[Rr]eason\W{1,4}Evicted",
            r"\d/\d +Evicted",
            "node was low on resource",
            "storage usage exceeds",
            "Usage of EmptyDir volume",
        ),
        retry=True,
        explains_signal=True,
    ),
    Cause(
        "preempted",
        "was preempted by a job of higher priority",
        _any_of(
            "DUE TO PREEMPTION",
            "PreemptionByScheduler",
            r"(?:[Jj]ob|[Pp]od|[Nn]ode|[Ii]nstance)\b.{0,60}\b[Pp]reempted",
            "Preempted by (?:a )?pod",
        ),
        retry=True,
        explains_signal=True,
    ),
    Cause(
        "node-lost",
        "was on a node that failed",
        _any_of(
            "DUE TO NODE FAILURE",
            "NODE_FAIL",
            "NodeLost",
            "DeletionByTaintManager",
            r"[Nn]ode .{0,100}(?:marked dead|not responding)",
        ),
        retry=True,
        explains_signal=True,
    ),
    Cause(
        "worker-lost",
        "lost a Ray worker: read that worker's own log, and look for the OOM killer",
        _any_of(
            "ActorUnavailableError",
            "ActorDiedError",
            "RayActorError",
            "WorkerCrashedError",
            "worker died or was killed",
            "worker process has died",
            "NodeDiedError",
        ),
        retry=True,
    ),
    # Signals. A SIGKILL does not name its sender, and a guess in a text ("killed by the OOM killer", as Ray writes)
    # proves nothing.
    Cause(
        "oom-host",
        "was killed by the OOM killer: request more memory, or load less data at once",
        _any_of(
            "oom[-_ ]kill",
            "OOM ?Killed",
            "OOM-killed",
            "Memory cgroup out of memory",
            "Out of memory: Kill",
            r"task \d+: Out Of Memory",
        ),
        explains_signal=True,
    ),
    Cause(
        "oom-host",
        "could not allocate host memory ({evidence}): request more memory, or load less data at once",
        _any_of("DefaultCPUAllocator", "Cannot allocate memory", r"\b_?(?:Array)?MemoryError", "bad_alloc"),
    ),
    Cause(
        "killed",
        "was killed by SIGKILL: check its host's kernel log for the OOM killer, otherwise look for the sender",
        _any_of(
            r"task \d+: Killed",
            "by signal: Killed",
            "signal SIGKILL",
            r"\(SIGKILL\)",
            r"Signals\.SIGKILL",
            r"[Ss]ignal 9\b",
            "return code = -9",
            "^Killed$",
            r"\d Killed\b",
            r"exit(?:ed with)? (?:exit )?(?:code|status)[: =]{1,2}(?:-9|137)\b",
        ),
        explains_signal=True,
        worker_codes=(-9,),
    ),
    Cause(
        "too-many-processes",
        "could not start a process or thread ({evidence}): raise its pids limit, or start fewer",
        _any_of(
            "can't start new thread",
            "[Tt]hread creation failed",
            "pthread_create failed",
            "fork: (?!retry).{0,20}Resource temporarily",
        ),
    ),
    Cause(
        "agent-killed",
        "lost its agent to {signal}: the OOM killer, a lost node, or a user's kill -9",
        retry=True,
        agent_codes=(-9, -11, -6, -4, -8),
    ),
    Cause(
        "segfault",
        "crashed in native code (SIGSEGV): check the extensions, and whether torch and CUDA match",
        _any_of("[Ss]egmentation fault", "SIGSEGV", "return code = -11"),
        worker_codes=(-11,),
    ),
    Cause(
        "illegal-instruction",
        "executed an instruction that this CPU does not support: use an image built for it",
        _any_of("Illegal instruction", "SIGILL"),
        worker_codes=(-4,),
    ),
    Cause(
        "data-worker-lost",
        "lost a DataLoader worker: its own error is above, or num_workers is too high",
        _any_of("DataLoader worker.{0,60}(?:exited unexpectedly|killed by signal)"),
    ),
    # What a rank or an agent logs about others
    Cause(
        "nccl-connect",
        "could not connect to a peer ({evidence}): check NCCL_SOCKET_IFNAME, the firewall and that peer",
        _any_of(
            r"[Cc]onnect to [^ ]{1,120} (?:failed|returned)(?!.{0,200}retrying)",
            "exceeded error retry count",
            "No route to host",
        ),
        retry=True,
        distance=Distance.PEER,
    ),
    Cause(
        "nccl-remote-error",
        "lost a peer in the middle of a collective: look for the first error of the others",
        _any_of("ncclRemoteError", "remote process exited"),
        retry=True,
        distance=Distance.PEER,
    ),
    Cause(
        "peer-lost",
        "lost the connection to a peer: look for the first error of the others",
        _any_of(
            "[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer",
            "[Bb]roken [Pp]ipe",
            "Connection was likely closed",
            r"communicator was aborted(?!.{0,200}timeout)",
            "ConnectionResetError",
            r"got error: Connection",
        ),
        retry=True,
        distance=Distance.PEER,
    ),
    Cause(
        "nccl-system-error",
        "had NCCL fail in a system call ({evidence}): run it with NCCL_DEBUG=INFO and read the warnings",
        _any_of("ncclSystemError", "unhandled system error"),
        distance=Distance.PEER,
    ),
    Cause(
        "nccl-error",
        "had NCCL fail ({evidence}): run it with NCCL_DEBUG=INFO and read the warnings",
        _any_of(
            "NCCL [Ee]rror",
            "ncclInvalidUsage",
            "ncclInternalError",
            "ncclInvalidArgument",
            r"(?<!an instance of 'c10::)DistBackendError(?!.{0,400}(?:store->|collective operation timeout))",
        ),
        distance=Distance.PEER,
    ),
    Cause(
        COLLECTIVE_TIMEOUT,
        "waited for a collective until it timed out: look for the rank that is missing or slow",
        _any_of(
            "caught collective operation timeout",
            "timed out in blocking wait",
            "NCCL operations have failed or timed out",
            "watchdog got stuck",
            "[Ww]atchdog thread (?:got stuck|terminated)",
            "(?:call into|failed to pass) monitoredBarrier",
            "[Hh]eartbeat monitor timed out",
            "due to collective timeout",
        ),
        retry=True,
        distance=Distance.WAIT,
    ),
    Cause(
        "rendezvous-timeout",
        "waited for the other nodes, but only {joined} of {total} joined in time: check why the others did not start",
        _any_of(r"waiting for (?:clients|workers)\. (?P<joined>\d{1,6})/(?P<total>\d{1,6})"),
        retry=True,
        distance=Distance.WAIT,
    ),
    Cause(
        "rendezvous-timeout",
        "waited for the other nodes, but too few joined in time: check why the others did not start",
        _any_of("RendezvousTimeoutError"),
        retry=True,
        distance=Distance.WAIT,
    ),
    Cause(
        "rendezvous-closed",
        "found the rendezvous closed: its id was used before, or the others had already ended",
        _any_of("RendezvousClosedError", "RendezvousGracefulExitError"),
        retry=True,
        distance=Distance.WAIT,
    ),
    Cause(
        "port-taken",
        "found its port taken: end the process that uses it, or choose another port",
        _any_of("EADDRINUSE", "[Aa]ddress already in use", "failed to listen on any local"),
        retry=True,
    ),
    Cause(
        "etcd-gone",
        "got no response from etcd: check whether it runs, and whether this node can reach it",
        _any_of("connection to etcd has failed", "EtcdConnectionFailed", "EtcdException", "url: /v2/"),
        retry=True,
        distance=Distance.WAIT,
    ),
    Cause(
        "endpoint-name",
        "could not resolve the rendezvous endpoint's name: check the name, its Service and DNS",
        _any_of(
            "addresses of .{1,200} cannot be retrieved", "[Nn]ame or service not known", "failure in name resolution"
        ),
        retry=True,
        distance=Distance.WAIT,
    ),
    Cause(
        "rendezvous-connection",
        "could not reach the rendezvous endpoint: check whether its host runs, and the firewall",
        _any_of(
            r"Rendezvous(?:Connection|State)?Error",
            "client socket has timed out",
            "DistNetworkError",
            "failed to connect to any network address",
        ),
        retry=True,
        distance=Distance.WAIT,
    ),
    Cause(
        "peer-timeout",
        "waited for a peer until it timed out: look for the rank that is missing or slow",
        _any_of(
            "Socket Timeout",
            r"wait timeout after \d",
            "Timeout waiting for key",
            r"[Tt]imed out waiting \d{1,9} ?ms",
            "timeout caused pair closure",
            "DistStoreError",
        ),
        retry=True,
        distance=Distance.WAIT,
    ),
    # What is logged last, whatever happened before
    Cause(
        "time-limit",
        "was ended by its scheduler's time limit: request more time, or resume from the last checkpoint",
        _any_of(
            "DUE TO (?:JOB )?TIME ?LIMIT",
            "TERM_RUNLIMIT",
            r"[Rr]eason\W{1,4}DeadlineExceeded",
            "longer than (?:the )?specified deadline",
            "(?:walltime|time limit).{0,40}exceeded",
            "exceeded.{0,20}(?:wall ?time|time limit)",
        ),
        distance=Distance.STOPPED,
        explains_signal=True,
    ),
    Cause(
        "cancelled",
        "was cancelled through its scheduler",
        _any_of(r"\*\*\* (?:JOB|STEP) .{0,200}CANCELLED", "TERM_OWNER"),
        distance=Distance.STOPPED,
        explains_signal=True,
    ),
    Cause(
        "terminated",
        "was stopped from outside: a drain, a preemption, or a user's kill",
        _any_of(
            "Received [A-Z0-9]{1,8} death signal",
            r"got signal: \d",
            "received SIGTERM",
            "SIGTERM received",
            "KeyboardInterrupt",
        ),
        retry=True,
        distance=Distance.STOPPED,
        explains_signal=True,
        worker_codes=_STOP_CODES,
        agent_codes=_STOP_CODES,
    ),
    Cause(
        "abort",
        "aborted in native code (SIGABRT): read the lines before",
        _any_of(
            "terminate called",
            r"^(?:free|malloc|realloc|munmap_chunk)\(\): ",
            "double free or corruption",
            "error: Aborted",
            "SIGABRT",
            "Signal 6",
            "return code = -6",
            r"\(core dumped\)",
        ),
        distance=Distance.STOPPED,
        worker_codes=(-6,),
    ),
)

PROGRAM_ERROR = Cause("program-error", "raised {evidence}; read the traceback in its log, and correct the program")
PROGRAM_EXIT = Cause(
    "program-error", "exited with code {code} and without a traceback: read its last lines", distance=Distance.STOPPED
)
STORE_ENDED = Cause("etcd-gone", "ended before the job: check its log and its memory", retry=True)
RANK_HANGS = Cause(
    "rank-hangs", "hangs: the sentence names the place, the reason, and the ranks that wait for it", retry=True
)
UNKNOWN_CAUSE = Cause(
    "unknown", "failed, and its log does not show why: read its last lines", distance=Distance.UNKNOWN
)
# These decide the cause alone: a process that was killed could not log why.
DECISIVE_EXIT_CODES = frozenset({-9, -11, -7, -4, -8, 126, 127})
