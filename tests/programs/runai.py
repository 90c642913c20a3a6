"""A fake Run:ai on one machine: the grammar of its CLI, and pods that are real processes. Standard library only.

RUNAI_STATE is its folder; RUNAI_GENERATION is v1 or v2; RUNAI_ARGS is `exec`, or `joined` if the arguments after `--`
are joined into one shell line; RUNAI_WORLD is what WORLD_SIZE counts: `pods`, or `processes` as newer operators do.

In its folder, the file `broken` makes every call fail with the file's text, and the file JOB/words (JSON, by pod, or ""
for the job) replaces the states that it would report. The file JOB/given (JSON) holds the options of the submit.
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

STATE = Path(os.environ["RUNAI_STATE"])
V2 = os.environ.get("RUNAI_GENERATION") == "v2"
JOB_VARIABLE = "RUNAI_JOB"  # in the environment of every process of a job: its folder
PROCESSES_PER_POD = 4  # that a newer operator assumes
# The types of options, in pflag's words.
ONE = "string"
MANY = "stringArray"
SWITCH = "bool"
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
DESCRIBE = {"project": ONE, "output": ONE}
if V2:
    DESCRIBE["pod-limit"] = ONE
EXEC = {"project": ONE, "pod": ONE, "stdin": SWITCH, "tty": SWITCH}
FORWARD = {"project": ONE, "pod": ONE, "port": MANY, "address": ONE}
LOGS = {"project": ONE, "pod": ONE, "timestamps": SWITCH, "since-time": ONE}


def die(message: str) -> NoReturn:
    """Fail as cobra does: print the error and the usage, and exit with 1."""
    print(f"Error: {message}\nUsage:\n  runai [command]", file=sys.stderr)
    sys.exit(1)


def parse(argv: list[str], flags: dict[str, str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """Return the positional arguments, the options by name, and the arguments after `--`.

    `flags`: the type of each allowed option. Exits with 1 on an unknown option or one without its value.
    """
    options: dict[str, Any] = {name: [] for name, kind in flags.items() if kind == MANY}
    positional: list[str] = []
    rest = list(argv)
    while rest and rest[0] != "--":
        arg = rest.pop(0)
        name, equals, value = arg.removeprefix("--").partition("=")
        name = {"-o": "output", "-p": "project"}.get(arg, name)
        if not arg.startswith("-"):
            positional.append(arg)
        elif name not in flags:
            die(f"unknown flag: {arg}")
        elif flags[name] == SWITCH:
            options[name] = True
        elif not equals and not rest:
            die(f"flag needs an argument: {arg}")
        else:
            value = value if equals else rest.pop(0)
            options[name] = [*options[name], value] if flags[name] == MANY else value
    return positional, options, rest[1:]


# --- pods


def expand(text: str, env: dict[str, str]) -> str:
    """Expand `$(NAME)` in a text, as the kubelet does."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1], match[0])

    return re.sub(r"\$(?:\$|\(([^)]*)\))", replace, text)


def submit(argv: list[str]) -> None:
    positional, options, command = parse(argv, SUBMIT[V2])
    name = options.get("name") or (positional[0] if positional else die("a name is required"))
    missing = [flag for flag in ("image", "workers", "project") if flag not in options]
    if missing:
        die(f"required flag(s) {missing} not set")
    job = STATE / str(name)
    if job.exists():
        die(f"workload {name} already exists")
    job.mkdir(parents=True)
    with socket.socket() as free_port:
        free_port.bind(("127.0.0.1", 0))
        options["port"] = free_port.getsockname()[1]
    (job / "given").write_text(json.dumps(options | {"command_line": ["runai", *argv], "command": command}))
    pods = [f"{name}-master-0", *(f"{name}-worker-{index}" for index in range(int(options["workers"])))]
    for rank, pod in enumerate(pods):
        start(job, pod, build_environment(options, rank), command)
    print(f"The job '{name}' has been submitted successfully")


def build_environment(options: dict[str, Any], rank: int) -> dict[str, str]:
    """The environment of a container: the image's variables, the user's and the operator's."""
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/")}
    env["GLOO_SOCKET_IFNAME"] = "lo"
    for variable in options["environment"]:
        key, _, value = variable.partition("=")
        env[key] = expand(value, env)
    pod_count = int(options["workers"]) + 1
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options["port"]), "RANK": str(rank)}
    if os.environ.get("RUNAI_WORLD") == "processes":
        env["WORLD_SIZE"] = str(pod_count * PROCESSES_PER_POD)
        env |= {"PET_NNODES": str(pod_count), "PET_NODE_RANK": str(rank)}
    else:
        env["WORLD_SIZE"] = str(pod_count)
    return env


def start(job: Path, pod: str, env: dict[str, str], command: list[str]) -> None:
    """Start a pod that outlives this process."""
    if os.environ.get("RUNAI_ARGS") == "joined":
        argv = ["/bin/sh", "-c", expand(" ".join(command), env)]
    else:
        argv = [expand(arg, env) for arg in command]
    (job / pod).mkdir()
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        run_container(job / pod, argv, env | {JOB_VARIABLE: str(job)})
        os._exit(0)


def run_container(pod: Path, argv: list[str], env: dict[str, str]) -> None:
    """Act as the container runtime: run the command, put a timestamp before its lines, and record its exit code."""
    with (pod / "log").open("a", buffering=1) as log:
        try:
            process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as error:
            log.write(f"{format_timestamp()} exec {argv[0]}: {error.strerror}\n")
            (pod / "exit").write_text("127")
            return
        assert process.stdout
        for line in process.stdout:
            log.write(f"{format_timestamp()} {line}")
    (pod / "exit").write_text(str(process.wait()))


