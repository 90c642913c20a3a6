"""What Run:ai's CLI is asked, and what its answers mean. Standard library only, Python 3.8 or newer.

The shapes of its answers are not documented: a job's and a pod's words are looked for anywhere in them.
"""

from __future__ import annotations

import calendar
import collections
import contextlib
import fcntl
import json
import os
import re
import subprocess
import time
from typing import Any, Iterator

from torchyard.host.log import tail

Json = Any
JOBS = {"cli-v1": [], "cli-v2": ["training", "pytorch"]}
HELP = {"cli-v1": ["submit-dist", "pytorch", "--help"], "cli-v2": ["training", "pytorch", "submit", "--help"]}
PROJECTS = {"cli-v1": ["list", "projects"], "cli-v2": ["project", "list"]}
SHOWN = 10  # pods that v2 describes if it is not told otherwise
MISSING = re.compile(r"not found|n[o']t exist|could not find|no such|couldn't find", re.IGNORECASE)
# `torchyard/run` is what the version before wrote.
RUN = re.compile(r'torchyard/(?:cli-)?run"?\s*[,:=]\s*(?:"value"\s*:\s*)?"?([a-z0-9-]+)')
STATUS = ("status", "phase", "state")
NAME = ("name", "podname", "pod")
PLAIN = re.compile(r'^\W*(?:job |workload )?(?:status|phase)"?\s*[:=]\s*"?([A-Za-z]+)', re.IGNORECASE | re.MULTILINE)
DONE = {"succeeded", "completed"}
RUNNING = {"running", "degraded", "updating", "terminating"}
BAD = {"failed", "fail", "error", "timedout", "preempted", "evicted", "oomkilled", "containercannotrun"}
STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:?\d\d) ")
OVERLAP = 2  # seconds that are asked for again: the stamps of stdout and stderr are not in perfect order


class Job:
    """A job of a project and one of its pods, by the words that the launcher gave."""

    def __init__(self, given: list[str]) -> None:
        self.given = given
        self.folder, self.node, pods, self.generation, self.project, self.cli, self.verb, self.name = given
        self.pods, index = int(pods), int(self.node.rpartition("-")[2])
        self.pod = "%s-%s" % (self.name, "worker-%d" % (index - 1) if index else "master-0")
        self.taken = os.path.join(self.folder, self.node, "taken")

    def of(self, index: int) -> Job:
        """The same job and another pod."""
        return Job([self.given[0], "node-%d" % index] + self.given[2:])

    def words(self, verb: str, *more: str) -> list[str]:
        """A command line about the job."""
        noun = ["job"] if self.generation == "cli-v1" and verb != "logs" else []
        return [self.cli] + JOBS[self.generation] + [verb] + noun + [self.name, "--project", self.project] + list(more)


@contextlib.contextmanager
def held(name: str) -> Iterator[None]:
    """Hold a lock, after whoever holds it now."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


# --- asking --------------------------------------------------------------------------------------------------------


def run(words: list[str], seconds: float) -> tuple[int, bytes, bytes]:
    """The exit code, stdout and stderr of a command; it never raises."""
    try:
        made = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
        return made.returncode, made.stdout, made.stderr
    except subprocess.TimeoutExpired:
        return 124, b"", b"no answer within %d s" % seconds
    except OSError as error:
        return 127, b"", ("cannot start %s: %s" % (words[0], error.strerror)).encode()


def ask(words: list[str], seconds: float) -> tuple[int, str]:
    """The exit code of a command and what it said: v1 prints its errors on stdout."""
    code, out, err = run(words, seconds)
    return code, (out + b"\n" + err).decode(errors="replace")


def describe(job: Job) -> Json:
    """Whether the job is there (None: nobody can say, and `why`), the words of it and its pods, and whose run it is."""
    more = ["--pod-limit", "-1"] if job.generation == "cli-v2" and job.pods > SHOWN else []
    code, said = ask(job.words("describe", "-o", "json", *more), 20)
    found = words(said, job.name) if code == 0 else {}
    if found.get(""):
        label = RUN.search(said)
        return {"found": True, "words": found, "why": "", "run": label.group(1) if label else ""}
    about = [line for line in said.splitlines() if MISSING.search(line) and "project" not in line.lower()]
    why = last(said) if code else "it does not say how the job is"
    return {"found": False if about else None, "why": why, "run": ""}


def last(said: str) -> str:
    """The error that a CLI tells, else its last line: cobra's usage comes after the error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it does not say why"]
    return next((line for line in lines if line.lower().startswith("error")), lines[-1])


def check(need: Json) -> Json:
    """What preflight wants to know of a CLI: whether it runs, which generation it is, who is logged in, the project."""
    cli, generation = need["cli"], need["generation"]
    code, said = ask([cli, "version"], 20)
    if code:
        return {"runs": False, "why": last(said)}
    generations = [each for each, words in sorted(HELP.items()) if ask([cli] + words, 20)[0] == 0]
    code, said = ask([cli, "whoami"], 20)
    fact = {"runs": True, "generations": generations, "user": code == 0, "why": last(said) if code else ""}
    if generation in generations and not code:
        code, said = ask([cli] + PROJECTS[generation], 20)
        fact["project"] = None if code else bool(re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(need["project"]), said))
    return fact


