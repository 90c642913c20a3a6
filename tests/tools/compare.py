"""`make compare`: torchyard and other launchers, on the cluster of `make cluster-up`, all measured in one run.

Each launcher runs the same job on the two real nodes, in its own terminal, and its own pods show that it trains.
Then rank 1 is killed in its pod, or Ctrl-C is typed. The peers are installed in a temporary folder, by pip. All
objects are in one namespace, which is deleted at the end.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.caller import restore_interrupt
from tests.tools import comparison_page
from torchyard.common.project_root import ROOT

SMALL_JOB = json.loads((ROOT / "docs" / "small.json").read_text())
PEERS = ("torchx==0.7.0", "kubeflow-training==1.9.4", "kubernetes==35.0.0")
PROGRAM = SMALL_JOB["program"]
ARGS = ["--epochs=3600", "--pause=1"]
FAILURE_TIMEOUT_S = 120  # until a terminal reports that the job failed
EXCLUSIVE_S = 25  # after a rank was killed, in which no other job is started
CTRL_C_WAIT_S = 20
START_TIMEOUT_S = 240  # until a job trains
KINDS = {
    "pods": "pod",
    "services": "service",
    "configmaps": "configmap",
    "secrets": "secret",
    "leases.coordination.k8s.io": "lease",
    "networkpolicies.networking.k8s.io": "network policy",
    "pytorchjobs.kubeflow.org": "PyTorchJob",
    "jobs.batch.volcano.sh": "Volcano Job",
    "podgroups.scheduling.volcano.sh": "pod group",
}
KILL_SCRIPT = r"""for p in /proc/[0-9]*; do
  if tr '\0' '\n' < $p/environ 2>/dev/null | grep -qx RANK=1 &&
     tr '\0' '\n' < $p/environ 2>/dev/null | grep -q ^TORCHELASTIC_RUN_ID=; then
    date +%s.%N; kill -9 ${p#/proc/}; exit 0
  fi
done; exit 3"""
TORCHX_SCRIPT = """
import sys
from torchx.schedulers import kubernetes_scheduler
made = kubernetes_scheduler.role_to_pod
def role_to_pod(*args, **kwargs):
    pod = made(*args, **kwargs)
    pod.spec.node_selector = {**(pod.spec.node_selector or {}), "torchyard/node": "real"}
    return pod
kubernetes_scheduler.role_to_pod = role_to_pod
from torchx.cli.main import main
main(sys.argv[1:])
"""
SDK_SCRIPT = """
import json, sys
from kubeflow.training import (KubeflowOrgV1PyTorchJob, KubeflowOrgV1PyTorchJobSpec, KubeflowOrgV1ReplicaSpec,
                               KubeflowOrgV1RunPolicy, TrainingClient)
from kubernetes.client import V1ObjectMeta
name, namespace, policy, pod = sys.argv[1:]
replica = KubeflowOrgV1ReplicaSpec(replicas=1, restart_policy=policy, template=json.loads(pod))
job = KubeflowOrgV1PyTorchJob(
    api_version="kubeflow.org/v1", kind="PyTorchJob", metadata=V1ObjectMeta(name=name, namespace=namespace),
    spec=KubeflowOrgV1PyTorchJobSpec(run_policy=KubeflowOrgV1RunPolicy(clean_pod_policy="None"), nproc_per_node="1",
                                     pytorch_replica_specs={"Master": replica, "Worker": replica}))
client = TrainingClient()
client.create_job(job, namespace=namespace)
client.wait_for_job_conditions(name, namespace=namespace)
print(client.get_job_logs(name, namespace=namespace))
"""
KUBECTL_SCRIPT = """kubectl -n {ns} apply -f {file}
until [ "$(kubectl -n {ns} get pods -l training.kubeflow.org/job-name={name} -o name | wc -l)" = 2 ]; do sleep 1; done
kubectl -n {ns} wait --for=condition=Ready --timeout=-1s pod -l training.kubeflow.org/job-name={name}
kubectl -n {ns} logs -f --prefix -l training.kubeflow.org/job-name={name} &
kubectl -n {ns} wait --for=condition=Failed --timeout=-1s pytorchjob/{name}
"""
NOT_COMPARED = {
    "Kubeflow Trainer v2 and its SDK": "the test cluster has the Training Operator v1, not Trainer v2",
    "NeMo-Run": "its jobs on Kubernetes are TrainJobs of Trainer v2, or need Run:ai, Lepton or Ray",
    "mlbatch's chart": "a generator: it submits with kubectl or oc, and does not wait",
    "SkyPilot": "it creates its own pods with Ray and its agent installed in them, from images that it downloads",
    "dstack": "it needs its server, and installs its agent in each pod from the internet",
    "Ray, KubeRay, CodeFlare": "a Ray cluster is the job's runtime; the program would be another one",
    "Metaflow": "its tasks need an object store that pods reach; the test cluster has none",
    "submitit and Slurm": "they need Slurm, not Kubernetes",
    "Run:ai": "its control plane is a product, which was not available",
}


@dataclass
class Launcher:
    """One row: the command that starts it, and the pattern with which its terminal reports that the job failed."""

    key: str
    name: str
    command: Callable[["Bench", str], list[str]]
    failure_pattern: str
    has_ctrl_c: bool = True


class Output(NamedTuple):
    """A piece of a terminal's output, or a line of it, and the time at which it arrived."""

    time: float
    text: str


@dataclass
class Terminal:
    """A command in its own pseudo terminal, and its output.

    `follow` runs in a thread of the caller until the terminal is closed, and appends each piece of output with the time
    at which it arrived; the other methods may be called meanwhile.
    """

    process: subprocess.Popen[bytes]
    master: int
    output: list[Output] = field(default_factory=list)

    def follow(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace")).replace("\r", "\n")
            self.output.append(Output(time.time(), text))

    def find_first(self, pattern: str, since: float) -> Output | None:
        """The time and line of the first match after `since`; None if there is none. Lines may arrive in pieces."""
        pieces = [piece for piece in list(self.output) if piece.time >= since]
        text = "".join(piece.text for piece in pieces)
        match = re.search(pattern, text, re.MULTILINE)
        if not match:
            return None
        length = 0
        for piece in pieces:
            length += len(piece.text)
            if length >= match.end():
                line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0].strip()
                if len(line) >= 240:
                    line = text[match.start() : match.end() + 80].strip()
                return Output(piece.time, line)
        return None

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()


class Bench:
    """The namespace, the peers' environment, and the measurements in them.

    `kill_lock` is held from the start of a job until its failure is reported or `EXCLUSIVE_S` have passed, so that one
    job at a time is timed; `job_slots` limits the jobs of the Ctrl-C measurements.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespace = f"torchyard-compare-{uuid.uuid4().hex[:6]}"
        self.peers = folder / "peers"
        self.kill_lock = threading.Lock()
        self.job_slots = threading.Semaphore(3)  # what two cores and their nodes can hold

    # --- the cluster ---

    def kubectl(self, *args: str) -> str:
        command = ["kubectl", "-n", self.namespace, *args]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout

    def count_objects(self, prefix: str) -> dict[str, int]:
        """The number of the job's objects of each kind, by a name to display."""
        objects = json.loads(self.kubectl("get", ",".join(KINDS), "-o", "json"))["items"]
        count = Counter(
            obj["kind"] + "." + obj["apiVersion"] for obj in objects if obj["metadata"]["name"].startswith(prefix)
        )
        display_names = {"Job": "Volcano Job", "PodGroup": "pod group", "NetworkPolicy": "network policy"}
        counts: dict[str, int] = {}
        for kind, number in sorted(count.items()):
            kind_name = kind.partition(".")[0]
            display_name = display_names.get(kind_name, kind_name if kind_name == "PyTorchJob" else kind_name.lower())
            if number > 1 and display_name.endswith("policy"):
                display_name = display_name.removesuffix("y") + "ies"
            elif number > 1:
                display_name += "s"
            counts[display_name] = number
        return counts

    def list_pods(self, prefix: str) -> list[str]:
        names = self.kubectl("get", "pods", "-o", "name").split()
        return [name for name in names if name.removeprefix("pod/").startswith(prefix)]

    def kill_rank(self, prefix: str) -> float:
        """Kill rank 1's process in its pod; return the pod's time of that. RuntimeError if no pod has a rank 1."""
        for pod in self.list_pods(prefix):
            killed_at = self.kubectl("exec", pod, "--", "bash", "-c", KILL_SCRIPT).strip()
            if killed_at:
                return float(killed_at)
        raise RuntimeError("no pod has a rank 1")

    # --- measurements ---

    def start(self, launcher: Launcher, job: str) -> Terminal:
        """Start a launcher in a terminal, and wait until its job trains. RuntimeError if it does not."""
        master, slave = pty.openpty()
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TERM": "xterm", "COLUMNS": "200"}
        environment["TORCHYARD_RUNS"] = str(self.folder / "runs")
        process = subprocess.Popen(
            launcher.command(self, job),
            stdin=slave, stdout=slave, stderr=slave, cwd=self.folder, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (Ctrl-C needs it; Linux only)
        )  # fmt: skip
        os.close(slave)
        terminal = Terminal(process, master)
        threading.Thread(target=terminal.follow, daemon=True).start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            if any('"epoch": 4' in self.kubectl("logs", pod, "--tail=20") for pod in self.list_pods(job)):
                return terminal
            if any(state.split()[1] in {"Error", "Failed"} for state in self.list_states(job)):
                break
            time.sleep(0.5)
        terminal.close()
        raise RuntimeError("the job did not train: " + "".join(text for _, text in terminal.output)[-300:])

    def measure_death(self, launcher: Launcher, row: dict[str, Any]) -> None:
        job = f"{launcher.key}-k"
        terminal = None
        self.kill_lock.acquire()
        has_lock = True
        try:
            terminal = self.start(launcher, job)
            killed_at = self.kill_rank(job)
            while time.time() < killed_at + FAILURE_TIMEOUT_S and not terminal.find_first(
                launcher.failure_pattern, killed_at
            ):
                if has_lock and time.time() > killed_at + EXCLUSIVE_S:
                    self.kill_lock.release()
                    has_lock = False
                time.sleep(0.05)
            failure = terminal.find_first(launcher.failure_pattern, killed_at)
            if failure:
                time.sleep(8)
            row["death"] = self.describe_death(terminal, killed_at, failure)
            row["death"]["pods"] = self.list_states(job)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            row["not_measured"] = str(error)
        finally:
            self.clear(launcher, job, terminal)
            if has_lock:
                self.kill_lock.release()
            failure_time = comparison_page.format_failure_time(row, FAILURE_TIMEOUT_S)
            print(f"{launcher.name}: {failure_time}; {comparison_page.describe_diagnosis(row)}", flush=True)

    def describe_death(self, terminal: Terminal, killed_at: float, failure: Output | None) -> dict[str, Any]:
        cause_pattern = r"SIGKILL|[Ss]ignal 9|exitcode\s*:\s*-9"
        cause = terminal.find_first(cause_pattern, killed_at)
        rank = terminal.find_first(r"\b[Rr]ank\s*[:=]?\s*1\b(?! of 2)", killed_at)
        return {
            "told_s": round(failure.time - killed_at, 2) if failure else None,
            "said": self.mask_names(failure.text) if failure else None,
            "first_sign_s": round(cause.time - killed_at, 2) if cause else None,
            "first_sign": self.mask_names(cause.text) if cause else None,
            "rank_named": bool(rank),
            "cause_named": bool(cause),
        }

    def mask_names(self, line: str) -> str:
        return line.replace(self.namespace, "NAMESPACE").replace(str(self.folder), "FOLDER")[:240]

    def list_states(self, job: str) -> list[str]:
        lines = self.kubectl("get", "pods", "--no-headers").splitlines()
        return [" ".join(line.split()[1:4]) for line in lines if line.startswith(job)]

    def measure_interrupt(self, launcher: Launcher, row: dict[str, Any]) -> None:
        job = f"{launcher.key}-c"
        terminal = None
        try:
            self.job_slots.acquire()
            terminal = self.start(launcher, job)
            row["before"] = self.count_objects(job)
            pressed_at = time.monotonic()
            terminal.press_ctrl_c()
            time.sleep(max(0.0, pressed_at + CTRL_C_WAIT_S - time.monotonic()))
            row["left"] = self.count_objects(job)
            row["launcher_ended"] = terminal.process.poll() is not None
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            row["left_not_measured"] = str(error)
        finally:
            self.clear(launcher, job, terminal)
            self.job_slots.release()
            print(
                f"{launcher.name}: before {row.get('before')}; left {comparison_page.format_leftovers(row)}", flush=True
            )

    def clear(self, launcher: Launcher, job: str, terminal: Terminal | None) -> None:
        if terminal:
            terminal.close()
            output = "".join(f"\n@{shown_at:.2f} {text}" for shown_at, text in terminal.output)
            (self.folder / f"{job}.terminal").write_text(output)
        for kind in ("pytorchjobs.kubeflow.org", "jobs.batch.volcano.sh"):
            for name in self.kubectl("get", kind, "-o", "name").split():
                if name.partition("/")[2].startswith(job):
                    self.kubectl("delete", "--wait=false", name)

    # --- the command of each launcher ---

    def build_torchyard_command(self, launcher: str, job: str) -> list[str]:
        launcher_keys = {"options": {"queue": "default"}} if launcher == "volcano" else {}
        shared_keys = {key: SMALL_JOB[key] for key in ("image", "program", "resources", "pod", "env", "metrics")}
        document = {
            "about": "the compared job",
            "launcher": launcher,
            "args": ARGS,
            "nodes": 2,
            "processes": 1,
        } | shared_keys
        path = self.folder / f"{job}.yaml"
        path.write_text(yaml.safe_dump(document | {"cluster": {"namespace": self.namespace}} | launcher_keys))
        return [str(Path(sys.executable).parent / "torchyard"), "run", str(path)]

    def build_torchx_command(self, job: str) -> list[str]:
        script = self.folder / "torchx_run.py"
        script.write_text(TORCHX_SCRIPT)
        options = ["-s", "kubernetes", "-cfg", f"queue=default,namespace={self.namespace}", "--wait", "--log"]
        job_args = [
            "dist.ddp",
            "-j",
            "2x1",
            "--name",
            job,
            "--cpu",
            "1",
            "--memMB",
            "3072",
            "--image",
            SMALL_JOB["image"],
        ]
        env = ["--env", ",".join(f"{key}={value}" for key, value in SMALL_JOB["env"].items())]
        command = [self.get_python(), str(script), "run", "--workspace=", *options]
        return [*command, *job_args, *env, "--script", PROGRAM, "--", *ARGS]

    def build_pod_template(self, command: list[str], extra_env: list[dict[str, Any]]) -> dict[str, Any]:
        env = [{"name": key, "value": value} for key, value in SMALL_JOB["env"].items()]
        container = {"name": "pytorch", "image": SMALL_JOB["image"], "command": command, "env": [*env, *extra_env]}
        container["resources"] = {
            "requests": SMALL_JOB["resources"],
            "limits": {"memory": SMALL_JOB["resources"]["memory"]},
        }
        return {"spec": {"nodeSelector": SMALL_JOB["pod"]["node_selector"], "containers": [container]}}

    def build_sdk_command(self, job: str, policy: str) -> list[str]:
        script = self.folder / "sdk_run.py"
        script.write_text(SDK_SCRIPT)
        pod = self.build_pod_template(["torchrun", "--nproc_per_node=1", PROGRAM, *ARGS], [])
        return [self.get_python(), str(script), job, self.namespace, policy, json.dumps(pod)]

    def build_kubectl_command(self, job: str, policy: str) -> list[str]:
        """The PyTorchJob of guide 000, without its image and its network."""
        label = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}
        extra_env = [{"name": "REPLICA_INDEX", "valueFrom": label}]
        host = "export PET_RDZV_CONF=is_host=$([ $REPLICA_INDEX = 0 ] && echo true || echo false)"
        torchrun = " ".join(["torchrun --nproc_per_node=1 --rdzv_conf=$PET_RDZV_CONF", PROGRAM, *ARGS])
        elastic: dict[str, Any] = {
            "rdzvBackend": "c10d",
            "minReplicas": 2 if policy == "Never" else 1,
            "maxReplicas": 8,
        }
        elastic |= {"maxRestarts": 0 if policy == "Never" else 100}
        if policy == "Never":
            elastic["maxReplicas"] = 2
        pod = self.build_pod_template(["bash", "-c", f"{host}\n{torchrun}"], extra_env)
        worker = {"replicas": 2, "restartPolicy": policy, "template": pod}
        spec = {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": worker}}
        document = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": job}, "spec": spec}
        file = self.folder / f"{job}.yaml"
        file.write_text(yaml.safe_dump(document))
        return ["bash", "-c", KUBECTL_SCRIPT.format(ns=self.namespace, file=file, name=job)]

    def get_python(self) -> str:
        return str(self.peers / "bin" / "python")


TORCHYARD_FAILED = r"ended with exit code|failed in \d"
KUBECTL_FAILED = r"pytorchjob\S* condition met"
SDK_FAILED = r"is Failed|RuntimeError|TimeoutError"
KILL_ORDER = ("ty-pj", "ty-vc", "sdk-n", "kc-n", "tx", "sdk", "kc")  # jobs that may restart forever are last
LAUNCHERS = [
    Launcher(
        "ty-pj",
        "torchyard, PyTorchJob",
        lambda bench, job: bench.build_torchyard_command("pytorchjob", job),
        TORCHYARD_FAILED,
    ),
    Launcher(
        "ty-vc",
        "torchyard, Volcano",
        lambda bench, job: bench.build_torchyard_command("volcano", job),
        TORCHYARD_FAILED,
    ),
    Launcher("tx", "TorchX, Volcano", lambda bench, job: bench.build_torchx_command(job), r"state: FAILED"),
    Launcher(
        "sdk-n",
        "training SDK, restart Never",
        lambda bench, job: bench.build_sdk_command(job, "Never"),
        SDK_FAILED,
        has_ctrl_c=False,
    ),
    Launcher(
        "kc-n",
        "kubectl, restart Never",
        lambda bench, job: bench.build_kubectl_command(job, "Never"),
        KUBECTL_FAILED,
        has_ctrl_c=False,
    ),
    Launcher(
        "sdk", "training SDK, as documented", lambda bench, job: bench.build_sdk_command(job, "OnFailure"), SDK_FAILED
    ),
    Launcher(
        "kc",
        "kubectl, the guide's manifest",
        lambda bench, job: bench.build_kubectl_command(job, "OnFailure"),
        KUBECTL_FAILED,
    ),
]


def install_peers(bench: Bench, existing_env: str | None) -> dict[str, str]:
    """Install the peers in a virtual environment, or use an existing one; return their versions."""
    if existing_env:
        bench.peers = Path(existing_env)
    else:
        subprocess.run([sys.executable, "-m", "venv", str(bench.peers)], check=True)
        subprocess.run(
            [bench.get_python(), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PEERS], check=True
        )
    pip_list = subprocess.run(
        [bench.get_python(), "-m", "pip", "list", "--format=json"], capture_output=True, check=True
    )
    installed = {package["name"]: package["version"] for package in json.loads(pip_list.stdout)}
    return {name.partition("==")[0]: installed[name.partition("==")[0]] for name in PEERS}


def read_versions(bench: Bench, peers: dict[str, str]) -> dict[str, str]:
    kubectl_versions = json.loads(bench.kubectl("version", "-o", "json"))
    import torch

    client_versions = (
        {"torchyard": version("torchyard")} | peers | {"kubectl": kubectl_versions["clientVersion"]["gitVersion"]}
    )
    return client_versions | {
        "Kubernetes": kubectl_versions["serverVersion"]["gitVersion"],
        "torch": torch.__version__.partition("+")[0],
    }


def measure(bench: Bench, only: str | None) -> list[dict[str, Any]]:
    """Measure all rows: first the killed ranks, one after the other, then Ctrl-C."""
    launchers = [launcher for launcher in LAUNCHERS if not only or re.fullmatch(only, launcher.key)]
    rows: list[dict[str, Any]] = [{"launcher": launcher.name} for launcher in launchers]
    for measure_cell in (bench.measure_death, bench.measure_interrupt):
        threads = []
        for launcher, row in sorted(zip(launchers, rows, strict=True), key=lambda pair: KILL_ORDER.index(pair[0].key)):
            if measure_cell == bench.measure_interrupt and (not launcher.has_ctrl_c or row.get("not_measured")):
                continue
            threads.append(threading.Thread(target=measure_cell, args=(launcher, row), daemon=True))
            threads[-1].start()
            time.sleep(0.5)
        for thread in threads:
            thread.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", default=str(Path.home() / ".local/state/torchyard/cluster/admin.kubeconfig"))
    parser.add_argument("--peers", help="a virtual environment in which the peers are installed")
    parser.add_argument("--only", help="measure only rows whose key matches this pattern; store nothing")
    parser.add_argument("--keep", help="a folder for the output of the terminals")
    options = parser.parse_args()
    restore_interrupt()  # a launcher that ignores Ctrl-C, as in the background of a script, would leave its job
    os.environ["KUBECONFIG"] = options.kubeconfig
    with tempfile.TemporaryDirectory(prefix="torchyard-compare-") as name:
        folder = Path(options.keep or name)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder)
        peers = install_peers(bench, options.peers)
        subprocess.run(["kubectl", "create", "namespace", bench.namespace], check=True)
        try:
            result = {
                "date": datetime.now(UTC).date().isoformat(),
                "machine": "two cores, no GPU; both nodes are on it",
                "versions": read_versions(bench, peers),
                "limit_s": FAILURE_TIMEOUT_S,
                "after_ctrl_c_s": CTRL_C_WAIT_S,
                "rows": measure(bench, options.only),
                "not_compared": NOT_COMPARED,
            }
        finally:
            subprocess.run(["kubectl", "delete", "namespace", bench.namespace, "--wait=false"], check=False)
    comparison_page.print_result(result)
    if not options.only:
        comparison_page.write_result(result)


if __name__ == "__main__":
    main()
