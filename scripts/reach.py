"""Which profiles this installation can run, as far as this machine shows it without a request to any of their places.

A profile that may not be reached can still be deployed: by its name, with `make up PROFILES=NAME`.
"""

import shutil

from torchyard.common.escaping import single_line
from torchyard.launchers.registry import make_plan
from torchyard.model.errors import TorchyardError
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.profile import Cluster, Profile
from torchyard.model.requirements import THIS_MACHINE, ScriptCheck
from torchyard.model.run import TRIAL_RUN

_MAX_OBSTACLE_CHARS = 300


def find_obstacle(profile: Profile) -> str:
    """Why this machine may not reach the place where the profile's job runs; empty if nothing is known to be missing.

    Raises ProfileError if the profile cannot be planned.
    """
    plan = make_plan(profile, TRIAL_RUN)
    match plan:
        case ManifestPlan():
            return _find_cluster_obstacle(plan.cluster)
        case CommandPlan():
            return _find_command_obstacle(plan) or _find_host_obstacle(plan)


def _find_cluster_obstacle(cluster: Cluster) -> str:
    """The kubeconfig must have the context, or this process must be in a pod with a service account."""
    from torchyard.kube.kubeconfig import load_settings

    try:
        load_settings(cluster.context)
    except TorchyardError as error:
        return single_line(str(error), _MAX_OBSTACLE_CHARS)
    return ""


def _find_command_obstacle(plan: Plan) -> str:
    """The command line of the scheduler must be installed."""
    for requirement in plan.requires:
        match requirement:
            case ScriptCheck(settings={"cli": cli}) if not shutil.which(cli):
                return f"the command line {cli} is not installed"
            case _:
                pass
    return ""


def _find_host_obstacle(plan: CommandPlan) -> str:
    """A host behind ssh is not contacted: a profile that names some is deployed by its name."""
    hosts = dict.fromkeys(process.host for process in plan.processes if process.host not in THIS_MACHINE)
    return f"hosts behind ssh are not contacted: {', '.join(hosts)}" if hosts else ""
