"""Causes in memory, disks and files, of a node and of a GPU."""

from torchyard.model.causes.cause import Cause, CauseFacts, Distance, LogRule, list_exit_code_patterns

_SHM = r"(?:/dev/shm|</torch_|shared memory)"
# An error of the system that is no lack of space. torch reports `Success` where it does not know the error.
_OTHER_REASON = r"(?!.{0,200}: (?!No space left|Success)[A-Z][a-z][\w ,'/-]{2,60} \(\d{1,3}\))"
_XLA_OUT_OF_MEMORY = r"(?:[Oo]ut of memory|to (?:reserve|allocate)\b|[Ee]rror allocating)"
_CUDA = r"(?:CUDA|Cuda|cuda|HIP|hip)"


class MemoryCause(Cause):
    """Memory, disks and files."""

    OOM_HOST = CauseFacts("oom-host", advice="request more memory, or load less data at once")
    OOM_GPU = CauseFacts("oom-gpu", advice="lower the batch size, shard the model, or use larger GPUs")
    SHM_EXHAUSTED = CauseFacts("shm-exhausted", advice="give the pod a larger /dev/shm, or lower num_workers")
    TOO_MANY_FILES = CauseFacts("too-many-files", advice="raise the limit (ulimit -n), or lower num_workers")
    DISK_FULL = CauseFacts("disk-full", advice="free some, or write checkpoints and caches elsewhere")
    STORAGE_ERROR = CauseFacts("storage-error", advice="check the mount, its server, and the node's disk", retry=True)


