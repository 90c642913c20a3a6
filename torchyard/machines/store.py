"""The rendezvous store of a run on machines: started where it is the run's own, and proven to serve."""

from pathlib import Path
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from torchyard.common.log_lines import follow
from torchyard.host.facts import FACTS
from torchyard.machines import processes
from torchyard.machines.staging import place, script
from torchyard.model.errors import RendezvousError
from torchyard.model.plan import Block, CommandPlan, Site

NO_V2 = "use etcd 3.4 or 3.5 started with --enable-v2: from 3.6 on the v2 API is gone, and torchrun needs it"
PATIENCE_S = 30.0


class NotYetError(Exception):
    """The store does not answer so far."""


def start(plan: CommandPlan) -> None:
    """Start the store, if it is the run's own, and wait until it serves."""
    if plan.store and plan.store.submit:
        place([plan.store.site] if plan.store.site else [])
        processes.call(plan.store.host, plan.store.submit)
    try:
        _prove(str(plan.probe), plan.store, plan.on[0].site)
    except NotYetError as error:
        said = f"no answer within {PATIENCE_S:.0f} s: {error}"
        raise RendezvousError(str(plan.probe), said, "is it running there?", retry=True) from error


@retry(
    retry=retry_if_exception_type(NotYetError), wait=wait_fixed(0.05), stop=stop_after_delay(PATIENCE_S), reraise=True
)
def _prove(url: str, store: Block | None, site: Site | None) -> None:
    """One GET: /health says true even where the v2 API is off, so only /v2/keys counts."""
    found = _ask(url, site)
    if "error" in found:
        if store:
            _refuse_dead(url, store)
        raise NotYetError(found["error"])
    if found["code"] != 200:
        remedy = NO_V2 if found["code"] == 404 else "look at the store's own log"
        raise RendezvousError(url, f"answers {found['code']} to GET /v2/keys", remedy)


def _ask(url: str, site: Site | None) -> dict[str, Any]:
    """What the store answers, asked where the first agent is: this machine may have no way to it."""
    need = {"kind": "store", "url": url}
    if site is None:
        return dict(FACTS["store"](need))
    question = script(site.host, site.python, "facts.py").model_copy(update={"input": {"needs": [need]}})
    (found,) = processes.call(site.host, question)
    return dict(found)


def _refuse_dead(url: str, store: Block) -> None:
    """A store that has ended will not answer any more."""
    state = processes.call(store.host, store.status)
    if state["phase"] != "running":
        last = [line for line, _ in follow(Path(store.log), 0)][-1:] or ["nothing"]
        raise RendezvousError(url, f"the store ended with {state.get('exit')} and said: {last[0]}", NO_V2)
