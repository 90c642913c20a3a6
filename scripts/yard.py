"""`make train`, `make up`, `make down` and `make remove`: a server, a worker and the deployments, on this machine.

`serve` runs them in the foreground, for a service or a container. `listen` and `tend` are the processes in the
background that keep the server and the worker running.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.api import YardError, open_prefect_client
from scripts.keep_alive import keep_worker_running, serve_runs
from scripts.listener import keep_server_running
from scripts.processes import (
    PREFECT_HOME,
    YARD_SCRIPT,
    YardProcess,
    find_yard_processes,
    get_worker_name,
    start_yard_process,
    stop_yard_process,
)
from scripts.server import choose_server, create_prefect_home, get_server_port, use_own_server
from torchyard.common.pool import DEFAULT_POOL, read_pool
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import load_profile
from torchyard.model.errors import TorchyardError

# Prefect is imported only after the server is chosen: at its import it reads the address from the environment.


def _start_yard(args: argparse.Namespace) -> str:
    """Start everything that a run needs; return the API's address."""
    started_at = time.monotonic()
    api_url = _start_server(args)
    with _lock_yard():
        _start_worker(beside_others=args.worker)
    print(f"ready after {time.monotonic() - started_at:.0f} s", flush=True)
    return api_url


def _start_server(args: argparse.Namespace) -> str:
    """Start everything but the worker; return the API's address."""
    read_pool()  # an invalid name is an error before anything is started
    with _lock_yard():
        api_url = choose_server()
        _check_running_worker(api_url)
        from scripts.deployments import deploy_flows

        deploy_flows(profiles=args.profiles.split(), take_over=args.take_over, nightly=args.nightly)
        _create_automations()
        _recover_lost_runs()  # before the worker starts: a sweep that is due would remove them
    return api_url


