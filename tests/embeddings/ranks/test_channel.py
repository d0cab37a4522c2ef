"""Ranks that disagree all stop with an error; none waits for a message that never comes."""

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from contract import Carrying
from support.helpers import LFU, bags, step_all
from support.thread_ranks import Town, on_ranks, outcomes, transport_of

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import MOST_OF_RANK, SizePredictor
from adaptive.embeddings.ranks.transport import Header, Kind, unpack
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, DeviceMemoryError, InputError, NonFiniteError, RanksError
from adaptive.optim import SGD

TABLES = [TableConfig(name="t", num_embeddings=100, embedding_dim=4)]
BATCHES = [bags([1, 2], [3]), bags([4], [1, 1]), bags([7], []), bags([9], [2])]


def made(ranks: Ranks, **options: Any) -> TieredEmbeddingBag:
    options = {"optimizer": SGD(), **options}
    return TieredEmbeddingBag(TABLES, TierConfig(device_rows="100%"), policy=LFU, ranks=ranks, **options)


def test_a_header_comes_back_as_it_was() -> None:
    header = Header(Kind.VECTORS, 7, 3, (1, 2), samples=5, signal=15, code=0)
    assert unpack(header.pack(), 2, "rank 1") == header


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"", "expected 56 bytes, got 0. Set the same number of ranks"),
        (Header(Kind.VECTORS, 0, 0, (0, 0, 0)).pack(), "Set the same number of ranks"),
        (b"XXXX" + Header(Kind.VECTORS, 0, 0, (0, 0)).pack()[4:], "got b'XXXX'"),
        (b"ADRK\x63" + Header(Kind.VECTORS, 0, 0, (0, 0)).pack()[5:], "version 99"),
        (b"ADRK\x03\x00\x63\x00" + Header(Kind.VECTORS, 0, 0, (0, 0)).pack()[8:], "known kind of message, got 99"),
    ],
)
def test_what_is_no_header_is_refused(message: bytes, told: str) -> None:
    with pytest.raises(RanksError, match=told):
        unpack(message, 2, "rank 1")


def test_ranks_out_of_step_all_stop() -> None:
    def work(ranks: Ranks) -> None:
        ranks.rows.exchange(Kind.VECTORS if ranks.rank else Kind.GRADIENTS, 6 + ranks.rank)

    results = outcomes(2, work)
    assert all(isinstance(one, RanksError) and "out of step" in str(one) for one in results)
    assert "vectors of batch 7" in str(results[0]) and "gradients of batch 6" in str(results[0])


def test_a_spoilt_header_stops_all() -> None:
    def spoil(rank: int, channel: int, message: bytes) -> bytes:
        return b"?" + message[1:] if rank == 1 else message

    results = outcomes(3, lambda ranks: ranks.gather_facts(1), town=Town(3, spoil=spoil))
    assert all(
        isinstance(one, RanksError) and "header of rank 1 of 3 (thread 1): expected b'ADRK'" in str(one)
        for one in results
    )


def test_facts_that_differ_are_named_on_every_rank() -> None:
    facts = [{"config": {"depth": 4, "tier": {"device_rows": text}}} for text in ("10%", "20%")]
    for one in outcomes(2, lambda ranks: ranks.require_equal(lambda: facts[ranks.rank])):
        assert isinstance(one, ConfigError)
        assert "config.tier.device_rows = '10%' as on rank 0 (thread 0), got '20%' on rank 1 (thread 1)" in str(one)


@pytest.mark.parametrize("depth", [0, 2])
def test_the_shortest_loader_ends_the_run_for_all(depth: int, caplog: pytest.LogCaptureFixture) -> None:
    results = on_ranks(3, lambda ranks: len(step_all(made(ranks), BATCHES[: 2 + ranks.rank], depth=depth)))
    assert results == [2, 2, 2]
    assert "training ends with batch 1: rank 0 has no more batches" in caplog.text


