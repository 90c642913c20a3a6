"""Causes in the program: signals, crashes, exceptions and exit codes."""

from torchyard.model.causes.cause import Cause, CauseFacts, Distance, LogRule, list_exit_code_patterns
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.causes.memory import MemoryCause

_EXCEPTION = r"^[\w.]{1,200}(?:Error|Exception)(?:\(\w{1,80}\))?: .{0,200}"
_NONE = r"\w{0,2}[\"']?[ :=]{1,4}(?:0\b|[Ff]alse)"  # after the name of a count, or of a yes or no
_NOT_A_NUMBER = r"(?i:\b(?:nans?|infs?|infinite|infinity|non-?finite|not finite)\b)"


class ProgramCause(Cause):
    """The program itself."""

    KILLED = CauseFacts(
        "killed", advice="check its host's kernel log for the OOM killer, otherwise look for the sender"
    )
    TOO_MANY_PROCESSES = CauseFacts("too-many-processes", advice="raise its pids limit, or start fewer")
    AGENT_KILLED = CauseFacts("agent-killed", retry=True)
    SEGFAULT = CauseFacts("segfault", advice="check the extensions, and whether torch and CUDA match")
    ILLEGAL_INSTRUCTION = CauseFacts("illegal-instruction", advice="use an image built for it")
    DATA_WORKER_LOST = CauseFacts(
        "data-worker-lost", advice="look for its own error above, or run with num_workers=0 to see it"
    )
    ABORT = CauseFacts("abort", advice="read the lines before")
    PROGRAM_ERROR = CauseFacts("program-error")
    ENDED_EARLY = CauseFacts("ended-early", advice="give every rank the same number of steps", points_at_node=False)
    UNKNOWN = CauseFacts("unknown", advice="read its last lines")


