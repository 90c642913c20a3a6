"""Registers the work pool and the deployments of prefect.yaml with the server, to run the code in this folder.

`prefect deploy` would erase the limits of an existing deployment, and silently take over one of another folder. This
module writes only the fields that the code defines, and only if they differ; limits, schedules and pauses are kept.

A user may edit description, tags and parameters in Prefect. The deployment's version contains a digest of each as this
module wrote it last: a field with another digest was edited, and is kept and printed.
"""

import hashlib
import json
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from scripts.api import YardError, open_prefect_client
from scripts.reach import find_obstacle
from torchyard.common.pool import DEFAULT_POOL, format_deployment_name, read_pool
from torchyard.common.project_root import ROOT
from torchyard.launchers.registry import make_plan
from torchyard.loading.form import build_form
from torchyard.loading.profile import load_profile
from torchyard.loading.yaml_document import merge_mappings
from torchyard.model.profile import Profile
from torchyard.model.run import TRIAL_RUN
from torchyard.pages.needs import render_needs

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import WorkPoolFilter
    from prefect.client.schemas.responses import DeploymentResponse

_LOCAL_NIGHTLY_TAGS = frozenset({"nightly", "local"})
_EDITABLE_FIELDS = ("description", "tags", "parameters")  # those of the code that a user may edit in Prefect
_VERSION_PREFIX = "torchyard"
_FLOW_SCRIPT = "scripts/flow_process.py"  # below ROOT
ALL_PROFILES = "all"  # as a name: those of every deployment
_ALWAYS_DEPLOYED = "yolov5-volcano"  # of `train`: the first command for a cluster in the README
DIRECTORY_STEP = "prefect.deployments.steps.set_working_directory"


class WorkPool(BaseModel):
    """The work pool and queue of a deployment's runs; Prefect creates a queue that does not exist."""

    model_config = ConfigDict(extra="forbid")
    name: str
    work_queue_name: str | None = None
    job_variables: dict[str, Any] = {}


class DeploymentSpec(BaseModel):
    """A deployment in prefect.yaml. An unknown key is an error, because it would have no effect here."""

    model_config = ConfigDict(extra="forbid")
    name: str
    description: str
    entrypoint: str
    work_pool: WorkPool
    tags: list[str] = []
    parameters: dict[str, Any] = {}
    schedules: list[dict[str, Any]] = []
    concurrency_limit: dict[str, Any] = {}

    @property
    def flow(self) -> str:
        return self.entrypoint.rpartition(":")[2]

    @property
    def full_name(self) -> str:
        return f"{self.flow}/{self.name}"

    @property
    def profile_name(self) -> str:
        """The profile that the runs use; empty for a deployment of any profile, and for one without a profile."""
        return str(self.parameters.get("profile", ""))

    def load_profile(self) -> Profile | None:
        """The profile that the runs use, with the deployment's overrides; None if `profile_name` is empty."""
        if not self.profile_name:
            return None
        return load_profile(self.profile_name, self.parameters.get("overrides"))

    def for_pool(self, pool: str) -> "DeploymentSpec":
        """This deployment in the installation named `pool`. A deployment that names another work pool stays there."""
        work_pool = self.work_pool
        if work_pool.name == DEFAULT_POOL:
            work_pool = work_pool.model_copy(update={"name": pool})
        return self.model_copy(update={"name": format_deployment_name(self.name, pool), "work_pool": work_pool})


def deploy_flows(
    *, profiles: Sequence[str] = (), take_over: bool = False, nightly: bool = False, pool_type: str = "process"
) -> None:
    """Create or update the work pool and the deployments of prefect.yaml that `select_specs` chooses; print the others.

    `profiles`: names of profiles that are deployed in any case. `take_over`: also update deployments that run the code
    of another folder. `nightly`: start the schedules of the nightly runs that need no cluster.

    Raises YardError if prefect.yaml has an unknown key, if no deployment has a profile with one of the names, if a
    deployment belongs to another folder, or if the work pool exists with another type.
    """
    pool = read_pool()
    all_specs = [spec.for_pool(pool) for spec in read_deployment_specs()]
    check_profile_names(all_specs, profiles)
    with open_prefect_client() as client:
        existing: dict[str, DeploymentResponse] = {}
        for spec in all_specs:
            deployment = _find_deployment(client, spec.full_name)
            if deployment:
                existing[spec.full_name] = deployment
        if not take_over:
            check_ownership(existing)
        specs, omitted = select_specs(all_specs, profiles, existing)
        _create_pool(client, pool, pool_type)
        if pool_type == "process":
            specs = [add_flow_command(spec) for spec in specs]
        for spec in specs:
            if spec.full_name in existing:
                _update_deployment(client, spec, existing[spec.full_name])
            else:
                _create_deployment(client, spec)
        for spec in specs:
            if nightly and set(spec.tags) >= _LOCAL_NIGHTLY_TAGS:
                _start_schedules(client, spec.full_name)
    _print_omitted(omitted)


