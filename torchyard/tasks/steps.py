"""The six steps of a run as Prefect tasks. Each can be run again: it finds what it has started."""

from torchyard.steps.collect import collect as run_collect
from torchyard.steps.preflight import preflight as run_preflight
from torchyard.steps.rendezvous import ensure_rendezvous as run_rendezvous
from torchyard.steps.step_functions import StepFunctions
from torchyard.steps.submit import submit as run_submit
from torchyard.steps.teardown import teardown as run_teardown
from torchyard.steps.wait import wait as run_wait

from .flow_run.step import make_task

preflight = make_task(run_preflight)
ensure_rendezvous = make_task(run_rendezvous)
submit = make_task(run_submit)
wait = make_task(run_wait)
collect = make_task(run_collect)
teardown = make_task(run_teardown)
STEP_TASKS = StepFunctions(preflight, ensure_rendezvous, submit, wait, collect, teardown)
