"""The flow `sweep` as a command: its arguments and its exit code."""

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows import sweep as flow
from flows.sweep import main


def test_arguments_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--run`, `--without-lease` and `--context` reach the flow; an option that sweeps living runs does not exist."""
    flow_arguments: list[object] = []

    def sweep(*arguments: object, return_state: bool) -> State[None]:
        flow_arguments.extend(arguments)
        return Completed(message="swept 0 runs")

    monkeypatch.setattr(flow, "sweep", sweep)
    assert main(["--run", "a", "--run", "b", "--without-lease", "--context", "c"]) == 0
    assert flow_arguments == [False, ["a", "b"], True, ["c"]]
    with pytest.raises(SystemExit):
        main(["--now"])


@pytest.mark.parametrize(("has_faults", "exit_code"), [(False, 0), (True, 1)])
def test_machine_is_swept_without_a_flow_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_faults: bool, exit_code: int
) -> None:
    """`--here` sweeps this machine, and its exit code tells whether something was left behind."""
    state: State[None] = Failed(message="left behind: a") if has_faults else Completed(message="swept 1 run")
    monkeypatch.setattr(flow, "sweep_machine", lambda: state)
    assert main(["--here"]) == exit_code
    assert capsys.readouterr().out == f"{state.message}\n"