@pytest.mark.parametrize("depth", [0, 2])
def test_a_bad_id_on_one_rank_ends_all_with_its_message(depth: int) -> None:
    def work(ranks: Ranks) -> None:
        step_all(made(ranks), [*BATCHES[:2], bags([100] if ranks.rank else [1], [])], depth=depth)

    results = outcomes(2, work)
    assert all(isinstance(one, InputError) and "of table t, got 100" in str(one) for one in results)
    assert "rank 1 of 2 (thread 1)" in str(results[0])


@pytest.mark.parametrize("depth", [0, 2])
def test_a_failure_in_planning_is_told_in_the_place_of_answers(depth: int) -> None:
    """The others wait for the answers of a batch that one rank cannot plan."""
    skip = SkipConfig(interval=1, min_accesses=1)

    def work(ranks: Ranks) -> None:
        policy = Carrying(spec="defer+warmup=0")
        embeddings = TieredEmbeddingBag(TABLES, TierConfig(device_rows="100%"), policy=policy, skip=skip, ranks=ranks)
        plan = embeddings.runtime.pipeline.plan_and_move

        def failing(*coming: Any) -> Any:
            if ranks.rank == 1 and embeddings.runtime.pipeline.next_number == 2:
                raise DeviceMemoryError("it does not fit")
            return plan(*coming)

        embeddings.runtime.pipeline.plan_and_move = failing  # type: ignore[method-assign]
        step_all(embeddings, BATCHES, depth=depth)

    results = outcomes(3, work)
    assert all(isinstance(one, DeviceMemoryError) and "it does not fit" in str(one) for one in results)
    assert str(results[0]).startswith("rank 1 of 3 (thread 1): ")


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_in_one_loop_ends_the_others_with_its_class(depth: int) -> None:
    def work(ranks: Ranks) -> None:
        embeddings = made(ranks)
        with closing(embeddings.look_ahead(BATCHES, depth=depth)) as coming, embeddings.reporting_errors():
            for planned in coming:
                if planned.number == 1 and ranks.rank == 1:
                    raise NonFiniteError("the loss is nan")
                embeddings.stack(planned).sum().backward()
                embeddings.step()

    results = outcomes(3, work)
    assert all(isinstance(one, NonFiniteError) for one in results)
    assert str(results[0]) == "rank 1 of 3 (thread 1): the loss is nan"


@pytest.mark.parametrize("depth", [0, 2])
def test_leaving_together_is_fine_and_the_next_loop_begins(depth: int) -> None:
    def work(ranks: Ranks) -> int:
        embeddings, steps = made(ranks), 0
        for _ in range(3):
            with closing(embeddings.look_ahead(BATCHES, depth=depth)) as coming:
                for planned in coming:
                    embeddings.stack(planned).sum().backward()
                    embeddings.step()
                    steps += 1
                    if planned.number % 4 == 1:
                        break
        return steps

    assert len(set(on_ranks(2, work))) == 1


def test_a_rank_that_has_read_less_far_leaves_with_the_others() -> None:
    """The look-ahead of rank 0 waits for requests that rank 1 will not make: it is reported on that channel, too, not
    only on the one of training, to which rank 0 comes after its look-ahead has ended."""

    def work(ranks: Ranks) -> int:
        embeddings, leaving = made(ranks), threading.Event()
        learn = embeddings.runtime.pipeline.learn

        def late() -> None:
            if ranks.rank == 1 and embeddings.runtime.pipeline.next_number == 1:
                leaving.wait(600)
            learn()

        embeddings.runtime.pipeline.learn = late  # type: ignore[method-assign]
        coming = embeddings.look_ahead(BATCHES, depth=1)
        embeddings.stack(next(coming)).sum().backward()
        embeddings.step()
        threading.Timer(0.3, leaving.set).start()  # once `close` has told the thread to end
        coming.close()
        return len(step_all(embeddings, BATCHES))

    assert on_ranks(2, work) == [4, 4]


