"""A simulation counts what training counts, with Belady's bound."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import POLICIES, policy_id
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_twins import belady_hits as belady_twin
from support.toy import SIZES, ToyData, toy_config
from support.variants import both

import adaptive.studies.simulation
from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.counters import Counter
from adaptive.data.dataset import Dataset, by_table
from adaptive.embeddings.planning.access_log import Trace
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, DeviceMemoryError, InputError
from adaptive.kernels.planning import traces
from adaptive.optim import row_optimizer
from adaptive.plugins import make_policy
from adaptive.policy import Policy
from adaptive.studies.simulation import PolicyForecast, simulate, simulation_document
from adaptive.training.components import build_tables, prepare

WIDTH, DEPTH, BATCH = 4, 2, 32


class Ragged(ToyData):
    """Bags of 0 to 3 lookups; the features `site` and `hour` share a table."""

    tables = ("site", "user", "site")

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        rng = np.random.default_rng(epoch)
        for batch in super().train(batch_size, epoch=epoch):
            sizes = rng.integers(0, 4, len(batch.offsets) - 1)
            bags = np.repeat(np.arange(len(sizes)), sizes)
            limits = np.repeat(list(SIZES.values()), batch.num_samples)[bags]
            ids = (rng.power(0.3, len(bags)) * limits).astype(np.int64)
            offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            yield Batch(batch.dense, ids, offsets, batch.labels)


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    result = by_table(Ragged())
    monkeypatch.setattr(adaptive.studies.simulation, "open_data", lambda config: result)
    return result


def spec(cls: type[Policy]) -> str:
    return f"{cls.__module__}:{cls.__name__}"


def trained_counts(dataset: Dataset, config: TrainConfig, device_rows: str) -> Any:
    """Return the counts of training per table, and its device rows."""
    tier = config.tier.model_copy(update={"device_rows": device_rows})
    policy = make_policy(config.policy, config.policy_options)
    optimizer, tables = row_optimizer(config.optimizer), build_tables(dataset, WIDTH)
    with TieredEmbeddingBag(tables, tier, policy=policy, optimizer=optimizer, skip=config.skip) as embeddings:
        embeddings.calibrate(prepare([policy], config, dataset))
        for epoch in range(config.epochs):
            for planned in embeddings.look_ahead(dataset.train(config.batch_size, epoch=epoch), depth=config.depth):
                embeddings.stack(planned).sum().backward()  # type: ignore[no-untyped-call]
                embeddings.step()
        return embeddings.statistics.take().counts.sum(0), embeddings.runtime.view.device_rows


# --- the same counts as training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", POLICIES, ids=policy_id)
@pytest.mark.parametrize("depth", [0, DEPTH])
def test_counts_are_those_of_training(dataset: Dataset, case: tuple[type[Policy], dict[str, Any]], depth: int) -> None:
    cls, options = case
    size = cls.device_rows or "75%"
    tier = {"device": "cpu", "when_full": "reduce_lookahead", "eviction_share": 0.05}
    config = toy_config(
        policy=spec(cls), policy_options=options, depth=depth, tier=tier, epochs=2, batch_size=16, skip=None
    )
    counts, slots = trained_counts(dataset, config, size)
    (run,) = simulate([("p", config)], [size], embedding_dim=WIDTH).runs
    assert run.device_rows == slots
    assert counts[Counter.LOOKUPS] > 0
    result = {
        "hit_rate": counts[Counter.LOOKUP_HITS] / counts[Counter.LOOKUPS],
        "row_hit_rate": counts[Counter.ROW_HITS] / counts[Counter.UNIQUE_ROWS],
        "fetched_rows": counts[Counter.FETCHED],
        "written_back_rows": counts[Counter.WRITTEN_BACK],
        "bytes_h2d": counts[Counter.BYTES_H2D],
        "bytes_d2h": counts[Counter.BYTES_D2H],
    }
    assert {name: getattr(run, name) for name in result} == result
    assert run.belady_row_hit_rate is None or run.belady_row_hit_rate >= run.row_hit_rate


def test_shares_that_depend_on_sizes_are_unknown(dataset: Dataset) -> None:
    names = {
        "lfu+skip=defer": {"policy": "lfu", "skip": {"rule": "defer"}},
        "lru+skip=defer": {"policy": "lru", "skip": {"rule": "defer"}},
        "lru": {"policy": "lru"},
        "off": {"policy": "slipstream", "skip": {"rule": "off"}},
    }
    cases = [(name, toy_config(**options)) for name, options in names.items()]
    result = simulate(cases, ["80%"], embedding_dim=WIDTH)
    shares = {run.policy: run.skips_unknown for run in result.runs}
    assert shares == {
        "lfu+skip=defer": True,
        "lru+skip=defer": True,
        "lru": False,
        "off": False,
    }
    text = simulation_document(result).to_text()
    assert (
        "lfu+skip=defer, lru+skip=defer: updates are skipped or deferred by their size, which ids do not show" in text
    )
    json.dumps(asdict(result), allow_nan=False)


def timeless(run: PolicyForecast) -> PolicyForecast:
    """Return the numbers that depend on no measured time."""
    return replace(run, lookups_per_s=0)


def test_policies_and_sizes_together_equal_each_alone(dataset: Dataset) -> None:
    labels = ["lru", "lfu", "scratchpipe", "hybrid", "contract:Regrouping"]
    cases = [(label, toy_config(policy=label, depth=1)) for label in labels]
    runs = simulate(cases, ["60%", "90%"], embedding_dim=WIDTH).runs
    alone = [
        run for case in cases for size in ["60%", "90%"] for run in simulate([case], [size], embedding_dim=WIDTH).runs
    ]
    for run in runs:
        assert timeless(run) in [timeless(other) for other in alone]
    assert [(run.policy, run.size) for run in runs if run.policy == "hybrid"] == [("hybrid", "0")]


def test_totals_and_steps(dataset: Dataset) -> None:
    config = toy_config(policy="lru", steps=3)
    result = simulate([("lru", config)], ["100%"], embedding_dim=WIDTH)
    batches = list(itertools.islice(dataset.train(BATCH), 3))
    assert result.batches == 3
    assert result.lookups == sum(len(batch.ids) for batch in batches)
    assert (result.rows, result.row_bytes) == (40 + 300, 4 * WIDTH + 4)
    assert result.lookups_per_s > 0
    json.dumps(asdict(result), allow_nan=False)
    half = toy_config(policy="lru", steps=3, model_options={"row_dtype": "bfloat16"})
    assert simulate([("lru", half)], ["100%"], embedding_dim=WIDTH).row_bytes == 2 * WIDTH + 4


def test_popular_inputs_have_rows_seen_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyData(num_train=64)
    monkeypatch.setattr(adaptive.studies.simulation, "open_data", lambda config: toy)
    (run,) = simulate([("d", toy_config(policy="device", depth=0))], ["100%"], embedding_dim=WIDTH).runs
    first, second = (batch.ids.reshape(3, -1) for batch in toy.train(BATCH))
    seen = [all(second[f, b] in first[f] for f in range(3)) for b in range(BATCH)]
    assert run.popular_input_share == sum(seen) / 64 > 0


# --- what does not work --------------------------------------------------------------------------------------------


def test_a_size_that_does_not_fit_leaves_the_others(dataset: Dataset) -> None:
    config = toy_config(policy="lru")
    result = simulate([("lru", config)], ["5", "100%"], embedding_dim=WIDTH)
    (small,), (whole,) = result.failed, result.runs
    assert "device rows of width 4 for the" in small.error and small.size == "5"
    assert whole.hit_rate is not None and whole.hit_rate > 0.5
    assert "lru with 5 device rows: batch 0:" in simulation_document(result).to_text()


def test_no_size_that_fits_is_an_error(dataset: Dataset) -> None:
    with pytest.raises(DeviceMemoryError, match="batch 0"):
        simulate([("lru", toy_config(policy="lru"))], ["5", "6"], embedding_dim=WIDTH)
    with pytest.raises(DeviceMemoryError, match=r"^batch \d.* got 6"):
        simulate([("lru", toy_config(policy="lru"))], ["6", "5"], embedding_dim=WIDTH)
    with pytest.raises(DeviceMemoryError, match=r"^batch 0: .* got 5 "):
        simulate([("lru", toy_config(policy="lru"))], ["5"], embedding_dim=WIDTH)


@pytest.mark.nightly
def test_a_failing_policy_ends_only_its_own_run(dataset: Dataset, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from adaptive import InputPolicy\nfrom adaptive.policies.lru import LRU\n"
        "class Scores(LRU):\n    def score(self, rows):\n        raise RuntimeError('no idea')\n"
        "class Arranges(InputPolicy, LRU):\n"
        "    def arrange(self, batches, view):\n        yield next(batches)\n        1 / 0\n"
    )
    names = ("Scores", "Arranges")
    cases = [(name, toy_config(policy=f"{bad}:{name}", depth=0)) for name in names]
    result = simulate([*cases, ("lru", toy_config(policy="lru", depth=0))], ["50%"], embedding_dim=WIDTH)
    errors = {run.policy: run.error for run in result.failed}
    assert "Scores.score at batch" in errors["Scores"] and "no idea" in errors["Scores"]
    assert "Arranges.arrange raised ZeroDivisionError" in errors["Arranges"]
    assert [run.policy for run in result.runs] == ["lru"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (["10"], None),
        (["abc"], "expected a size in rows"),
        (["101%"], "a size of at most 100%"),
        ([], "expected policies and device sizes, got 1 and 0"),
    ],
)
def test_invalid_sizes_are_named(dataset: Dataset, sizes: list[str], message: str | None) -> None:
    with pytest.raises(ConfigError if message else DeviceMemoryError, match=message):
        simulate([("lru", toy_config(policy="lru"))], sizes, embedding_dim=WIDTH)


def test_empty_data_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive.studies.simulation, "open_data", lambda config: ToyData(num_train=0))
    with pytest.raises(InputError, match="expected training samples, got none"):
        simulate([("lru", toy_config(policy="lru"))], ["50%"])


# --- Belady --------------------------------------------------------------------------------------------------------

BATCHES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=12)


def best_hits(batches: Sequence[Sequence[int]], num_slots: int, *, bypass: bool, choose: Any = None) -> int | None:
    """Return the fast bound; with `choose`, from kernels run as plain Python."""
    if choose is None:
        trace = Trace(10)
        for batch in batches:
            trace.add(np.array(list(dict.fromkeys(batch))))
        rate = trace.best_hit_rate(num_slots, bypass=bypass)
        return None if rate is None else round(rate * trace.num_uses)
    link, count = choose(traces.link_uses), choose(traces.belady_hits)
    latest, following = np.zeros(10, np.int64), np.empty(200, np.int32)
    ends: list[int] = []
    for number, batch in enumerate(batches):
        rows = np.array(list(dict.fromkeys(batch)))
        link(rows, number, ends[-1] if ends else 0, latest, following)
        ends.append((ends[-1] if ends else 0) + len(rows))
    hits, waiting = np.zeros(len(ends), np.int64), np.zeros(len(ends) + 1, np.int64)
    unfit = count(np.array(ends), following, num_slots, bypass, waiting, hits)
    return int(hits.sum()) if unfit < 0 else None


def most_hits(batches: Sequence[Sequence[int]], num_slots: int, *, bypass: bool) -> int:
    """Try all ways to fill the slots."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for batch in batches:
        after: dict[frozenset[int], int] = {}
        for resident, hits in best.items():
            here, now = hits + len(resident & set(batch)), resident | set(batch)
            must = frozenset() if bypass else frozenset(batch)
            for size in range(min(len(now), num_slots) + 1):
                for resident in map(frozenset, itertools.combinations(now, size)):
                    if must <= resident:
                        after[resident] = max(after.get(resident, 0), here)
        best = after
    return max(best.values())


