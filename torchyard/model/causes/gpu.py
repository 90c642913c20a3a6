"""Causes in a GPU and its software."""

from torchyard.model.causes.cause import Cause, CauseFacts, LogRule

_XID = r"\bXid\b(?: ?\(PCI:[^)]{0,20}\))?[ :=]{1,4}(?:error )?"


class GpuCause(Cause):
    """A GPU and its software."""

    CUDA_NO_KERNEL = CauseFacts("cuda-no-kernel", advice="use an image built for its architecture")
    CUDA_ERROR = CauseFacts("cuda-error", advice="run it again with CUDA_LAUNCH_BLOCKING=1 to find the place")
    NVLINK_FAULT = CauseFacts("nvlink-fault", advice="drain the node and check `nvidia-smi nvlink -e`", retry=True)
    GPU_FAULT = CauseFacts("gpu-fault", advice="drain the node and look for Xid in dmesg", retry=True)
    GPU_XID = CauseFacts("gpu-xid", advice="look the Xid up in NVIDIA's table")
    DRIVER_TOO_OLD = CauseFacts("driver-too-old", advice="update it, or use an image with an older CUDA")
    DRIVER_BROKEN = CauseFacts("driver-broken", advice="reboot the node, or start its fabric manager", retry=True)
    GPU_BUSY = CauseFacts("gpu-busy", advice="check nvidia-smi on the node", retry=True)
    GPU_MISSING = CauseFacts("gpu-missing", advice="request as many GPUs as processes")


