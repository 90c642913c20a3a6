"""The bars of Lightning 2.6, drawn by tqdm and by rich, and its table of results."""

from torchyard.metrics.lightning import LightningReader
from torchyard.metrics.registry import get_progress, get_reader

TQDM = (
    """
Sanity Checking DataLoader 0:   0%|          | 0/2 [00:00<?, ?it/s]
Epoch 0:   0%|       | 0/8 [00:00<?, ?it/s] <CR>Epoch 0:  12%|█▎| 1/8 [00:00<00:00, 226.01it/s, v_num=0, loss=5.060]
Validation DataLoader 0:  12%|█▎        | 1/8 [00:00<00:00, 910.22it/s]<UP>
   <UP><CR>Epoch 0: 100%|█| 8/8 [00:00<00:00, 141.53it/s, v_num=0, loss=2.990, val_loss=4.690]<CR>Epoch 1:   0%| |\
 0/8 [00:00<?, ?it/s, v_num=0, loss=2.990, val_loss=4.690]
Epoch 1: 100%|████| 8/8 [00:00<00:00, 52.73it/s, v_num=0, loss=nan.0, val_loss=nan.0]`Trainer.fit` stopped: \
`max_epochs=2` reached.
""".replace("<CR>", "\r")
    .replace("<UP>", "\x1b[A")
    .strip("\n")
    .split("\n")
)
RICH = [
    "Epoch 1/3  ━━━━━━━━━━━━━━━━━ 4/8 0:00:00 • 0:00:00 197.13it/s v_num: 0.000     ",
    "                                                              train_loss: 2.048 ",
    "                                                              val_loss: 1.740   ",
    "┏━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━┓",
    "┃        Test metric        ┃       DataLoader 0        ┃",
    "│         test_loss         │    1.7401862144470215     │",
]


def test_bars_of_tqdm_are_a_row_for_each_epoch() -> None:
    """A row has the last values of its epoch: a bar at batch 0 still shows those of the epoch before."""
    assert get_reader("lightning")(TQDM).rows == (
        {"epoch": 0, "loss": 2.99, "val_loss": 4.69},
        {"epoch": 1, "loss": None, "val_loss": None},
    )


def test_small_and_large_losses_of_tqdm_are_read() -> None:
    """tqdm shortens an exponent to one digit: a row must not keep the loss of an earlier batch instead."""
    bar = "Epoch 0: 100%|█| 8/8 [00:00<00:00, 141.53it/s, v_num=0, train_loss={}]"
    rows = get_reader("lightning")([bar.format("0.000512"), bar.format("5.12e-5")]).rows
    assert rows == ({"epoch": 0, "train_loss": 5.12e-05},)
    assert get_reader("lightning")([bar.format("1.23e+4")]).rows == ({"epoch": 0, "train_loss": 12300.0},)


def test_batch_is_read_while_the_epoch_runs() -> None:
    """A running job shows the batch, and no value of the line that follows the bar."""
    reader = LightningReader()
    rows = [reader(line) for line in TQDM]
    assert rows[1] == {"epoch": 0, "batch": 1, "batches": 8, "loss": 5.06}
    assert "max_epochs" not in rows[-1]


def test_bar_of_rich_has_its_values_in_the_lines_below() -> None:
    """rich wraps the values of a bar, which names the last epoch; the results of the test belong to the summary."""
    metrics = get_reader("lightning")(RICH)
    assert metrics.rows == ({"epoch": 1, "train_loss": 2.048, "val_loss": 1.74},)
    assert metrics.summary == {"test_loss": 1.7401862144470215}
    progress = get_progress(LightningReader()(RICH[0]))
    assert progress is not None
    assert (progress.finished, progress.total) == (1, 3)
