"""`make compare`: torchyard beside other launchers, on the cluster of `make cluster-up`, all measured in one run.

Each launcher runs the same job on the two real nodes, in a terminal of its own, and its own pods show that it trains.
Then rank 1 is killed in its pod, or Ctrl-C is typed. The peers are installed in a temporary folder, by pip. Everything
happens in one namespace, which is deleted at the end.
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
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import compared
from torchyard.common.project_root import ROOT

SMALL = json.loads((ROOT / "docs" / "small.json").read_text())
PEERS = ("torchx==0.7.0", "kubeflow-training==1.9.4", "kubernetes==35.0.0")
PROGRAM, ARGS = SMALL["program"], ["--epochs=3600", "--pause=1"]
LIMIT = 120  # seconds that a terminal has to say that the job failed
ALONE = 25  # of these, nothing else is started
AFTER_CTRL_C = 20
START = 240  # seconds that a job has to start to train
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
KILL = r"""for p in /proc/[0-9]*; do
  if tr '\0' '\n' < $p/environ 2>/dev/null | grep -qx RANK=1 &&
     tr '\0' '\n' < $p/environ 2>/dev/null | grep -q ^TORCHELASTIC_RUN_ID=; then
    date +%s.%N; kill -9 ${p#/proc/}; exit 0
  fi
done; exit 3"""
TORCHX = """
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
SDK = """
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
KUBECTL = """kubectl -n {ns} apply -f {file}
until [ "$(kubectl -n {ns} get pods -l training.kubeflow.org/job-name={name} -o name | wc -l)" = 2 ]; do sleep 1; done
kubectl -n {ns} wait --for=condition=Ready --timeout=-1s pod -l training.kubeflow.org/job-name={name}
kubectl -n {ns} logs -f --prefix -l training.kubeflow.org/job-name={name} &
kubectl -n {ns} wait --for=condition=Failed --timeout=-1s pytorchjob/{name}
"""
NOT_COMPARED = {
    "Kubeflow Trainer v2 and its SDK": "the test cluster has the Training Operator v1, not Trainer v2",
    "NeMo-Run": "its jobs on Kubernetes are TrainJobs of Trainer v2, or need Run:ai, Lepton or Ray",
    "mlbatch's chart": "a generator: it submits with kubectl or oc, and waits for nothing",
    "SkyPilot": "it makes pods of its own with Ray and its agent installed in them, from images that it downloads",
    "dstack": "it needs its server, and installs its agent in each pod from the internet",
    "Ray, KubeRay, CodeFlare": "a Ray cluster is the job's runtime; the program would be another one",
    "Metaflow": "its tasks need an object store that pods reach; the test cluster has none",
    "submitit and Slurm": "they need Slurm, not Kubernetes",
    "Run:ai": "its control plane is a product; no cluster of ours has one",
}


@dataclass
class Launcher:
    """One row: how it is started, and what its terminal shows when it says that the job failed."""

    key: str
    name: str
    command: Callable[["Bench", str], list[str]]
    says: str
    ctrl_c: bool = True


@dataclass
class Terminal:
    """A command in a terminal of its own; each line that it shows, and when."""

    process: subprocess.Popen[bytes]
    master: int
    shown: list[tuple[float, str]] = field(default_factory=list)

    def follow(self) -> None:
        while True:
            try:
                read = os.read(self.master, 65536)
            except OSError:
                return
            if not read:
                return
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read.decode(errors="replace")).replace("\r", "\n")
            self.shown.append((time.time(), text))

    def first(self, pattern: str, since: float) -> tuple[float, str] | None:
        """When something like the pattern was shown first, and its line; lines may come in pieces."""
        pieces = [piece for piece in list(self.shown) if piece[0] >= since]
        text = "".join(words for _, words in pieces)
        found = re.search(pattern, text, re.MULTILINE)
        if not found:
            return None
        seen = 0
        for at, words in pieces:
            seen += len(words)
            if seen >= found.end():
                line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0].strip()
                return at, line if len(line) < 240 else text[found.start() : found.end() + 80].strip()
        return None

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()


class Bench:
    """The namespace, the peers' environment, and the cells that are measured in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespace = f"torchyard-compare-{uuid.uuid4().hex[:6]}"
        self.peers = folder / "peers"
        self.turn = threading.Lock()
        self.few = threading.Semaphore(3)  # what two cores and their nodes can hold

    # --- the cluster ---

    def kubectl(self, *words: str) -> str:
        command = ["kubectl", "-n", self.namespace, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout

    def objects(self, prefix: str) -> dict[str, int]:
        """How many objects of each kind there are of this job."""
        found = json.loads(self.kubectl("get", ",".join(KINDS), "-o", "json"))["items"]
        count = Counter(
            one["kind"] + "." + one["apiVersion"] for one in found if one["metadata"]["name"].startswith(prefix)
        )
        named = {"Job": "Volcano Job", "PodGroup": "pod group", "NetworkPolicy": "network policy"}
        each: dict[str, int] = {}
        for kind, number in sorted(count.items()):
            plain = kind.partition(".")[0]
            shown = named.get(plain, plain if plain == "PyTorchJob" else plain.lower())
            plural = "policies" if number > 1 and shown.endswith("policy") else None
            each[shown.replace("policy", plural) if plural else shown + "s" * (number > 1)] = number
        return each

    def pods(self, prefix: str) -> list[str]:
        names = self.kubectl("get", "pods", "-o", "name").split()
        return [name for name in names if name.removeprefix("pod/").startswith(prefix)]

    def kill_rank(self, prefix: str) -> float:
        """Kill rank 1's process in its pod; when that was."""
        for pod in self.pods(prefix):
            if found := self.kubectl("exec", pod, "--", "bash", "-c", KILL).strip():
                return float(found)
        raise RuntimeError("no pod has a rank 1")

    # --- cells ---

    def start(self, launcher: Launcher, job: str) -> Terminal:
        """Start a launcher in a terminal, and wait until its job trains."""
        master, slave = pty.openpty()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "TERM": "xterm",
            "COLUMNS": "200",
        }
        environment["TORCHYARD_RUNS"] = str(self.folder / "runs")
        process = subprocess.Popen(
            launcher.command(self, job),
            stdin=slave, stdout=slave, stderr=slave, cwd=self.folder, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (Ctrl-C needs it; Linux only)
        )  # fmt: skip
        os.close(slave)
        terminal = Terminal(process, master)
        threading.Thread(target=terminal.follow, daemon=True).start()
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and process.poll() is None:
            if any('"epoch": 4' in self.kubectl("logs", pod, "--tail=20") for pod in self.pods(job)):
                return terminal
            if any(state.split()[1] in {"Error", "Failed"} for state in self.states(job)):
                break
            time.sleep(0.5)
        terminal.close()
        raise RuntimeError("the job did not train: " + "".join(text for _, text in terminal.shown)[-300:])

    def death(self, launcher: Launcher, row: dict[str, Any]) -> None:
        job = f"{launcher.key}-k"
        terminal = None
        self.turn.acquire()
        held = True
        try:
            terminal = self.start(launcher, job)
            killed = self.kill_rank(job)
            while time.time() < killed + LIMIT and not terminal.first(launcher.says, killed):
                if held and time.time() > killed + ALONE:
                    self.turn.release()
                    held = False
                time.sleep(0.05)
            said = terminal.first(launcher.says, killed)
            if said:
                time.sleep(8)
            row["death"] = self.judge(terminal, killed, said)
            row["death"]["pods"] = self.states(job)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            row["not_measured"] = str(error)
        finally:
            self.clear(launcher, job, terminal)
            if held:
                self.turn.release()
            print(f"{launcher.name}: {compared.told(row, LIMIT)}; {compared.named(row)}", flush=True)

    def judge(self, terminal: Terminal, killed: float, said: tuple[float, str] | None) -> dict[str, Any]:
        signs = r"SIGKILL|[Ss]ignal 9|exitcode\s*:\s*-9"
        sign = terminal.first(signs, killed)
        rank = terminal.first(r"\b[Rr]ank\s*[:=]?\s*1\b(?! of 2)", killed)
        return {
            "told_s": round(said[0] - killed, 2) if said else None,
            "said": self.clean(said[1]) if said else None,
            "first_sign_s": round(sign[0] - killed, 2) if sign else None,
            "first_sign": self.clean(sign[1]) if sign else None,
            "rank_named": bool(rank),
            "cause_named": bool(sign),
        }

    def clean(self, line: str) -> str:
        return line.replace(self.namespace, "NAMESPACE").replace(str(self.folder), "FOLDER")[:240]

    def states(self, job: str) -> list[str]:
        told = self.kubectl("get", "pods", "--no-headers").splitlines()
        return [" ".join(line.split()[1:4]) for line in told if line.startswith(job)]

    def interrupt(self, launcher: Launcher, row: dict[str, Any]) -> None:
        job = f"{launcher.key}-c"
        terminal = None
        try:
            self.few.acquire()
            terminal = self.start(launcher, job)
            row["before"] = self.objects(job)
            began = time.monotonic()
            terminal.press_ctrl_c()
            time.sleep(max(0.0, began + AFTER_CTRL_C - time.monotonic()))
            row["left"] = self.objects(job)
            row["launcher_ended"] = terminal.process.poll() is not None
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            row["left_not_measured"] = str(error)
        finally:
            self.clear(launcher, job, terminal)
            self.few.release()
            print(f"{launcher.name}: before {row.get('before')}; left {compared.left(row)}", flush=True)

    def clear(self, launcher: Launcher, job: str, terminal: Terminal | None) -> None:
        if terminal:
            terminal.close()
            shown = "".join(f"\n@{at:.2f} {text}" for at, text in terminal.shown)
            (self.folder / f"{job}.terminal").write_text(shown)
        for kind in ("pytorchjobs.kubeflow.org", "jobs.batch.volcano.sh"):
            for name in self.kubectl("get", kind, "-o", "name").split():
                if name.partition("/")[2].startswith(job):
                    self.kubectl("delete", "--wait=false", name)

    # --- how each is started ---

    def profile(self, launcher: str, job: str) -> list[str]:
        more = {"options": {"queue": "default"}} if launcher == "volcano" else {}
        same = {key: SMALL[key] for key in ("image", "program", "resources", "pod", "env", "metrics")}
        made = {"about": "the compared job", "launcher": launcher, "args": ARGS, "nodes": 2, "processes": 1, **same}
        path = self.folder / f"{job}.yaml"
        path.write_text(yaml.safe_dump({**made, "cluster": {"namespace": self.namespace}, **more}))
        return [str(Path(sys.executable).parent / "torchyard"), "run", str(path)]

    def torchx(self, job: str) -> list[str]:
        script = self.folder / "torchx_run.py"
        script.write_text(TORCHX)
        options = ["-s", "kubernetes", "-cfg", f"queue=default,namespace={self.namespace}", "--wait", "--log"]
        what = ["dist.ddp", "-j", "2x1", "--name", job, "--cpu", "1", "--memMB", "3072", "--image", SMALL["image"]]
        env = ["--env", ",".join(f"{key}={value}" for key, value in SMALL["env"].items())]
        run = [self.python(), str(script), "run", "--workspace=", *options]
        return [*run, *what, *env, "--script", PROGRAM, "--", *ARGS]

    def pod(self, command: list[str], more: list[dict[str, Any]]) -> dict[str, Any]:
        env = [{"name": key, "value": value} for key, value in SMALL["env"].items()]
        container = {"name": "pytorch", "image": SMALL["image"], "command": command, "env": [*env, *more]}
        container["resources"] = {"requests": SMALL["resources"], "limits": {"memory": SMALL["resources"]["memory"]}}
        return {"spec": {"nodeSelector": SMALL["pod"]["node_selector"], "containers": [container]}}

    def sdk(self, job: str, policy: str) -> list[str]:
        script = self.folder / "sdk_run.py"
        script.write_text(SDK)
        pod = self.pod(["torchrun", "--nproc_per_node=1", PROGRAM, *ARGS], [])
        return [self.python(), str(script), job, self.namespace, policy, json.dumps(pod)]

    def plain(self, job: str, policy: str) -> list[str]:
        """The PyTorchJob of guide 000, without its image and its network."""
        label = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}
        more = [{"name": "REPLICA_INDEX", "valueFrom": label}]
        host = "export PET_RDZV_CONF=is_host=$([ $REPLICA_INDEX = 0 ] && echo true || echo false)"
        run = " ".join(["torchrun --nproc_per_node=1 --rdzv_conf=$PET_RDZV_CONF", PROGRAM, *ARGS])
        elastic: dict[str, Any] = {
            "rdzvBackend": "c10d",
            "minReplicas": 2 if policy == "Never" else 1,
            "maxReplicas": 8,
        }
        elastic |= {"maxRestarts": 0 if policy == "Never" else 100}
        if policy == "Never":
            elastic["maxReplicas"] = 2
        pod = self.pod(["bash", "-c", f"{host}\n{run}"], more)
        worker = {"replicas": 2, "restartPolicy": policy, "template": pod}
        spec = {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": worker}}
        document = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": job}, "spec": spec}
        file = self.folder / f"{job}.yaml"
        file.write_text(yaml.safe_dump(document))
        return ["bash", "-c", KUBECTL.format(ns=self.namespace, file=file, name=job)]

    def python(self) -> str:
        return str(self.peers / "bin" / "python")


OURS_SAYS, MET = r"ended with exit code|failed in \d", r"pytorchjob\S* condition met"
SDK_SAYS = r"is Failed|RuntimeError|TimeoutError"
ORDER = ("ty-pj", "ty-vc", "sdk-n", "kc-n", "tx", "sdk", "kc")  # jobs that may restart for ever come last
LAUNCHERS = [
    Launcher("ty-pj", "torchyard, PyTorchJob", lambda b, job: b.profile("pytorchjob", job), OURS_SAYS),
    Launcher("ty-vc", "torchyard, Volcano", lambda b, job: b.profile("volcano", job), OURS_SAYS),
    Launcher("tx", "TorchX, Volcano", lambda b, job: b.torchx(job), r"state: FAILED"),
    Launcher("sdk-n", "training SDK, restart Never", lambda b, job: b.sdk(job, "Never"), SDK_SAYS, ctrl_c=False),
    Launcher("kc-n", "kubectl, restart Never", lambda b, job: b.plain(job, "Never"), MET, ctrl_c=False),
    Launcher("sdk", "training SDK, as documented", lambda b, job: b.sdk(job, "OnFailure"), SDK_SAYS),
    Launcher("kc", "kubectl, the guide's manifest", lambda b, job: b.plain(job, "OnFailure"), MET),
]  # fmt: skip


def install(bench: Bench, ready: str | None) -> dict[str, str]:
    """The peers, in an environment of their own; what has been installed."""
    if ready:
        bench.peers = Path(ready)
    else:
        subprocess.run([sys.executable, "-m", "venv", str(bench.peers)], check=True)
        subprocess.run(
            [bench.python(), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PEERS], check=True
        )
    listed = subprocess.run([bench.python(), "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
    found = {one["name"]: one["version"] for one in json.loads(listed.stdout)}
    return {name.partition("==")[0]: found[name.partition("==")[0]] for name in PEERS}


def versions(bench: Bench, peers: dict[str, str]) -> dict[str, str]:
    told = json.loads(bench.kubectl("version", "-o", "json"))
    import torch

    own = {"torchyard": version("torchyard"), **peers, "kubectl": told["clientVersion"]["gitVersion"]}
    return {**own, "Kubernetes": told["serverVersion"]["gitVersion"], "torch": torch.__version__.partition("+")[0]}


def measure(bench: Bench, only: str | None) -> list[dict[str, Any]]:
    """All rows; first the deaths, one after the other, then Ctrl-C."""
    chosen = [one for one in LAUNCHERS if not only or re.fullmatch(only, one.key)]
    rows: list[dict[str, Any]] = [{"launcher": one.name} for one in chosen]
    for what in (bench.death, bench.interrupt):
        threads = []
        for one, row in sorted(zip(chosen, rows, strict=True), key=lambda pair: ORDER.index(pair[0].key)):
            if what == bench.interrupt and (not one.ctrl_c or row.get("not_measured")):
                continue
            threads.append(threading.Thread(target=what, args=(one, row), daemon=True))
            threads[-1].start()
            time.sleep(0.5)
        for thread in threads:
            thread.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", default=str(Path.home() / ".local/state/torchyard/cluster/admin.kubeconfig"))
    parser.add_argument("--peers", help="a virtual environment that has the peers already")
    parser.add_argument("--only", help="rows whose key matches; nothing is stored")
    parser.add_argument("--keep", help="a folder for what the terminals showed")
    options = parser.parse_args()
    os.environ["KUBECONFIG"] = options.kubeconfig
    with tempfile.TemporaryDirectory(prefix="torchyard-compare-") as name:
        folder = Path(options.keep or name)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder)
        peers = install(bench, options.peers)
        subprocess.run(["kubectl", "create", "namespace", bench.namespace], check=True)
        try:
            result = {
                "date": datetime.now(UTC).date().isoformat(),
                "machine": "two cores, no GPU; both nodes are on it",
                "versions": versions(bench, peers),
                "limit_s": LIMIT,
                "after_ctrl_c_s": AFTER_CTRL_C,
                "rows": measure(bench, options.only),
                "not_compared": NOT_COMPARED,
            }
        finally:
            subprocess.run(["kubectl", "delete", "namespace", bench.namespace, "--wait=false"], check=False)
    compared.show(result)
    if not options.only:
        compared.write(result)


if __name__ == "__main__":
    main()
