"""Causes in what was started, and how: the command, the program and its files."""

from torchyard.model.causes.cause import Cause, CauseFacts, LogRule


class StartCause(Cause):
    """The start of a process."""

    SHELL_SYNTAX = CauseFacts("shell-syntax", advice="start it with bash, or write POSIX sh")
    PROGRAM_MISSING = CauseFacts("program-missing", advice="correct its path, or copy it into the image")
    NOT_EXECUTABLE = CauseFacts("not-executable", advice="set its x bit, and build the image for this CPU")
    COMMAND_NOT_FOUND = CauseFacts("command-not-found", advice="install it in the image, or give its whole path")
    ETCD_MODULE_MISSING = CauseFacts("etcd-module-missing", advice="install python-etcd in the job's interpreter")
    ETCD_NO_V2 = CauseFacts("etcd-no-v2", advice="run etcd 3.5 or older with --enable-v2")
    MODULE_MISSING = CauseFacts("module-missing", advice="install it in the job's interpreter")
    LIBRARY_MISSING = CauseFacts("library-missing", advice="make torch, CUDA and the extensions match")
    FILE_MISSING = CauseFacts("file-missing", advice="correct the path, or mount the data")
    PERMISSION_DENIED = CauseFacts("permission-denied", advice="correct the owner, the mode or the mount")
    DOWNLOAD_FAILED = CauseFacts("download-failed", advice="give it network access, a token, or the data")
    USAGE = CauseFacts("usage", advice="correct the command")


