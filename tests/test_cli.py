"""The command `torchyard`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import Write
from torchyard.cli.main import main
from torchyard.launchers import registry
from torchyard.loading.profile import ROOT, list_profiles
from torchyard.model.plan import CommandPlan


def test_plan_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is the plan itself, and nothing is made on disk."""
    assert main(["plan", "digits-local"]) == 0
    plan = CommandPlan.model_validate(yaml.safe_load(capsys.readouterr().out))
    assert [block.name for block in plan.on] == ["node-0", "node-1"]


def test_plan_imports_neither_prefect_nor_kubernetes_nor_torch() -> None:
    """A plan costs no heavy import."""
    code = "import sys; from torchyard.cli.main import main; main(['plan', 'pi-local']); print(*sys.modules, file=sys.stderr)"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {"prefect", "kubernetes", "torch", "matplotlib"}.isdisjoint(done.stderr.split())


def test_set_changes_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    """--set changes keys for this call, values read as YAML."""
    assert main(["plan", "digits-local", "--set", "nodes=3", "--set", "env.A=b"]) == 0
    plan = yaml.safe_load(capsys.readouterr().out)
    assert (len(plan["on"]), plan["on"][2]["submit"]["input"]["env"]["A"]) == (3, "b")


@pytest.mark.parametrize(("pair", "said"), [("nodes", "is not KEY=VALUE"), ("a=[", "the value is not YAML")])
def test_bad_set_is_told(capsys: pytest.CaptureFixture[str], pair: str, said: str) -> None:
    """A --set that cannot be read is one sentence and exit code 1."""
    assert main(["plan", "digits-local", "--set", pair]) == 1
    assert said in capsys.readouterr().err


def test_unknown_profile_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped profile gets the nearest name on stderr, and exit code 1."""
    assert main(["plan", "digits-loca"]) == 1
    said = capsys.readouterr()
    assert (said.out, "did you mean digits-local?" in said.err) == ("", True)


def test_check_fails_with_its_remedy(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed check makes exit code 1, and every check is shown."""
    assert main(["check", str(write()), "--set", "program=none.py"]) == 1
    said = capsys.readouterr().out
    assert "FAILED  program" in said
    assert "4 of 5 checks passed" in said


def test_check_passes_without_a_trace(write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A good profile passes, and nothing is left on the disk."""
    assert main(["check", str(write())]) == 0
    assert "5 of 5 checks passed" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_profiles_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Every profile has a line with what it is about."""
    assert main(["profiles"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(list_profiles())


def test_schema_accepts_every_shipped_profile(capsys: pytest.CaptureFixture[str]) -> None:
    """The schema's keys are those of the profiles, and each launcher's options are in it."""
    main(["schema"])
    schema = json.loads(capsys.readouterr().out)
    for path in list_profiles().values():
        assert yaml.safe_load(path.read_text()).keys() <= schema["properties"].keys()
    options = {each["if"]["properties"]["launcher"]["const"]: each["then"]["properties"] for each in schema["allOf"]}
    for name, each in options.items():
        assert each["options"]["properties"].keys() == registry.load_launcher(name).Options.model_fields.keys()


def test_logs_of_an_unknown_run_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is not there is told with those that are."""
    assert main(["logs", "none-12345678"]) == 1
    assert "there is no such run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"), [(["plan", "pi-local"], 0), (["plan", "none"], 1), (["--help"], 0), ([], 2)]
)
def test_command_says_everything_and_its_exit_code(words: list[str], code: int) -> None:
    """The process that ends by the shortest way still prints all it has to say."""
    done = subprocess.run(
        [Path(sys.executable).parent / "torchyard", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert (done.stdout + done.stderr).endswith("\n")
