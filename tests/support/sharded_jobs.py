"""Jobs on ranks, for `rank_pool`: `sharded_jobs.py JOB ARGUMENTS`. A job asserts, or writes what it found to a file."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TierConfig
from adaptive.distributed.peers import Peers
from adaptive.errors import CheckpointError, ConfigError, InputError, RanksError
from support.sharded_cases import (
    KEYED,
    OPTIMIZERS,
    TABLES,
    DropByRow,
    alone,
    digest,
    largest_difference,
    loss_of,
    make_batches,
    sharded,
    train,
    weights_of,
)

DEFER = SkipConfig(rule="defer", hot_rows="40", interval=4, feedback_delay=4)


def agree(peers: Peers, out: Path, optimizers: str) -> None:
    """After 50 steps, ranks have the weights of one process but for rounding; of one rank, the same bits."""
    batches = make_batches(50)
    for optimizer in map(OPTIMIZERS.__getitem__, optimizers.split()):
        embeddings = sharded(optimizer=optimizer, process_group=peers)
        train(embeddings, batches)
        weights, one = weights_of(embeddings), alone(optimizer=optimizer)
        train(one, batches)
        difference = largest_difference(weights_of(one), weights)
        assert difference <= (1e-6 if peers.size > 1 else 0), (optimizer, difference)
        with torch.no_grad():
            whole = make_batches(1, seed=9)[0]
            share = [part * whole.num_samples // peers.size for part in (peers.rank, peers.rank + 1)]
            read = embeddings(embeddings.read(whole.take(np.arange(*share))))
            expected = one(one.read(whole))
        assert torch.allclose(read["b1"], expected["b1"][slice(*share)], atol=1e-6)


def repeat(peers: Peers, out: Path) -> None:
    """Placement, policy and depth change no bit, also if updates are deferred."""
    batches = make_batches(40)
    for skip in (None, DEFER):
        digests = set()
        for rows, policy, depth in (("60%", "lfu", 3), ("90%", "lru", 0), ("70%", "lfu+half_life=5", 1)):
            tier = TierConfig(device_rows=rows, poison=True)
            embeddings = sharded(tier=tier, policy=policy, skip=skip, process_group=peers)
            train(embeddings, batches, depth=depth)
            digests.add(digest(weights_of(embeddings)))
        assert len(digests) == 1, (skip, digests)
        counts = embeddings.statistics.take().counts
        assert counts[:, 0].sum() > 0


def own_samples(peers: Peers, out: Path) -> None:
    """With their own loaders, rows get the mean of the ranks' gradients; the shortest loader ends all."""
    batches = make_batches(21 * peers.size)
    embeddings = sharded(process_group=peers)
    train(embeddings, batches[peers.rank :: peers.size][: 20 + (peers.rank == 0)], own=True)
    one = alone()
    for number in range(20):
        for planned in one.look_ahead([joined(batches[number * peers.size : (number + 1) * peers.size])], depth=0):
            loss_of(one(planned), planned.num_samples).backward()
            one.step()
    assert largest_difference(weights_of(one), weights_of(embeddings)) <= 1e-6
    for stop in (3, 1):  # all leave after the same batch, however far each has read
        train(embeddings, batches[peers.rank :: peers.size], own=True, steps=stop)
    state = embeddings.state_dict()
    again = sharded(process_group=peers)
    again.load_state_dict(state)
    assert digest(weights_of(again)) == digest(weights_of(embeddings))
    state["_extra_state"] = torch.tensor([peers.rank, peers.size + 1])
    with pytest.raises(CheckpointError, match="expected the rows of rank"):
        again.load_state_dict(state)


def joined(batches: list[Batch]) -> Batch:
    from adaptive.batch import concatenate

    return concatenate(batches)


def keys(peers: Peers, out: Path) -> None:
    """Owners admit keys and let them expire; a key has the values that one process gives it."""
    batches = make_batches(40, KEYED)
    embeddings = sharded(KEYED, process_group=peers)
    train(embeddings, batches)
    one = alone(KEYED)
    train(one, batches)
    found, expected = embeddings.rows.table_keys("k"), one.rows.table_keys("k")
    assert len(found) > 100
    both = np.intersect1d(found, expected)
    assert len(both) > 0.9 * len(expected), (len(found), len(expected))  # a rank counts a key once in a batch
    digests = set()
    for rows in ("60%", "90%"):
        embeddings = sharded(KEYED, TierConfig(device_rows=rows, poison=True), process_group=peers)
        train(embeddings, batches, depth=2)
        digests.add(digest(weights_of(embeddings, KEYED)))
    assert len(digests) == 1


def save(peers: Peers, out: Path, number: str = "12") -> None:
    """Train and write this rank's shard."""
    for name, tables, skip in (("plain", TABLES, None), ("defer", TABLES, DEFER), ("keys", KEYED, None)):
        embeddings = sharded(tables, skip=skip, process_group=peers)
        batches = make_batches(2 * int(number), tables)
        train(embeddings, batches[: int(number)])
        np.savez(out / f"{name}-{peers.rank}.npz", **embeddings.rows.state_arrays())
        weights = weights_of(embeddings, tables)
        train(embeddings, batches[int(number) :])
        after = weights_of(embeddings, tables)
        if peers.is_first:
            np.savez(out / f"{name}-weights.npz", **weights)
            np.savez(out / f"{name}-after.npz", **after)


