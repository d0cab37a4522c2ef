"""The rows' optimizer: a rate belongs to the step that uses it, and rows decay as in the slow twin and torch's AdamW,
wherever rows lie and whenever they were planned."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import reference
import torch
from support.helpers import LFU, assert_equal_rows, featured, random_batches, step_all, sum_of
from support.skip_rules import Waits
from test_trainer_waits import Scalars
from torch import nn

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.rows_optimizer import RowsOptimizer
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.lru import LRU

TABLES = (
    TableConfig(name="user", num_embeddings=60, embedding_dim=8),
    TableConfig(name="kind", num_embeddings=20, embedding_dim=4, pooling="mean", lr_scale=0.5),
)
BATCHES = random_batches(TABLES, 12, samples=4)
RATES = [0.5 / (1 + number) for number in range(12)]
OPTIMIZERS = [SGD(), Adagrad(), RowwiseAdagrad(), Adam()]
DECAYING = [
    SGD(0.3, weight_decay=0.2),
    Adagrad(0.2, weight_decay=0.3),
    RowwiseAdagrad(0.2, weight_decay=0.1),
    Adam(0.1, weight_decay=0.5),
]
DEFER = SkipConfig(rule="defer", interval=2, min_accesses=1)
every_skip = pytest.mark.parametrize("skip", [None, DEFER], ids=["plain", "deferred"])
every_decaying = pytest.mark.parametrize("optimizer", DECAYING, ids=lambda optimizer: type(optimizer).__name__)


class OnHost(LRU):
    misses = "host"


def made(  # type: ignore[no-untyped-def]
    optimizer: RowOptimizer,
    device_rows: str = "100%",
    tables: Sequence[TableConfig] = TABLES,
    policy: Any = LFU,
    **options: Any,
):
    tier = TierConfig.model_validate({"device_rows": device_rows, "poison": True, **options.pop("tier", {})})
    return TieredEmbeddingBag(tables, tier, policy=policy, optimizer=optimizer, **options)


def train(embeddings: TieredEmbeddingBag, first: int = 0, last: int = 12, depth: int = 0) -> TieredEmbeddingBag:
    for planned in embeddings.look_ahead(BATCHES[first:last], depth=depth):
        embeddings.optimizer.lr = RATES[planned.number]
        (sum_of(embeddings(planned)) ** 2).backward()
        embeddings.step()
    return embeddings


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_each_batch_is_updated_with_the_rate_of_its_step(optimizer: RowOptimizer) -> None:
    anew = made(optimizer.at(RATES[0]))
    for number, batch in enumerate(BATCHES):
        arrays = anew.rows.state_arrays()
        anew = made(optimizer.at(RATES[number]))
        anew.rows.load_state_arrays(arrays)
        for planned in anew.look_ahead([batch]):
            (sum_of(anew(planned)) ** 2).backward()
            anew.step()
    whole = train(made(optimizer))
    for table in TABLES:
        assert np.array_equal(whole.rows.table_weights(table.name), anew.rows.table_weights(table.name))


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *DECAYING], ids=str)
@every_skip
def test_placement_depth_and_device_change_nothing(optimizer: RowOptimizer, skip: SkipConfig | None) -> None:
    single = train(made(optimizer, skip=skip))
    assert_equal_rows(train(made(optimizer, "80%", skip=skip), depth=2), single)
    assert_equal_rows(train(made(optimizer, "90%", skip=skip, tier={"device": "cpu-torch"}), depth=3), single)
    assert_equal_rows(train(made(optimizer, "20%", policy=OnHost, skip=skip), depth=1), single)
    assert_equal_rows(train(made(optimizer, "20%", policy=OnHost, skip=skip, tier={"device": "cpu-torch"})), single)


@pytest.mark.parametrize("optimizer", [Adam(), DECAYING[3]], ids=str)
@every_skip
def test_a_schedule_goes_on_where_it_was_saved(optimizer: RowOptimizer, skip: SkipConfig | None) -> None:
    """Deferred updates are applied with the rate of the latest step, before and after."""
    whole = made(optimizer, skip=skip)
    train(whole, 0, 7)
    file = io.BytesIO()
    torch.save({"tables": whole.state_dict(), "rate": whole.optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = made(optimizer, "80%", skip=skip)
    other.load_state_dict(saved["tables"])
    other.optimizer.load_state_dict(saved["rate"])
    assert other.optimizer.lr == RATES[6]
    assert_equal_rows(other, whole)
    train(whole, 7)
    assert_equal_rows(train(other, 7, depth=2), whole)


def test_torchs_schedulers_drive_it_and_find_nothing_to_warn_of() -> None:
    scheduled, by_hand = made(Adagrad(lr=0.4)), made(Adagrad(lr=0.4))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(scheduled.optimizer, gamma=0.5)
    for planned in scheduled.look_ahead(BATCHES[:4], depth=2):
        scheduled.optimizer.zero_grad()
        sum_of(scheduled(planned)).backward()
        scheduled.step() if planned.number % 2 else scheduled.optimizer.step()
        scheduler.step()
    for planned in by_hand.look_ahead(BATCHES[:4]):
        by_hand.optimizer.lr = 0.4 * 0.5**planned.number
        sum_of(by_hand(planned)).backward()
        by_hand.step()
    assert_equal_rows(scheduled, by_hand)
    assert isinstance(scheduled.optimizer, RowsOptimizer) and scheduled.optimizer.lr == 0.025


def test_another_optimizer_is_not_taken_in_silence() -> None:
    embeddings = made(SGD())
    with pytest.raises(
        ConfigError, match=r"optimizer: expected the one of the constructor, got Adam\. .*optimizer\.lr"
    ):
        embeddings.optimizer = Adam()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="expected a finite number of at least 0, got nan"):
        embeddings.optimizer.lr = float("nan")
    with pytest.raises(ConfigError, match="expected no closure, got one"):
        embeddings.optimizer.step(lambda: 1.0)


# --- a rate for each table ---------------------------------------------------------------------------------------


def test_a_table_may_have_its_own_rate() -> None:
    """As if each were trained alone with that; a table of rate 0 stays as it is."""
    scales = {"a": 1.0, "b": 0.25, "c": 0.0}
    tables = [
        TableConfig(name=name, num_embeddings=30, embedding_dim=4, lr_scale=scale) for name, scale in scales.items()
    ]
    batch = featured([[1, 2], [3]], [[4], [5, 4]], [[7], [7]])
    together = made(Adagrad(lr=0.4), tables=tables)
    initial = together.rows.table_weights("c")
    step_all(together, [batch] * 3)
    for feature, table in enumerate(tables):
        bags = [[[1, 2], [3]], [[4], [5, 4]], [[7], [7]]][feature]
        alone = made(Adagrad(lr=0.4 * table.lr_scale), tables=[table.model_copy(update={"lr_scale": 1.0})])
        step_all(alone, [featured(bags)] * 3)
        assert np.array_equal(together.rows.table_weights(table.name), alone.rows.table_weights(table.name))
    assert np.array_equal(together.rows.table_weights("c"), initial)


# --- scaled and clipped gradients --------------------------------------------------------------------------------


def test_a_scaled_gradient_that_overflows_updates_nothing() -> None:
    embeddings = made(SGD())
    before = embeddings.rows.table_weights("user")
    for planned in embeddings.look_ahead(BATCHES[:2]):
        (sum_of(embeddings(planned)) * float("inf")).backward()
        embeddings.step(grad_scale=1024.0)
    assert np.array_equal(embeddings.rows.table_weights("user"), before)


def test_clipping_is_that_of_torch_over_rows_and_dense_weights() -> None:
    """No row twice in the batch: then the gradients of vectors are those of rows."""
    embeddings, head = made(SGD(lr=0.1), tables=TABLES[:1]), nn.Linear(8, 1)
    initial = embeddings.rows.table_weights("user")
    table = nn.EmbeddingBag.from_pretrained(torch.from_numpy(initial.copy()), freeze=False, mode="sum")
    (head(table(torch.tensor([[3], [5]]))) * 100).sum().backward()
    expected = torch.nn.utils.clip_grad_norm_([table.weight, *head.parameters()], 0.5)
    clipped = [parameter.grad.clone() for parameter in head.parameters() if parameter.grad is not None]
    for scale in (1.0, 64.0):
        embeddings = made(SGD(lr=0.1), tables=TABLES[:1])
        for planned in embeddings.look_ahead([featured([[3], [5]])]):
            head.zero_grad()
            (head(embeddings(planned)["user"]) * 100).sum().backward()
            for parameter in head.parameters():  # `scaler.unscale_(dense)` has been called
                assert parameter.grad is not None
            for work in planned.works:
                work.scale_gradients(scale)
            norm = embeddings.optimizer.clip_grad_norm_(0.5, head.parameters(), grad_scale=scale)
            embeddings.step()
        torch.testing.assert_close(norm, expected)
        for parameter, gradient in zip(head.parameters(), clipped, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        assert table.weight.grad is not None
        torch.testing.assert_close(
            torch.from_numpy(embeddings.rows.table_weights("user")), torch.from_numpy(initial) - 0.1 * table.weight.grad
        )


def test_nothing_to_clip_is_told() -> None:
    embeddings = made(SGD())
    with pytest.raises(ValueError, match=r"clip_grad_norm_\(\): expected gradients .*, got none. Call loss.backward"):
        embeddings.optimizer.clip_grad_norm_(1.0)


def scaled_training(
    scale: float, *, clip: bool, broken: int = -1, first_growth: int = 10**6, device: str = "cpu"
) -> Any:
    """Rows and dense part trained by one scaler, as parameters of one model would be; `broken`: a batch whose loss is
    infinite. Returns (embeddings, head, scaler)."""
    torch.manual_seed(0)
    embeddings, head = made(Adagrad(lr=0.2, weight_decay=0.1), "90%", tier={"device": device}), nn.Linear(8, 1)
    dense = torch.optim.SGD(head.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=first_growth)
    for planned in embeddings.look_ahead(BATCHES[:6], depth=2):
        loss = head(embeddings(planned)["user"]).square().mean() + embeddings(planned)["kind"].square().mean()
        if planned.number == broken:
            loss = loss * torch.inf
        dense.zero_grad()
        embeddings.optimizer.zero_grad()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(dense)
            scaler.unscale_(embeddings.optimizer)
            embeddings.optimizer.clip_grad_norm_(0.3, head.parameters())
        scaler.step(dense)
        scaler.step(embeddings.optimizer)
        scaler.update()
    return embeddings, head, scaler


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cpu-torch"])
def test_a_grad_scaler_steps_rows_as_it_steps_parameters(clip: bool, device: str) -> None:
    """Powers of two leave no trace; a scaler that is switched off steps plainly."""
    plain, head, _ = scaled_training(1.0, clip=clip)
    for scale in (256.0, 2.0**-3):
        scaled, other, _ = scaled_training(scale, clip=clip, device=device)
        assert_equal_rows(scaled, plain)
        assert torch.equal(head.weight, other.weight)


@pytest.mark.parametrize("clip", [False, True])
def test_a_grad_scaler_that_finds_infinity_takes_no_step_of_rows(clip: bool) -> None:
    found, head, scaler = scaled_training(256.0, clip=clip, broken=3)
    flagged, other, _ = scaled_training(256.0, clip=clip, broken=3, device="cpu-torch")
    assert_equal_rows(flagged, found)
    assert torch.equal(other.weight, head.weight)
    assert scaler.get_scale() == 128.0
    assert torch.isfinite(head.weight).all()
    for table in TABLES:
        assert np.isfinite(found.rows.table_weights(table.name)).all()
    before, after = scaled_training_until(3), scaled_training_until(4, broken=3)
    for table in TABLES:
        assert np.array_equal(before.rows.table_weights(table.name), after.rows.table_weights(table.name))


def test_a_scaler_and_rows_on_a_device_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when a gradient is not finite: kernels read what the scaler has found. `update()` is torch's."""
    monkeypatch.setattr(torch.amp.GradScaler, "update", lambda self: self._per_optimizer_states.clear())
    with Scalars() as scalars:
        scaled_training(256.0, clip=False, broken=3, device="cpu-torch")
    assert scalars.count == 0