START_RULES = (
    LogRule(
        cause=StartCause.SHELL_SYNTAX,
        symptom="was started by a shell that cannot parse the script",
        patterns=(
            "Syntax error: ",
            "syntax error near unexpected",
            "Bad substitution",
            r"\[\[: not found",
            "Bad fd number",
        ),
    ),
    LogRule(
        cause=StartCause.PROGRAM_MISSING,
        symptom="did not find the program ({evidence})",
        patterns=("can't open file '",),
    ),
    LogRule(
        cause=StartCause.NOT_EXECUTABLE,
        symptom="cannot execute its program",
        patterns=("cannot execute", "[Ee]xec format error"),
        worker_codes=(126,),
        agent_codes=(126,),
    ),
    LogRule(
        cause=StartCause.COMMAND_NOT_FOUND,
        symptom="did not find its command",
        patterns=(
            "executable file not found in",
            r"exec: .{1,200}: not found$",
            r"exec user process caused: no such file",
            r"^exec \S{1,200}: no such file or directory",
            r"execve\(\): .{1,200}: No such file",
            r"failed to execute: \S{1,200}: No such file",
        ),
        worker_codes=(127,),
        agent_codes=(127,),
    ),
    LogRule(
        cause=StartCause.ETCD_MODULE_MISSING,
        symptom="lacks the package that etcd rendezvous needs",
        patterns=("EtcdStubError", "No module named '?etcd\\b"),
    ),
    LogRule(
        cause=StartCause.ETCD_NO_V2,
        symptom="uses an etcd without the v2 API",
        patterns=("Bad response ?: 404", "flag provided but not defined: -enable-v2"),
    ),
    LogRule(
        cause=StartCause.MODULE_MISSING,
        symptom="lacks the Python module {name}",
        patterns=(r"(?:^|Error: |python[\d.]{0,5}: |; )No module named '?(?P<name>[\w.]{1,100})'?(?:\W{0,3}$|;)",),
    ),
    LogRule(
        cause=StartCause.MODULE_MISSING,
        symptom="lacks the Python package {name}",
        patterns=(
            (
                "(?:No package metadata was found for |packages that were not found in your environment: "
                r"|the package (?=\S{1,100} seems to be not installed))(?P<name>[\w.-]{0,99}\w)"
            ),
        ),
        failure_words=("No package metadata", "not found in your environment", "seems to be not installed"),
    ),
    LogRule(
        cause=StartCause.LIBRARY_MISSING,
        symptom="could not load a shared library ({evidence})",
        patterns=(
            "(?:ImportError|OSError): .{0,300}(?:shared object|undefined symbol|GLIBC)",
            "while loading shared libraries",
            "undefined symbol",
        ),
        failure_words=("rror: ",),
    ),
    LogRule(
        cause=StartCause.LIBRARY_MISSING,
        symptom="has a build of torch without NCCL",
        patterns=("doesn't have NCCL built in",),
        own_advice="use gloo, or install a build with NCCL",
    ),
    LogRule(
        cause=StartCause.FILE_MISSING,
        symptom="did not find a file ({evidence})",
        patterns=(
            "FileNotFoundError",
            r"\[Errno 2\] No such file or directory",  # also in the message of another exception
            r"sh: .{0,200}: No such file or directory",
            "Dataset not found",
            "mount source .{1,200} doesn't exist",
            "enroot-mount: failed to mount: .{1,300}No such file",
            "Parent directory .{1,300} does not exist",
            "is not a local folder",
            "Incorrect path_or_model_id",
            "Repo id must (?:be in the form|use alphanumeric)",
            "no file named .{1,200} found in directory",
            "does not appear to have a file named",
            "Can't load .{1,60} (?:for|of) '",
        ),
    ),
    LogRule(
        cause=StartCause.PERMISSION_DENIED,
        symptom="was refused a login by ssh ({evidence})",
        patterns=(
            r"Permission denied \((?:publickey|password|keyboard|gssapi|hostbased)",
            "Host key verification failed",
        ),
        own_advice="give it a key that the other host accepts, and that host's entry in known_hosts",
    ),
    LogRule(
        cause=StartCause.PERMISSION_DENIED,
        symptom="was denied access ({evidence})",
        patterns=(
            "PermissionError",
            r"\[Errno 13\] Permission denied",
            "Read-only file system",
            "(?<!rc)(?<!profile): Permission denied$",
        ),
    ),
    LogRule(
        cause=StartCause.DOWNLOAD_FAILED,
        symptom="was refused a download for now ({evidence})",
        patterns=(r"^(?!.{0,400}\bpull).*\b429\b.{0,40}Too Many Requests", r"\b50[0234] Server Error"),
        own_advice="try again later, or download the data once for all ranks",
        own_retry=True,
    ),
    LogRule(
        cause=StartCause.DOWNLOAD_FAILED,
        symptom="had a download break off ({evidence})",
        patterns=(
            r"tarfile\.ReadError: .{0,100}unexpected end of data @ <Pipe",
            "IncompleteRead\\(",
            r"^OSError: Consistency check failed: file should be of size",
            r"^fsspec\.exceptions\.FSTimeoutError",
            r"AWS Error (?:NETWORK_CONNECTION|REQUEST_TIMEOUT|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE)\b",
            r"Request failed after \d{1,3} retries",
        ),
        own_advice="try again, and check the network between this node and the store if it happens often",
        own_retry=True,
    ),
    LogRule(
        cause=StartCause.DOWNLOAD_FAILED,
        symptom="could not download data ({evidence})",
        patterns=(
            r"HTTPSConnectionPool\((?!.{0,200}/v2/)",
            "LocalEntryNotFoundError",
            "LocalTokenNotFoundError",
            "OfflineModeIsEnabled",
            "GatedRepoError",
            "access a gated repo",
            r"\b4\d\d Client Error",
            "HfHubHTTPError",
            r"^boto(?:3|core)\.exceptions\.",
            r"^fsspec\.exceptions\.",
            r"^minio\.error\.",
            r"^oci\.exceptions\.",
            r"^s3torchconnectorclient\.",
            r"AWS Error [A-Z_]{3,40}\b",
            r"\): exit -?\d{1,3} \((?:read|write)\)",  # of a command from which webdataset reads
            r"^google\.(?:api_core|auth|cloud)\b",
            r"^azure\.core\.",
            r"^gcsfs\.",
            "RepositoryNotFoundError",
            "DatasetNotFoundError",
            "certificate verify failed",
            r"^httpx\.",
            r"^httpcore\.",
            r"^aiohttp\.",
            r"^urllib\.error\.",
            r"^requests\.exceptions\.",
            "^(?:[a-z_.]{1,80})?ConnectionError: Couldn't reach ",
            "Data processing error: ",
            "couldn't connect to 'https",
            "Error downloading ",
            "fatal: unable to access 'https?://",
            "error occurred while downloading",
            "[Dd]ownload failure",
        ),
    ),
    LogRule(
        cause=StartCause.USAGE,
        symptom="was started with arguments that it does not accept ({evidence})",
        patterns=(
            r"error: (?:unrecognized arg|the following arg|argument [^ :]{1,200}: |ambiguous option|invalid choice)",
            "nproc_per_node value",
            "No such option",
            "invalid choice",
            "flag provided but not defined",
            "^Could not override '",
            r"^hydra\.errors\.(?:ConfigComposition|OverrideParse|MissingConfig)Exception",
            r"^\S{1,200}Error: .{0,120}\barguments? (?:are|is) not (?:used|recognized)",
            "are not used by the HfArgumentParser",
            "srun: fatal: .{1,200} mutually exclusive",
            "There are not enough slots available in the system",
        ),
    ),
)