# --- the answers' words --------------------------------------------------------------------------------------------


def parts(value: Json) -> Iterator[Json]:
    """Every mapping in an answer, the outer ones first."""
    queue = collections.deque([value])
    while queue:
        each = queue.popleft()
        if isinstance(each, dict):
            yield each
        queue.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())


def pick(part: Json, keys: tuple[str, ...]) -> str:
    """The first text under one of these keys, however they are written, or one mapping deeper."""
    if not isinstance(part, dict):
        return ""
    low = {str(key).lower(): value for key, value in part.items()}
    found = [low[key] for key in keys if key in low]
    texts = [each for each in found if isinstance(each, str)]
    return texts[0] if texts else next((word for each in found if (word := pick(each, keys + ("value",)))), "")


def words(said: str, name: str) -> dict[str, str]:
    """What an answer says of the job, under "", and of each pod by its name."""
    try:
        answer = json.loads(said[said.index("{") : said.rindex("}") + 1])
    except ValueError:
        found = PLAIN.search(said)
        return {"": found.group(1) if found else ""}
    told = [(pick(part, NAME) or pick(part.get("metadata"), NAME), pick(part, STATUS)) for part in parts(answer)]
    named = {called: word for called, word in told if called and word}
    return dict(named, **{"": named.get(name) or next((word for _, word in told if word), "")})


def take_in(told: Json, found: dict[str, str]) -> Json:
    """What is known after an answer: each one's word and since when, when it first ran, and when it had ended."""
    now = time.time()
    since, begun, ended = dict(told["since"]), dict(told["begun"]), dict(told["ended"])
    for name, word in found.items():
        since[name] = since[name] if told["words"].get(name) == word else now
        if kind(word) != "starting":
            begun.setdefault(name, now)
        if kind(word) == "exited":
            ended.setdefault(name, now)
    gone = found[""].lower() == "deleted"
    return dict(told, words=found, since=since, begun=begun, ended=ended, seen=True, gone=gone, missing=0)


def kind(word: str) -> str:
    """The phase that a word means; one that is not known is no end."""
    low = word.lower()
    if low in DONE or low in BAD:
        return "exited"
    return "running" if low in RUNNING else "starting"


def entry(told: Json, pod: str) -> Json:
    """How one pod is. Where nothing is said of it, the job's word counts; a failed job has no running pods."""
    whole = told["words"].get("", "")
    word = told["words"].get(pod) or whole
    phase, code = kind(word), 0 if word.lower() in DONE else None
    if word.lower() in BAD:
        code = 1 if pod in told["words"] else None
    elif phase != "exited" and whole.lower() in BAD:
        phase, word = "exited", whole
    if told["gone"] and phase != "exited":
        phase = "absent"
    name = pod if pod in told["words"] else ""
    times = {"started": told["begun"].get(name), "ended": told["ended"].get(name), "since": told["since"].get(name)}
    return dict(times, phase=phase, exit=code, word=word, job=whole, detail=told["why"])


# --- logs ----------------------------------------------------------------------------------------------------------


def size(job: Job) -> int:
    """How much of the pod's log has been taken, in bytes."""
    try:
        return os.path.getsize(job.taken)
    except FileNotFoundError:
        return 0


def take(job: Job, over: bool) -> str:
    """Add to the copy what the log has gained: why that could not be, or nothing. `over`: half a line counts too."""
    os.makedirs(os.path.dirname(job.taken), exist_ok=True)
    mark = (" %s | " % job.node).encode()
    with held(job.taken + ".lock"), open(job.taken, "a+b") as copy:
        had = [line.replace(mark, b" ", 1) for line in tail(copy)]
        since = max((second(line) for line in had), default=0) - OVERLAP
        begin = ["--since-time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))] if had else []
        code, out, err = run(job.words("logs", "--pod", job.pod, "--timestamps", *begin), 30)
        again = collections.Counter(line for line in had if second(line) >= since)
        *lines, rest = out.split(b"\n")
        for line in filter(STAMP.match, lines + [rest] if over else lines):
            again[line] -= 1
            if again[line] < 0:
                copy.write(line.replace(b" ", mark, 1) + b"\n")
    return last((err or out).decode(errors="replace")) if code else ""


def second(line: bytes) -> int:
    """The second of a line's stamp, since the epoch; 0 where it has none."""
    found = STAMP.match(line)
    if not found:
        return 0
    zone = found.group(1).decode().replace(":", "")
    away = 0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 3600 + int(zone[3:5]) * 60)
    return calendar.timegm(time.strptime(line[:19].decode(), "%Y-%m-%dT%H:%M:%S")) - away