def scaled_training_until(count: int, broken: int = -1) -> TieredEmbeddingBag:
    embeddings, scaler = made(Adagrad(lr=0.2)), torch.amp.GradScaler("cpu", init_scale=64.0)
    for planned in embeddings.look_ahead(BATCHES[:count]):
        loss = sum_of(embeddings(planned)) ** 2
        scaler.scale(loss * torch.inf if planned.number == broken else loss).backward()
        scaler.step(embeddings.optimizer)
        scaler.update()
    return embeddings


def test_unused_gradients_are_an_error_also_after_a_scaler_looked() -> None:
    embeddings, scaler = made(SGD()), torch.amp.GradScaler("cpu", init_scale=4.0)

    def forget_to_step() -> None:
        for planned in embeddings.look_ahead(BATCHES[:2]):
            scaler.scale(sum_of(embeddings(planned))).backward()
            scaler.unscale_(embeddings.optimizer)

    with pytest.raises(ConfigError, match=r"batch 0: expected step\(\) or discard\(\)"):
        forget_to_step()


# --- weight decay ------------------------------------------------------------------------------------------------


@every_decaying
def test_rows_that_are_looked_up_decay_as_the_twins_do(optimizer: RowOptimizer) -> None:
    """A gradient of 1 for each lookup, row by row in plain numpy; rows without lookups stay as they are."""
    table = TableConfig(name="t", num_embeddings=9, embedding_dim=3)
    ids = [[1, 2, 2], [2, 5], [1], [5, 5, 2]]
    with TieredEmbeddingBag([table], TierConfig(device_rows="5"), policy=LRU, optimizer=optimizer) as embeddings:
        for planned in embeddings.look_ahead(Batch.of(t=[batch], labels=[0]) for batch in ids):
            embeddings(planned)["t"].sum().backward()
            embeddings.step()
        found = embeddings.rows.table_weights("t")
    weights = reference.initial_table(table, 0)
    untouched = weights.copy()
    states = reference.initial_states(table, optimizer)
    for batch in ids:
        for row in sorted(set(batch)):
            gradient = reference.summed_gradient(np.ones((batch.count(row), 3), np.float32))
            reference.update_row(optimizer, weights[row], states[row], gradient)
    assert np.array_equal(found, weights)
    assert np.array_equal(found[[0, 3, 4, 6, 7, 8]], untouched[[0, 3, 4, 6, 7, 8]])


