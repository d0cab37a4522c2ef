"""Optimizers of rows: against torch where torch has the same semantics, and where it has not, how they differ."""

from typing import Any

import numpy as np
import pytest
import reference
import torch
from numpy.typing import NDArray

from adaptive.config import OptimizerConfig
from adaptive.errors import ConfigError
from adaptive.kernels.rows.cpu import steps, update
from adaptive.kernels.vector.bfloat16 import NO_KEYS
from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad, row_optimizer

NUM, DIM = 12, 5
Floats = NDArray[np.float32]


class Rows:
    """NUM rows on the device, updated by the kernels."""

    def __init__(self, optimizer: RowOptimizer) -> None:
        self.optimizer = optimizer
        self.weights = np.random.default_rng(0).normal(size=(NUM, DIM)).astype(np.float32)
        self.state = np.tile(reference.initial_state(optimizer, DIM), (NUM, 1))

    def step(self, rows: Any, gradients: Floats) -> Floats:
        """Each row of `rows` (distinct) gets its gradient (n, DIM)."""
        num, optimizer = len(rows), self.optimizer
        none, norms = np.zeros((0, DIM), np.float32), np.empty(num, np.float32)
        update.update(
            (np.asarray(rows), np.arange(num + 1), np.arange(num, dtype=np.int32), np.zeros(0, np.float32), gradients),
            (self.weights, self.state, none, np.zeros((0, self.state.shape[1]), np.float32)),
            (optimizer.kind, optimizer.settings(), optimizer.corrections()), (NO_KEYS, norms[None]),
            np.empty((2, DIM), np.float32),
        )  # fmt: skip
        return norms


class TorchRows:
    """The same rows as a torch embedding with sparse gradients."""

    def __init__(self, rows: Rows, optimizer: Any, **options: Any) -> None:
        self.weight = torch.nn.Parameter(torch.from_numpy(rows.weights.copy()))
        self.optimizer = optimizer([self.weight], **options)

    def step(self, rows: Any, gradients: Floats) -> None:
        indices = torch.as_tensor(np.asarray(rows))[None]
        with torch.sparse.check_sparse_tensor_invariants(True):  # torch warns if told neither to check nor not to
            self.weight.grad = torch.sparse_coo_tensor(
                indices, torch.from_numpy(gradients), (NUM, DIM), is_coalesced=True
            )
            self.optimizer.step()

    @property
    def weights(self) -> Floats:
        return self.weight.detach().numpy()


def random_steps(num: int = 30, *, all_rows: bool = False) -> list[tuple[NDArray[np.int64], Floats]]:
    rng = np.random.default_rng(1)
    sizes = [NUM if all_rows else int(size) for size in rng.integers(1, NUM, num)]
    return [(np.sort(rng.permutation(NUM)[:size]), rng.normal(size=(size, DIM)).astype(np.float32)) for size in sizes]


@pytest.mark.parametrize(
    ("mine", "theirs", "options"),
    [
        (SGD(0.1), torch.optim.SGD, {"lr": 0.1}),
        (Adagrad(0.05), torch.optim.Adagrad, {"lr": 0.05}),
        (
            Adagrad(0.05, eps=1e-3, initial_accumulator=0.3),
            torch.optim.Adagrad,
            {"lr": 0.05, "eps": 1e-3, "initial_accumulator_value": 0.3},
        ),
    ],
    ids=["sgd", "adagrad", "adagrad-options"],
)
def test_equals_torch_with_sparse_gradients(mine: RowOptimizer, theirs: Any, options: dict[str, Any]) -> None:
    rows = Rows(mine)
    twin = TorchRows(rows, theirs, **options)
    for step in random_steps():
        rows.step(*step)
        twin.step(*step)
    np.testing.assert_allclose(rows.weights, twin.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)])
def test_adam_equals_torchs_if_every_batch_has_every_row(beta1: float, beta2: float) -> None:
    rows = Rows(Adam(0.01, beta1=beta1, beta2=beta2))
    twin = TorchRows(rows, torch.optim.SparseAdam, lr=0.01, betas=(beta1, beta2))
    for step in random_steps(all_rows=True):
        rows.step(*step)
        twin.step(*step)
    np.testing.assert_allclose(rows.weights, twin.weights, rtol=1e-5, atol=1e-5)


