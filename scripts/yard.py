"""`make train`, `make up` and `make down`: a Prefect server, a worker and the deployments, on this machine."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from scripts.api import YardError, call, healthy, set_state
from scripts.watch import follow
from tasks.errors import TorchyardError
from tasks.profile import ROOT, load_profile

BIN = Path(sys.executable).parent
HOME = ROOT / ".prefect"
STARTED = HOME / "started.json"
POOL = "torchyard"
USUAL = 4200
# The server calls a worker ONLINE for 90 s after its death: ours must be told from others by its name.
WORKER = f"torchyard {ROOT} on {socket.gethostname()}".replace("/", "-")


# --- processes that outlive this one -------------------------------------------------------------------------------


def born(pid: int) -> str:
    """When a process began, in clock ticks: with it a process id that is used again is not taken for the old one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def started() -> dict[str, Any]:
    """What an earlier call started and is still there: name -> pid, born, and the server's address."""
    found = json.loads(STARTED.read_text()) if STARTED.exists() else {}
    return {name: each for name, each in found.items() if ours(each)}


def ours(process: dict[str, Any]) -> bool:
    """Whether it lives, or left something in its session; its id cannot be used again before that is gone too."""
    now = born(process["pid"])
    return now == process["born"] if now else alive(process["pid"])


def detach(name: str, command: list[str], **facts: str) -> int:
    """Start a process in a session of its own and write down that it is ours; its output goes to a log of its name."""
    HOME.mkdir(exist_ok=True)
    with (HOME / f"{name}.log").open("ab") as log:
        # A worker that inherits an ignored SIGINT does not end on SIGTERM.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=ROOT
        )
        signal.signal(signal.SIGINT, before)
    known = started() | {name: {"pid": process.pid, "born": born(process.pid), **facts}}
    STARTED.write_text(json.dumps(known, indent=1))
    return process.pid


def until(what: str, found: Callable[[], Any], seconds: float) -> Any:
    """Ask until there is something; YardError names what there was not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if something := found():
            return something
        time.sleep(0.2)
    raise YardError(f"{what} within {seconds:.0f} s")


# --- the server ----------------------------------------------------------------------------------------------------


def server() -> str:
    """The API that is used: the user's, one that runs here, or a new one."""
    named = os.environ.get("PREFECT_API_URL")
    usual = f"http://127.0.0.1:{USUAL}/api"
    mine = started().get("server", {}).get("api")
    if named:
        return use(named, "PREFECT_API_URL says so")
    if mine and healthy(mine):
        return use(mine, "it runs already")
    if healthy(usual):
        return use(usual, "it runs already, and was not started from here")
    return start_server()


def use(api: str, why: str) -> str:
    if not healthy(api):
        raise YardError(
            f"no Prefect API answers at {api} ({why}): start it, or unset PREFECT_API_URL to have one started"
        )
    print(f"Prefect server: {api} ({why})")
    return api