@pytest.mark.parametrize("depth", [0, 2])
def test_leaving_alone_is_told_to_the_others(depth: int) -> None:
    def work(ranks: Ranks) -> None:
        embeddings = made(ranks)
        with closing(embeddings.look_ahead(BATCHES, depth=depth)) as coming:
            for planned in coming:
                embeddings.stack(planned).sum().backward()
                embeddings.step()
                if ranks.rank == 0:
                    break

    results = outcomes(2, work)
    assert results[0] is None
    assert isinstance(results[1], RanksError) and "got rank 0 of 2 (thread 0) outside of its loop" in str(results[1])


def test_a_rank_that_stands_still_is_given_up() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 0:
            step_all(made(ranks), BATCHES)

    results = outcomes(2, work, town=Town(2, seconds=1.0))
    assert isinstance(results[0], RanksError) and results[0].exit_code == 10
    text = "rank 0 of 2 (thread 0): channel ahead: expected requests of batch 0, message 0 from all ranks, got an error"
    assert f"{text}: a rank is gone or late" in str(results[0])


@pytest.mark.parametrize("way", ["discard", "no backward", "no forward"])
def test_a_batch_that_is_not_stepped_is_exchanged(way: str) -> None:
    """On rank 1 the second batch is left out: its rows get the other rank's gradients, halved by the mean."""

    def work(ranks: Ranks) -> np.ndarray:
        embeddings = made(ranks)
        before = embeddings.rows.table_weights("t")
        for planned in embeddings.look_ahead(BATCHES, depth=1):
            left_out = planned.number == 1 and ranks.rank == 1
            if left_out and way == "no forward":
                continue
            loss = embeddings.stack(planned).sum()
            if left_out and way == "no backward":
                continue
            loss.backward()
            if left_out:
                embeddings.discard()
            else:
                embeddings.step()
        return before - embeddings.rows.table_weights("t")

    one, other = on_ranks(2, work)
    assert np.array_equal(one, other)
    expected = np.zeros(100)
    for number, batch in enumerate(BATCHES):
        np.add.at(expected, batch.ids, 0.1 * (0.5 if number == 1 else 1.0))
    assert np.allclose(one, expected[:, None], atol=1e-6)


def test_gradients_are_a_mean_over_ranks_as_in_ddp() -> None:
    def work(ranks: Ranks) -> np.ndarray:
        embeddings = made(ranks)
        before = embeddings.rows.table_weights("t")
        step_all(embeddings, [bags([1, 2 + ranks.rank])])
        return before - embeddings.rows.table_weights("t")

    moved = on_ranks(2, work)[0][:, 0]
    assert np.allclose(moved[[1, 2, 3]], [0.1, 0.05, 0.05], atol=1e-7)


def test_what_ranks_cannot_do_is_refused() -> None:
    def clip(ranks: Ranks) -> None:
        embeddings = made(ranks)
        for planned in embeddings.look_ahead(BATCHES[:1], depth=0):
            with embeddings.reporting_errors():
                embeddings.stack(planned).sum().backward()
                embeddings.optimizer.clip_grad_norm_(1.0)

    assert all("clip_grad_norm_" in str(one) for one in outcomes(2, clip))
    with pytest.raises(ConfigError, match="expected at least 2 for 2 ranks, got 1"):
        on_ranks(2, lambda ranks: None, blocks=1)
    tables = [TableConfig(name="t", num_embeddings=1, embedding_dim=4)]
    with pytest.raises(ConfigError, match="would own none"):
        on_ranks(2, lambda ranks: TieredEmbeddingBag(tables, ranks=ranks))
    with pytest.raises(
        ConfigError, match=r"arranges or drops inputs\. .* one of device, hybrid, lfu, lru, .*scratchpipe"
    ):
        on_ranks(2, lambda ranks: TieredEmbeddingBag(TABLES, policy="fae", ranks=ranks))