def format_timestamp() -> str:
    """The current time in UTC, with nanoseconds: `2026-01-01T00:00:00.000000000Z`."""
    now = time.time_ns()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z"


def read_phase(pod: Path) -> str:
    if not (pod / "exit").exists():
        return "Running"
    return "Failed" if int((pod / "exit").read_text()) else "Succeeded"


# --- reading


def find_job(positional: list[str]) -> Path:
    """The folder of the job that the command names; exits with 1 if there is none."""
    if not positional:
        die("accepts 1 arg(s), received 0")
    if not (STATE / positional[0]).exists():
        if V2:
            die(f"workload {positional[0]} was not found")
        print(
            f"The job {positional[0]} does not exist in project mlo. If the job exists in a different project, use -p."
        )
        sys.exit(1)
    return STATE / positional[0]


def describe(argv: list[str]) -> None:
    positional, options, _ = parse(argv, DESCRIBE)
    job = find_job(positional)
    pod_states = {pod.name: read_phase(pod) for pod in sorted(job.iterdir()) if pod.is_dir()}
    job_state = pod_states[f"{job.name}-master-0"]
    if "Failed" in pod_states.values():
        job_state = "Failed"
    overrides = json.loads((job / "words").read_text()) if (job / "words").exists() else {}
    job_state = overrides.get("", job_state)
    pod_states = {name: overrides.get(name, state) for name, state in pod_states.items()}
    submitted = json.loads((job / "given").read_text())
    if options.get("output") != "json":
        print(f"NAME: {job.name}\nSTATUS: {job_state}")
    elif V2:
        labels = [dict(zip(("name", "value"), label.split("=", 1), strict=True)) for label in submitted["label"]]
        pods = [{"name": name, "status": {"phase": state}} for name, state in pod_states.items()]
        general = {"name": job.name, "phase": job_state, "labels": labels}
        print(json.dumps({"general": general, "pods": pods[: read_pod_limit(options)]}))
    else:
        command_line = " ".join(submitted["command_line"])
        instances = [
            {"name": name, "status": state.upper(), "isChief": index == 0}
            for index, (name, state) in enumerate(pod_states.items())
        ]
        job_status = {"name": job.name, "status": job_state, "instances": instances, "commandLine": command_line}
        print(json.dumps(job_status, indent=4))


def read_pod_limit(options: dict[str, Any]) -> int | None:
    """How many pods to list; None if all, which a negative limit means."""
    limit = int(options.get("pod-limit", 10))
    return None if limit < 0 else limit


def logs(argv: list[str]) -> None:
    positional, options, _ = parse(argv, LOGS)
    job = find_job(positional)
    path = job / options.get("pod", f"{job.name}-master-0") / "log"
    if not path.exists():
        die(f"container in pod {options.get('pod')} is waiting to start: ContainerCreating")
    for line in path.read_text().splitlines(keepends=True):
        if line[:19] >= options.get("since-time", "")[:19]:
            sys.stdout.write(line if "timestamps" in options else line.partition(" ")[2])


def execute(argv: list[str]) -> None:
    """Run a command in a pod: its environment shows which, and whether it has input and a terminal."""
    positional, options, command = parse(argv, EXEC)
    job = find_job(positional)
    pod = find_pod(job, options)
    modes = ",".join(name for name in ("stdin", "tty") if name in options)
    os.execvpe(command[0], command, os.environ | {"POD": pod.name, "MODES": modes})


def forward(argv: list[str]) -> None:
    positional, options, _ = parse(argv, FORWARD)
    pod = find_pod(find_job(positional), options)
    print(f"{options['address']} {options['port'][0]} {pod.name}")


def find_pod(job: Path, options: dict[str, Any]) -> Path:
    pod = job / str(options.get("pod", f"{job.name}-master-0"))
    if not pod.is_dir():
        die(f"pod {pod.name} was not found")
    return pod


def delete(argv: list[str]) -> None:
    positional, _, _ = parse(argv, {"project": ONE})
    job = find_job(positional)
    variable = f"{JOB_VARIABLE}={job}\0".encode()
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.time() + 1
        while time.time() < deadline:
            pids = find_processes(variable)
            if not pids:
                break
            for pid in pids:
                os.kill(pid, signal_number)
            time.sleep(0.05)
    shutil.rmtree(job, ignore_errors=True)


def find_processes(variable: bytes) -> list[int]:
    """The ids of the processes with this variable, `NAME=value` and a zero byte, in their environment."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable in path.read_bytes() + b"\0":
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


def main(argv: list[str]) -> None:
    if (STATE / "broken").exists():
        die((STATE / "broken").read_text())
    verbs = {"describe": describe, "logs": logs, "delete": delete, "submit": submit}
    verbs |= {"exec": execute, "port-forward": forward}
    match argv:
        case ["version"] | ["whoami"]:
            print("2.19" if argv == ["version"] else "user: someone@example.com")
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
        case ["logs" | "exec" | "port-forward" as verb, *rest] if not V2:
            verbs[verb](rest)
        case _:
            die(f'unknown command "{argv[0] if argv else ""}" for "runai"')


if __name__ == "__main__":
    main(sys.argv[1:])
