"""The verbs of the command `torchyard`."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.reports import short_report
from tests.conftest import Write, load, plan_of
from tests.doubles.installed_packages import LAUNCHER, InstalledPackages
from tests.inputs.nccl_lines import list_socket_lines
from torchyard.cli.main import main
from torchyard.common import secrets
from torchyard.common.project_root import ROOT
from torchyard.common.secrets import MASK
from torchyard.diagnosis.nccl.fabric import evaluate_fabric
from torchyard.diagnosis.nccl.log import parse_nccl_log
from torchyard.launchers import registry
from torchyard.loading.profile import list_profiles
from torchyard.model.hardware import Expect
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder


def test_plan_prints_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """By default the plan is about twenty lines for a person, not the objects."""
    assert main(["plan", "yolov5-volcano"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], len(lines) <= 22) == ("yolov5-volcano", True)
    assert any(line.split()[:3] == ["creates", "Lease", "yolov5-volcano-00000000,"] for line in lines)


def test_plan_as_yaml_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """The plan that `--as yaml` prints can be parsed as a plan."""
    assert main(["plan", "digits-local", "--as", "yaml"]) == 0
    plan = CommandPlan.model_validate(yaml.safe_load(capsys.readouterr().out))
    assert [process.name for process in plan.processes] == ["node-0", "node-1"]


def test_plan_imports_neither_prefect_nor_kubernetes_nor_torch() -> None:
    """Planning imports no heavy package."""
    code = "import sys; from torchyard.cli.main import main; main(['plan', 'pi-local']); print(*sys.modules, file=sys.stderr)"  # noqa: E501
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {"prefect", "kubernetes", "torch"}.isdisjoint(process.stderr.split())


def test_set_changes_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    """--set changes keys for this call, values read as YAML."""
    assert main(["plan", "digits-local", "--as", "yaml", "--set", "nodes=3", "--set", "env.A=b"]) == 0
    plan = yaml.safe_load(capsys.readouterr().out)
    assert (len(plan["processes"]), plan["processes"][2]["spec"]["env"]["A"]) == (3, "b")


def test_plan_continues_from_what_resume_names(capsys: pytest.CaptureFixture[str]) -> None:
    """The plan has the checkpoint of `resume`, and a run that cannot be continued is an error."""
    assert main(["plan", "digits-local", "--as", "yaml", "--set", "resume=/data/step-5"]) == 0
    plan = yaml.safe_load(capsys.readouterr().out)
    assert plan["processes"][0]["spec"]["env"]["TORCHYARD_RESUME"] == "/data/step-5"
    assert main(["plan", "digits-local", "--set", "resume=nobody-1234"]) != 0
    assert "there is no run nobody-1234" in capsys.readouterr().err


@pytest.mark.parametrize(("pair", "message"), [("nodes", "is not KEY=VALUE"), ("a=[", "the value is not YAML")])
def test_malformed_set_is_an_error(capsys: pytest.CaptureFixture[str], pair: str, message: str) -> None:
    """A --set that cannot be read gives one sentence and exit code 3."""
    assert main(["plan", "digits-local", "--set", pair]) == 3
    assert message in capsys.readouterr().err


def test_unknown_profile_is_an_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped profile gets the nearest name on stderr, and exit code 3."""
    assert main(["plan", "digits-loca"]) == 3
    captured = capsys.readouterr()
    assert (captured.out, "did you mean digits-local?" in captured.err) == ("", True)


