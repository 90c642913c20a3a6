"""A fake Run:ai on one machine: the grammar of its CLI, and pods that are real processes. Standard library only.

RUNAI_STATE is its folder; RUNAI_GENERATION is v1 or v2; RUNAI_ARGS is `exec`, or `joined` if the words after `--` are
joined into one shell line; RUNAI_WORLD is what WORLD_SIZE counts: `pods`, or `processes` as newer operators do.

In its folder, the file `broken` makes every call fail with the file's text, and the file JOB/words (JSON, by pod, or ""
for the job) replaces the states that it would report.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

STATE, V2 = Path(os.environ["RUNAI_STATE"]), os.environ.get("RUNAI_GENERATION") == "v2"
MARK = "RUNAI_JOB"
ONE, MANY, SWITCH = "string", "stringArray", "bool"
COMMON = {"project": ONE, "image": ONE, "image-pull-policy": ONE, "working-dir": ONE, "workers": ONE}
COMMON |= {"clean-pod-policy": ONE, "backoff-limit": ONE, "extended-resource": MANY, "environment": MANY}
COMMON |= {"annotation": MANY, "label": MANY, "toleration": MANY, "node-pools": MANY}
COMMON |= {"command": SWITCH, "large-shm": SWITCH, "host-network": SWITCH, "host-ipc": SWITCH}
SUBMIT = {
    False: COMMON
    | {"name": ONE, "gpu": ONE, "cpu": ONE, "memory": ONE, "cpu-limit": ONE, "memory-limit": ONE, "pvc": MANY}
    | {"add-capability": MANY, "interactive": SWITCH, "preemptible": SWITCH},
    True: COMMON
    | {"gpu-devices-request": ONE, "cpu-core-request": ONE, "cpu-memory-request": ONE, "cpu-core-limit": ONE}
    | {"cpu-memory-limit": ONE, "existing-pvc": MANY, "capability": MANY, "preemptibility": ONE},
}
DESCRIBE = {"project": ONE, "output": ONE, **({"pod-limit": ONE} if V2 else {})}
LOGS = {"project": ONE, "pod": ONE, "timestamps": SWITCH, "since-time": ONE}


def die(said: str) -> NoReturn:
    """Fail as cobra does: print the error and the usage, and exit with 1."""
    print(f"Error: {said}\nUsage:\n  runai [command]", file=sys.stderr)
    sys.exit(1)


def parse(words: list[str], flags: dict[str, str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """The arguments, the flags, and the words after `--`."""
    given: dict[str, Any] = {name: [] for name, kind in flags.items() if kind == MANY}
    rest, free = list(words), list[str]()
    while rest and rest[0] != "--":
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        name = {"-o": "output", "-p": "project"}.get(word, name)
        if not word.startswith("-"):
            free.append(word)
        elif name not in flags:
            die(f"unknown flag: {word}")
        elif flags[name] == SWITCH:
            given[name] = True
        elif not equals and not rest:
            die(f"flag needs an argument: {word}")
        else:
            value = value if equals else rest.pop(0)
            given[name] = [*given[name], value] if flags[name] == MANY else value
    return free, given, rest[1:]


# --- pods


def kubelet(text: str, env: dict[str, str]) -> str:
    """Expand `$(NAME)` in a text, as the kubelet does."""
    return re.sub(r"\$(?:\$|\(([^)]*)\))", lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text)


def submit(words: list[str]) -> None:
    free, given, command = parse(words, SUBMIT[V2])
    name = given.get("name") or (free[0] if free else die("a name is required"))
    if missing := [flag for flag in ("image", "workers", "project") if flag not in given]:
        die(f"required flag(s) {missing} not set")
    job = STATE / str(name)
    if job.exists():
        die(f"workload {name} already exists")
    job.mkdir(parents=True)
    with socket.socket() as free_port:
        free_port.bind(("127.0.0.1", 0))
        given["port"] = free_port.getsockname()[1]
    (job / "given").write_text(json.dumps({**given, "line": ["runai", *words], "after": command}))
    names = [f"{name}-master-0", *(f"{name}-worker-{index}" for index in range(int(given["workers"])))]
    for rank, pod in enumerate(names):
        start(job, pod, container(given, rank), command)
    print(f"The job '{name}' has been submitted successfully")


def container(given: dict[str, Any], rank: int) -> dict[str, str]:
    """The environment of a container: the image's variables, the user's and the operator's."""
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/")}
    env |= {"GLOO_SOCKET_IFNAME": "lo"}
    for each in given["environment"]:
        key, _, value = each.partition("=")
        env[key] = kubelet(value, env)
    pods, each_pod = int(given["workers"]) + 1, 4
    new = os.environ.get("RUNAI_WORLD") == "processes"
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(given["port"]), "RANK": str(rank)}
    env |= {"WORLD_SIZE": str(pods * each_pod if new else pods)}
    return env | ({"PET_NNODES": str(pods), "PET_NODE_RANK": str(rank)} if new else {})


