"""Lines that name their step or epoch, and then its values, as several projects print them."""

import pytest

from torchyard.metrics.registry import describe_row, get_progress, get_reader
from torchyard.metrics.step_lines import StepLineReader
from torchyard.model.run import Row

TITAN = "[rank0]:[titan] 2026-01-11 20:13:47,203 - root - INFO - "
MEGATRON = (
    " [2025-03-01 12:00:00] iteration       10/     100 | consumed samples:           80 | elapsed time per iteration "
    "(ms): 812.5 | learning rate: 1.500E-04 | lm loss: 1.063418E+01 | loss scale: 1.0 | grad norm: 2.345 |"
)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        pytest.param(
            "iter 100: loss 2.3105, time 12.31ms, mfu 3.02%",
            {"step": 100, "loss": 2.3105, "time_ms": 12.31, "mfu": 3.02},
            id="nanoGPT",
        ),
        pytest.param(
            "iter 0: loss 10.9781, time 31234.56ms, mfu -100.00%",
            {"step": 0, "loss": 10.9781, "time_ms": 31234.56},
            id="nanoGPT before it measures the utilization",
        ),
        pytest.param(
            "step 250: train loss 4.2000, val loss 4.3100",
            {"step": 250, "train_loss": 4.2, "val_loss": 4.31},
            id="nanoGPT's evaluation",
        ),
        pytest.param(
            f"{TITAN}step: 10  loss: 10.7069  grad_norm:  1.7437  memory: 47.71GiB(34.12%)  tps: 7,034  mfu: 41.19%",
            {"step": 10, "loss": 10.7069, "grad_norm": 1.7437, "memory": 47.71, "tps": 7034, "mfu": 41.19},
            id="torchtitan",
        ),
        pytest.param(
            f"{TITAN}\x1b[33mvalidate step: 10  \x1b[32mloss:  7.8308  \x1b[38;2;54;234;195mmemory: 47.71GiB(34.12%)",
            {"step": 10, "validation_loss": 7.8308, "validation_memory": 47.71},
            id="torchtitan's validation, in colours",
        ),
        pytest.param(
            "step 00010/21400 (0.05%) | loss: 9.123456 | grad norm: 1.0123 | dt: 400.12ms | tok/sec: 1,310,304",
            {
                "step": 10,
                "steps": 21400,
                "loss": 9.123456,
                "grad_norm": 1.0123,
                "dt_ms": 400.12,
                "tok/sec": 1310304,
            },
            id="nanochat",
        ),
        pytest.param(
            MEGATRON,
            {
                "step": 10,
                "steps": 100,
                "consumed_samples": 80,
                "elapsed_time_per_iteration_ms": 812.5,
                "learning_rate": 0.00015,
                "lm_loss": 10.63418,
                "loss_scale": 1.0,
                "grad_norm": 2.345,
            },
            id="Megatron-LM",
        ),
        pytest.param(
            "Epoch [1/5], Step [100/600], Loss: 0.2531",
            {"epoch": 1, "epochs": 5, "step": 100, "loss": 0.2531},
            id="a tutorial",
        ),
        pytest.param("Epoch 3/10, Loss: nan", {"epoch": 3, "epochs": 10, "loss": None}, id="a loss of nan"),
        pytest.param("iter 7: loaded 500 files in 3.2 s", {}, id="without a loss"),
        pytest.param("at step 5 the loss was 3", {}, id="a sentence"),
    ],
)
def test_values_of_a_line(line: str, values: Row) -> None:
    """A line has the values that it names, numbers with their thousands and without their units."""
    assert StepLineReader()(line) == values


@pytest.mark.parametrize(
    ("total", "line"),
    [
        ("Overriding: max_iters = 2000", "iter 500: loss 4.3000, time 12.31ms, mfu 3.02%"),
        (f"{TITAN}Trainer is initialized with local batch size 8, total steps 2000 (warmup 200)", "step: 500  loss: 7"),
    ],
    ids=["nanoGPT", "torchtitan"],
)
def test_total_that_was_printed_before_gives_the_progress(total: str, line: str) -> None:
    """Programs that print the number of steps only once, at the start, show their progress all the same."""
    reader = StepLineReader()
    assert reader(total) == {}
    progress = get_progress(reader(line))
    assert progress is not None
    assert progress.share == 0.25


def test_lines_of_one_step_are_one_row() -> None:
    """The evaluation of a step and the step itself are one row, which describes its values without the total."""
    lines = ["max_iters = 2000", "step 250: train loss 4.2, val loss 4.3", "iter 250: loss 4.25, time 12.3ms"]
    (row,) = get_reader("step-lines")(lines).rows
    assert describe_row(row) == "step 250: train_loss 4.2, val_loss 4.3, loss 4.25, time_ms 12.3"
