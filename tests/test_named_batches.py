"""`Batch.of`: features by name, as users have them; what belongs to samples goes where they go."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import LFU, step_all, sum_of

from adaptive.batch import Batch, concatenate
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import InputError
from adaptive.optim import SGD
from adaptive.policy import InputPolicy, TierView

TABLES = [
    TableConfig(name="user", num_embeddings=10, embedding_dim=4),
    TableConfig(name="tags", num_embeddings=20, embedding_dim=4, pooling="mean"),
]


def labelled(**features: Any) -> Batch:
    return Batch.of(labels=[1, 0, 1], **features)


def bags_of(batch: Batch, feature: int) -> list[list[int]]:
    first = feature * batch.num_samples
    ends = batch.offsets[first : first + batch.num_samples + 1]
    return [batch.ids[start:stop].tolist() for start, stop in pairwise(ends)]


@pytest.mark.parametrize(
    "value",
    [
        ([1, 2, 3, 4], [0, 2, 2, 4]),
        (np.array([1, 2, 3, 4], np.int32), np.array([0, 2, 2, 4], np.uint8)),
        (torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2, 2])),  # as nn.EmbeddingBag takes them
        ([1, 2, 3, 4], [0, 2, 2, 4], [1.0, 1.0, 1.0, 1.0]),
        [[1, 2], [], [3, 4]],
        [np.array([1, 2]), np.array([], np.int64), torch.tensor([3, 4])],
        np.array([[1, 2], [], [3, 4]], dtype=object),  # a column of lists
    ],
)
def test_bags_come_in_all_these_forms(value: Any) -> None:
    assert bags_of(labelled(tags=value), 0) == [[1, 2], [], [3, 4]]


def test_one_id_or_as_many_for_each_sample() -> None:
    batch = labelled(user=torch.tensor([7, 8, 9], dtype=torch.int32), pair=[[1, 2], [3, 4], [5, 6]])
    assert batch.features == ("user", "pair")
    assert bags_of(batch, 0) == [[7], [8], [9]] and bags_of(batch, 1) == [[1, 2], [3, 4], [5, 6]]
    assert bags_of(labelled(pair=np.array([[1, 2], [3, 4], [5, 6]])), 0) == bags_of(batch, 1)
    assert batch.ids.dtype == batch.offsets.dtype == np.int64
    assert batch.dense.shape == (3, 0) and batch.labels.tolist() == [1, 0, 1]


def test_dense_labels_and_extras() -> None:
    batch = Batch.of(
        {"item id": [1, 2]},
        user=[3, 4],
        dense=torch.tensor([0.5, 1.5], dtype=torch.float64),
        labels=torch.tensor([True, False]),
        extras={"weight": [0.1, 0.2], "bought": torch.tensor([[1, 0], [0, 0]])},
    )
    assert batch.features == ("item id", "user")
    assert batch.dense.tolist() == [[0.5], [1.5]] and batch.dense.dtype == batch.labels.dtype == np.float32
    assert batch.extras["bought"].tolist() == [[1, 0], [0, 0]]
    assert np.isnan(Batch.of(user=[1, 2]).labels).all(), "forgotten labels do not train"


def test_weights_of_one_feature_are_ones_elsewhere() -> None:
    batch = labelled(user=[1, 2, 3], tags=([4, 5], [0, 1, 2, 2], [0.5, 2.0]))
    assert batch.weights is not None
    assert batch.weights.tolist() == [1, 1, 1, 0.5, 2]
    assert labelled(user=[1, 2, 3]).weights is None


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({}, "expected at least one feature"),
        ({"user": [1, 2]}, "expected equal numbers of samples, got labels 3, user 2"),
        (
            {"user": [1.0, 2.0, np.nan]},
            r"feature user: expected integer ids, got float64\. pandas turns a column with gaps",
        ),
        ({"user": np.zeros((3, 1, 1), np.int64)}, "got 3 dimensions"),
        (
            {"tags": ([1, 2], [0, 1, 1, 3])},
            "feature tags: expected offsets that rise from 0 to 2, the number of its values",
        ),
        ({"tags": ([1, 2], [0, 2, 1, 2])}, "expected offsets that rise"),
        ({"tags": ([1, 2], [1, 1, 1, 2])}, "expected offsets that rise"),
        ({"tags": ([1, 2], [0, 1, 1, 2], [1.0])}, r"expected 2 weights, as values, got shape \(1,\)"),
        ({"tags": ([1, 2],)}, "expected equal numbers of samples, got labels 3, tags 1"),
        ({"tags": ([1, 2], [3, 4])}, r"expected offsets that rise .* A tuple is \(values, offsets"),
        ({"user": np.ma.masked_equal([1, 2, 3], 2)}, "feature user: expected values without a mask, got 1 masked"),
        ({"user": np.array([1, 2, 3], "M8[s]")}, r"feature user: expected integer ids, got datetime64"),
        ({"tags": ([1, 2], [0, 1, 1, 2], ["1", "2"])}, "feature tags: weights: expected booleans, integers or floats"),
        ({"tags": ([1, 2], [0, 1, 1, 2], [1e300, 2])}, "feature tags: weights: .* which fit float32, got 1e.300"),
        ({"tags": ([[1], [2]], [0, 1, 1, 2])}, "ids of one dimension"),
    ],
)
def test_what_is_wrong_is_told_by_feature(features: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        labelled(**features)


def test_unsigned_ids_are_taken_by_their_bits() -> None:
    unsigned = np.array([2**64 - 3, 2**63, 7], np.uint64)
    assert Batch.of(user=unsigned).ids.tolist() == [-3, -(2**63), 7]
    assert Batch.of(user=[unsigned[:2], np.array([5])]).ids.tolist() == [-3, -(2**63), 5]


def test_what_is_wrong_beside_features() -> None:
    with pytest.raises(InputError, match="got these twice: user"):
        Batch.of({"user": [1]}, user=[1])
    with pytest.raises(
        InputError, match=r"labels: expected shape \(samples,\), got \(1, 2\)\. Pass further labels in extras"
    ):
        Batch.of(user=[1], labels=[[1, 0]])
    with pytest.raises(InputError, match=r"extras\['name'\]: expected booleans, integers or floats, got <U1"):
        Batch.of(user=[1], extras={"name": ["a"]})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ma.masked_equal([1.0, 0.0, 1.0], 0), "expected values without a mask, got 1 masked ones"),
        (np.array([1 + 2j, 0, 1]), "expected booleans, integers or floats, got complex128"),
        (np.array([1, 0, 1], "M8[s]"), "expected booleans, integers or floats, got datetime64"),
        (["1", "0", "1"], "expected booleans, integers or floats, got <U1"),
        (np.array([1, None, 1], object), "expected booleans, integers or floats, got object"),
        ([1.0, -1e300, 0.0], r".*which fit float32, got -1e\+300 \(at \[1"),
    ],
)
@pytest.mark.parametrize("name", ["labels", "dense", "extras"])
def test_values_that_a_cast_would_change(name: str, values: Any, message: str) -> None:
    given = {name: {"more": values} if name == "extras" else values}
    if name == "extras" and "float32" in message:
        assert Batch.of(user=[1, 2, 3], **given).extras["more"].tolist() == values, "extras stay float64"
        return
    with pytest.raises(InputError, match=rf"^{name}.*: {message}"):
        Batch.of(user=[1, 2, 3], **given)


# --- tables take features by name --------------------------------------------------------------------------------


def test_the_order_of_features_does_not_matter() -> None:
    batches = [labelled(user=[1, 2, 3], tags=[[4], [], [5, 4]]), labelled(tags=[[4], [], [5, 4]], user=[1, 2, 3])]
    trained = []
    for batch in batches:
        embeddings = TieredEmbeddingBag(TABLES)
        vectors = embeddings(embeddings.read(batch))
        step_all(embeddings, [batch])
        trained.append((vectors, {table.name: embeddings.rows.table_weights(table.name) for table in TABLES}))
    for name in ("user", "tags"):
        assert torch.equal(trained[0][0][name], trained[1][0][name])
        assert np.array_equal(trained[0][1][name], trained[1][1][name])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"user": [1]}, "missing: tags"),
        ({"user": [1], "tags": [1], "shop": [1]}, "in no table: shop"),
        ({"user": [1], "tag": [1]}, "features user, tags, got user, tag; missing: tags; in no table: tag"),
    ],
)
@pytest.mark.parametrize("arranging", [False, True])
def test_names_that_are_not_the_tables_are_refused(features: dict[str, Any], message: str, arranging: bool) -> None:
    embeddings = TieredEmbeddingBag(TABLES, policy=Swaps if arranging else LFU)
    with pytest.raises(InputError, match=message):
        step_all(embeddings, [Batch.of(features, labels=[0])])
    with pytest.raises(InputError, match=message):
        embeddings.read(Batch.of(features, labels=[0]))


class Swaps(InputPolicy):
    """The second half of a batch before its first, in batches of another size."""

    def score(self, rows: Any) -> Any:
        return rows.last_access

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        held: list[Batch] = []
        for batch in batches:
            half = batch.num_samples // 2
            held += [batch.take(np.arange(half, batch.num_samples)), batch.take(np.arange(half))]
            yield concatenate(held[:-1])
            held = held[-1:]
        yield from held


def test_extras_stay_with_their_samples_whatever_a_policy_does() -> None:
    embeddings = TieredEmbeddingBag(TABLES, policy=Swaps)
    batches = [
        Batch.of(
            tags=[[n]] * 4, user=np.arange(n, n + 4), extras={"of": np.arange(n, n + 4) * 10, "even": [[n], [n]] * 2}
        )
        for n in (0, 5)
    ]
    seen = []
    for planned in embeddings.look_ahead(batches, depth=1):
        assert torch.equal(planned.extras["of"], torch.tensor(planned.batch.ids[: planned.num_samples]) * 10)
        assert planned.extras["even"].shape == (planned.num_samples, 1)
        seen += planned.extras["of"].tolist()
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    assert sorted(seen) == [0, 10, 20, 30, 50, 60, 70, 80] and seen != sorted(seen)


def test_a_loader_is_gone_through_once() -> None:
    """A `DataLoader` draws its order, and starts its workers, each time it is asked for an iterator."""

    class Loader:
        asked = 0

        def __iter__(self) -> Iterator[Batch]:
            self.asked += 1
            yield labelled(user=[1, 2, 3], tags=[[4], [], [5, 4]])

    for policy in (LFU, Swaps):
        loader = Loader()
        embeddings = TieredEmbeddingBag(TABLES, policy=policy)
        step_all(embeddings, loader)
        assert loader.asked == 1


# --- weights beside means ----------------------------------------------------------------------------------------


def test_one_feature_may_have_weights_next_to_means() -> None:
    """Against torch: forward, and the change of rows by SGD."""
    batch = Batch.of(user=([1, 2, 2], [0, 2, 3], [0.5, -1.0, 2.0]), tags=[[3, 4, 3], [5]], labels=[0, 0])
    embeddings = TieredEmbeddingBag(TABLES, TierConfig(device_rows="60%"), policy=LFU, optimizer=SGD())
    peers = {}
    for table, mode in zip(TABLES, ("sum", "mean"), strict=True):
        weight = torch.from_numpy(embeddings.rows.table_weights(table.name))
        peers[table.name] = torch.nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode=mode)
    expected = {
        "user": peers["user"](torch.tensor([1, 2, 2]), torch.tensor([0, 2]), torch.tensor([0.5, -1.0, 2.0])),
        "tags": peers["tags"](torch.tensor([3, 4, 3, 5]), torch.tensor([0, 3])),
    }
    for planned in embeddings.look_ahead([batch]):
        vectors = embeddings(planned)
        for name, tensor in expected.items():
            torch.testing.assert_close(vectors[name], tensor)
        torch.stack([(v**2).sum() for v in vectors.values()]).sum().backward()
        embeddings.step()
    torch.stack([(v**2).sum() for v in expected.values()]).sum().backward()
    for name, peer in peers.items():
        gradient, found = peer.weight.grad, torch.from_numpy(embeddings.rows.table_weights(name))
        assert gradient is not None
        torch.testing.assert_close(found, (peer.weight - 0.1 * gradient).detach())


# --- tensors of a graph, and trainers of other libraries --------------------------------------------------------------

LEARNED = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"dense": LEARNED * 2}, "dense"),
        ({"dense": [[LEARNED[0], 1.0], [2.0, 3.0]]}, "dense"),
        ({"labels": torch.sigmoid(LEARNED)}, "labels"),
        ({"extras": {"teacher": LEARNED}}, r"extras\['teacher'\]"),
        ({"user": ([1, 2], [0, 1], list(LEARNED))}, "feature user: weights"),
        ({"user": LEARNED}, "feature user"),
    ],
)
def test_values_that_need_a_gradient_are_refused(given: dict[str, Any], what: str) -> None:
    """A batch copies them, so they would not learn, without a word."""
    with pytest.raises(InputError, match=rf"{what}: expected values that require no gradient, .*detach\(\)"):
        Batch.of(**{"user": [1, 2], **given})
    detached = Batch.of(user=[1, 2], labels=LEARNED.detach())
    assert detached.labels.tolist() == [1, 1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.sparse_coo_tensor([[0, 1]], [3, 4], (2,), check_invariants=True),
        torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=torch.jagged),
        torch.empty(2, dtype=torch.int64, device="meta"),
    ],
    ids=["sparse", "nested", "meta"],
)
def test_tensors_without_an_array_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(InputError, match="feature user: expected a dense array or tensor with values, got an error"):
        Batch.of(user=tensor)


def test_dense_inputs_in_bfloat16_are_widened() -> None:
    assert Batch.of(user=[1, 2], dense=torch.tensor([[0.5], [3.0]], dtype=torch.bfloat16)).dense.tolist() == [
        [0.5],
        [3],
    ]


def test_a_batch_goes_to_any_device_as_it_is() -> None:
    """Lightning and accelerate move batches before a step; a frozen dataclass without `to` is an error there."""
    batch = Batch.of(user=[1, 2])
    assert batch.to("cpu") is batch is batch.to(torch.device("cuda"), non_blocking=True)