def test_adam_counts_a_rows_own_updates_where_torch_counts_all() -> None:
    """Row 1 comes in batch 20 for the first time. Its step is that of a first update, lr * sign(gradient); torch
    corrects its moments for 20 updates, of which it had one, and steps 0.1 * sqrt(0.02) / (0.88 * sqrt(0.001))."""
    rows = Rows(Adam(0.01))
    twin = TorchRows(rows, torch.optim.SparseAdam, lr=0.01)
    start, one = rows.weights.copy(), np.ones((1, DIM), np.float32)
    for _ in range(19):
        rows.step([0], one)
        twin.step([0], one)
    np.testing.assert_allclose(rows.weights, twin.weights, rtol=1e-5, atol=1e-6)
    rows.step([1], one)
    twin.step([1], one)
    np.testing.assert_allclose(start[1] - rows.weights[1], 0.01, rtol=1e-4)
    theirs = 0.01 * np.sqrt(1 - 0.999**20) / (1 - 0.9**20) * 0.1 / np.sqrt(0.001)
    np.testing.assert_allclose(start[1] - twin.weights[1], theirs, rtol=1e-3)


def test_rowwise_adagrad_is_adagrad_on_the_mean_square() -> None:
    """Float64, from the formula: s += mean(g * g); w -= lr / (sqrt(s) + eps) * g."""
    rows = Rows(RowwiseAdagrad(0.05, eps=1e-4, initial_accumulator=0.2))
    weights, state = rows.weights.astype(np.float64), np.full(NUM, 0.2)
    for places, gradients in random_steps():
        rows.step(places, gradients)
        state[places] += (gradients.astype(np.float64) ** 2).mean(axis=1)
        weights[places] -= 0.05 / (np.sqrt(state[places]) + 1e-4)[:, None] * gradients
    np.testing.assert_allclose(rows.weights, weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows.state[:, 0], state, rtol=1e-5)


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad(), RowwiseAdagrad(), Adam()], ids=lambda o: type(o).__name__)
def test_other_rows_stay_and_norms_are_the_sizes_of_steps(optimizer: RowOptimizer) -> None:
    rows = Rows(optimizer)
    before, before_state = rows.weights.copy(), rows.state.copy()
    places, gradients = random_steps(1)[0]
    norms = rows.step(places, gradients)
    others = np.setdiff1d(np.arange(NUM), places)
    np.testing.assert_array_equal(rows.weights[others], before[others])
    np.testing.assert_array_equal(rows.state[others], before_state[others])
    moved = np.linalg.norm((before - rows.weights)[places].astype(np.float64), axis=1)
    np.testing.assert_allclose(norms, moved, rtol=1e-4)


# --- the numbers the kernels get ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer", [SGD(), Adagrad(initial_accumulator=0.5), RowwiseAdagrad(), Adam()], ids=lambda o: type(o).__name__
)
def test_widths_and_first_state_equal_the_twin(optimizer: RowOptimizer) -> None:
    state = reference.initial_state(optimizer, 7)
    assert optimizer.state_width(7) == len(state)
    assert optimizer.squares_width(7) == len(reference.gradient_squares(optimizer, np.ones(7, np.float32)))
    assert (state == optimizer.settings()[steps.FIRST]).all()
    assert optimizer.settings().dtype == np.float32


