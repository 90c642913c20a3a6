"""The artifacts that show a run while it goes on: a page that is shown again is written again, not added."""

from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate


class RunPages:
    """The pages of one run of a profile, and the name of the task that waits for its job."""

    def __init__(self, run_id: UUID, profile: str) -> None:
        self._run_id, self._profile = run_id, profile
        self._artifacts: dict[str, UUID] = {}
        self._waiting_task: tuple[UUID, str] | None = None

    def publish_page(self, client: SyncPrefectClient, name: str, page: ArtifactCreate) -> None:
        """Create the artifact NAME-PROFILE, or write it again."""
        if artifact_id := self._artifacts.get(name):
            client.update_artifact(artifact_id, ArtifactUpdate(data=page.data, description=page.description))
            return
        fields = {"key": "-".join(filter(None, (name, self._profile))), "flow_run_id": self._run_id}
        self._artifacts[name] = client.create_artifact(page.model_copy(update=fields)).id

    def publish_progress(self, client: SyncPrefectClient, progress: str, percent: float) -> None:
        """Show how much is done, as a bar and in the name of the task that waits."""
        self.publish_page(client, "progress", ArtifactCreate(type="progress", data=percent, description=progress))
        self.rename_waiting_task(client)

    def set_waiting_task(self, task_run: str | None, progress: str) -> None:
        """Note which task run waits, and how much is done; called in that task run."""
        if task_run:
            self._waiting_task = UUID(task_run), f"wait: {progress}"

    def rename_waiting_task(self, client: SyncPrefectClient) -> None:
        """Name the task that waits after what is done; its end sets the name that it began with again."""
        if self._waiting_task:
            client.set_task_run_name(*self._waiting_task)
