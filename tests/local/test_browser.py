"""Prefect's pages in a real browser: the form of a profile, a run from its form to its end, its page, a benchmark.

The same server and worker also run what `prefect deployment run --watch` starts in a terminal.

With TORCHYARD_PICTURES=FOLDER the pictures of these pages in docs/pictures are written to that folder.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, sync_playwright
from playwright.sync_api import TimeoutError as PageTimeoutError
from prefect import get_client
from prefect.client.schemas.objects import FlowRun

from scripts.deployments import deploy_flows
from tests.processes.prefect_servers import PASSWORD, prefect_server, use_prefect_server
from tests.support.waiting import wait_until
from tests.tools.skips import find_chromium
from torchyard.common.project_root import ROOT

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="there is no chromium")
DEPLOYMENT = "train/digits-local"
CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-gpu"]


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the project's deployments, and a worker; yields the address of its pages."""
    folder = tmp_path_factory.mktemp("yard")
    with prefect_server(folder / "prefect") as server, use_prefect_server(server):
        deploy_flows()
        command = [str(Path(sys.executable).parent / "prefect"), "worker", "start", "--pool", "torchyard"]
        settings = {"TORCHYARD_RUNS": str(folder / "runs"), "PREFECT_WORKER_QUERY_SECONDS": "1"}
        worker = subprocess.Popen(
            [*command, "--type", "process"],
            env=os.environ | settings,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield server["PREFECT_API_URL"].removesuffix("/api")
        finally:
            worker.kill()  # started where SIGINT is ignored, a worker ignores SIGTERM too
            worker.wait()


@pytest.fixture(scope="module")
def page(yard: str) -> Iterator[Page]:
    """A page of a browser that has logged in; each test opens its own address."""
    with sync_playwright() as playwright:
        options = list(CHROMIUM_OPTIONS)
        if "TORCHYARD_PICTURES" not in os.environ:
            # Prefect's graph of a run needs WebGL, which the processor would have to draw: a minute of its time.
            options.append("--disable-software-rasterizer")
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=options)
        browser_page = browser.new_page(viewport={"width": 1200, "height": 1000}, reduced_motion="reduce")
        browser_page.set_default_timeout(60_000)
        browser_page.goto(f"{yard}/login")
        browser_page.locator("input").first.fill(PASSWORD)
        browser_page.get_by_role("button", name="Login").click()
        browser_page.wait_for_url("**/dashboard*")
        yield browser_page
        browser.close()


def open_form(page: Page, yard: str) -> None:
    with get_client(sync_client=True) as client:
        deployment_id = client.read_deployment_by_name(DEPLOYMENT).id
    page.goto(f"{yard}/deployments/deployment/{deployment_id}/run")
    find_field(page, "attempts").wait_for()


def submit(page: Page, yard: str, fill: Callable[[Page], None]) -> None:
    """Fill the form and submit it; repeat on a new page if Prefect reports that something went wrong.

    Prefect's SQLite may be locked for a moment, and the page then stays at "Oops".
    """
    scheduled = page.get_by_text("scheduled to start")
    error = page.get_by_text("Something went wrong")
    for _ in range(5):
        fill(page)
        page.get_by_role("button", name="Submit").click()
        scheduled.or_(error).first.wait_for()
        if scheduled.count():
            return
        open_form(page, yard)
    raise AssertionError("Prefect did not accept the run in 5 attempts")


def find_field(page: Page, name: str) -> Locator:
    """The innermost label with its input."""
    return page.locator(".p-label", has=page.locator("label", has_text=f"{name} (Optional)")).last


def save_picture(page: Page, name: str) -> None:
    """Write a picture for the docs if TORCHYARD_PICTURES is set."""
    pictures_folder = os.environ.get("TORCHYARD_PICTURES")
    if pictures_folder:
        page.wait_for_timeout(1500)  # animations
        page.screenshot(path=f"{pictures_folder}/{name}.png")


def list_runs() -> list[FlowRun]:
    """The runs of the deployment, oldest first, without those of other deployments such as the scheduled sweep."""
    with get_client(sync_client=True) as client:
        deployment_id = client.read_deployment_by_name(DEPLOYMENT).id
        runs = [run for run in client.read_flow_runs() if run.deployment_id == deployment_id]
    return sorted(runs, key=lambda run: str(run.created))


def await_end(run: FlowRun) -> FlowRun:
    def find_ended_run() -> Any:
        current = next(candidate for candidate in list_runs() if candidate.id == run.id)
        return current.state and current.state.is_final() and current

    ended: FlowRun = wait_until(find_ended_run, 300)
    return ended


def test_form_refuses_a_mistake_and_starts_what_fits(page: Page, yard: str) -> None:
    """The form refuses a value out of bounds; a valid change becomes a run with its artifacts."""
    open_form(page, yard)
    fill_attempts_and_args(page, 21)
    save_picture(page, "form")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("21 is greater than the maximum of 20").first.wait_for()
    assert list_runs() == []

    open_form(page, yard)
    clicked = time.time()
    submit(page, yard, lambda page: fill_attempts_and_args(page, 1))
    (run,) = list_runs()
    assert run.parameters["overrides"] == {"args": ["--epochs=25"], "attempts": 1}
    page.goto(f"{yard}/runs/flow-run/{run.id}")
    await_progress(page, run)
    print(f"from the click to the first epoch: {time.time() - clicked:.1f} s")
    ended = await_end(run)
    assert (ended.state_name, ended.name) == ("Completed", f"digits-local 2x1 {run.id.hex[-8:]}")
    check_pages(page)