# The words are those of memory of the GPU; only the place of the exception shows it: see diagnosis/symptoms.py.
HOST_MEMORY_NOT_PINNED = LogRule(
    cause=MemoryCause.OOM_HOST,
    symptom="could not pin host memory ({evidence})",
    own_advice="request more memory, pin less of it, or check what limits it",
)
# A socket that is not connected has the same words; only the call shows a file: see diagnosis/symptoms.py.
MOUNT_LOST = LogRule(
    cause=MemoryCause.STORAGE_ERROR,
    symptom="lost the mount of a file ({evidence})",
)
# The words are those of any disk; only the call shows a semaphore: see diagnosis/symptoms.py.
NO_SEMAPHORE = LogRule(
    cause=MemoryCause.SHM_EXHAUSTED,
    symptom="found no space for a semaphore in /dev/shm ({evidence})",
)
MEMORY_RULES = (
    LogRule(
        cause=MemoryCause.OOM_HOST,
        symptom="was ended by Ray because host memory ran low",
        patterns=(
            r"ray\.exceptions\.OutOfMemoryError",
            "node running low on memory",
            r"\b[1-9]\d{0,5} Workers .{0,40}killed due to memory pressure",
        ),
        explains_signal=True,
    ),
    LogRule(
        cause=MemoryCause.OOM_HOST,
        symptom="could not map memory ({evidence})",
        patterns=("unable to mmap .{0,300}: Cannot allocate memory",),
        own_advice="request more memory, or raise vm.max_map_count of its host",
    ),
    LogRule(
        cause=MemoryCause.OOM_GPU,
        symptom="has too little free GPU memory for its KV cache ({evidence})",
        patterns=(
            "Free memory on device.{0,200}desired GPU memory utilization",
            "No available memory for the cache blocks",
            "larger than the available KV cache memory",
            "maximum number of tokens that can be stored in (?:the )?KV cache",
        ),
        own_advice="check nvidia-smi for what else uses the GPU, or change gpu_memory_utilization or max_model_len",
    ),
    LogRule(
        cause=MemoryCause.OOM_GPU,
        symptom="ran out of GPU memory",
        patterns=(
            _CUDA + ".{0,60}out of memory",
            r"\bOutOfMemoryError",
            "(?:CUBLAS|CUDNN|HIPBLAS)_STATUS_ALLOC_FAILED",
            "OOM when allocating",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cudaErrorMemoryAllocation",
            "hipErrorOutOfMemory",
            r"cudaSuccess\. 2 vs 0",
            "RESOURCE_EXHAUSTED: .{0,120}" + _XLA_OUT_OF_MEMORY,
            "Resource exhausted: .{0,120}" + _XLA_OUT_OF_MEMORY,
            "_ERROR_OUT_OF_DEVICE_MEMORY",
            "PT_DEVMEM Allocation failed",
            "Failed to allocate memory requested by",
            "out of memory.{0,160}Tried to allocate",
        ),
    ),
    LogRule(
        cause=MemoryCause.SHM_EXHAUSTED,
        symptom="ran out of shared memory for NCCL",
        patterns=(r"posix_fallocate failed(?! ?: (?!No space left))", "failed to extend /dev/shm"),
        own_advice="give the pod a larger /dev/shm",
    ),
    # Without a reason it may also follow from an error of CUDA, which is nearer to the origin.
    LogRule(
        cause=MemoryCause.SHM_EXHAUSTED,
        symptom="could not create a segment of shared memory for NCCL",
        patterns=("while creating shared memory segment" + _OTHER_REASON,),
        own_advice="give the pod a larger /dev/shm",
        distance=Distance.FABRIC,
    ),
    LogRule(
        cause=MemoryCause.SHM_EXHAUSTED,
        symptom="ran out of shared memory",
        patterns=(
            "insufficient shared memory",
            "out of shared memory",
            _SHM + ".{0,200}No space left",
            "No space left.{0,100}/dev/shm",
            'EmptyDir volume "?[^ ]{0,20}shm',
            "unable to (?:write to|mmap|resize).{0,100}" + _SHM + _OTHER_REASON,
            "unable to allocate shared.{0,100}" + _SHM,
        ),
    ),
    LogRule(
        cause=MemoryCause.SHM_EXHAUSTED,
        symptom="crashed at memory that it could not get (SIGBUS), which usually is shared memory",
        patterns=(r"\b[Bb]us error", "SIGBUS", *list_exit_code_patterns(7)),
        own_advice="give the pod a larger /dev/shm, or lower num_workers; a mapped file that was cut off does the same",
        worker_codes=(-7,),
        agent_codes=(-7,),
    ),
    LogRule(
        cause=MemoryCause.TOO_MANY_FILES,
        symptom="opened too many files",
        patterns=("Too many open files", "received 0 items of ancdata"),
    ),
    LogRule(
        cause=MemoryCause.DISK_FULL,
        symptom="found no space left on a disk",
        patterns=("No space left on device", "Disk quota exceeded", "ENOSPC", "disk is full", "Not enough disk space"),
    ),
    LogRule(
        cause=MemoryCause.STORAGE_ERROR,
        symptom="had its storage fail ({evidence})",
        patterns=(
            "Stale (?:NFS )?file handle",
            "OSError.{0,20}Input/output error",
            "Remote I/O error",
            "disk I/O error",
            r"unable to mmap .{0,300}: Input/output error \(5\)",
            "file write failed: Input/output error",
            "Cannot send after transport endpoint shutdown",
            "Transport endpoint is not connected: '",
            r"\bfd \d{1,7} failed with Input/output error",
            "OSError.{0,20}(?:Communication error on send|Host is down|No locks available)",
            "TimeoutError.{0,20}Connection timed out: '",
            "error message = 'No locks available'",
        ),
    ),
    LogRule(
        cause=MemoryCause.STORAGE_ERROR,
        symptom="lost a file of the compiler's cache ({evidence})",
        patterns=(r"No such file or directory: '[^']{0,300}(?:torchinductor_|\.triton/)",),
        own_advice="give each job a cache of its own on a local disk: TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR",
    ),
    LogRule(
        cause=MemoryCause.STORAGE_ERROR,
        symptom="could not rename or remove a file that is in use ({evidence})",
        patterns=("OSError.{0,20}Device or resource busy: '",),
        own_advice="put caches on a local disk: a share refuses it while another process has the file open",
    ),
    # torch reports that a write failed, and not why.
    LogRule(
        cause=MemoryCause.STORAGE_ERROR,
        symptom="could not write the whole of a checkpoint ({evidence})",
        patterns=("PytorchStreamWriter failed writing file", r"inline_container\.cc:\d{1,5}\].{0,20}unexpected pos \d"),
        own_advice="check the free space and the quota of its disk, then the mount and its server",
    ),
)