def start_server() -> str:
    port = USUAL if free(USUAL) else free_port()
    if port != USUAL:
        print(f"port {USUAL} is held by something that is not Prefect: using {port}")
    api = f"http://127.0.0.1:{port}/api"
    os.environ["PREFECT_HOME"] = str(HOME)
    print(f"starting a Prefect server at {api} ...", flush=True)
    command = [str(BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    pid = detach("server", command, api=api)
    try:
        until("the Prefect server did not answer", lambda: healthy(api) or not born(pid), 90)
        if not healthy(api):
            raise YardError("the Prefect server ended at its start")
    except YardError as error:
        end("server")
        last = (HOME / "server.log").read_text(errors="replace").splitlines()[-15:]
        raise YardError("\n  ".join([f"{error}; the end of {HOME}/server.log:", *last])) from error
    return api


def free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return listener.connect_ex(("127.0.0.1", port)) != 0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# --- what runs on it -----------------------------------------------------------------------------------------------


def prefect(*words: str) -> str:
    """Prefect's own command, quietly; YardError with what it said where it failed."""
    done = subprocess.run([BIN / "prefect", *words], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise YardError(f"prefect {' '.join(words)}: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def automate() -> None:
    """In a process of its own: Prefect's client takes its address from the environment when it is imported."""
    command = [sys.executable, "-m", "scripts.automations"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise YardError(f"the automations were not made: {done.stderr.strip().splitlines()[-1:]}")


def deploy() -> None:
    """The work pool, every deployment, and the automations."""
    prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
    said = prefect("--no-prompt", "deploy", "--all")
    if "failed" in said.lower():
        raise YardError(f"prefect deploy --all: {said}")
    automate()


def worker(api: str) -> None:
    """A worker, if none looks after the pool; `tend` brings it back when it dies."""
    found = httpx.post(f"{api}/work_pools/{POOL}/workers/filter", json={}, timeout=10, trust_env=False).json()
    others = [each["name"] for each in found if each["status"] == "ONLINE" and each["name"] != WORKER]
    if others:
        print(f"worker: {others[0]} (it runs already, and was not started from here)")
    elif "worker" not in started():
        detach("worker", [sys.executable, str(Path(__file__).resolve()), "tend"], api=api)


def tend() -> int:
    """Keep a worker running until this process is ended."""
    words = ["worker", "start", "--pool", POOL, "--type", "process", "--name", WORKER]
    while True:
        subprocess.run([BIN / "prefect", *words], check=False, cwd=ROOT)
        time.sleep(1)


def up() -> str:
    """Everything that a run needs; the API's address."""
    from_nothing = time.monotonic()
    os.environ["PREFECT_API_URL"] = api = server()
    deploy()
    worker(api)
    print(f"ready after {time.monotonic() - from_nothing:.0f} s", flush=True)
    return api


# --- the end -------------------------------------------------------------------------------------------------------


def down() -> int:
    """Stop what `up` started, runs that its worker carries before."""
    known = started()
    if not known:
        print("nothing was running")
    if "worker" in known:
        cancel_runs(known["worker"]["api"])
        end("worker")
        sweep = [sys.executable, str(ROOT / "flows" / "sweep.py"), "--now"]
        subprocess.run(sweep, cwd=ROOT, check=False, capture_output=True)
    if "server" in known:
        end("server")
    STARTED.unlink(missing_ok=True)
    return 0


def cancel_runs(api: str) -> None:
    """Cancel what our worker carries and wait for its teardown; what does not end is told and left."""
    if not healthy(api):
        print("the server does not answer: runs that the worker carries are not cancelled")
        return
    os.environ["PREFECT_API_URL"] = api
    for run in carried():
        print(f"cancelling {run['name']} ...", flush=True)
        set_state(run["id"], "CANCELLING")
    try:
        until("not every run has ended", lambda: not carried(), 45)
    except YardError as error:
        print(f"{error}: {', '.join(run['name'] for run in carried())}", file=sys.stderr)


def carried() -> list[dict[str, Any]]:
    """The runs that our worker took and that have not ended."""
    asked = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}}
    runs = call("POST", "/flow_runs/filter", asked)
    return [run for run in runs if (run.get("labels") or {}).get("prefect.worker.name") == WORKER]


def end(name: str) -> None:
    """End a process of ours with its whole session: SIGTERM, then SIGKILL."""
    found = started().get(name)
    if not found:
        return
    for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(found["pid"], number)
            until(f"{name} did not end", lambda: not alive(found["pid"]), seconds)
            break
        except ProcessLookupError:
            break
        except YardError:
            continue
    print(f"stopped the {name}")


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/yard.py", description=__doc__)
    parser.add_argument("verb", choices=["train", "up", "down", "tend"])
    parser.add_argument("profile", nargs="?", default="digits-local")
    asked = parser.parse_args()
    if (ROOT / ".prefect").exists() and not os.environ.get("PREFECT_API_URL"):
        os.environ["PREFECT_HOME"] = str(HOME)
    try:
        match asked.verb:
            case "train":
                load_profile(asked.profile)
                return follow(up(), asked.profile)
            case "up":
                print(f"export PREFECT_API_URL={up()}")
                return 0
            case "down":
                return down()
            case _:
                return tend()
    except (YardError, TorchyardError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