@both
def test_belady_equals_a_case_worked_by_hand(choose: Any) -> None:
    """Two slots: 3 comes, 1 is needed before 2, so 2 goes; if 3 need not come in, both stay."""
    assert best_hits([[1], [2], [3], [1], [2]], 2, bypass=False, choose=choose) == 1
    assert best_hits([[1], [2], [3], [1], [2]], 2, bypass=True, choose=choose) == 2
    assert best_hits([[1, 2], [3, 4], [1, 2]], 2, bypass=False, choose=choose) == 0
    assert best_hits([[1, 2], [3, 4], [1, 2]], 2, bypass=True, choose=choose) == 2
    assert best_hits([[1, 2], [1, 2]], 1, bypass=False, choose=choose) is None
    assert best_hits([[1, 2], [1, 2]], 1, bypass=True, choose=choose) == 1
    assert best_hits([[1], [1]], 0, bypass=True, choose=choose) == 0


def held_twin(batches: Sequence[Sequence[int]], depth: int) -> int:
    return max(len(set().union(*batches[max(0, k - depth) : k + 1])) for k in range(len(batches)))


@settings(deadline=None)
@given(BATCHES, st.integers(0, 5))
def test_rows_in_flight_equal_the_twin(batches: list[list[int]], depth: int) -> None:
    trace = Trace(10)
    for batch in batches:
        trace.add(np.array(list(dict.fromkeys(batch))))
    assert trace.most_held(depth) == held_twin(batches, depth)