GPU_RULES = (
    LogRule(
        cause=GpuCause.CUDA_NO_KERNEL,
        symptom="runs a CUDA build without code for this GPU",
        patterns=(
            "no kernel image is available",
            "(?:CUDA|HIP) error: invalid device function",
            "hipErrorNoBinaryForGpu",
            "device kernel image is invalid",
        ),
    ),
    # NVIDIA's Xid numbers: what the program did (13, 31, 43), what NVLink did (74, 144 to 150), what the GPU did; 45
    # only follows.
    LogRule(
        cause=GpuCause.CUDA_ERROR,
        symptom="caused a fault on its GPU ({evidence})",
        patterns=(_XID + r"(?:13|31|43)\b",),
    ),
    LogRule(
        cause=GpuCause.NVLINK_FAULT,
        symptom="has a broken NVLink ({evidence})",
        patterns=(
            _XID + r"(?:74|14[4-9]|150)\b(?!.{0,80}\bNonfatal\b)",
            "[Uu]ncorrectable NVLink",
            r"NVLink.{0,40}error(?!s?\W{0,40}(?:0|N/A)\b)",
        ),
    ),
    LogRule(
        cause=GpuCause.GPU_FAULT,
        symptom="has a broken GPU ({evidence})",
        patterns=(
            _XID + r"(?:46|48|6[1-4]|79|9[2-5]|109|119|120|121|140|143)\b",
            r"[Uu]ncorrectable ECC(?! [Ee]rrors?\W{0,40}(?:0|N/A|None)\b)(?! [Cc]ount)",
            r"(?<![Nn]o )(?<!orrectable )(?<!orrected )ECC error(?!s?\W{0,40}(?:0|N/A|None)\b)(?! count)",
            "fallen off the bus",
            "GPU is lost",
            "GPU requires reset",
            "Unable to determine the device handle for GPU",
            "Invalid access of peer GPU memory over nvlink or a hardware error",
        ),
    ),
    LogRule(
        cause=GpuCause.GPU_FAULT,
        symptom="lost its GPU, which its driver may have reset ({evidence})",
        patterns=("_ERROR_DEVICE_LOST",),
        own_advice="look for the reset in dmesg, and drain the node if it happens again",
    ),
    LogRule(
        cause=GpuCause.GPU_FAULT,
        symptom="had its GPU hang ({evidence})",
        patterns=("HW Exception by GPU node",),
        own_advice="look for amdgpu in dmesg, and drain the node if it happens again",
    ),
    LogRule(
        cause=GpuCause.GPU_XID,
        symptom="had its GPU report an error ({evidence})",
        patterns=(_XID + r"(?!45\b)\d(?!.{0,80}\bNonfatal\b)",),
    ),
    LogRule(
        cause=GpuCause.DRIVER_TOO_OLD,
        symptom="has a GPU driver that is too old for its CUDA ({evidence})",
        patterns=(
            "driver version is insufficient",
            "driver on your system is too old",
            "unsatisfied condition: (?:cuda|driver)",
            "forward compatibility was attempted on non supported HW",
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED",
            "cudaErrorInsufficientDriver",
        ),
    ),
    LogRule(
        cause=GpuCause.DRIVER_BROKEN,
        symptom="has a broken GPU driver ({evidence})",
        patterns=(
            "[Dd]river/library version mismatch",
            "nvml error: driver not loaded",
            "[Ss]ystem not yet initialized",
            "cudaErrorSystem[DN]",
            "unsupported display driver",
            "OS call failed or operation not supported",
        ),
    ),
    LogRule(
        cause=GpuCause.DRIVER_BROKEN,
        symptom="could not get its node's GPUs into the container ({evidence})",
        patterns=(
            "nvidia-container-cli: (?:ldcache|detection|initialization|mount) error",
            "Command not found: nvidia-container-cli",
            "container creation failed: .{0,80}nvidia-container-cli",
        ),
        own_advice="check the driver and the NVIDIA container toolkit of this node",
    ),
    LogRule(
        cause=GpuCause.GPU_BUSY,
        symptom="found its GPU in use by another process ({evidence})",
        patterns=(
            r"device(?:s are|\(s\) is/are) busy or unavailable",
            "cudaErrorDevicesUnavailable",
            r"\[Device already acquired\]",
            "Maybe the last training process is running",
        ),
    ),
    LogRule(
        cause=GpuCause.GPU_MISSING,
        symptom="found no GPU it could use, or fewer than its processes need ({evidence})",
        patterns=(
            "no NVIDIA driver",
            "no CUDA-capable device",
            "Error: (?:CUDA|Cuda|cuda) is not available",
            "No (?:CUDA|HIP) GPUs",
            "No XPU devices",
            "no GPUs found",
            r"You requested (?:GPU|gpu)s?: \[",
            "not compiled with CUDA",
            "No supported gpu backend found",
            "device < num_gpus",
            "invalid device ordinal",
            r"libcuda\.so\.1: cannot open",
            "CUDA unknown error",
            "Failed to initialize NVML",
            r"NVMLError\w{0,40}: NVML Shared Library Not Found",
            "could not select device driver",
            r"\[Device not found\]",
        ),
    ),
    # Behind the causes above, which some of the numbers show.
    LogRule(
        cause=GpuCause.DRIVER_BROKEN,
        symptom="could not initialize CUDA ({evidence})",
        patterns=(
            r"Unexpected error from cudaGetDeviceCount\(\)",
            r"\[\[ [A-Z].{0,60} \(error (?:3|36|500|801|803|999)\) \]\]",
        ),
        failure_words=(" (error ",),
        own_advice="check the driver, and whether it fits the CUDA of the image",
    ),
    LogRule(
        cause=GpuCause.CUDA_ERROR,
        symptom="got an error of its AMD GPU ({evidence})",
        patterns=(
            r"HIP (?:runtime |driver )?error\b",
            "Memory access fault by GPU",
            "HSA_STATUS_ERROR",
            "HIPBLAS_STATUS_(?!SUCCESS)",
        ),
        own_advice="run it again with AMD_SERIALIZE_KERNEL=3 to find the place",
    ),
    LogRule(
        cause=GpuCause.CUDA_ERROR,
        symptom="got a CUDA error ({evidence})",
        patterns=(
            r"(?<![Nn]o )(?:CUDA|Cuda) (?:runtime |driver )?error\b",
            r"block: \[[\d,]{5,40}\], thread: \[[\d,]{5,40}\] Assertion `",
            r"\bcudaError[A-Z]\w",
            "(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_(?!SUCCESS)",
            "device-side assert(?!ions)",
            "illegal memory access",
            "unspecified launch failure",
        ),
    ),
)
