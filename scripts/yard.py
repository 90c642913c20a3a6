"""`make train`, `make up` and `make down`: a Prefect server, a worker and the deployments, on this machine."""

import argparse
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.api import YardError, prefect_client
from scripts.processes import HOME, YARD, Process, detach, end, started, worker_name
from scripts.server import choose_server, make_home, port_of, use_own
from torchyard.loading.profile import ROOT, load_profile
from torchyard.model.errors import TorchyardError

# Prefect is imported after the server is chosen: it reads its address from the environment at once.


def up(take_over: bool = False) -> str:
    """Everything that a run needs; the API's address."""
    from_nothing = time.monotonic()
    with one_at_a_time():
        api = choose_server()
        from scripts.deployments import deploy

        deploy(take_over)
        automate()
        bring_back()  # before a worker: a sweep that is due must not meet them first
        start_worker(api)
    print(f"ready after {time.monotonic() - from_nothing:.0f} s", flush=True)
    return api


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two calls at once would start two servers."""
    make_home()
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def automate() -> None:
    words = [sys.executable, "-m", "scripts.automations"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise YardError(f"the automations were not made: {done.stderr.strip().splitlines()[-1:]}")


def start_worker(api: str) -> None:
    """A worker, if none looks after the pool; `tend` brings it back when it dies."""
    from scripts.deployments import POOL

    if running := started().get("worker"):
        served = running.environment.get("PREFECT_API_URL", "")
        if served != api:
            raise YardError(f"this folder's worker serves {served}, not {api}: stop it first with `make down`")
        return
    with prefect_client() as client:
        found = client.read_workers_for_work_pool(POOL)
    others = [each.name for each in found if each.status == "ONLINE" and each.name != worker_name()]
    if others:
        print(f"worker: {others[0]} (it runs already, and was not started from here)")
    else:
        detach("worker", [sys.executable, str(YARD), "tend"])


def bring_back() -> None:
    """Runs that a crash of this machine has taken from their launcher go on now, not when Prefect misses them."""
    from tasks import recovery

    looked = recovery.bring_back()
    if looked.back:
        print(looked)
    for fault in looked.faults:
        print(f"not brought back: {fault}", file=sys.stderr)


def tend() -> int:
    """Keep a worker running until this process is ended."""
    prefect = str(Path(sys.executable).parent / "prefect")
    while True:
        words = ["worker", "start", "--pool", "torchyard", "--type", "process", "--name", worker_name()]
        subprocess.run([prefect, *words], check=False, cwd=ROOT)
        time.sleep(1)


def down() -> int:
    """Stop what `up` started, runs that its worker carries before; nothing else, here or in a cluster."""
    with one_at_a_time():
        if known := started():
            adopt(known)
            try:
                end_runs()
            finally:
                end("server")
            return 0
        from scripts.runs import tell_open

        print("nothing was running")
        tell_open()
    return 0


def adopt(known: dict[str, Process]) -> None:
    """Speak to the API that the worker speaks to, and clear up in its run folders, with its kubeconfig."""
    if "worker" in known:
        os.environ.clear()
        os.environ.update(known["worker"].environment)
    else:
        use_own(f"http://127.0.0.1:{port_of(known['server'])}/api")


def end_runs() -> None:
    """Cancel what the worker carries, stop it, and tear down what did not end; a server that is away is told."""
    from scripts.runs import cancel_carried, tear_down_left, tell_open

    try:
        cancel_carried()
    except YardError as error:
        print(f"runs that the worker carries are not cancelled: {error}", file=sys.stderr)
        end("worker")
        tell_open()
        return
    end("worker")
    tear_down_left()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/yard.py", description=__doc__)
    parser.add_argument("verb", choices=["train", "up", "down", "tend"])
    parser.add_argument("profile", nargs="?", default="digits-local")
    parser.add_argument("--take-over", action="store_true", help="take over the deployments of another folder")
    asked = parser.parse_args()
    try:
        match asked.verb:
            case "train":
                return train(asked.profile, asked.take_over)
            case "up":
                show_way_in(up(asked.take_over))
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


def train(profile: str, take_over: bool) -> int:
    load_profile(profile)
    api = up(take_over)
    from scripts.watch import run_and_follow

    return run_and_follow(api, profile)


def show_way_in(api: str) -> None:
    from scripts.server import ENV, remembered

    print("for Prefect's own commands in this shell:")
    print(f"  source {ENV}" if api == remembered() else f"  export PREFECT_API_URL={api}")


if __name__ == "__main__":
    sys.exit(main())
