"""The artifacts that show a run in Prefect while it is active: publishing a page again updates its artifact."""

from typing import NamedTuple
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate

from .states import NotRecordedError


class _WaitingTask(NamedTuple):
    """The task run that waits for the job, and the name that shows its progress."""

    task_run_id: UUID
    name: str


class RunPages:
    """The pages of one run, and the name of the task run that waits for its job.

    `set_waiting_task` is called in that task run; the other methods send requests and are called on the reporter's
    thread. They raise Prefect's own errors, and `rename_ended_task` NotRecordedError.
    """

    def __init__(self, run_id: UUID, profile: str) -> None:
        self._run_id = run_id
        self._profile = profile
        self._artifacts: dict[str, UUID] = {}  # by page name
        self._waiting_task: _WaitingTask | None = None

    def publish_page(self, client: SyncPrefectClient, name: str, page: ArtifactCreate) -> None:
        """Create the artifact NAME-PROFILE, or update it if this object has created it before."""
        artifact_id = self._artifacts.get(name)
        if artifact_id:
            client.update_artifact(artifact_id, ArtifactUpdate(data=page.data, description=page.description))
            return
        key = f"{name}-{self._profile}" if self._profile else name
        artifact = page.model_copy(update={"key": key, "flow_run_id": self._run_id})
        self._artifacts[name] = client.create_artifact(artifact).id

    def publish_progress(self, client: SyncPrefectClient, progress: str, percent: float) -> None:
        """Show the progress as a bar, and in the name of the task run that waits."""
        self.publish_page(client, "progress", ArtifactCreate(type="progress", data=percent, description=progress))
        task = self._waiting_task
        if task:
            client.set_task_run_name(task.task_run_id, task.name)

    def set_waiting_task(self, task_run_id: str | None, progress: str) -> None:
        """Set which task run waits, and its progress; without an id (outside of a task run) nothing changes."""
        if task_run_id:
            self._waiting_task = _WaitingTask(UUID(task_run_id), f"wait: {progress}")

    def rename_ended_task(self, client: SyncPrefectClient) -> None:
        """Put the last progress into the name of the task run that has waited.

        Prefect resets the name when it records the end of the task run, on a busy server many seconds after it.
        """
        task = self._waiting_task
        if not task:
            return
        state = client.read_task_run(task.task_run_id).state
        if state is None or not state.is_final():
            raise NotRecordedError
        client.set_task_run_name(task.task_run_id, task.name)
