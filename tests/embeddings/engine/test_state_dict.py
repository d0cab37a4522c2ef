"""Rows are in `state_dict()`: a plain torch checkpoint is whole, or says that it is not."""

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import LFU, random_batches, sum_of
from torch import nn

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import Adagrad, Adam, RowOptimizer

TABLES = [
    TableConfig(name="user", num_embeddings=60, embedding_dim=8),
    TableConfig(name="kind", num_embeddings=20, embedding_dim=4, pooling="mean"),
]
BATCHES = random_batches(TABLES, 12, samples=4)


class Net(nn.Module):
    def __init__(self, optimizer: RowOptimizer = Adam(lr=0.01), **options: Any) -> None:  # noqa: B008 (immutable)
        super().__init__()
        options = {"tier": TierConfig(device_rows="65%", poison=True), "policy": LFU, **options}
        self.tables = TieredEmbeddingBag(TABLES, optimizer=optimizer, **options)
        torch.manual_seed(0)
        self.head = nn.Linear(12, 1)

    def forward(self, planned: Any) -> torch.Tensor:
        return self.head(torch.cat(list(self.tables(planned).values()), dim=1)).squeeze(1)  # type: ignore[no-any-return]


def train(net: Net, batches: Any, optimizer: torch.optim.Optimizer, depth: int = 2) -> list[float]:
    losses = []
    for planned in net.tables.look_ahead(batches, depth=depth):
        loss = nn.functional.binary_cross_entropy_with_logits(net(planned), planned.labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        net.tables.step()
        losses.append(loss.item())
    return losses


def predictions(net: Net) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([net(net.tables.read(batch)) for batch in BATCHES])


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("optimizer", [Adam(lr=0.01), Adagrad(lr=0.1)], ids=["adam", "adagrad"])
@pytest.mark.parametrize("skip", [None, "defer"])
def test_training_continues_from_a_state_dict_bit_for_bit(optimizer: RowOptimizer, skip: str | None) -> None:
    net = Net(optimizer, skip=skip)
    dense = torch.optim.Adam(net.head.parameters())
    train(net, BATCHES[:6], dense)
    saved = through_a_file({"net": net.state_dict(), "dense": dense.state_dict()})
    then, rest = predictions(net), train(net, BATCHES[6:], dense)

    other = Net(optimizer, skip=skip, tier=TierConfig(device_rows="90%"))
    again = torch.optim.Adam(other.head.parameters())
    assert not torch.equal(predictions(other), then)
    assert str(other.load_state_dict(saved["net"])) == "<All keys matched successfully>"
    again.load_state_dict(saved["dense"])
    assert torch.equal(predictions(other), then)
    assert train(other, BATCHES[6:], again, depth=0) == rest
    for name in ("user", "kind"):
        assert np.array_equal(other.tables.rows.table_weights(name), net.tables.rows.table_weights(name))


def test_a_state_is_a_copy() -> None:
    """As loops keep the best weights: `best = copy.deepcopy(net.state_dict())`, or the state itself."""
    net = Net()
    optimizer = torch.optim.Adam(net.head.parameters())
    train(net, BATCHES[:3], optimizer)
    best, then = net.tables.state_dict(), net.tables.rows.table_weights("user")
    copied = copy.deepcopy(best)
    train(net, BATCHES[3:], optimizer)
    assert not np.array_equal(net.tables.rows.table_weights("user"), then)
    for state in (copied, best):
        net.tables.load_state_dict(state)
        assert np.array_equal(net.tables.rows.table_weights("user"), then)
    for tensor in best.values():
        tensor.zero_()
    assert np.array_equal(net.tables.rows.table_weights("user"), then)
    assert net.tables.state_dict()["rows0.table_starts"].tolist() == [0, 60]


def test_a_checkpoint_without_rows_or_of_other_tables_is_refused() -> None:
    net = Net()
    state = net.state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "tables.rows0.weights"'):
        net.load_state_dict({name: value for name, value in state.items() if name.startswith("head")})
    other = Net(Adagrad())
    train(other, BATCHES[:1], torch.optim.SGD(other.head.parameters()))
    with pytest.raises(
        RuntimeError, match=r"tables\.: checkpoint array rows0\.state: expected .*Use the row optimizer"
    ):
        net.load_state_dict(other.state_dict())
    for planned in net.tables.look_ahead(BATCHES[:2]):
        with pytest.raises(RuntimeError, match=r"load_state_arrays\(\): expected no running look-ahead"):
            net.load_state_dict(state)
        sum_of(net.tables(planned)).backward()
        net.tables.step()


# --- repr --------------------------------------------------------------------------------------------------------


def test_what_it_is_can_be_read() -> None:
    assert repr(Net(skip="defer").tables) == (
        "TieredEmbeddingBag(\n"
        "  user: 60 x 8, sum\n"
        "  kind: 20 x 4, mean\n"
        "  device tier: 52 of 80 rows, 0.0 MiB (as set)\n"
        "  device cpu, host memory\n"
        "  policy LFU, skip rule Defer, optimizer Adam(lr=0.01, weight_decay=0.0, eps=1e-08, "
        "beta1=0.9, beta2=0.999)\n"
        ")"
    )
    many = [TableConfig(name=f"t{n}", num_embeddings=9, embedding_dim=4, features=(f"f{n}",)) for n in range(26)]
    text = repr(TieredEmbeddingBag(many))
    assert "t11: 9 x 4, sum by f11\n  and 14 more tables" in text
