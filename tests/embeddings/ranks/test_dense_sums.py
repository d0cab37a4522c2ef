"""Dense gradients: the left fold over all blocks, to the bit, whether they cross whole or by slices."""

from functools import reduce

import numpy as np
import pytest
from support.thread_ranks import on_ranks
from support.toy import ToyData, toy_config

from adaptive.data.dataset import by_table
from adaptive.embeddings import dense_step
from adaptive.embeddings.dense_step import is_sent_whole, slice_blocks, sum_blocks
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.transport import Kind
from adaptive.training.components import build
from adaptive.training.trainer import Trainer


def drawn_blocks(blocks: int, size: int) -> list[np.ndarray]:
    """Sums in another order have other bits."""
    rng = np.random.default_rng(blocks)
    return [(rng.standard_normal(size) * 10.0 ** rng.integers(-4, 5, size)).astype(np.float32) for _ in range(blocks)]


def folded(ranks: Ranks, blocks: list[np.ndarray | None], size: int) -> np.ndarray | None:
    own = [blocks[number] for number in ranks.own_blocks]
    slices = slice_blocks(ranks, [block for block in own if block is not None], size)
    parts = [np.concatenate([np.zeros(0, np.float32), *part]).view(np.uint8) for part in slices]
    return sum_blocks(ranks, ranks.rows.exchange(Kind.DENSE, parts=parts).parts, size)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("ranks", "blocks", "size"), [(1, 3, 5), (2, 2, 1001), (3, 3, 2), (3, 5, 1000), (4, 9, 7)])
def test_sums_are_taken_block_after_block_on_every_rank(
    whole: bool, ranks: int, blocks: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_step, "is_sent_whole", lambda *numbers: whole)
    drawn: list[np.ndarray | None] = list(drawn_blocks(blocks, size))
    drawn[-1] = None  # a last batch may leave blocks without samples
    expected = reduce(np.add, (block for block in drawn if block is not None))
    for results in on_ranks(ranks, lambda one: folded(one, drawn, size), blocks=blocks):
        assert results is not None and np.array_equal(results, expected)


@pytest.mark.parametrize("whole", [True, False])
def test_without_gradients_there_is_no_sum(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_step, "is_sent_whole", lambda *numbers: whole)
    assert on_ranks(2, lambda one: folded(one, [None, None], 5)) == [None, None]
    assert all(
        results is None or not len(results) for results in on_ranks(2, lambda one: folded(one, drawn_blocks(2, 0), 0))
    )


def test_whole_gradients_cross_where_slices_save_little() -> None:
    assert is_sent_whole(2, 2, 10**9), "between two ranks as many bytes"
    assert not is_sent_whole(2, 8, 10**9) and not is_sent_whole(8, 8, 10**6)
    assert is_sent_whole(8, 8, 1000)


@pytest.mark.parametrize(("whole", "exchanges"), [(True, 2), (False, 3)])
def test_a_step_exchanges_rows_and_then_all_the_rest_at_once(
    whole: bool, exchanges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_step, "is_sent_whole", lambda *numbers: whole)

    def numbers(ranks: Ranks) -> list[int]:
        data = by_table(ToyData(num_train=64 * 8))
        made = build(toy_config(batch_size=64, policy="lfu"), data, (), ranks)
        with made.embeddings as embeddings:
            trainer, results = Trainer(embeddings, made.model, made.optimizer), []
            for planned in embeddings.look_ahead([ranks.own_part(batch) for batch in data.train(64)], depth=1):
                trainer.step(planned)
                results.append(ranks.rows._sequence)
        return results

    for results in on_ranks(2, numbers, gradients="sum"):
        assert np.diff(results).tolist() == [exchanges] * 7
