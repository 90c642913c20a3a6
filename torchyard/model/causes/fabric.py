"""Causes in the network between the ranks: RDMA, NCCL and the connections to peers."""

from torchyard.model.causes.cause import Cause, CauseFacts, Distance, LogRule

# NCCL 2.30: status=IBV_WC_RETRY_EXC_ERR(12); older: status=12; oldest: with error 12
_COMPLETION = r"Got completion.{0,300}?(?:status=(?:[^ ,(\d]{0,60}\(?|\([^)]{0,60}\))|error )"
_MODIFY_QP = r"(?:ibv_modify_qp(?:\([^)]{0,40}\))? failed|[Ff]ailed to modify QP)(?!.{0,300}retrying)"
_ADAPTER_FAULT = ".{0,40}(?:port error|catastrophic|fatal|violation|queue error)"
_MODIFY_QP_WORDS = ("ibv_modify_qp", "ailed to modify QP")


class FabricCause(Cause):
    """The network between the ranks."""

    FABRIC_NOT_RDMA = CauseFacts("fabric-not-rdma")
    FABRIC_DEGRADED = CauseFacts("fabric-degraded")
    FABRIC_SLOW = CauseFacts("fabric-slow", advice="`programs/pairwise.py` finds a slow node")
    RDMA_MISSING = CauseFacts("rdma-missing")
    RDMA_RETRY_EXCEEDED = CauseFacts(
        "rdma-retry-exceeded", advice="check the link, the GID index, the HCAs and PFC", retry=True
    )
    RDMA_NOT_READY = CauseFacts("rdma-not-ready", advice="look for a process on it that hangs or died", retry=True)
    RDMA_ACCESS = CauseFacts(
        "rdma-access", advice="look for a process on it that died, then check GPUDirect", retry=True
    )
    RDMA_FLUSHED = CauseFacts("rdma-flushed", advice="look for the first error", retry=True)
    RDMA_ASYNC_EVENT = CauseFacts(
        "rdma-async-event", advice="check the link, the cable and the adapter of this node", retry=True
    )
    RDMA_CONNECT = CauseFacts("rdma-connect", advice="check the GID index and the routes between the HCAs")
    RDMA_MEMLOCK = CauseFacts("rdma-memlock", advice="give the container IPC_LOCK and an unlimited memlock")
    RDMA_REGISTRATION = CauseFacts("rdma-registration", advice="load nvidia-peermem, or disable GPUDirect")
    RDMA_ERROR = CauseFacts(
        "rdma-error", advice="check the fabric, and look for the first error of its peer", retry=True
    )
    NVLS_EXHAUSTED = CauseFacts(
        "nvls-exhausted", advice="set NCCL_NVLS_ENABLE=0, or check the fabric manager and what else uses NVLS"
    )
    NCCL_NO_INTERFACE = CauseFacts("nccl-no-interface", advice="correct NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME")
    COLLECTIVE_MISMATCH = CauseFacts(
        "collective-mismatch", advice="make every rank take the same steps, with data of the same size"
    )
    GPU_SHARED = CauseFacts("gpu-shared", advice="start at most one process per GPU and let each use its local rank")
    NCCL_CUDA_ERROR = CauseFacts("nccl-cuda-error", advice="check this GPU and its driver")
    NCCL_CONNECT = CauseFacts("nccl-connect", advice="check NCCL_SOCKET_IFNAME, the firewall and that peer", retry=True)
    NCCL_REMOTE_ERROR = CauseFacts("nccl-remote-error", advice="look for the first error of the others", retry=True)
    PEER_LOST = CauseFacts("peer-lost", advice="look for the first error of the others", retry=True)
    NCCL_SYSTEM_ERROR = CauseFacts("nccl-system-error", advice="run it with NCCL_DEBUG=INFO and read the warnings")
    NCCL_ERROR = CauseFacts("nccl-error", advice="run it with NCCL_DEBUG=INFO and read the warnings")
    NCCL_TIMEOUT = CauseFacts("nccl-timeout", advice="look for the rank that is missing or slow", retry=True)