def await_progress(page: Page, run: FlowRun) -> None:
    """Wait until the open page of a run shows its first epoch; a loaded machine imports torch for a minute."""
    try:
        page.get_by_text("epoch").first.wait_for(timeout=300_000)
    except PageTimeoutError:
        (current,) = list_runs()
        text = page.locator("body").inner_text()
        pytest.fail(f"run {run.id} is {current.state_name} since {current.state and current.state.timestamp}:\n{text}")


def fill_attempts_and_args(page: Page, attempts: int) -> None:
    find_field(page, "attempts").locator("input").fill(str(attempts))
    page.get_by_role("button", name="Add item").click()
    find_field(page, "args").locator("textarea").fill("--epochs=25")


def check_pages(page: Page) -> None:
    """Check the open page of an ended run, and its artifacts."""
    page.reload()
    page.get_by_text("end: succeeded").first.wait_for()
    page.get_by_text("wait: epoch 25 of 25").first.wait_for()
    assert page.get_by_text("Finished in state Completed()").count() == 0
    save_picture(page, "run")
    page.get_by_text("Artifacts", exact=True).click()
    for name in ("plan", "preflight", "progress", "report", "runs"):
        page.get_by_text(f"{name}-digits-local").first.wait_for()
    page.get_by_text("2 x 1 processes with baremetal: localhost").first.wait_for()
    save_picture(page, "artifacts")
    page.get_by_text("report-digits-local").first.click()
    page.get_by_role("heading", name=re.compile(r"digits-local-\w+ +succeeded in")).first.wait_for()
    save_picture(page, "report")
    page.go_back()
    page.get_by_text("Artifacts", exact=True).click()
    page.get_by_text("runs-digits-local").first.click()
    page.get_by_role("cell", name="succeeded").first.wait_for()
    save_picture(page, "runs")


def test_deployment_shows_what_its_profile_needs(page: Page, yard: str) -> None:
    """The page of a deployment has the needs of its profile as a list."""
    with get_client(sync_client=True) as client:
        deployment_id = client.read_deployment_by_name("train/yolov5-volcano").id
    page.goto(f"{yard}/deployments/deployment/{deployment_id}")
    page.get_by_text("Description", exact=True).click()
    page.get_by_role("listitem").get_by_text("image ultralytics/yolov5:v7.0").wait_for()
    save_picture(page, "deployment")


def test_benchmark_page_has_its_chart(page: Page, yard: str) -> None:
    """The page of a benchmark shows the chart of its bandwidths as a picture, and their table."""
    with get_client(sync_client=True) as client:
        deployment_id = client.read_deployment_by_name("benchmark/local").id
        run = client.create_flow_run_from_deployment(deployment_id)

        def has_ended() -> bool:
            state = client.read_flow_run(run.id).state
            return state is not None and state.is_final()

        wait_until(has_ended, 300)
    page.goto(f"{yard}/runs/flow-run/{run.id}")
    page.get_by_text("Artifacts", exact=True).click()
    page.get_by_text("benchmark-allreduce-local").first.click()
    page.get_by_role("cell", name="32 KiB").first.wait_for()
    chart = page.locator("img[src^='data:image/svg']").first
    chart.wait_for()
    assert chart.evaluate("image => image.naturalWidth") > 0
    save_picture(page, "benchmark")


def test_dry_run_is_a_page_and_starts_nothing(page: Page, yard: str) -> None:
    """The switch of the form creates a run that shows plan and checks and reports that nothing was started."""
    known_ids = {run.id for run in list_runs()}
    open_form(page, yard)
    switch = page.locator(".p-label", has=page.locator("label", has_text="dry run")).last.get_by_role("switch")
    submit(page, yard, lambda _: switch.click())
    (run,) = (run for run in list_runs() if run.id not in known_ids)
    ended = await_end(run)
    assert ended.state
    assert (
        ended.state.message == f"dry run: digits-local-{run.id.hex[-8:]}, 2 nodes, 5 of 5 checks; nothing was started"
    )
    page.goto(f"{yard}/runs/flow-run/{run.id}")
    page.get_by_text("Artifacts", exact=True).click()
    page.get_by_text("plan-digits-local").first.click()
    page.get_by_text("2 x 1, started by torchrun").first.wait_for()
    save_picture(page, "plan")


@pytest.mark.usefixtures("yard")
def test_watch_of_a_failed_run_prints_its_sentence() -> None:
    """`prefect deployment run --watch` ends with an exit code of 1, and prints the sentence of the report."""
    command = [str(Path(sys.executable).parent / "prefect"), "deployment", "run", DEPLOYMENT, "--watch"]
    parameters = ["--param", 'overrides={"args": ["--no-such-option"]}']
    completed = subprocess.run([*command, *parameters], capture_output=True, text=True, cwd=ROOT, check=False)
    (run,) = (run for run in list_runs() if run.parameters["overrides"] == {"args": ["--no-such-option"]})
    assert run.state
    assert run.state.message
    assert "--no-such-option" in run.state.message
    assert (run.state_name, completed.returncode) == ("Failed", 1)
    assert " ".join(run.state.message.split()) in " ".join(completed.stdout.split())
