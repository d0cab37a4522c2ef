"""`profile_movement`: how far hot rows still move as training goes on, and what a threshold on it would leave out.

The rows that come most often in the batches to be trained are watched. After every interval their values are read, and
a row's movement is the length of the way from the latest reading, over the length of the vector then. A row that came
fewer than `JUDGED_FROM` times in the interval is not judged; it and every row that is not watched count as moving.

Letters: W watched rows, D width, F features, N lookups of a batch, R rows of all tables.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.data.kernels import access
from adaptive.embeddings.planning.layout import Group, make_groups
from adaptive.errors import ConfigError
from adaptive.studies.profile import LeftOut, MovementPoint, MovementProfile
from adaptive.studies.profile.step_profile import endless
from adaptive.training.components import Components, build, first_batches, open_data, prepare, set_rates, torch_settings
from adaptive.training.trainer import Trainer

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]

THRESHOLDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
JUDGED_FROM: Final = 8  # lookups within an interval
WATCHED_FROM: Final = 64  # lookups in the batches counted at first
MOST_WATCHED: Final = 200_000
COUNTED: Final = 64  # batches from which the watched rows are chosen
ASKED: Final = 4  # batches on which a threshold is tried
BANDS: Final = (("hottest", 0.0, 0.01), ("hot", 0.01, 0.1), ("warm", 0.1, 1.0))  # of the watched rows, hottest first
QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)

Told = Callable[[int], None]  # how many steps have been trained


@dataclass(frozen=True)
class MovementLength:
    """Of the training that is watched."""

    steps: int = 400
    every: int = 50  # steps of an interval


def profile_movement(
    config: TrainConfig,
    length: MovementLength,
    *,
    dataset: Dataset | None = None,
    stopped: Callable[[], bool] = lambda: False,
    told: Told = lambda steps: None,
) -> MovementProfile:
    """Train, and tell after each interval how far the watched rows moved in it. `dataset`: that of the settings, if it
    is open.

    Raises:
        AdaptiveError: for settings that cannot be trained, or where no row comes often enough to be watched.
    """
    dataset = open_data(config) if dataset is None else dataset
    components = build(config, dataset, first_batches(config, dataset))
    with components.embeddings as embeddings, torch_settings(config):
        if embeddings.defers or embeddings.drops_updates:
            raise ConfigError(
                "profile --sections movement watches rows that all updates reach: needed a policy that skips none"
            )
        embeddings.calibrate(prepare([embeddings.policy], config, dataset))
        (group, *others) = make_groups(components.tables, config.seed)
        if others:
            raise ConfigError("profile --sections movement reads rows of one width: leave model.widths out")
        numbers = _Numbers(group)
        watched = _most_frequent(islice(endless(config, dataset), COUNTED), numbers)
        if not len(watched):
            raise ConfigError(
                f"no row comes {WATCHED_FROM} times in the first {COUNTED} batches: nothing to watch; larger batches "
                "or fewer rows are needed"
            )
        watch = _Watch(components, group, watched)
        latest: deque[Batch] = deque(maxlen=ASKED)
        points: list[MovementPoint] = []
        trainer = Trainer(
            embeddings,
            components.model,
            components.optimizer,
            set_rates=lambda step: set_rates(config, components, step),
        )
        batches = endless(config, dataset)
        done = 0
        while done < length.steps and not stopped():
            size = min(length.every, length.steps - done)
            counts = np.zeros(group.num_rows, np.int64)
            trainer.train(_counted(islice(batches, size), numbers, counts, latest), depth=config.depth)
            done += size
            told(done)
            points.append(watch.look(done, counts[watched], list(latest), numbers))
    return MovementProfile(
        optimizer=config.optimizer.name,
        lr=config.optimizer.lr,
        policy=config.policy,
        batch_size=config.batch_size,
        watched_rows=len(watched),
        every=length.every,
        judged_from=JUDGED_FROM,
        thresholds=list(THRESHOLDS),
        was_stopped=done < length.steps,
        points=points,
    )


class _Numbers:
    """Look-ups of batches as row numbers."""

    def __init__(self, group: Group) -> None:
        self.group = group
        tables = np.array([f.table for f in sorted(group.features, key=lambda feature: feature.position)])
        self._starts, self._sizes = group.table_starts[tables], group.table_sizes[tables]

    def of(self, batch: Batch) -> Int64s:
        """(N,); the ids have been checked by the look-ahead."""
        rows = np.empty(len(batch.ids), np.int64)
        bad = access.number_rows(batch.ids, batch.offsets, batch.num_samples, self._starts, self._sizes, rows)
        assert bad < 0, bad
        return rows


def _most_frequent(batches: Iterator[Batch], numbers: _Numbers) -> Int64s:
    """(W,) rows that come often, most frequent first."""
    counts = np.zeros(numbers.group.num_rows, np.int64)
    for batch in batches:
        access.count_rows(numbers.of(batch), counts)
    often = np.flatnonzero(counts >= WATCHED_FROM)
    return often[np.argsort(-counts[often], kind="stable")][:MOST_WATCHED]


def _counted(batches: Iterator[Batch], numbers: _Numbers, counts: Int64s, latest: deque[Batch]) -> Iterator[Batch]:
    for batch in batches:
        access.count_rows(numbers.of(batch), counts)
        latest.append(batch)
        yield batch


class _Watch:
    """The values of the watched rows (W,) at the latest look."""

    def __init__(self, components: Components, group: Group, watched: Int64s) -> None:
        self._embeddings, self._group, self._watched = components.embeddings, group, watched
        self._question, self._places = _question(group, watched)
        self._values = self._read()

    def look(self, steps: int, visits: Int64s, batches: Sequence[Batch], numbers: _Numbers) -> MovementPoint:
        """How far the rows moved since the last look, and what thresholds would leave out of the batches.

        Args:
            steps: trained so far.
            visits: (W,) lookups since then.
            batches: the latest.
            numbers: of their rows.
        """
        values = self._read()
        moved = movement(self._values, values)
        self._values = values
        judged = visits >= JUDGED_FROM
        resting = [np.zeros(self._group.num_rows, np.bool_) for _ in THRESHOLDS]
        for threshold, mask in zip(THRESHOLDS, resting, strict=True):
            mask[self._watched[judged & (moved < threshold)]] = True
        is_watched = np.zeros(self._group.num_rows, np.bool_)
        is_watched[self._watched] = True
        lookups = [(numbers.of(batch), batch) for batch in batches]
        return MovementPoint(
            steps=steps,
            judged_rows=int(judged.sum()),
            below=[_mean(moved[judged] < threshold) for threshold in THRESHOLDS],
            bands={name: _quantiles(moved, judged, low, high) for name, low, high in BANDS},
            dropped=[left_out(lookups, mask, is_watched) for mask in resting],
        )

    def _read(self) -> Floats:
        """(W, D)"""
        with torch.no_grad():
            stacked = self._embeddings.stack(self._embeddings.read(self._question))
        flat = stacked.transpose(0, 1).reshape(-1, stacked.shape[2])
        return flat[torch.as_tensor(self._places, device=flat.device)].cpu().numpy()


def _question(group: Group, watched: Int64s) -> tuple[Batch, Int64s]:
    """A batch that looks every watched row up once, by the first feature of its table, and where (feature * samples +
    sample) each row's vector is in the answer."""
    first: dict[int, int] = {}
    for feature in group.features:
        first.setdefault(feature.table, feature.position)
    tables = group.tables_of(watched)
    by_table = [np.flatnonzero(tables == table) for table in range(len(group.tables))]
    samples = max(map(len, by_table))
    lengths = np.zeros((len(group.features), samples), np.int64)
    ids, places = [], np.empty(len(watched), np.int64)
    for table, mine in sorted(enumerate(by_table), key=lambda entry: first[entry[0]]):
        lengths[first[table], : len(mine)] = 1
        ids.append(watched[mine] - group.table_starts[table])
        places[mine] = first[table] * samples + np.arange(len(mine))
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    none = np.zeros((samples, 0), np.float32)
    return Batch(none, np.concatenate(ids), offsets, np.zeros(samples, np.float32)), places