def start(job: Path, pod: str, env: dict[str, str], command: list[str]) -> None:
    """Start a pod that outlives this process."""
    line = [kubelet(" ".join(command), env)]
    argv = ["/bin/sh", "-c", *line] if os.environ.get("RUNAI_ARGS") == "joined" else [kubelet(w, env) for w in command]
    (job / pod).mkdir()
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        keep(job / pod, argv, {**env, MARK: str(job)})
        os._exit(0)


def keep(pod: Path, argv: list[str], env: dict[str, str]) -> None:
    """Act as the container runtime: run the command, stamp its lines and record its exit code."""
    with (pod / "log").open("a", buffering=1) as log:
        try:
            made = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as error:
            log.write(f"{stamp()} exec {argv[0]}: {error.strerror}\n")
            (pod / "exit").write_text("127")
            return
        assert made.stdout
        for line in made.stdout:
            log.write(f"{stamp()} {line}")
    (pod / "exit").write_text(str(made.wait()))


def stamp() -> str:
    now = time.time_ns()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z"


def word(pod: Path) -> str:
    return "Running" if not (pod / "exit").exists() else "Failed" if int((pod / "exit").read_text()) else "Succeeded"


# --- reading


def found(free: list[str]) -> Path:
    if not free:
        die("accepts 1 arg(s), received 0")
    if not (STATE / free[0]).exists():
        die(f"{'workload' if V2 else 'job'} {free[0]} was not found")
    return STATE / free[0]


def describe(words: list[str]) -> None:
    free, given, _ = parse(words, DESCRIBE)
    job = found(free)
    said = {pod.name: word(pod) for pod in sorted(job.iterdir()) if pod.is_dir()}
    chief = said[f"{job.name}-master-0"]
    whole = "Failed" if "Failed" in said.values() else chief
    over = json.loads((job / "words").read_text()) if (job / "words").exists() else {}
    whole, said = over.get("", whole), {name: over.get(name, word) for name, word in said.items()}
    facts = json.loads((job / "given").read_text())
    if given.get("output") != "json":
        print(f"NAME: {job.name}\nSTATUS: {whole}")
    elif V2:
        labels = [dict(zip(("name", "value"), each.split("=", 1), strict=True)) for each in facts["label"]]
        pods = [{"name": name, "status": {"phase": word}} for name, word in list(said.items())[: limit(given)]]
        print(json.dumps({"general": {"name": job.name, "phase": whole, "labels": labels}, "pods": pods}))
    else:
        line = " ".join(facts["line"])
        instances = [
            {"name": name, "status": word.upper(), "isChief": not at} for at, (name, word) in enumerate(said.items())
        ]
        print(json.dumps({"name": job.name, "status": whole, "instances": instances, "commandLine": line}, indent=4))


def limit(given: dict[str, Any]) -> int | None:
    asked = int(given.get("pod-limit", 10))
    return None if asked < 0 else asked


def logs(words: list[str]) -> None:
    free, given, _ = parse(words, LOGS)
    job = found(free)
    path = job / given.get("pod", f"{job.name}-master-0") / "log"
    if not path.exists():
        die(f"container in pod {given.get('pod')} is waiting to start: ContainerCreating")
    for line in path.read_text().splitlines(keepends=True):
        if line[:19] >= given.get("since-time", "")[:19]:
            sys.stdout.write(line if "timestamps" in given else line.partition(" ")[2])


def delete(words: list[str]) -> None:
    free, _, _ = parse(words, {"project": ONE})
    job = found(free)
    mark = f"{MARK}={job}\0".encode()
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.time() + 1
        while (living := carriers(mark)) and time.time() < until:
            for pid in living:
                os.kill(pid, number)
            time.sleep(0.05)
    shutil.rmtree(job, ignore_errors=True)


def carriers(mark: bytes) -> list[int]:
    living = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            living += [int(path.parent.name)] if mark in path.read_bytes() + b"\0" else []
        except OSError:
            continue
    return living


def main(words: list[str]) -> None:
    if (STATE / "broken").exists():
        die((STATE / "broken").read_text())
    verbs = {"describe": describe, "logs": logs, "delete": delete, "submit": submit}
    match words:
        case ["version"] | ["whoami"]:
            print("2.19" if words == ["version"] else "user: someone@example.com")
        case ["project", "list"] if V2:
            print("PROJECT\nmlo\nother")
        case ["list", "projects"] if not V2:
            print("PROJECT  DESERVED\nmlo  8")
        case ["submit-dist", "pytorch", *rest] if not V2:
            print("usage") if rest == ["--help"] else submit(rest)
        case ["training", "pytorch", verb, *rest] if V2 and verb in verbs:
            print("usage") if rest == ["--help"] else verbs[verb](rest)
        case ["describe" | "delete" as verb, "job", *rest] if not V2:
            verbs[verb](rest)
        case ["logs", *rest] if not V2:
            logs(rest)
        case _:
            die(f'unknown command "{words[0] if words else ""}" for "runai"')


if __name__ == "__main__":
    main(sys.argv[1:])
