"""The integrations of a team with real counterparts: a webhook, an MLflow experiment, and a Prometheus that scrapes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.histories import build_records
from tests.conftest import Write
from tests.processes.local_runs import WITHOUT_AGENT
from tests.processes.receiver import Receiver
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT
from torchyard.exporter.endpoint import serve_metrics
from torchyard.run.folder import RunFolder, list_run_folders, runs_folder
from torchyard.trend.records import history_path, store_record

COMMAND = [sys.executable, "-c", "from torchyard.cli.console import main; main()"]
COUNTS = """
import json, pathlib, sys, time
for step in range(1, 31):
    print(json.dumps({"step": step, "steps": 30, "loss": 1 / step}), flush=True)
    while step == 10 and "--wait" in sys.argv and not pathlib.Path(sys.argv[-1]).exists():
        time.sleep(0.1)
sys.exit("--fail" in sys.argv)
"""


def start_command(*args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([*COMMAND, *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_runs(uri: str) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    (experiment,) = [candidate for candidate in client.search_experiments() if candidate.name == "sample"]
    return client, list(client.search_runs([experiment.experiment_id]))


def test_lost_run_is_one_experiment_and_one_message(write: Write, receiver: Receiver, tmp_path: Path) -> None:
    """A run whose launcher was killed and resumed has each row in the experiment once and one message, of its recovery.

    The report has a line about a second receiver, which cannot be reached.
    """
    pytest.importorskip("mlflow", reason="there is no mlflow")
    os.environ["HOOK"] = receiver.address
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    keys = {"notify": ["$HOOK", "json://127.0.0.1:1/away"], "metrics_to": [{"mlflow": {"uri": uri}}]}
    first = start_command(
        "run", str(write(code=COUNTS, args=["--wait", str(tmp_path / "go")], **WITHOUT_AGENT, **keys))
    )
    (written,) = wait_until(lambda: list(runs_folder().glob("*/metrics-to-mlflow.json")), 120)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (folder,) = list_run_folders()
    assert json.loads(written.read_text())["row"] == 10
    (tmp_path / "go").touch()
    for _ in range(2):
        attached = start_command("attach", folder.name)
        stdout, stderr = attached.communicate(timeout=120)
        assert attached.returncode == 0, stdout + stderr
    client, (run,) = read_runs(uri)
    assert (run.info.status, run.data.tags["torchyard.end"]) == ("FINISHED", "succeeded")
    assert [point.step for point in client.get_metric_history(run.info.run_id, "loss")] == list(range(1, 31))
    assert receiver.titles == ["sample: recovered"]
    report = folder.report()
    assert report
    (unsent,) = report.unsent
    assert unsent.startswith("json://… has not got 'sample: recovered': ")


def test_failed_run_is_reported_when_it_ends(write: Write, receiver: Receiver) -> None:
    """The message starts with the report's sentence, and the run ends as it does without a receiver."""
    path = str(write(code=COUNTS, args=["--fail"], **WITHOUT_AGENT, notify=[receiver.address]))
    process = start_command("run", path)
    stdout, stderr = process.communicate(timeout=120)
    report = next(iter(list_run_folders())).report()
    assert (process.returncode, report and report.end, report and report.unsent) == (1, "failed", ()), stdout + stderr
    assert report
    assert receiver.titles == ["sample: failed"]
    assert receiver.received[0]["message"].startswith(report.sentence)