@pytest.mark.parametrize("depth", [0, 3])
def test_the_smallest_size_works_and_one_row_less_fails(dataset: Dataset, depth: int) -> None:
    cases = [("lru", toy_config(policy="lru", depth=depth))]
    least = simulate(cases, ["100%"], embedding_dim=WIDTH).least_device_rows
    assert simulate(cases, [str(least)], embedding_dim=WIDTH).runs
    with pytest.raises(DeviceMemoryError, match=rf" {least} device rows are enough for all batches.$"):
        simulate(cases, [str(least - 1)], embedding_dim=WIDTH)


def test_errors_advise_a_size(dataset: Dataset) -> None:
    config = toy_config(policy="lru")
    result = simulate([("lru", config)], ["60%", "100%"], embedding_dim=WIDTH)
    assert "least device rows for policies that prefetch misses:" in simulation_document(result).to_text()
    hybrid = simulate([("hybrid", toy_config(policy="hybrid"))], ["60%"], embedding_dim=WIDTH)
    assert hybrid.least_device_rows is None and "least device rows" not in simulation_document(hybrid).to_text()


@settings(deadline=None)
@given(BATCHES, st.integers(6, 10))
def test_the_bound_equals_the_twin(batches: list[list[int]], num_slots: int) -> None:
    assert best_hits(batches, num_slots, bypass=False) == belady_twin(batches, num_slots)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=2), min_size=1, max_size=7),
    st.integers(2, 4),
    st.booleans(),
)
def test_no_policy_beats_the_bound_and_belady_reaches_it(
    batches: list[list[int]], num_slots: int, bypass: bool
) -> None:
    assert best_hits(batches, num_slots, bypass=bypass) == most_hits(batches, num_slots, bypass=bypass)


def test_long_traces_grow_their_buffers() -> None:
    trace = Trace(100)
    for _ in range(200):
        trace.add(np.arange(100))
    assert trace.num_uses == 20_000
    assert trace.best_hit_rate(100, bypass=False) == 199 / 200


@both
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_popular_inputs(choose: Any, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=6, max_size=6))  # 2 features, 3 samples
    inverse = np.array(data.draw(st.lists(st.integers(0, 3), min_size=sum(sizes), max_size=sum(sizes))), np.int32)
    locations = np.array(data.draw(st.lists(st.sampled_from([-1, 0, 5]), min_size=4, max_size=4)), np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    bags = [locations[inverse[first:last]] for first, last in itertools.pairwise(offsets)]
    has_lookups = [bool((np.concatenate([bags[b], bags[b + 3]]) >= 0).all()) for b in range(3)]
    cold = np.ones(3, np.bool_)
    assert choose(traces.popular_inputs)(offsets, inverse, locations, cold) == sum(has_lookups)
    assert cold.tolist() == [not has_any for has_any in has_lookups]


# --- times -----------------------------------------------------------------------------------------------------------