class Selection(NamedTuple):
    """The deployments to create or update, and the names of the others by the obstacle."""

    specs: list[DeploymentSpec]
    omitted: dict[str, list[str]]


def select_specs(specs: Sequence[DeploymentSpec], profiles: Sequence[str], existing: Collection[str]) -> Selection:
    """Choose the deployments of what this installation can reach, of `profiles`, and those that exist.

    A deployment that exists is never deleted, because a user may have given it a schedule, and because what cannot be
    reached now may be reached tomorrow.

    existing: full names.
    """
    always_deployed = f"train/{format_deployment_name(_ALWAYS_DEPLOYED, read_pool())}"
    selection = Selection([], {})
    for spec in specs:
        is_named = spec.profile_name in profiles or ALL_PROFILES in profiles
        profile = spec.load_profile()
        obstacle = ""
        if profile and not (is_named or spec.full_name in existing or spec.full_name == always_deployed):
            obstacle = find_obstacle(profile)
        if obstacle:
            selection.omitted.setdefault(obstacle, []).append(spec.full_name)
        else:
            selection.specs.append(spec)
    return selection


def add_flow_command(spec: DeploymentSpec) -> DeploymentSpec:
    """The deployment with the command that starts the processes of its runs on the worker's machine.

    `-P`: the modules of scripts/ cannot hide libraries.
    """
    argv = [sys.executable, "-P", str(ROOT / _FLOW_SCRIPT)]
    work_pool = spec.work_pool
    job_variables = work_pool.job_variables | {"command": shlex.join(argv)}
    return spec.model_copy(update={"work_pool": work_pool.model_copy(update={"job_variables": job_variables})})


