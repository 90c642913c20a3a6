"""`make train`, `make up` and `make down`: a Prefect server, a worker and the deployments, on this machine.

`serve` runs them in the foreground, for a service or a container.
"""

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

from scripts.api import YardError, open_prefect_client
from scripts.keep_alive import serve_runs, tend_worker
from scripts.processes import (
    PREFECT_HOME,
    YARD_SCRIPT,
    YardProcess,
    find_yard_processes,
    start_yard_process,
    stop_yard_process,
    worker_name,
)
from scripts.server import choose_server, create_prefect_home, read_server_port, use_own_server
from torchyard.common.pool import DEFAULT_POOL, read_pool
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import load_profile
from torchyard.model.errors import TorchyardError

# Prefect is imported after the server is chosen: it reads its address from the environment at once.


def _start_yard(asked: argparse.Namespace) -> str:
    """Start everything that a run needs; returns the API's address."""
    from_nothing = time.monotonic()
    api = _start_server(asked)
    with _lock_yard():
        _start_worker(asked.worker)
    print(f"ready after {time.monotonic() - from_nothing:.0f} s", flush=True)
    return api


def _start_server(asked: argparse.Namespace) -> str:
    """Start everything but the worker; returns the API's address."""
    read_pool()  # a name that cannot be used is an error before anything is started
    with _lock_yard():
        _check_running_worker(api := choose_server())
        from scripts.deployments import deploy_flows

        deploy_flows(asked.take_over, asked.nightly)
        _create_automations()
        _recover_lost_runs()  # before the worker starts: a sweep that is due must not find them first
    return api


@contextmanager
def _lock_yard() -> Iterator[None]:
    """Hold the lock: two calls at once would start two servers."""
    create_prefect_home()
    with (PREFECT_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _create_automations() -> None:
    words = [sys.executable, "-m", "scripts.automations"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise YardError(f"the automations were not created: {done.stderr.strip().splitlines()[-1:]}")


def _check_running_worker(api: str) -> None:
    """YardError if this folder's worker serves another server or another pool."""
    if not (running := find_yard_processes().get("worker")):
        return
    served = running.environment.get("PREFECT_API_URL", "")
    if served != api:
        raise YardError(f"this folder's worker serves {served}, not {api}: stop it first with `make down`")
    pool = running.environment.get("TORCHYARD_POOL") or DEFAULT_POOL
    if pool != read_pool():
        raise YardError(
            f"this folder's worker serves the work pool {pool}, not {read_pool()}: add POOL={pool} to this command, or "
            "stop the worker first with `make down`"
        )


def _start_worker(always: bool) -> None:
    """Start a worker, if none serves the pool; with `always`, also beside those of other machines."""
    if "worker" in find_yard_processes():
        return
    with open_prefect_client() as client:
        found = client.read_workers_for_work_pool(read_pool())
    others = [each.name for each in found if each.status == "ONLINE" and each.name != worker_name()]
    if others and not always:
        print(f"worker: {others[0]} (it is already running, and was not started from here; WORKER=1 adds one here)")
    else:
        start_yard_process("worker", [sys.executable, str(YARD_SCRIPT), "tend"])


def _recover_lost_runs() -> None:
    """Resume runs that lost their launcher in a crash of this machine now, not when Prefect notices the loss."""
    from torchyard.tasks import recovery

    looked = recovery.recover_lost_runs()
    if looked.back:
        print(looked)
    for fault in looked.faults:
        print(f"not resumed: {fault}", file=sys.stderr)


def _stop_yard() -> int:
    """Stop what `up` started, its worker's runs first; nothing else, here or in a cluster."""
    with _lock_yard():
        if "service" in (known := find_yard_processes()):
            raise YardError(
                f"a service (process {known['service'].pid}) keeps server and worker running, and would start them "
                "again: `make service DO=uninstall` removes it, `systemctl --user stop` stops it until the next boot"
            )
        if known:
            _adopt_environment(known)
            try:
                _end_worker_runs()
            finally:
                stop_yard_process("server")
            return 0
        from scripts.runs import print_open_runs

        print("nothing was running")
        print_open_runs()
    return 0


def _adopt_environment(known: dict[str, YardProcess]) -> None:
    """Use the worker's API, run folders and kubeconfig; without a worker, this folder's server."""
    if "worker" in known:
        os.environ.clear()
        os.environ.update(known["worker"].environment)
    else:
        use_own_server(f"http://127.0.0.1:{read_server_port(known['server'])}/api")


def _end_worker_runs() -> None:
    """Cancel the worker's runs, stop it, and tear down what did not end; an unreachable server is reported."""
    from scripts.runs import cancel_worker_runs, print_open_runs, tear_down_open_runs

    try:
        cancel_worker_runs()
    except YardError as error:
        print(f"the worker's runs are not cancelled: {error}", file=sys.stderr)
        stop_yard_process("worker")
        print_open_runs()
        return
    stop_yard_process("worker")
    tear_down_open_runs()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/yard.py", description=__doc__)
    parser.add_argument("verb", choices=["train", "up", "down", "tend", "serve"])
    parser.add_argument("profile", nargs="?", default="digits-local")
    parser.add_argument("--take-over", action="store_true", help="take over the deployments of another folder")
    parser.add_argument("--nightly", action="store_true", help="start the schedules of nightly runs on this machine")
    parser.add_argument("--worker", action="store_true", help="start a worker here, also if other machines have one")
    asked = parser.parse_args()
    try:
        return _do_verb(asked)
    except (YardError, TorchyardError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _do_verb(asked: argparse.Namespace) -> int:
    match asked.verb:
        case "train":
            return _train_profile(asked)
        case "up":
            _show_access(_start_yard(asked))
            return 0
        case "down":
            return _stop_yard()
        case "serve":
            return serve_runs(lambda: _start_server(asked))
        case _:
            return tend_worker()


def _train_profile(asked: argparse.Namespace) -> int:
    load_profile(asked.profile)
    api = _start_yard(asked)
    from scripts.watch import run_and_follow

    return run_and_follow(api, asked.profile)


def _show_access(api: str) -> None:
    from scripts.server import ENV_FILE, read_last_address

    print("for Prefect's own commands in this shell:")
    print(f"  source {ENV_FILE}" if api == read_last_address() else f"  export PREFECT_API_URL={api}")


if __name__ == "__main__":
    sys.exit(main())
