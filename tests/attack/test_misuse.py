"""Random misuse of two modules in one loop: each call has the right effect, or ends with an error and has none."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from support.attacks import Campaign
from torch import Tensor

from adaptive import SGD, Batch, Planned, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.embeddings.planned_batch import LookAhead
from adaptive.errors import AdaptiveError

ROWS, SAMPLES, OPERATIONS = 12, 4, 40


class Abused:
    """A module, the table that it must have, and the batch in use. Each lookup moves its row by its gradients."""

    def __init__(self, random: np.random.Generator) -> None:
        table = TableConfig(name="t", num_embeddings=ROWS, embedding_dim=2, init_bound=0)
        rows = f"{int(random.integers(ROWS // 2, ROWS + 1))}"
        tier = TierConfig(device_rows=rows, poison=True, when_full="reduce_lookahead")
        self.module = TieredEmbeddingBag([table], tier, optimizer=SGD(lr=1.0), policy="lfu")
        self.expected = np.zeros((ROWS, 2), np.float32)
        self.random, self.coming, self.planned = random, None, None
        self.waiting = 0.0  # gradient of each lookup of the current batch
        self.lookups = np.zeros(ROWS, np.float32)
        self.old: list[tuple[Planned, Tensor]] = []
        self.coming: LookAhead | None
        self.planned: Planned | None

    def loader(self) -> Iterator[Batch]:
        """Batches that share one set of arrays."""
        ids, labels, extra = np.zeros(SAMPLES, np.int64), np.zeros(SAMPLES, np.float32), np.zeros(SAMPLES, np.float32)
        for _ in range(8):
            ids[:] = self.random.integers(0, ROWS, SAMPLES)
            labels[:] = extra[:] = ids
            yield Batch.of(t=ids, dense=labels[:, None], labels=labels, extras={"extra": extra})
            ids[:] = labels[:] = extra[:] = -1

    def begin(self) -> None:
        if self.coming is None:
            self.coming = self.module.look_ahead(self.loader(), depth=int(self.random.integers(0, 3)))
        self.proceed()

    def proceed(self) -> None:
        if self.coming is None:
            return
        self.keep()
        if self.waiting:
            _refused(lambda: next(self.coming))  # type: ignore[arg-type]
            self.end()
            return
        self.planned = next(self.coming, None)
        if self.planned is None:
            self.end()
            return
        ids = self.planned.labels.numpy().astype(np.int64)
        assert np.array_equal(ids, self.planned.batch.ids) and np.array_equal(ids, self.planned.extras["extra"])
        self.lookups = np.bincount(ids, minlength=ROWS).astype(np.float32)

    def keep(self) -> None:
        """A loss of the current batch, for when it has ended."""
        if self.planned is not None:
            self.old = [(self.planned, self.module.stack(self.planned).sum())]

    def end(self) -> None:
        self.coming, self.planned, self.waiting = None, None, 0.0

    def close(self) -> None:
        self.keep()
        if self.coming is not None:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.coming.close()
            assert bool(caught) == bool(self.waiting)
        self.end()

    def backward(self) -> None:
        if self.planned is not None:
            factor = float(self.random.integers(1, 4))
            self.module.stack(self.planned).mul_(factor).sum().backward()  # type: ignore[no-untyped-call]
            self.waiting += factor

    def step(self) -> None:
        if not self.waiting:
            _refused(self.module.step, ValueError)
            return
        self.module.step()
        self.expected -= self.waiting * self.lookups[:, None]
        self.waiting = 0.0

    def discard(self) -> None:
        self.module.discard()
        self.waiting = 0.0

    def backward_too_late(self) -> None:
        for planned, loss in self.old:
            if planned is not self.planned:
                _refused(lambda: self.module(planned))  # noqa: B023 (called at once)
                _refused(loss.backward)
        self.old = []

    def look_ahead_twice(self) -> None:
        if self.planned is not None:
            _refused(lambda: next(self.module.look_ahead(self.loader())))

    def load_in_a_loop(self) -> None:
        if self.planned is not None:
            state = self.module.rows.state_arrays()
            _refused(lambda: self.module.rows.load_state_arrays(state))

    def write_into_what_was_given(self) -> None:
        self.module.rows.table_weights("t").fill(9)
        for block in self.module.rows.table_blocks("t"):
            block.fill(8)
        for array in self.module.rows.state_arrays().values():
            array.fill(7)
        for tensor in self.module.state_dict().values():
            tensor.fill_(6)
        found = [self.module.read(Batch.of(t=[1, 2], labels=[0, 1]))]
        if self.planned is not None:
            found.append(self.planned)
            with torch.no_grad():
                for vectors in (*self.module(self.planned).values(), self.module.stack(self.planned)):
                    vectors.fill_(4)
        for planned in found:
            for tensor in (planned.dense, planned.labels, *planned.extras.values()):
                tensor.fill_(5)
        if self.planned is not None:  # the batch has its own
            assert np.array_equal(self.planned.batch.labels, self.planned.batch.ids)

    def use_the_others(self, other: "Abused") -> None:
        if other.planned is not None:
            for call in (self.module, self.module.stack, self.module.side_by_side):
                _refused(lambda: call(other.planned))  # noqa: B023 (called at once)

    def check(self) -> None:
        assert np.array_equal(self.module.rows.table_weights("t"), self.expected)


def _refused(call: Any, kind: type[Exception] = AdaptiveError) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{call} was accepted")


def test_random_misuse_has_the_right_effect_or_none() -> None:
    campaign = Campaign("misuse", least=6)
    names = [
        "begin", "proceed", "backward", "step", "backward", "step", "discard", "close", "backward_too_late",
        "look_ahead_twice", "load_in_a_loop", "write_into_what_was_given",
    ]  # fmt: skip
    for _, random in campaign.tries():
        both = [Abused(random), Abused(random)]
        for _ in range(OPERATIONS):
            one, other = both if random.random() < 0.5 else both[::-1]
            name = str(random.choice([*names, "use_the_others"]))
            getattr(one, name)(*([other] if name == "use_the_others" else []))
            campaign.came(name)
            for each in both:
                each.check()
        for each in both:
            each.close()
            each.check()
            each.module.close()