def test_evaluation_reads_rows_of_all_ranks() -> None:
    def work(ranks: Ranks) -> np.ndarray:
        embeddings = made(ranks)
        return embeddings.stack(embeddings.read(BATCHES[ranks.rank])).detach().numpy()

    alone = TieredEmbeddingBag(TABLES, policy=LFU)
    for rank, results in enumerate(on_ranks(3, work)):
        assert np.array_equal(results, alone.stack(alone.read(BATCHES[rank])).detach().numpy())


# --- sizes of messages -----------------------------------------------------------------------------------------------

LARGE = MOST_OF_RANK + 1000  # what does not fit crosses in a second message


def part(sender: int, to: int, size: int) -> np.ndarray:
    return np.random.default_rng([sender, to]).integers(0, 256, size).astype(np.uint8)


def counting(ranks: Ranks) -> list[int]:
    """The largest part of each message from now on."""
    transport, results = transport_of(ranks), []
    swap = transport.swap

    def counted(channel: int, parts: Any, sizes: Any, largest: int) -> Any:
        results.append(largest)
        return swap(channel, parts, sizes, largest)

    transport.swap = counted  # type: ignore[method-assign]
    return results


def test_all_parts_come_whole_in_one_message_or_two() -> None:
    sizes = {0: 1, 100: 2, 105: 1, 5000: 2, 90: 1, LARGE: 2, LARGE + 1: 2, 3: 1}  # bytes: messages

    def work(ranks: Ranks) -> list[int]:
        messages, results = counting(ranks), []
        for number, size in enumerate(sizes):
            own = [part(ranks.rank, to, size + to) if size else part(0, 0, 0) for to in range(3)]
            before = len(messages)
            came = ranks.rows.exchange(Kind.VECTORS, number, own).parts
            results.append(len(messages) - before)
            expected = [part(sender, ranks.rank, size + ranks.rank) if size else part(0, 0, 0) for sender in range(3)]
            assert all(np.array_equal(one, other) for one, other in zip(came, expected, strict=True))
        return results

    assert on_ranks(3, work) == [list(sizes.values())] * 3


def test_sizes_are_those_of_the_same_place_in_the_order() -> None:
    """Gradients of 10 bytes behind vectors of 9,000, again and again."""

    def work(ranks: Ranks) -> list[int]:
        messages = counting(ranks)
        for number in range(3):
            for kind, size in ((Kind.VECTORS, 9000), (Kind.GRADIENTS, 10)):
                ranks.rows.exchange(kind, number, [np.zeros(size, np.uint8)] * 2)
        return messages[-2:]

    for vectors, gradients in on_ranks(2, work):
        assert gradients < 200 < 9000 < vectors < 10_000


@pytest.mark.parametrize("size", [0, 2000])
def test_a_failure_is_told_in_the_place_of_a_message_of_any_room(size: int) -> None:
    text = "a long story " * 50

    def work(ranks: Ranks) -> None:
        for number in range(3):
            ranks.rows.exchange(Kind.VECTORS, number, [np.zeros(size, np.uint8)] * 3)
        if ranks.rank == 1:
            ranks.report(ranks.rows, InputError(text))
            raise InputError(text)
        ranks.rows.exchange(Kind.VECTORS, 3, [np.zeros(size, np.uint8)] * 3)

    results = outcomes(3, work)
    assert all(isinstance(one, InputError) for one in results)
    assert str(results[0]) == str(results[2]) == f"rank 1 of 3 (thread 1): {text}"


def test_after_an_end_nothing_is_remembered() -> None:
    predictor = SizePredictor(2)
    predictor.learn(Kind.REQUESTS, [(0, 100), (10, 0)])
    predictor.learn(Kind.REQUESTS, [(0, 100), (10, 0)])
    assert predictor.next_sizes() == [[0, 128], [64, 0]]
    predictor.learn(None, [(0, 0), (0, 0)])
    assert predictor.next_sizes() == [[0, 0], [0, 0]]
