"""The dicts of Hugging Face's Trainer, as versions 4 and 5 print them between the states of progress bars."""

from torchyard.metrics.huggingface import HuggingFaceReader
from torchyard.metrics.losses import find_bad_loss
from torchyard.metrics.registry import get_progress, get_reader

# A run of transformers 5.24, whose log has carriage returns and movements of the cursor.
VERSION_5 = (
    """
<CR>  0%|          | 0/24 [00:00<?, ?it/s]
<CR> 21%|██        | 5/24 [00:00<00:00, 99.17it/s]<CR>  <CR>{'loss': '3.655', 'grad_norm': '3.377', 'epoch': '0.625'}
<CR>  0%|          | 0/8 [00:00<?, ?it/s]<UP><CR>
<CR>           <CR><UP>{'eval_loss': '3.537', 'epoch': '1'}
<CR>100%|██████████| 8/8 [00:00<00:00, 468.41it/s]<UP>
<CR><UP><CR> 42%|███▏   | 10/24 [00:00<00:00, 77.14it/s]<CR>  <CR>{'loss': '2.844', 'grad_norm': '2', 'epoch': '1.25'}
<CR>          <CR>{'train_runtime': '0.2087', 'train_loss': '3.537', 'epoch': '3'}
<CR>100%|██████████| 24/24 [00:00<00:00, 115.32it/s]
""".replace("<CR>", "\r")
    .replace("<UP>", "\x1b[A")
    .strip("\n")
    .split("\n")
)
VERSION_4 = [
    "  Num Epochs = 3",
    "  Total optimization steps = 1,125",
    "{'loss': 2.1043, 'grad_norm': inf, 'learning_rate': 5e-05, 'epoch': 0.5}                    ",
    "{'loss': nan, 'grad_norm': nan, 'learning_rate': 4e-05, 'epoch': 1.0}",
]


def test_dicts_are_rows_and_the_last_one_the_summary() -> None:
    """A dict with an epoch is a row of numbers; that of the whole run is the summary."""
    metrics = get_reader("huggingface")(VERSION_5)
    assert metrics.rows == (
        {"loss": 3.655, "grad_norm": 3.377, "epoch": 0.625, "steps": 24, "step": 5},
        {"eval_loss": 3.537, "epoch": 1},
        {"loss": 2.844, "grad_norm": 2, "epoch": 1.25, "steps": 24, "step": 10},
    )
    assert metrics.summary == {"train_runtime": 0.2087, "train_loss": 3.537}


def test_progress_is_that_of_the_trainings_bar() -> None:
    """The bar of an evaluation, which has another total, does not count."""
    reader = HuggingFaceReader()
    progresses = [get_progress(reader(line)) for line in VERSION_5]
    assert [progress and (progress.finished, progress.total) for progress in progresses] == [
        None,
        (5, 24),
        None,
        None,
        None,
        (10, 24),
        None,
        None,
    ]


def test_progress_counts_the_epochs_that_the_log_names() -> None:
    """Half an epoch of three is a sixth."""
    reader = HuggingFaceReader()
    rows = [reader(line) for line in VERSION_4]
    assert get_progress(rows[2]) == ("epoch", 0.5, 3, 0.5 / 3)


def test_loss_of_nan_is_found() -> None:
    """nan, which Python prints without quotes, is None, and a bad loss; a gradient norm may be infinite."""
    reader = HuggingFaceReader()
    assert [find_bad_loss(reader(line)) for line in VERSION_4] == [None, None, None, "loss"]


def test_other_dicts_are_not_read() -> None:
    """A dict without an epoch or a loss is the program's own, such as its arguments."""
    assert HuggingFaceReader()("{'batch_size': 256, 'epochs': 2}") == {}