def movement(before: Floats, after: Floats) -> NDArray[np.float64]:
    """(W,) |after - before| / |before| of rows (W, D); a row that was 0: 1 if it moved."""
    way = np.linalg.norm(after.astype(np.float64) - before, axis=1)
    length = np.linalg.norm(before.astype(np.float64), axis=1)
    moved: NDArray[np.float64] = np.where(length > 0, way / np.where(length > 0, length, 1.0), (way > 0).astype(float))
    return moved


def left_out(
    batches: Sequence[tuple[Int64s, Batch]], resting: NDArray[np.bool_], watched: NDArray[np.bool_]
) -> LeftOut:
    """Shares of the inputs that a rule would drop, and of row updates that would be left out; masks (R,)."""
    rests, hot, updates = [], [], []
    for rows, batch in batches:
        samples = np.tile(np.arange(batch.num_samples), batch.num_features)
        sample = np.repeat(samples, np.diff(batch.offsets))
        number = np.maximum(np.bincount(sample, minlength=batch.num_samples), 1)
        rests.append(np.bincount(sample, resting[rows], batch.num_samples) / number)
        hot.append(np.bincount(sample, watched[rows], batch.num_samples) / number == 1)
        updates.append(resting[np.unique(rows)])
    share, is_hot, left = map(np.concatenate, (rests, hot, updates))
    return LeftOut(
        all=_mean(share == 1),
        most=_mean(share >= 0.75),
        any=_mean(share > 0),
        hot=_mean((share >= 0.75) & is_hot),
        updates=_mean(left),
    )


def _quantiles(moved: NDArray[np.float64], judged: NDArray[np.bool_], low: float, high: float) -> list[float] | None:
    part = slice(int(low * len(moved)), max(int(high * len(moved)), 1))
    ways = moved[part][judged[part]]
    return [float(value) for value in np.quantile(ways, QUANTILES)] if len(ways) else None


def _mean(mask: NDArray[np.bool_]) -> float | None:
    return float(mask.mean()) if len(mask) else None
