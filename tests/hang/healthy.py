"""A training without a fault that looks like a hang for some seconds: `--style STYLE --seed N`.

No hang may be reported.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from tests.hang.actions import ACTIONS, burn, compile_program
from tests.hang.device import DEVICE_STYLES
from tests.hang.frameworks import FRAMEWORKS, OWN_SETUP
from tests.hang.training import STEP_S, start, train

_ACTION_INTERVAL_STEPS = 20  # steps between checkpoints, evaluations, downloads


class SlowData(IterableDataset[torch.Tensor]):
    """Its workers compute 1 to 3 s for a batch."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            burn(self._rng.uniform(1, 3))
            yield torch.zeros(8, device="cpu")


def act_on_rank_zero(action: Callable[[float], None], seconds: tuple[float, float], rng: random.Random) -> None:
    """Train; every 20 steps rank 0 works while the others wait for it in a barrier."""

    def before_step(step: int) -> None:
        if step % _ACTION_INTERVAL_STEPS == _ACTION_INTERVAL_STEPS - 1:
            if dist.get_rank() == 0:
                action(rng.uniform(*seconds))
            dist.barrier()

    train(before_step)


def load_slowly(rng: random.Random) -> None:
    batches = iter(DataLoader(SlowData(rng), batch_size=None, num_workers=1))

    def load(_: int) -> None:
        next(batches)

    train(load)


def compile_first(seed: int) -> None:
    """Odd seeds compile in rank 0 alone, while the others wait in their first collective."""
    if seed % 2 == 0 or dist.get_rank() == 0:
        compile_program(20)
    train(lambda _: None)


def step_unevenly(rng: random.Random) -> None:
    train(lambda _: None, lambda: rng.choice((STEP_S, rng.uniform(STEP_S, 2))))


def step_plainly(seed: int, rng: random.Random) -> None:
    train(lambda _: None)


def run_framework(train_framework: Callable[[], None], seed: int, rng: random.Random) -> None:
    torch.manual_seed(seed)
    train_framework()


def run_action(action: Callable[[float], None], seconds: tuple[float, float], seed: int, rng: random.Random) -> None:
    act_on_rank_zero(action, seconds, rng)


STYLES: dict[str, Callable[[int, random.Random], None]] = {
    "plain": step_plainly,
    "uneven": lambda seed, rng: step_unevenly(rng),
    "compile": lambda seed, rng: compile_first(seed),
    "slow-loader": lambda seed, rng: load_slowly(rng),
}
for _name, (_action, _seconds) in ACTIONS.items():
    STYLES[_name] = partial(run_action, _action, _seconds)
for _name, _train in (FRAMEWORKS | DEVICE_STYLES).items():
    STYLES[_name] = partial(run_framework, _train)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--style", choices=STYLES, required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank = 0
    if args.style not in OWN_SETUP:
        rank, _ = start()
    STYLES[args.style](args.seed, random.Random(args.seed * 1000 + rank))


if __name__ == "__main__":
    main()