def test_missing_variable_is_found_before_anything_starts(write: Write) -> None:
    """`torchyard check` fails with the name of the variable."""
    path = str(write(notify=["$NO_SUCH_HOOK"]))
    process = start_command("check", path)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "FAILED  notify: $NO_SUCH_HOOK: NO_SUCH_HOOK is not set in the launcher's environment" in stdout


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes the exporter every half second, with the alerts of the docs; yields its address."""
    if not shutil.which("prometheus"):
        pytest.skip("there is no prometheus")
    server, _ = serve_metrics("127.0.0.1", 0)
    settings = yaml.safe_load((ROOT / "docs" / "prometheus" / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    settings["rule_files"] = [str(ROOT / "docs" / "prometheus" / "alerts.yml")]
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{server.server_port}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    command = ["prometheus", "--web.listen-address", "127.0.0.1:0", "--storage.tsdb.path", str(tmp_path / "data")]
    log = (tmp_path / "prometheus.log").open("w+")
    process = subprocess.Popen([*command, "--config.file", str(tmp_path / "prometheus.yml")], stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{wait_until(lambda: find_port(process.pid))}"
        wait_until(lambda: is_ready(address))  # the port opens earlier, and responds with 503 until then
        yield address
    finally:
        process.kill()
        process.wait()
        log.close()
        server.shutdown()
        server.server_close()


def is_ready(address: str) -> bool:
    """Whether Prometheus has loaded its data and responds to queries."""
    try:
        with urllib.request.urlopen(f"{address}/-/ready"):
            return True
    except urllib.error.HTTPError:
        return False


def find_port(pid: int) -> int | None:
    """The port on which a process listens; None while it listens on none."""
    try:
        sockets = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return None
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if columns[3] == "0A" and f"socket:[{columns[9]}]" in sockets:
            return int(columns[1].rpartition(":")[2], 16)
    return None


def query_prometheus(address: str, expression: str) -> list[Any]:
    params = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{address}/api/v1/query?{params}") as response:
        result: list[Any] = json.load(response)["data"]["result"]
    return result


def make_runs() -> None:
    """Create one waiting and one running run, and the history of one profile."""
    start = {"entry": "fresh", "profile": "sample", "launcher": "volcano", "gpus": 16}
    for name, events in {
        "sample-00000001": (("step", {"name": "submit"}),),
        "sample-00000002": (("step", {"name": "submit"}), ("running", {"waited_s": 40.0})),
    }.items():
        folder = RunFolder(runs_folder() / name)
        folder.path.mkdir(parents=True)
        folder.record_event("start", **start)
        for event, fields in events:
            folder.record_event(event, **fields)
    record = build_records([200.0])[0].model_copy(update={"fabric": "as-promised"})
    store_record(history_path(runs_folder(), record.key), record)


def list_expressions() -> list[tuple[str, str]]:
    """The panel's title and the expression of every query of the dashboard, for all profiles."""
    board = json.loads((ROOT / "docs" / "prometheus" / "grafana.json").read_text())
    expressions = []
    for panel in board["panels"]:
        for target in panel["targets"]:
            expressions.append((panel["title"], target["expr"].replace("$profile", ".*")))
    return expressions


def test_every_panel_of_the_dashboard_has_data(prometheus: str) -> None:
    """A real Prometheus that scrapes the exporter has data for every panel, and fires the alert of the lost run."""
    make_runs()
    with RunFolder(runs_folder() / "sample-00000001").owned():
        wait_until(lambda: query_prometheus(prometheus, "torchyard_run_waiting_seconds"))
        empty = [title for title, expression in list_expressions() if not query_prometheus(prometheus, expression)]
        assert (len(list_expressions()), empty) == (17, [])
        states = query_prometheus(prometheus, "torchyard_runs")
        assert {series["metric"]["state"]: series["value"][1] for series in states} == {"waiting": "1", "lost": "1"}
        (gpus,) = query_prometheus(prometheus, "torchyard_gpus_held")
        assert (gpus["metric"]["launcher"], gpus["value"][1]) == ("volcano", "16")
        alerts = wait_until(lambda: query_prometheus(prometheus, 'ALERTS{alertname="TorchyardLost"}'))
        assert alerts[0]["metric"]["profile"] == "sample"


def test_metrics_of_every_panel_and_alert_exist(prometheus: str) -> None:
    """Every metric that a panel or an alert names is exported."""
    make_runs()
    wait_until(lambda: query_prometheus(prometheus, "torchyard_runs"))
    alerts = yaml.safe_load((ROOT / "docs" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    with urllib.request.urlopen(f"{prometheus}/api/v1/targets/metadata?match_target=") as response:
        existing = {metric["metric"] for metric in json.load(response)["data"]}
    expressions = " ".join([*(expression for _, expression in list_expressions()), *(rule["expr"] for rule in alerts)])
    names = {
        token for token in expressions.replace("{", " ").replace("(", " ").split() if token.startswith("torchyard_")
    }
    assert names
    assert names <= existing
