"""Programs whose ranks do not train together, although they succeed: the report warns, and it warns of no other one."""

import pytest

from tests.conftest import Write
from tests.processes.local_runs import read_report, run_training

EXITED = "import torch; print('nothing to train')"
APART = """
import tempfile, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
"""
TOGETHER = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""
WITHOUT_TORCH = "print('1')"


@pytest.mark.parametrize(
    ("code", "keys", "warning"),
    [
        pytest.param(EXITED, {}, "none of the 2 ranks called a collective", id="exited"),
        pytest.param(APART, {}, "process groups have at most 1 of the 2 ranks", id="apart"),
        pytest.param(TOGETHER, {}, "", id="together"),
        pytest.param(EXITED, {"on_hang": "off"}, "", id="no recorder"),
        pytest.param(EXITED, {"nodes": 1}, "", id="one rank"),
        pytest.param(EXITED, {"agent": "none", "rendezvous": "env"}, "", id="no agent"),
        pytest.param(WITHOUT_TORCH, {}, "", id="without torch"),
    ],
)
def test_ranks_that_did_not_train_together_are_a_warning(
    write: Write, code: str, keys: dict[str, object], warning: str
) -> None:
    """A run whose ranks called no collective, or trained apart, has succeeded with a warning; other runs have none."""
    completed = run_training(write(code=code, **({"nodes": 2} | keys)))
    report = read_report()
    assert (report.end, report.collected is not None) == ("succeeded", True), completed.stderr
    assert report.collected
    assert len(report.collected.warnings) == bool(warning)
    assert warning in "".join(report.collected.warnings)
    assert warning in completed.stdout + completed.stderr