# Also a broken connection to a process that torch's data loader has started: see diagnosis/symptoms.py.
DATA_WORKER_LOST = LogRule(
    cause=ProgramCause.DATA_WORKER_LOST,
    symptom="lost a DataLoader worker ({evidence})",
    patterns=(
        "DataLoader worker.{0,60}(?:exited unexpectedly|killed by signal(?!: Killed))",
        r"DataLoader \d{1,4} workers exit unexpectedly",
    ),
)
# Lightning's main process reports it, and ends itself by SIGKILL.
CHILD_EXITED = LogRule(
    cause=ProgramCause.PROGRAM_ERROR,
    symptom="exited with code {status} and without a traceback",
    patterns=(r"Child process with PID \d{1,9} terminated with code (?P<status>\d{1,3})\b",),
    own_advice="read its last lines",
    distance=Distance.STOPPED,
)
# Also an error without words for it, where Python starts a process: see diagnosis/symptoms.py.
PROCESS_NOT_STARTED = LogRule(
    cause=ProgramCause.TOO_MANY_PROCESSES,
    symptom="could not start a process or thread ({evidence})",
    patterns=(
        "can't start new thread",
        "[Tt]hread creation failed",
        "pthread_create failed",
        "fork: (?!retry).{0,20}Resource temporarily",
        "fork rejected by pids controller",
    ),
)
# In a process that multiprocessing starts: see diagnosis/symptoms.py.
PARENT_LOST = LogRule(
    cause=ProgramCause.PROGRAM_ERROR,
    symptom="lost the process that was starting it ({evidence})",
    own_advice="look for that process's own error",
    distance=Distance.STOPPED,
)
# A SIGKILL does not name its sender, and a guess in a text ("killed by the OOM killer", as Ray writes) proves nothing.
PROGRAM_RULES = (
    LogRule(
        cause=MemoryCause.OOM_HOST,
        symptom="was killed by the OOM killer",
        patterns=(
            rf"(?<![\w.-])oom[-_ ]kill(?:er|ed)?(?![-_](?!process))(?!{_NONE})",
            rf"OOM ?Killed(?!{_NONE})",
            "OOM-killed",
            "Memory cgroup out of memory",
            "Out of memory: Kill",
            r"task \d+: Out Of Memory",
        ),
        explains_signal=True,
    ),
    LogRule(
        cause=MemoryCause.OOM_HOST,
        symptom="was killed by its scheduler at its limit of memory ({evidence})",
        patterns=(
            "exceeded memory limit .{0,80}being killed",
            "TERM_MEMLIMIT",
            r"PBS: job killed: \w{0,20}mem \d",
            r"exceeds job (?:hard|soft) limit .?[hs]_(?:vmem|rss|data)\b",
            r"exceeded the request(?:ed)? (?:\w{1,10} )?memory\b",
            r"is running beyond (?:virtual|physical) memory limits",
            r"gone over memory limit",
            r"\bon hold by .{1,80} due to memory usage",
        ),
        explains_signal=True,
    ),
    LogRule(
        cause=MemoryCause.OOM_HOST,
        symptom="was ended because its host was short of memory ({evidence})",
        patterns=(
            r"sending SIG(?:TERM|KILL) to process \d{1,9} uid \d{1,9} .{1,80}\boom_score\b",  # earlyoom
            r"^Killed /\S{1,300} due to memory ",  # systemd-oomd
        ),
        explains_signal=True,
    ),
    LogRule(
        cause=MemoryCause.OOM_HOST,
        symptom="could not allocate host memory ({evidence})",
        patterns=(
            "DefaultCPUAllocator",
            "Cannot allocate memory",
            r"\b_?(?:Array|Arrow)?MemoryError",
            "bad_alloc",
            "paging file is too small",
            r"\bmemory allocation of \d{1,20} bytes failed",
        ),
    ),
    LogRule(
        cause=ProgramCause.DATA_WORKER_LOST,
        symptom="had a DataLoader worker killed by SIGKILL ({evidence})",
        patterns=("DataLoader worker.{0,60}killed by signal: Killed",),
        own_advice="check its host's kernel log for the OOM killer, and lower num_workers or what a worker loads",
    ),
    DATA_WORKER_LOST,
    LogRule(
        cause=ProgramCause.DATA_WORKER_LOST,
        symptom="lost a process that loads its data ({evidence})",
        patterns=("One or more background workers are no",),
        own_advice="look for its own error above, then check its host's kernel log for the OOM killer",
    ),
    LogRule(
        cause=ProgramCause.DATA_WORKER_LOST,
        symptom="lost a process of its pool ({evidence})",
        patterns=("BrokenProcessPool: .{0,40}terminated abruptly",),
        own_advice="check its host's kernel log for the OOM killer, and start fewer workers, or those that load less",
    ),
    LogRule(
        cause=ProgramCause.KILLED,
        symptom="was killed by SIGKILL",
        patterns=(
            r"task \d+: Killed",
            "by signal: Killed",
            "signal SIGKILL",
            r"\(SIGKILL\)",
            r"Signals\.SIGKILL",
            r"[Ss]ignal 9\b",
            *list_exit_code_patterns(9),
            "^Killed$",
            r"\d Killed\b",
        ),
        explains_signal=True,
        worker_codes=(-9,),
    ),
    # OpenBLAS goes on without the threads, and crashes at its first use of them.
    LogRule(
        cause=ProgramCause.TOO_MANY_PROCESSES,
        symptom="could not start the threads of OpenBLAS ({evidence})",
        patterns=("blas_thread_init: pthread_create failed",),
        own_advice="raise its pids limit or ulimit -u, or set OPENBLAS_NUM_THREADS",
        explains_signal=True,
    ),
    PROCESS_NOT_STARTED,
    LogRule(
        cause=ProgramCause.AGENT_KILLED,
        symptom="lost its agent to SIGKILL: the OOM killer, a lost node, or a user's kill -9",
        agent_codes=(-9,),
    ),
    LogRule(
        cause=ProgramCause.SEGFAULT,
        symptom="crashed in native code (SIGSEGV)",
        patterns=("(?<!by a )[Ss]egmentation fault(?!s| handler)", "SIGSEGV", *list_exit_code_patterns(11)),
        worker_codes=(-11,),
        agent_codes=(-11,),
    ),
    LogRule(
        cause=ProgramCause.SEGFAULT,
        symptom="crashed in native code (SIGFPE)",
        patterns=("Floating point exception", "SIGFPE", *list_exit_code_patterns(8)),
        worker_codes=(-8,),
        agent_codes=(-8,),
    ),
    LogRule(
        cause=ProgramCause.ILLEGAL_INSTRUCTION,
        symptom="executed an instruction that this CPU does not support",
        patterns=("Illegal instruction", "SIGILL", *list_exit_code_patterns(4)),
        worker_codes=(-4,),
        agent_codes=(-4,),
    ),
    LogRule(
        cause=ProgramCause.ABORT,
        symptom="aborted because a thread of native code was still in use when it ended",
        patterns=("terminate called without an active exception",),
        own_advice="let it end its process group and its data loaders, and wait for its threads, before it exits",
        distance=Distance.STOPPED,
    ),
    LogRule(
        cause=ProgramCause.ABORT,
        symptom="aborted in native code ({evidence})",
        patterns=(
            r"^(?:free|malloc|realloc|munmap_chunk)\(\): ",
            "double free or corruption",
            "^corrupted (?:double-linked list|size vs)",
            "stack smashing detected",
            ": Assertion `.{1,200}' failed",
            "^Fatal Python error: ",
            r"^F\d{4,8} .{0,100}\] Check failed: ",
            r"Unhandled exception: \S{1,100} what\(\): ",
            r"^ {1,4}what\(\): {1,4}\S",
        ),
        distance=Distance.STOPPED,
    ),
    LogRule(
        cause=ProgramCause.ABORT,
        symptom="aborted in native code (SIGABRT)",
        patterns=(
            "terminate called",
            "error: Aborted",
            "SIGABRT",
            r"[Ss]ignal 6\b",
            *list_exit_code_patterns(6),
            r"\(core dumped\)",
        ),
        distance=Distance.STOPPED,
        worker_codes=(-6,),
        agent_codes=(-6,),
    ),
    # Metrics such as `loss: nan` prove nothing: programs go on after them.
    LogRule(
        cause=LauncherCause.LOSS_NAN,
        symptom="ended itself, because its loss or its gradients are not numbers any more ({evidence})",
        patterns=(
            "Minimum loss scale reached",
            "Current loss scale already at minimum",
            "found (?:NaN|Inf) in local (?:grad|forward)",
            r"returned nan values in its \d",
            _EXCEPTION + "(?i:loss|grad).{0,60}" + _NOT_A_NUMBER,
            _EXCEPTION + _NOT_A_NUMBER + ".{0,40}(?i:loss|grad)",
            r"\b[Ll]oss is .{0,20}" + _NOT_A_NUMBER,
            r"\b[Ll]oss became .{0,20}" + _NOT_A_NUMBER,
            _NOT_A_NUMBER + ".{0,20}(?:stopp|end|abort|terminat)ing training",
        ),
        failure_words=("rror", "Exception"),
    ),
    CHILD_EXITED,
    LogRule(
        cause=ProgramCause.PROGRAM_ERROR,
        symptom="had a task of srun exit with code {status} and without a traceback",
        patterns=(r"srun: error: .{1,200}: tasks? [\d,-]{1,200}: Exited with exit code (?P<status>\d{1,3})",),
        own_advice="read its last lines",
        distance=Distance.STOPPED,
    ),
    LogRule(
        cause=ProgramCause.PROGRAM_ERROR,
        symptom="had a process exit with code {status} and without a traceback, as its launcher reports",
        patterns=(
            (
                r"(?:(?:crashed with exit|exits with return|exit with status) code(?: =)? |^ *Exit code: {1,6}"
                r"|terminated with exit code )(?P<status>[1-9]\d{0,9})\b"
            ),
        ),
        failure_words=("crashed with", "exits with", "exit with", "Exit code:", "terminated with exit"),
        own_advice="read its last lines",
        distance=Distance.STOPPED,
    ),
    LogRule(
        cause=ProgramCause.PROGRAM_ERROR,
        symptom="had MPI end all processes",
        patterns=(
            "MPI_ABORT was invoked on rank",
            "MPI_ERRORS_ARE_FATAL",
            r"^Abort\(\d{1,12}\)(?: on node \d{1,6} \(.{1,60}\))?: Fatal error in ",
        ),
        own_advice="read the lines before",
        distance=Distance.STOPPED,
    ),
)

# The rules of what no pattern matches.
PROGRAM_ERROR = LogRule(
    cause=ProgramCause.PROGRAM_ERROR,
    symptom="raised {evidence}; read the traceback in its log, and correct the program",
    failure_words=("Traceback (", "rror", "ERROR", "Exception", "exception was never retrieved", "Interrupt"),
)
PROGRAM_EXIT = LogRule(
    cause=ProgramCause.PROGRAM_ERROR,
    symptom="exited with code {code} and without a traceback",
    own_advice="read its last lines",
    distance=Distance.EXIT,
)
PROGRAM_SILENT_EXIT = LogRule(
    cause=ProgramCause.PROGRAM_ERROR,
    symptom="exited with code {code} and has printed nothing",
    own_advice="look for what calls exit or os._exit in the program and its libraries",
    distance=Distance.EXIT,
)
RANKS_ENDED_EARLY = LogRule(
    cause=ProgramCause.ENDED_EARLY,
    symptom="ended with 0 while others still needed it",
    distance=Distance.EXIT,
)
UNKNOWN_CAUSE = LogRule(
    cause=ProgramCause.UNKNOWN, symptom="failed, and its log does not show why", distance=Distance.UNKNOWN
)