def merge_job_variables(current: Mapping[str, Any], code: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the code in those on the server; those that a user has added, or a user's command, stay."""
    merged: dict[str, Any] = merge_mappings(current, code)
    command = str(current.get("command") or "")
    if command and not command.endswith(_FLOW_SCRIPT):
        merged["command"] = command
    return merged


def check_profile_names(specs: Iterable[DeploymentSpec], profiles: Iterable[str]) -> None:
    """Raise YardError if a name is neither `all` nor that of a deployment's profile."""
    known_names = {spec.profile_name for spec in specs if spec.profile_name}
    unknown_names = [name for name in profiles if name not in known_names | {ALL_PROFILES}]
    if unknown_names:
        raise YardError(
            f"PROFILES: prefect.yaml has no deployment of {', '.join(unknown_names)}; it has those of "
            f"{', '.join(sorted(known_names))}. `all` names each of them; the deployment any-profile takes other files"
        )


def _print_omitted(omitted: Mapping[str, Sequence[str]]) -> None:
    """Print the profiles that were not deployed. `omitted`: their names by what their jobs lack here."""
    if not omitted:
        return
    print(
        'not deployed, as their jobs may not run from here (make up PROFILES="NAME ...", or PROFILES=all, adds them):'
    )
    for obstacle, names in omitted.items():
        print(f"  {obstacle}: {', '.join(names)}")


def delete_deployments() -> list[str]:
    """Delete the deployments and the work pool of this installation; return what was deleted, as text.

    A work pool with other deployments is kept. What does not exist, as after a half-done `make up`, is left out. The
    runs stay on the server.

    Raises YardError, before anything is deleted, if a deployment belongs to another folder, or if a run has not ended.
    """
    from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
    from prefect.exceptions import ObjectNotFound

    pool = read_pool()
    pool_filter = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    deleted = []
    with open_prefect_client() as client:
        existing: dict[str, DeploymentResponse] = {}
        for spec in read_deployment_specs():
            name = spec.for_pool(pool).full_name
            deployment = _find_deployment(client, name)
            if deployment:
                existing[name] = deployment
        check_ownership(existing)
        _check_no_open_runs(client, pool_filter)
        for name, deployment in existing.items():
            client.delete_deployment(deployment.id)
            deleted.append(f"deployment {name}")
        others = client.read_deployments(work_pool_filter=pool_filter)
        if others:
            print(f"the work pool {pool} is kept: {len(others)} other deployments use it, such as {others[0].name}")
            return deleted
        try:
            client.delete_work_pool(pool)
            deleted.append(f"work pool {pool}")
        except ObjectNotFound:
            pass
    return deleted


def _check_no_open_runs(client: "SyncPrefectClient", pool_filter: "WorkPoolFilter") -> None:
    """Raise YardError if a run of the work pool was started and has not ended: nothing would recover it any more."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import FlowRun, StateType

    open_types = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING, StateType.PAUSED, StateType.SCHEDULED]
    state_filter = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=open_types)))
    runs: list[FlowRun] = []
    offset = 0
    while page := client.read_flow_runs(flow_run_filter=state_filter, work_pool_filter=pool_filter, offset=offset):
        # One that is scheduled and has been started before has lost its process, and its job may run.
        runs += [run for run in page if run.run_count or not (run.state and run.state.is_scheduled())]
        offset += len(page)
    if runs:
        raise YardError(
            f"runs that have not ended: {len(runs)}, such as {runs[0].name}: cancel them, or wait, and try again"
        )


def read_deployment_specs() -> list[DeploymentSpec]:
    """The deployments of prefect.yaml. YardError with the first key that is wrong."""
    path = ROOT / "prefect.yaml"
    try:
        return [DeploymentSpec.model_validate(fields) for fields in yaml.safe_load(path.read_text())["deployments"]]
    except ValidationError as error:
        first = error.errors()[0]
        raise YardError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _find_deployment(client: "SyncPrefectClient", name: str) -> "DeploymentResponse | None":
    """The deployment FLOW/NAME; None if the server has none of this name."""
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def _find_deployment_folder(deployment: "DeploymentResponse") -> str | None:
    """The folder whose code a deployment runs; None if it gets its code from other storage."""
    steps: Iterable[dict[str, Any]] = deployment.pull_steps or ()
    for step in steps:
        if DIRECTORY_STEP in step:
            return str(step[DIRECTORY_STEP]["directory"])
    return None


def check_ownership(deployments: "dict[str, DeploymentResponse]") -> None:
    """Raise YardError if a deployment runs the code of another folder, or of other storage."""
    folders_by_name = {name: _find_deployment_folder(deployment) for name, deployment in deployments.items()}
    foreign = {name: folder for name, folder in folders_by_name.items() if folder != str(ROOT)}
    if not foreign:
        return
    examples = next(iter(foreign))
    if len(foreign) > 1:
        examples += ", ..."
    folders = " and ".join(sorted({folder or "other storage" for folder in foreign.values()}))
    raise YardError(
        f"{len(foreign)} of the deployments on this server ({examples}) belong to {folders}: their users would get "
        f"the code of {ROOT} from now on. Unset PREFECT_API_URL to use this folder's own server, give this folder's "
        "deployments a separate name on this server: make up POOL=team-b, or take those over: make up TAKE_OVER=1"
    )


def _create_pool(client: "SyncPrefectClient", name: str, pool_type: str) -> None:
    """Create the work pool if it does not exist. An existing one keeps its limit, its pause and its job template.

    Raises YardError if it exists with another type.
    """
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    try:
        existing_type = client.read_work_pool(name).type
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=name, type=pool_type, base_job_template=template))
        return
    if existing_type != pool_type:
        raise YardError(
            f"the work pool {name} of this server is of type {existing_type}, but this installation needs {pool_type}: "
            "give this installation a separate name (make up POOL=team-b, or TORCHYARD_POOL), or delete that pool"
        )


@cache
def _load_parameter_schema(entrypoint: str) -> dict[str, Any]:
    """The schema of the parameters in a flow's form. Cached, because it runs the flow's file."""
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    flow: Any = load_flow_from_entrypoint(str(ROOT / entrypoint))
    return parameter_schema(flow).model_dump(exclude_unset=True)


def _build_parameter_schema(spec: DeploymentSpec) -> dict[str, Any]:
    """The schema of a deployment's form: for `train` from its profile, for other flows from their signature."""
    if spec.flow != "train":
        return _load_parameter_schema(spec.entrypoint)
    return build_form(load_profile(spec.profile_name) if spec.profile_name else None)


def build_description(spec: DeploymentSpec) -> str:
    """The description in prefect.yaml, and what a run needs, which follows from its profile."""
    profile = spec.load_profile()
    if profile is None:
        return spec.description
    return f"{spec.description}\n\n{render_needs(profile, make_plan(profile, TRIAL_RUN))}"


def _build_deployment_fields(spec: DeploymentSpec) -> dict[str, Any]:
    """The fields of a deployment that the code defines."""
    fields = spec.model_dump(include={"entrypoint", *_EDITABLE_FIELDS})
    fields["description"] = build_description(spec)
    fields["parameter_openapi_schema"] = _build_parameter_schema(spec)
    fields["pull_steps"] = [{DIRECTORY_STEP: {"directory": str(ROOT)}}]
    fields["version"] = build_fields_version(fields)
    return fields


def build_fields_version(fields: Mapping[str, Any]) -> str:
    """The version of a deployment that is written with these fields."""
    return _build_version({field: _digest(fields[field]) for field in _EDITABLE_FIELDS})


def _build_version(digests: Mapping[str, str]) -> str:
    """The version of a deployment: the digest of each editable field as it was written last."""
    return "-".join([_VERSION_PREFIX, *(digests[field] for field in _EDITABLE_FIELDS)])


def _parse_version(version: str | None) -> dict[str, str]:
    """The digests in a version; empty if this module has not written it."""
    prefix, *digests = (version or "").split("-")
    if prefix != _VERSION_PREFIX or len(digests) != len(_EDITABLE_FIELDS):
        return {}
    return dict(zip(_EDITABLE_FIELDS, digests, strict=True))


def _digest(value: object) -> str:
    """A digest of a field; the order of tags and of keys does not matter."""
    if isinstance(value, list):
        value = sorted(value)
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def list_edited_fields(fields: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """The fields that a user has edited in Prefect since they were written last.

    fields: of the code.
    current: of the deployment on the server.
    """
    written_digests = _parse_version(current["version"])
    return [
        field
        for field in _EDITABLE_FIELDS
        if field in written_digests and _digest(current[field]) not in (written_digests[field], _digest(fields[field]))
    ]


def _create_deployment(client: "SyncPrefectClient", spec: DeploymentSpec) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyOptions

    schedules = [
        DeploymentScheduleCreate.model_validate(
            {"active": schedule.get("active", True), "schedule": _drop_active(schedule)}
        )
        for schedule in spec.schedules
    ]
    concurrency = dict(spec.concurrency_limit)
    client.create_deployment(
        flow_id=client.create_flow_from_name(spec.flow),
        name=spec.name,
        work_pool_name=spec.work_pool.name,
        work_queue_name=spec.work_pool.work_queue_name,
        job_variables=spec.work_pool.job_variables,
        schedules=schedules,
        concurrency_limit=concurrency.pop("limit", None),
        concurrency_options=ConcurrencyOptions.model_validate(concurrency) if concurrency else None,
        enforce_parameter_schema=True,
        **_build_deployment_fields(spec),
    )


def _drop_active(schedule: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schedule.items() if key != "active"}


def _update_deployment(client: "SyncPrefectClient", spec: DeploymentSpec, deployment: "DeploymentResponse") -> None:
    """Write only what differs: on every write Prefect deletes the scheduled runs and creates them again."""
    from prefect.client.schemas.actions import DeploymentUpdate

    current = deployment.model_dump(mode="json")
    fields = _build_deployment_fields(spec)
    fields["job_variables"] = merge_job_variables(current["job_variables"] or {}, spec.work_pool.job_variables)
    edited = list_edited_fields(fields, current)
    if edited:
        digests = _parse_version(fields["version"])
        for field in edited:
            fields[field] = current[field]
            digests[field] = _parse_version(current["version"])[field]
        fields["version"] = _build_version(digests)
        print(f"{spec.full_name}: keeps its {', '.join(edited)}, edited in Prefect; delete the deployment to reset it")
    changed = {key: value for key, value in fields.items() if current[key] != value}
    if changed:
        client.update_deployment(deployment.id, DeploymentUpdate(**changed))


def _start_schedules(client: "SyncPrefectClient", name: str) -> None:
    """Activate a deployment's current schedules, which a user may have changed."""
    deployment = client.read_deployment_by_name(name)
    for schedule in deployment.schedules:
        if not schedule.active:
            client.update_deployment_schedule(deployment.id, schedule.id, active=True)
    print(f"{name}: {len(deployment.schedules)} schedules are active")