@pytest.mark.parametrize(
    "optimizer", [Adam(), Adam(0.1, beta1=0.5, beta2=0.9), Adam(beta1=0.0, beta2=0.0), Adam(beta1=0.99, beta2=0.9)],
    ids=str,
)  # fmt: skip
def test_adams_step_sizes_equal_the_twin(optimizer: Adam) -> None:
    sizes = optimizer.corrections()
    assert sizes.dtype == np.float32
    steps = range(1, len(sizes) + 1, max(1, len(sizes) // 3000))
    np.testing.assert_array_equal(
        sizes[[t - 1 for t in steps]], [reference.adam_step_size(optimizer, t) for t in steps]
    )
    later = [reference.adam_step_size(optimizer, len(sizes) + more) for more in (1, 1000, 10**6)]
    np.testing.assert_array_equal(later, sizes[-1])
    assert sizes[-1] == np.float32(optimizer.lr)


def test_adam_counts_beyond_its_step_sizes() -> None:
    rows, twin = Rows(Adam(beta1=0.1, beta2=0.2)), Rows(Adam(beta1=0.1, beta2=0.2))
    assert len(rows.optimizer.corrections()) < 60
    gradient = np.random.default_rng(0).normal(size=(1, DIM)).astype(np.float32)
    for _ in range(60):
        rows.step([3], gradient)
        reference.update_row(twin.optimizer, twin.weights[3], twin.state[3], gradient[0])
    assert rows.state[3, -1] == 60
    np.testing.assert_array_equal(rows.weights, twin.weights)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (OptimizerConfig(name="sgd", lr=0.3), SGD(0.3)),
        (
            OptimizerConfig(name="adagrad", lr=0.3, eps=0.1, initial_accumulator=0.2),
            Adagrad(lr=0.3, eps=0.1, initial_accumulator=0.2),
        ),
        (
            OptimizerConfig(name="rowwise_adagrad", lr=0.3, eps=0.1, initial_accumulator=0.2),
            RowwiseAdagrad(lr=0.3, eps=0.1, initial_accumulator=0.2),
        ),
        (
            OptimizerConfig(name="adam", lr=0.3, eps=0.1, beta1=0.2, beta2=0.4),
            Adam(lr=0.3, eps=0.1, beta1=0.2, beta2=0.4),
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_row_optimizer_takes_every_setting(config: OptimizerConfig, expected: RowOptimizer) -> None:
    assert row_optimizer(config) == expected


# --- FTRL ------------------------------------------------------------------------------------------------------------


def test_a_step_of_ftrl_written_out() -> None:
    """From 0 with gradient 3: n = 9, s = 3 / 2, z = 3. Then w = -(3 - 1) / ((1 + 3) / 2 + 6)."""
    rows = Rows(FTRL(2.0, beta=1.0, l1=1.0, l2=6.0))
    rows.weights[:] = 0
    gradients = np.tile(np.array([[3, -3, 1, 0.5, 0]], np.float32), (NUM, 1))
    norms = rows.step(range(NUM), gradients)
    np.testing.assert_array_equal(rows.weights[0], [-0.25, 0.25, 0, 0, 0])
    np.testing.assert_array_equal(rows.state[0], [3, -3, 1, 0.5, 0, 9, 9, 1, 0.25, 0])
    np.testing.assert_array_equal(norms, np.full(NUM, np.sqrt(np.float32(0.125))))


def test_ftrl_from_zero_is_the_papers_algorithm() -> None:
    """In float64, 60 steps with a learning rate, both penalties and gradients that change their sign."""
    alpha, beta, l1, l2 = 0.3, 0.7, 0.4, 0.05
    rows, rng = Rows(FTRL(alpha, beta=beta, l1=l1, l2=l2)), np.random.default_rng(0)
    rows.weights[:] = 0
    z, n = np.zeros((2, NUM, DIM))
    zeros = 0
    for _ in range(60):
        weights = np.where(np.abs(z) <= l1, 0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2))
        np.testing.assert_allclose(rows.weights, weights, rtol=2e-3, atol=1e-5)
        zeros += int((rows.weights == 0).sum())
        gradients = rng.normal(scale=0.3, size=(NUM, DIM)).astype(np.float32)
        sigma = (np.sqrt(n + gradients**2.0) - np.sqrt(n)) / alpha
        z, n = z + gradients - sigma * weights, n + gradients**2.0
        rows.step(range(NUM), gradients)
    assert NUM * DIM < zeros < 59 * NUM * DIM


def test_ftrl_starts_from_the_initial_values() -> None:
    """Small gradients move a row a little, and a gradient of zero does not move it at all."""
    rows = Rows(FTRL(0.1, l1=0.01, l2=0.5))
    before = rows.weights.copy()
    rows.step(range(NUM), np.zeros((NUM, DIM), np.float32))
    np.testing.assert_array_equal(rows.weights, before)
    rows.step(range(NUM), np.full((NUM, DIM), 1e-4, np.float32))
    assert (rows.weights < before).all()
    np.testing.assert_allclose(rows.weights, before, atol=1e-4)


def test_ftrl_with_rate_0_freezes_rows() -> None:
    rows = Rows(FTRL(0.1).at(0.0))
    before = rows.weights.copy()
    assert (rows.step(range(NUM), np.ones((NUM, DIM), np.float32)) == 0).all()
    np.testing.assert_array_equal(rows.weights, before)
    assert not rows.state.any()


def test_ftrl_takes_no_weight_decay() -> None:
    with pytest.raises(ConfigError, match=r"FTRL: expected weight_decay 0, got 0\.1\. Use l2 instead"):
        FTRL(weight_decay=0.1)
    assert row_optimizer(OptimizerConfig(name="ftrl", lr=0.2, beta=0.5, l1=0.1, l2=0.2)) == FTRL(0.2, 0.5, 0.1, 0.2)
