"""The rendezvous store of a run on machines: started if it is the run's own, and proven to serve."""

from pathlib import Path
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from torchyard.common.log_lines import read_new_lines
from torchyard.host.rendezvous import query_store
from torchyard.host.state import LIVE_PHASES
from torchyard.machines import processes
from torchyard.machines.host_command import script_command
from torchyard.machines.host_script import call_scripts, submit_processes
from torchyard.machines.staging import stage_in
from torchyard.model.errors import HostError, RendezvousError
from torchyard.model.plan import CommandPlan, Process, Site

_NO_V2_REMEDY = "use etcd 3.4 or 3.5 started with --enable-v2: from 3.6 on the v2 API is gone, and torchrun needs it"
_STORE_START_TIMEOUT_S = 30.0


class StoreNotReadyError(Exception):
    """The store does not respond yet; the message is the reason."""


def start_store(plan: CommandPlan) -> None:
    """Start the store, if it is the run's own, and wait until it serves the v2 API.

    Raises RendezvousError if it does not within `_STORE_START_TIMEOUT_S`, and HostError if it cannot be started.
    """
    if plan.store:
        stage_in([plan.store.site] if plan.store.site else [])
        submit_processes([plan.store])
    try:
        wait_for_store(str(plan.probe), plan.store, plan.processes[0].site)
    except StoreNotReadyError as error:
        reason = f"no answer within {_STORE_START_TIMEOUT_S:.0f} s: {error}"
        raise RendezvousError(str(plan.probe), reason, "is it running there?", retry=True) from error


@retry(
    retry=retry_if_exception_type(StoreNotReadyError),
    wait=wait_fixed(0.05),
    stop=stop_after_delay(_STORE_START_TIMEOUT_S),
    reraise=True,
)
def wait_for_store(url: str, store: Process | None, site: Site | None) -> None:
    """Query /v2/keys until it is served: /health reports a healthy store even where the v2 API is off.

    `site` is the first agent's. Raises RendezvousError if the store responds with an error or has exited.
    """
    response = _query_store(url, site)
    if "error" in response:
        if store:
            _check_store_alive(url, store)
        raise StoreNotReadyError(response["error"])
    if response["code"] != 200:
        remedy = _NO_V2_REMEDY if response["code"] == 404 else "read the store's own log"
        raise RendezvousError(url, f"answers {response['code']} to GET /v2/keys", remedy)


def _query_store(url: str, site: Site | None) -> dict[str, Any]:
    """The store's response, requested from the first agent's host: this machine may have no route to it."""
    if site is None:
        return dict(query_store(url))
    return dict(processes.run_command(site.host, script_command(site.host, site.python, "rendezvous.py", url)))


def _check_store_alive(url: str, store: Process) -> None:
    """RendezvousError with the store's last line if it has exited: it will not respond any more."""
    state = call_scripts("status", [store], lambda process: {"folder": process.folder})[store.name]
    if isinstance(state, HostError):
        raise state
    if state["phase"] in LIVE_PHASES:
        return
    last_line = "nothing"
    for line, _ in read_new_lines(Path(store.log), 0):
        last_line = line
    raise RendezvousError(url, f"the store ended with {state.get('exit')} and printed: {last_line}", _NO_V2_REMEDY)