@contextmanager
def _lock_yard() -> Iterator[None]:
    """Hold this folder's lock, because two commands at once would start two servers."""
    create_prefect_home()
    with (PREFECT_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _create_automations() -> None:
    """Create the automations in a new process, which reads the chosen server's address; YardError if that fails."""
    argv = [sys.executable, "-m", "scripts.automations"]
    completed = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    if completed.returncode != 0:
        last_line = completed.stderr.strip().rpartition("\n")[2]
        raise YardError(f"cannot create the automations: {last_line}")


def _check_running_worker(api_url: str) -> None:
    """Raise YardError if this folder's worker serves another server or another pool."""
    worker = find_yard_processes().get("worker")
    if worker is None:
        return
    worker_api_url = worker.environment.get("PREFECT_API_URL", "")
    if worker_api_url != api_url:
        raise YardError(f"this folder's worker serves {worker_api_url}, not {api_url}: stop it first with `make down`")
    pool = worker.environment.get("TORCHYARD_POOL") or DEFAULT_POOL
    if pool != read_pool():
        raise YardError(
            f"this folder's worker serves the work pool {pool}, not {read_pool()}: add POOL={pool} to this command, or "
            "stop the worker first with `make down`"
        )


def _start_worker(*, beside_others: bool) -> None:
    """Start a worker if this folder has none and no other worker serves the pool.

    `beside_others`: start it even if other workers serve the pool.
    """
    if "worker" in find_yard_processes():
        return
    with open_prefect_client() as client:
        workers = client.read_workers_for_work_pool(read_pool())
    other_workers = [
        worker.name for worker in workers if worker.status == "ONLINE" and worker.name != get_worker_name()
    ]
    if other_workers and not beside_others:
        print(
            f"worker: {other_workers[0]} (it is already running, and was not started from here; WORKER=1 adds one here)"
        )
    else:
        start_yard_process("worker", [sys.executable, str(YARD_SCRIPT), "tend"])


def _recover_lost_runs() -> None:
    """Resume runs that lost their launcher in a crash of this machine, before Prefect detects the loss."""
    from torchyard.tasks import recovery

    result = recovery.recover_lost_runs()
    if result.resumed:
        print(result)
    for fault in result.faults:
        print(f"not resumed: {fault}", file=sys.stderr)


def _stop_yard() -> int:
    """Stop what `up` started, the worker's runs first; other processes and other runs are not touched."""
    with _lock_yard():
        processes = find_yard_processes()
        if "service" in processes:
            raise YardError(
                f"a service (process {processes['service'].pid}) keeps server and worker running, and would start them "
                "again: `make service DO=uninstall` removes it, `systemctl --user stop` stops it until the next boot"
            )
        if processes:
            _adopt_environment(processes)
            try:
                _stop_worker_and_runs()
            finally:
                stop_yard_process("server")
            return 0
        from scripts.runs import print_open_runs

        print("nothing was running")
        print_open_runs()
    return 0


def _remove_installation() -> int:
    """Delete what `up` created on the server: automations, deployments and work pool."""
    with _lock_yard():
        running = find_yard_processes()
        for name in ("service", "worker"):
            if name in running:
                raise YardError(f"a {name} of this folder runs (process {running[name].pid}): stop it with `make down`")
        if not (os.environ.get("PREFECT_API_URL") or "server" in running):
            raise YardError("no server is chosen: export PREFECT_API_URL=... names the one to remove them from")
        choose_server()
        from scripts.automations import delete_automations
        from scripts.deployments import delete_deployments

        deleted = delete_deployments()
        deleted += [f"automation {name}" for name in delete_automations()]
    print("\n".join(f"deleted: {text}" for text in deleted) or "nothing of this installation was on the server")
    return 0


def _adopt_environment(processes: dict[str, YardProcess]) -> None:
    """Use the worker's environment (API, run folders, kubeconfig); without a worker, this folder's server."""
    if "worker" in processes:
        os.environ.clear()
        os.environ.update(processes["worker"].environment)
    else:
        use_own_server(f"http://127.0.0.1:{get_server_port(processes['server'])}/api")


def _stop_worker_and_runs() -> None:
    """Cancel the worker's runs, stop the worker, and tear down the runs that have not ended.

    If the server cannot be reached, the runs are not cancelled; those that may still be training are printed.
    """
    from scripts.runs import cancel_worker_runs, print_open_runs, tear_down_open_runs

    try:
        cancel_worker_runs()
    except YardError as error:
        print(f"cannot cancel the worker's runs: {error}", file=sys.stderr)
        stop_yard_process("worker")
        print_open_runs()
        return
    stop_yard_process("worker")
    tear_down_open_runs()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/yard.py", description=__doc__)
    parser.add_argument("verb", choices=["train", "up", "down", "remove", "tend", "listen", "serve"])
    parser.add_argument("profile", nargs="?", default="digits-local")
    parser.add_argument("--port", type=int, default=0, help="listen: the port of the server")
    parser.add_argument(
        "--profiles", default="", help='deploy these as well, whatever this machine reaches: "NAME ...", or all'
    )
    parser.add_argument("--take-over", action="store_true", help="take over the deployments of another folder")
    parser.add_argument("--nightly", action="store_true", help="start the schedules of nightly runs on this machine")
    parser.add_argument("--worker", action="store_true", help="start a worker here, also if other machines have one")
    args = parser.parse_args()
    try:
        return _run_command(args)
    except (YardError, TorchyardError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run_command(args: argparse.Namespace) -> int:
    commands: dict[str, Callable[[], int]] = {
        "train": partial(_train_profile, args),
        "up": partial(_start_up, args),
        "down": _stop_yard,
        "remove": _remove_installation,
        "serve": partial(serve_runs, partial(_start_server, args)),
        "listen": partial(keep_server_running, args.port),
        "tend": keep_worker_running,
    }
    return commands[args.verb]()


def _start_up(args: argparse.Namespace) -> int:
    _print_access(_start_yard(args))
    return 0


def _train_profile(args: argparse.Namespace) -> int:
    load_profile(args.profile)  # an invalid profile is an error before anything is started
    api_url = _start_yard(args)
    from scripts.watch import run_and_follow

    return run_and_follow(api_url, args.profile)


def _print_access(api_url: str) -> None:
    from scripts.server import ENV_FILE, read_last_address

    command = f"source {ENV_FILE}" if api_url == read_last_address() else f"export PREFECT_API_URL={api_url}"
    print(f"for Prefect's own commands in this shell:\n  {command}")


if __name__ == "__main__":
    sys.exit(main())