VAGUE_TIMEOUT = LogRule(
    cause=FabricCause.NCCL_TIMEOUT,
    symptom="had a collective that failed or timed out",
    patterns=("NCCL operations have failed or timed out",),
    distance=Distance.WAIT,
)
FABRIC_RULES = (
    # A new attempt would get the same nodes: what is slow between them is not known from an all-reduce.
    LogRule(
        cause=FabricCause.FABRIC_SLOW,
        symptom="measured {measured} GB/s (busbw) before the program, and check_fabric needs {required} GB/s",
        patterns=(
            (
                r"allreduce\.py: all_reduce reached a busbw of (?P<measured>[\d.e+-]{1,20}) GB/s, and "
                r"(?P<required>[\d.e+-]{1,20}) GB/s are needed"
            ),
        ),
    ),
    LogRule(
        cause=FabricCause.RDMA_MISSING,
        symptom="has no RDMA, which `on_fabric: fail` requires ({evidence})",
        patterns=("torchyard: error: this pod cannot use RDMA: .{1,300}",),
    ),
    LogRule(
        cause=FabricCause.RDMA_RETRY_EXCEEDED,
        symptom="got no response over RDMA (retry exceeded)",
        patterns=(_COMPLETION + r"12\b", "(?<!RNR_)RETRY_EXC_ERR", "[Tt]ransport retry count(?:er)? exceeded"),
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    LogRule(
        cause=FabricCause.RDMA_NOT_READY,
        symptom="found its RDMA peer not ready (RNR)",
        patterns=(_COMPLETION + r"13\b", "RNR_RETRY_EXC_ERR", "RNR retry count"),
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    LogRule(
        cause=FabricCause.RDMA_ACCESS,
        symptom="was refused memory by its RDMA peer",
        patterns=(_COMPLETION + r"10\b", "REM_ACCESS_ERR"),
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    LogRule(
        cause=FabricCause.RDMA_FLUSHED,
        symptom="had its RDMA requests flushed after another error",
        patterns=(_COMPLETION + r"5\b", "WR_FLUSH_ERR"),
        distance=Distance.PEER,
    ),
    LogRule(
        cause=FabricCause.RDMA_ASYNC_EVENT,
        symptom="reported an error of its RDMA adapter",
        patterns=(
            "async fatal event",
            "async event ?:" + _ADAPTER_FAULT,
            "async error event ?:" + _ADAPTER_FAULT,
        ),
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    LogRule(
        cause=FabricCause.RDMA_CONNECT,
        symptom="could not open an RDMA connection in time",
        patterns=(_MODIFY_QP + r"(?=.{0,120}(?:timed out|unreachable))",),
        failure_words=_MODIFY_QP_WORDS,
        own_retry=True,
        distance=Distance.FABRIC,
    ),
    LogRule(
        cause=FabricCause.RDMA_CONNECT,
        symptom="could not open an RDMA connection",
        patterns=(_MODIFY_QP, r"Call to ibv_query_gid\w{0,10} failed"),
        failure_words=_MODIFY_QP_WORDS,
        own_advice="set the right GID index and the HCAs that reach each other",
    ),
    LogRule(
        cause=FabricCause.RDMA_MEMLOCK,
        symptom="cannot lock memory for RDMA",
        patterns=(
            r"ibv_(?:reg|create|alloc)\w{0,30}.{0,60}(?:Cannot allocate memory|Resource temporarily)",
            r"(?:[Ss]et|[Cc]heck|[Ii]ncrease|[Rr]aise) (?:the )?max locked memory",
            "NET/OFI Couldn't .{0,100}Cannot allocate memory",
        ),
    ),
    LogRule(
        cause=FabricCause.RDMA_REGISTRATION,
        symptom="could not register memory for RDMA",
        patterns=(r"ibv_reg_\w{0,30} (?:failed|returned)",),
    ),
    LogRule(
        cause=FabricCause.RDMA_REGISTRATION,
        symptom="could not register memory with libfabric ({evidence})",
        patterns=(
            r"NET/OFI.{0,100}(?:[Uu]nable to register|[Rr]egist\w{2,10} (?:of )?(?:memory |mr )?failed)",
            r"\bfi_mr_reg\w{0,10}\b.{0,60}(?:failed|RC: -|returned -)",
            r"\bcxil?\w{0,20}_map\w{0,10}\b.{0,80}(?:fail|-\d)",
        ),
        own_advice="make plugin, libfabric and driver match, or turn off GPUDirect",
    ),
    LogRule(
        cause=FabricCause.RDMA_ERROR,
        symptom="had an RDMA request fail ({evidence})",
        patterns=(
            _COMPLETION + r"(?!(?:5|10|12|13)\b)\d",
            r"Call to ibv_(?!modify_qp|reg_)\w{1,40} failed",
            r"NET/OFI.{0,200}completed with error",
            r"NET/OFI Couldn't \w{1,20} .{0,60}RC: -?\d",
            "NET/OFI Creating new endpoint .{0,60}failed",
            r"UCX +ERROR",
        ),
        distance=Distance.FABRIC,
        explains_signal=True,
    ),
    # NCCL calls the switches' multicast slots memory.
    LogRule(
        cause=FabricCause.NVLS_EXHAUSTED,
        symptom="could not get NVLink SHARP (NVLS) resources of the NVSwitches ({evidence})",
        patterns=(
            r"nvls\.cc:.{0,200}(?:out of memory|[Ff]ail|CUDA error)",
            r"NVLS\b.{0,200}(?:out of memory|CUDA error|Cuda failure)",
            r"NCCL WARN.{0,300}NCCL_NVLS_ENABLE=0",
        ),
    ),
    # Debian maps the host's own name to this address, and gloo publishes it.
    LogRule(
        cause=FabricCause.NCCL_NO_INTERFACE,
        symptom="tried to reach a peer at 127.0.1.1, which every host is to itself ({evidence})",
        patterns=(
            r"connect \[127\.0\.1\.1\]",
            r"127\.0\.1\.1\b.{0,80}[Cc]onnection refused",
            r"connectFullMesh failed .{0,200}127\.0\.1\.1\b",
        ),
        own_advice="set GLOO_SOCKET_IFNAME, or remove the host's name from the line of 127.0.1.1 in /etc/hosts",
    ),
    LogRule(
        cause=FabricCause.NCCL_NO_INTERFACE,
        symptom="uses another version of IP than its peer ({evidence})",
        patterns=(r"ss1\.ss_family == ss2\.ss_family",),
        own_advice="set GLOO_SOCKET_IFNAME, and let the names of all hosts have addresses of one version",
    ),
    LogRule(
        cause=FabricCause.NCCL_NO_INTERFACE,
        symptom="found no network plugin that works, not even NCCL's own",
        patterns=("Failed to initialize any NET plugin",),
        own_advice="correct NCCL_NET, NCCL_NET_PLUGIN, NCCL_SOCKET_IFNAME and NCCL_IB_HCA",
    ),
    LogRule(
        cause=FabricCause.NCCL_NO_INTERFACE,
        symptom="did not find the network that NCCL_NET names ({evidence})",
        patterns=(r"\bError: network .{1,80} not found",),
        own_advice="correct NCCL_NET, or install its plugin in the image",
    ),
    LogRule(
        cause=FabricCause.NCCL_NO_INTERFACE,
        symptom="found no network interface for its collectives",
        patterns=(
            "[Nn]o (?:usable )?(?:socket )?interface found",
            "Unable to find (?:address for|interface)",
            "unsupported gloo device",
        ),
    ),
    LogRule(
        cause=FabricCause.COLLECTIVE_MISMATCH,
        symptom="called other collectives than its peers, or the same one with tensors of another size",
        patterns=(
            "mismatch between collective",
            "collective mismatch (?:in your code|error)",
            "Mismatched collective detected",
            r"NET/.{1,200}message truncated : receiving \d",
            r"enforce fail at .{0,200}gloo.{0,80}op\.preamble\.length <= op\.nbytes",
            r"disagreement between rank\d{1,6} and rank\d",
        ),
    ),
    LogRule(
        cause=FabricCause.GPU_SHARED,
        symptom="shares a GPU with another rank",
        patterns=("Duplicate GPU detected",),
    ),
    LogRule(
        cause=FabricCause.NCCL_CUDA_ERROR,
        symptom="had NCCL fail in CUDA ({evidence})",
        patterns=("unhandled cuda error", "ncclUnhandledCudaError", "NCCL WARN.{0,20}(?:Cuda|HIP) failure"),
        distance=Distance.FABRIC,
    ),
    # One host's peers are rightly at this address, so that it proves nothing about another attempt.
    LogRule(
        cause=FabricCause.NCCL_CONNECT,
        symptom="could not connect to a peer at 127.0.0.1 ({evidence})",
        patterns=(
            r"connectFullMesh failed .{0,300}127\.0\.0\.1\b",
            r"connect \[127\.0\.0\.1\]",
            r"gloo/transport/.{0,200}127\.0\.0\.1\b.{0,40}[Cc]onnection refused",
        ),
        own_advice="set GLOO_SOCKET_IFNAME if its peers are on other hosts, else look for their first error",
        distance=Distance.PEER,
    ),
    LogRule(
        cause=FabricCause.NCCL_CONNECT,
        symptom="could not connect to a peer ({evidence})",
        patterns=(
            r"[Cc]onnect to [^ ]{1,120} (?:failed|returned)(?!.{0,200}retrying)",
            "exceeded error retry count",
            "No route to host",
            "connectFullMesh failed",
            r"gloo/transport/.{0,200}(?:connect \[|[Cc]onnection refused|Connect timeout)",
        ),
        distance=Distance.PEER,
    ),
    LogRule(
        cause=FabricCause.NCCL_REMOTE_ERROR,
        symptom="lost a peer in the middle of a collective",
        patterns=("ncclRemoteError", "remote process exited"),
        distance=Distance.PEER,
    ),
    LogRule(
        cause=FabricCause.PEER_LOST,
        symptom="lost the connection to a peer",
        patterns=(
            "[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer",
            r"(?<! to - \[Errno 32\] )[Bb]roken [Pp]ipe",  # not of a command whose reader has enough
            "Connection was likely closed",
            "lost communication with (?:a remote|its) daemon",
            "failed to recv, got 0 bytes",
            "ConnectionResetError",
            r"got error: Connection",
            "monitoredBarrier, but received errors",
            "has been set to ERROR in coordination service",
            "most likely indicates that another task died",
        ),
        distance=Distance.PEER,
    ),
    LogRule(
        cause=FabricCause.PEER_LOST,
        symptom="was told by Horovod that another rank has failed or ended",
        patterns=("Horovod has been shut down", "HorovodInternalError"),
        distance=Distance.PEER,
    ),
    LogRule(
        cause=FabricCause.NCCL_ERROR,
        symptom="had NCCL fail, because two of its processes have the same rank ({evidence})",
        patterns=(r"Bootstrap Root : rank \d{1,6} of \d{1,6} ranks has already checked in",),
        own_advice="correct RANK, WORLD_SIZE and the node's rank in the command of each process",
    ),
    LogRule(
        cause=FabricCause.NCCL_SYSTEM_ERROR,
        symptom="had NCCL fail in a system call ({evidence})",
        patterns=(
            "ncclSystemError",
            "unhandled system error",
            "NCCL WARN Error while attaching to shared memory segment",
        ),
        distance=Distance.PEER,
    ),
    LogRule(
        cause=FabricCause.NCCL_ERROR,
        symptom="had NCCL fail ({evidence})",
        patterns=(
            "NCCL error",
            "NCCL Error",
            "NCCL failure .{1,100}'(?:internal error|invalid usage|invalid argument)",
            "ncclInvalidUsage",
            "ncclInternalError",
            "ncclInvalidArgument",
            "NCCL WARN Invalid rank requested",
            "NCCL WARN Error : no algorithm/protocol available",
            r"(?<!an instance of 'c10::)DistBackendError(?!.{0,400}(?:store->|collective operation timeout))",
        ),
        distance=Distance.PEER,
    ),
    LogRule(
        cause=FabricCause.NCCL_TIMEOUT,
        symptom="waited for a collective until it timed out",
        patterns=(
            "caught collective operation timeout",
            "timed out in blocking wait",
            "watchdog got stuck",
            "[Ww]atchdog thread (?:got stuck|terminated)",
            "(?:call into|failed to pass) monitoredBarrier",
            "[Hh]eartbeat monitor timed out",
            "due to collective timeout",
        ),
        failure_words=("last enqueued", "timeout"),
        distance=Distance.WAIT,
    ),
    # These only follow from a timeout or from a peer's end, which the watchdog has logged before.
    VAGUE_TIMEOUT,
    LogRule(
        cause=FabricCause.PEER_LOST,
        symptom="had its NCCL communicator aborted ({evidence})",
        patterns=(r"communicator was aborted(?!.{0,200}timeout)",),
        distance=Distance.WAIT,
    ),
)