def test_where_every_row_is_looked_up_it_is_torchs_adamw() -> None:
    table = TableConfig(name="t", num_embeddings=6, embedding_dim=4)
    optimizer = Adam(0.05, weight_decay=0.4)
    target = torch.linspace(-1, 1, 24).reshape(6, 4)
    with TieredEmbeddingBag([table], TierConfig(device_rows="100%"), policy=LRU, optimizer=optimizer) as embeddings:
        weights = torch.nn.Parameter(torch.from_numpy(embeddings.rows.table_weights("t")))
        plain = torch.optim.AdamW([weights], lr=0.05, weight_decay=0.4)
        for planned in embeddings.look_ahead([Batch.of(t=list(range(6)), labels=[0] * 6)] * 8):
            (embeddings(planned)["t"] - target).square().sum().backward()
            embeddings.step()
            plain.zero_grad()
            (weights - target).square().sum().backward()
            plain.step()
        assert np.allclose(
            embeddings.rows.table_weights("t"), weights.detach().numpy(), atol=1e-5
        )  # eps is added at another place


@every_decaying
def test_a_deferred_sum_decays_its_row_once(optimizer: RowOptimizer) -> None:
    """Two visits wait and are applied together: one decay, then the step of their sum. Reading sees the same."""
    policy = LRU()
    policy.rule = Waits(most=3)
    skip = SkipConfig(hot_rows="100%", min_accesses=1, interval=1)
    table = TableConfig(name="t", num_embeddings=4, embedding_dim=2)
    options: dict[str, Any] = {"policy": policy, "optimizer": optimizer, "skip": skip}
    with TieredEmbeddingBag([table], TierConfig(device_rows="100%"), **options) as embeddings:
        weights, state = reference.initial_table(table, 0)[1], reference.initial_state(optimizer, 2)
        earlier, ones, seen = None, np.ones(2, np.float32), []
        for planned in embeddings.look_ahead([Batch.of(t=[1], labels=[0])] * 9):
            embeddings(planned)["t"].sum().backward()
            embeddings.step()
            seen.append(embeddings.rows.table_weights("t")[1])
        position = 0
        for k in (1, 2, 2, 2, 2):  # visits of each sum
            for _ in range(k):
                earlier = reference.put_off(optimizer, ones, earlier)
                copy, copied = weights.copy(), state.copy()
                reference.update_row(optimizer, copy, copied, earlier.gradient, earlier.squares)
                assert np.array_equal(seen[position], copy), position
                position += 1
            weights, state, earlier = copy, copied, None
        assert position == 9