def load(peers: Peers, out: Path, shards: str, number: str = "12") -> None:
    """Load the shards of any number of ranks; the same number goes on with the same bits."""
    for name, tables, skip in (("plain", TABLES, None), ("defer", TABLES, DEFER), ("keys", KEYED, None)):
        embeddings = sharded(tables, skip=skip, process_group=peers)
        embeddings.rows.load_shards([dict(np.load(out / f"{name}-{rank}.npz")) for rank in range(int(shards))])
        weights, expected = weights_of(embeddings, tables), dict(np.load(out / f"{name}-weights.npz"))
        for table in expected:
            assert np.array_equal(weights[table], expected[table]), (name, table)
        train(embeddings, make_batches(2 * int(number), tables)[int(number) :])
        after, expected = weights_of(embeddings, tables), dict(np.load(out / f"{name}-after.npz"))
        if int(shards) == peers.size:
            assert digest(after) == digest(expected), name
        elif name == "plain":
            assert largest_difference(after, expected) <= 1e-6


def fail(peers: Peers, out: Path, how: str) -> None:
    """One rank gets into trouble; every rank writes the class and text of its error."""
    batches, bad = make_batches(12), peers.size - 1
    embeddings = sharded(process_group=peers)
    own = batches[peers.rank :: peers.size]
    if how == "id" and peers.rank == bad:
        own[2].ids[0] = 10**6
    try:
        if how == "settings":
            peers.require_equal({"settings": {"lr": peers.rank // bad}})
        with embeddings.reporting_errors():
            for number, planned in enumerate(embeddings.look_ahead(own, depth=2)):
                if number == 2 and peers.rank == bad:
                    if how == "raise":
                        raise InputError("trouble")
                    if how == "leave":
                        break
                    if how == "kill":
                        os._exit(9)
                loss_of(embeddings(planned), planned.num_samples).backward()
                embeddings.step()
        peers.rows.gather_facts("the end")
        found = "no error"
    except (ConfigError, InputError, RanksError) as error:
        found = f"{type(error).__name__}: {error}"
    (out / f"{peers.rank}.txt").write_text(found)


def rules(peers: Peers, out: Path) -> None:
    """A rule that reads inputs only drops the same samples on all ranks as in one process."""
    batches = make_batches(30)
    embeddings, one = sharded(skip=DropByRow(), process_group=peers), alone(skip=DropByRow())
    train(embeddings, batches)
    train(one, batches)
    assert largest_difference(weights_of(one), weights_of(embeddings)) <= 1e-6
    assert embeddings.rule is not None
    assert embeddings.rule.dropped_inputs == one.policy.rule.dropped_inputs > 0
    assert embeddings.statistics.take().policy["rule.dropped_inputs"] > 0
    with pytest.raises(ConfigError, match="needs the samples of all ranks"):
        embeddings.look_ahead(batches)
    for policy in ("fae", "hotline"):
        with pytest.raises(ConfigError, match="leaves batches unchanged"):
            sharded(policy=policy, process_group=peers)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones((), requires_grad=True) * 2)  # makes its scale
    for refused in (
        lambda: embeddings.step(grad_scale=2.0),
        lambda: embeddings.optimizer.clip_grad_norm_(1.0),
        lambda: scaler.unscale_(embeddings.optimizer),
        lambda: scaler.step(embeddings.optimizer),
    ):
        with pytest.raises(ConfigError, match="neither a gradient scaler, nor grad_scale or clip_grad_norm_"):
            refused()


def out_of_step(peers: Peers, out: Path) -> None:
    """Ranks that make different calls notice it."""
    with pytest.raises(RanksError, match="out of step"):
        peers.rows.gather(np.zeros(1), "one call" if peers.is_first else "another call")


def large(peers: Peers, out: Path) -> None:
    """Messages that are larger than one may be are sent in several."""
    from adaptive.distributed import peers as module

    module.MOST = 256
    embeddings = sharded(process_group=peers)
    train(embeddings, make_batches(8))
    module.MOST = 64 << 20
    again = sharded(process_group=peers)
    train(again, make_batches(8))
    assert digest(weights_of(again)) == digest(weights_of(embeddings))


def on_device(peers: Peers, out: Path, device: str) -> None:
    """Train on a device; write the tables."""
    tier = TierConfig(device_rows="60%", device=device)  # type: ignore[arg-type]
    embeddings = sharded(tier=tier, process_group=peers)
    for planned in embeddings.look_ahead(make_batches(20), depth=2, divide=True):
        vectors = {name: vector.cpu() for name, vector in embeddings(planned).items()}
        loss_of(vectors, planned.num_samples_of_all).backward()
        embeddings.step()
    weights = weights_of(embeddings)
    if peers.is_first:
        np.savez(out / "weights.npz", **weights)


def main(job: str, out: str, *arguments: Any) -> None:
    torch.set_num_threads(1)
    peers = Peers(timeout_s=60, backend=os.environ.get("ADAPTIVE_TEST_BACKEND", "gloo"))
    try:
        for name in job.split("+"):
            globals()[name](peers, Path(out), *arguments)
            if name != "fail":
                assert len({json.dumps(facts) for facts in peers.rows.gather_facts(name)}) == 1
    finally:
        peers.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
