"""Loops that an exception ends at any line: Ctrl-C, an alarm, a MemoryError. Rows never become garbage.

With SGD, a rate of 1 and a loss that sums vectors, each lookup moves its row by exactly 1. So after any interrupts a
row has moved by its lookups in the batches that were applied, or tables refuse by name to be used. The batch in which
the interrupt came may be applied to all tables of a width, or to none.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.attacks import SECONDS, Campaign, attack
from support.programs import pick

import adaptive
from adaptive import SGD, Batch, Planned, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.errors import AdaptiveError, PolicyError
from adaptive.policies.lfu import LFU

pytestmark = attack

PACKAGE = str(Path(adaptive.__file__).parent)
ROWS, SAMPLES = 60, 12
BOUND = 1e-5  # of initial values: of a key, its row is not known in advance
REFUSED = "rows that an error left without them"
LIMIT = 55.0  # seconds of a program, also if it compiles kernels; a wake-up that is lost takes 60


class Injected(BaseException):
    """An exception that no code expects."""


@contextmanager
def raised_at_line(number: int, error: type[BaseException]) -> Iterator[None]:
    """Raise an error before the `number`-th line of the package that this thread runs inside."""
    left = number

    def in_package(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                raise error
        return in_package if left > 0 else None

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        return in_package if left > 0 and frame.f_code.co_filename.startswith(PACKAGE) else None

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def raised_by_signal(seconds: float, number: signal.Signals) -> Iterator[None]:
    """Send a signal, whose handler raises KeyboardInterrupt, to the main thread after some time."""
    before = signal.signal(number, signal.default_int_handler)
    timer = threading.Timer(seconds, lambda: signal.pthread_kill(threading.main_thread().ident or 0, number))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(number, signal.SIG_IGN)
        timer.join()
        signal.signal(number, before)


class OnHost(LFU):
    """Rows stay on the host until they are worth a slot; some come late."""

    misses = "host"


class Trainee:
    """Tables of two widths in a random place, and a loop that counts what it applies."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.keyed = bool(rng.random() < 0.25)
        keys: dict[str, Any] = {"keys": "int64", "expire": 6} if self.keyed else {}
        widths = pick(rng, ((4, 4), (4, 8)))
        self.tables = [
            TableConfig(name=name, num_embeddings=ROWS, embedding_dim=width, init_bound=BOUND, **keys)
            for name, width in zip("ab", widths, strict=True)
        ]
        policy = pick(rng, ("lru", "lfu", "hotline", OnHost))
        self.tier = TierConfig(
            device_rows=pick(rng, ("70%", "90%")),
            when_full="reduce_lookahead",
            plan_threads=pick(rng, (1, 2)) if policy == "hotline" else pick(rng, (0, 0, 1, 2)),
            poison=bool(rng.random() < 0.5),
        )
        self.depth = int(rng.integers(0, 4))
        skip = "defer" if rng.random() < 0.2 else None
        self.bag = TieredEmbeddingBag(self.tables, self.tier, policy=policy, optimizer=SGD(lr=1.0), skip=skip)
        self.applied = {table.name: np.zeros(ROWS, np.int64) for table in self.tables}
        self.doubtful: dict[str, NDArray[np.int64]] | None = None  # of the batch that was being applied
        self._rng = rng

    def batches(self, count: int) -> Sequence[Batch]:
        ids = self._rng.integers(0, ROWS, (count, len(self.tables), SAMPLES))
        ids[:, :, : SAMPLES // 2] %= 8  # rows that stay, and are late under "host"
        return [Batch.of(a=a, b=b, labels=np.zeros(SAMPLES)) for a, b in ids]

    def train(self, batches: Sequence[Batch]) -> None:
        for planned in self.bag.look_ahead(batches, depth=self.depth):
            self._train(planned)

    def _train(self, planned: Planned) -> None:
        vectors = self.bag(planned)
        torch.stack([one.sum() for one in vectors.values()]).sum().backward()
        ids = {name: planned.batch.ids[planned.batch.feature_span(n)] for n, name in enumerate(self.bag.features)}
        self.doubtful = {name: np.bincount(ids[name], minlength=ROWS) for name in self.applied}
        self.bag.step()
        for name, counts in self.doubtful.items():
            self.applied[name] += counts
        self.doubtful = None
        act = self._rng.random()
        if self.keyed and self.depth:
            return
        if act < 0.1:
            self.bag.rows.table_weights("a")
        elif act < 0.2:
            with torch.no_grad():
                self.bag(self.bag.read(planned.batch))
        elif act < 0.25:
            self.bag.rows.flush()

    def check(self) -> None:
        """Every row has moved by its lookups."""
        if self.keyed:
            for name in self.applied:
                moved = self.bag.rows.table_weights(name)
                assert np.abs(moved - np.rint(moved)).max() <= 2 * BOUND, name
            return
        for width in {table.embedding_dim for table in self.tables}:
            names = [table.name for table in self.tables if table.embedding_dim == width]
            moved = np.concatenate([-self.bag.rows.table_weights(name) for name in names])
            applied = np.concatenate([self.applied[name] for name in names])
            if self.doubtful is not None:
                with_it = applied + np.concatenate([self.doubtful[name] for name in names])
                if np.abs(moved - with_it[:, None]).max() <= 2 * BOUND:
                    applied = with_it
            np.testing.assert_allclose(moved, np.repeat(applied[:, None], width, 1), rtol=0, atol=2 * BOUND)
            for name, counts in zip(names, np.split(applied, len(names)), strict=True):
                self.applied[name] = counts
        self.doubtful = None


def interrupt(trainee: Trainee, interruption: AbstractContextManager[None]) -> bool:
    """Train with an interruption; return False if the tables refuse to be used afterwards."""
    batches = trainee.batches(8)
    try:
        with interruption:
            trainee.train(batches)
    except (KeyboardInterrupt, MemoryError, Injected, PolicyError):  # of a line that runs in a call of the policy
        pass
    try:
        trainee.check()
        trainee.train(trainee.batches(3))
        trainee.check()
    except AdaptiveError as error:
        if REFUSED not in str(error):
            raise
        with pytest.raises(AdaptiveError, match=REFUSED):
            trainee.bag.rows.state_arrays()
        return False
    return True


@pytest.mark.filterwarnings("ignore:batch .* the loop ended after backward")
@pytest.mark.filterwarnings("ignore:the look-ahead was closed with")
@pytest.mark.parametrize("how", ["line", "signal"])
def test_an_exception_at_any_line_leaves_rows_or_a_refusal(how: str) -> None:
    """A signal never costs the tables: its handler runs after the change that it would have split."""
    campaign = Campaign(f"interrupts by {how}", 1000 if SECONDS >= 60 else 12)
    for _, rng in campaign.tries():
        started, trainee = time.monotonic(), Trainee(rng)
        trainee.train(trainee.batches(2))
        survived = True
        while survived and rng.random() < 0.7:
            error = pick(rng, (KeyboardInterrupt, MemoryError, Injected))
            line, seconds = int(rng.integers(1, 6000)), float(rng.random() * 0.03)
            number = pick(rng, (signal.SIGINT, signal.SIGALRM))
            by_line, by_signal = raised_at_line(line, error), raised_by_signal(seconds, number)
            survived = interrupt(trainee, by_line if how == "line" else by_signal)
        assert survived or how == "line"
        campaign.came("kept" if survived else "refused")
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("adaptive-")]
        if not survived:  # loading repairs
            fresh = TieredEmbeddingBag(trainee.tables, trainee.tier, optimizer=SGD(lr=1.0))
            trainee.bag.load_state_dict(fresh.state_dict())
            trainee.bag.rows.table_weights("a")
        assert time.monotonic() - started < LIMIT