def test_check_fails_with_its_remedy(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed check gives exit code 1, and every check is shown."""
    assert main(["check", str(write()), "--set", "options.python=/no/python"]) == 1
    output = capsys.readouterr().out
    assert "FAILED  /no/python on localhost" in output
    assert "4 of 5 checks passed" in output


def test_check_passes_without_a_trace(write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A good profile passes, and the checks leave nothing on the disk."""
    assert main(["check", str(write())]) == 0
    assert "5 of 5 checks passed" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_logs_of_an_unknown_run_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """`logs` with an unknown run is an error."""
    assert main(["logs", "none-12345678"]) == 3
    assert "there is no run none-12345678 in" in capsys.readouterr().err


def test_logs_report_the_network_on_stderr(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict on the network is one line on stderr, separate from the program's output."""
    folder = RunFolder(runs_folder() / "sample-a1b2c3d4")
    folder.path.mkdir(parents=True)
    folder.save_attempt_plan(1, AttemptPlan(plan=plan_of(load(write()), folder.path), deadlines=Deadlines()))
    (attempt,) = short_report().attempts
    verdict = evaluate_fabric(parse_nccl_log(list_socket_lines("a")), Expect(transport="roce"), 2)
    collected = attempt.collected.model_copy(update={"fabric": verdict})
    folder.save_ended(attempt.model_copy(update={"collected": collected}))
    assert main(["logs", folder.name]) == 0
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    assert line.startswith("fabric: not-rdma: TCP over eth0 on a")


# --- secrets


WANDB = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def no_known_secrets() -> None:
    secrets.forget_values()


@pytest.mark.usefixtures("no_known_secrets")
@pytest.mark.parametrize("form", [[], ["--as", "yaml"]], ids=["summary", "yaml"])
def test_printed_plan_has_no_secret(write: Write, capsys: pytest.CaptureFixture[str], form: list[str]) -> None:
    """A printed plan has no secret, because it may end up in a ticket; a warning names the variable."""
    argv = ["plan", str(write(env={"WANDB_API_KEY": WANDB}, args=[f"--token={WANDB}"])), *form]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert (WANDB in captured.out, MASK in captured.out) == (False, True)
    assert "secret WANDB_API_KEY" in captured.out + captured.err


# --- the schema


@pytest.fixture
def schema(capsys: pytest.CaptureFixture[str]) -> Any:
    """A validator for the schema that `torchyard schema` prints."""
    assert main(["schema"]) == 0
    return pytest.importorskip("jsonschema").Draft202012Validator(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_schema_takes_shipped_profiles(schema: Any, name: str) -> None:
    """The shipped profiles, in which hardware is a name, match the schema that editors use."""
    assert [error.message for error in schema.iter_errors(yaml.safe_load(list_profiles()[name].read_text()))] == []


@pytest.mark.parametrize(
    "keys",
    [
        {"hardware": {}},
        {"manifest": []},
        {"ndoes": 2},
        {"nodes": 0},
        {"launcher": "slurm"},
        {"options": {"etcd_image": "e:1"}},
        {"env": {"A": {"secret": "s"}}},
        {"deadlines": {"run": "5 parsecs"}},
    ],
)
def test_schema_refuses_mistakes(schema: Any, keys: dict[str, Any]) -> None:
    """The schema refuses mistakes, so that an editor shows them before anything is run."""
    fields = {"about": "a test", "launcher": "baremetal", "program": "x.py"}
    assert list(schema.iter_errors(fields)) == []
    assert list(schema.iter_errors(fields | keys))


def test_schema_accepts_every_shipped_profile(capsys: pytest.CaptureFixture[str]) -> None:
    """The schema has every key of the shipped profiles and the options of each launcher."""
    main(["schema"])
    schema = json.loads(capsys.readouterr().out)
    for path in list_profiles().values():
        assert yaml.safe_load(path.read_text()).keys() <= schema["properties"].keys()
    options = {rule["if"]["properties"]["launcher"]["const"]: rule["then"]["properties"] for rule in schema["allOf"]}
    for name, properties in options.items():
        assert properties["options"]["properties"].keys() == registry.load_launcher(name).Options.model_fields.keys()


def test_schema_knows_values(capsys: pytest.CaptureFixture[str]) -> None:
    """In the schema a profile needs a launcher only if it has no values."""
    main(["schema"])
    schema = json.loads(capsys.readouterr().out)
    assert (schema["properties"]["values"]["type"], "launcher" in schema["required"]) == ("array", False)
    assert {"required": ["launcher"]} in schema["anyOf"]


def test_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    """`torchyard --version` prints the version of the package's metadata, which is that of pyproject.toml."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"torchyard {version}\n"


def test_schema_has_the_launchers_of_packages(packages: InstalledPackages, capsys: pytest.CaptureFixture[str]) -> None:
    """The schema for editors has the launchers and formats of packages, without those that cannot be used."""
    entry_points = "[torchyard.launchers]\nnothing = ty_nothing\nbroken = ty_broken\n[torchyard.metrics]\nm = ty_m:f\n"
    packages.install("ty-nothing", entry_points, ty_nothing=LAUNCHER, ty_broken="1 / 0")
    main(["schema"])
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["launcher"]["enum"] == [*registry.list_launchers(), "nothing"]
    assert schema["properties"]["metrics"]["anyOf"][0]["enum"][-1] == "m"
    assert schema["allOf"][-1]["then"]["properties"]["options"]["properties"]["queue"]["default"] == "default"
