"""`profile_movement`: how far hot rows move as training progresses.

The most frequent rows are watched. Their values are read after every interval. A row's movement is the distance from
its previous reading, relative to the length of that reading. A row with fewer than `JUDGED_FROM` lookups in the
interval is not judged. Such a row, and every row that is not watched, counts as moving.

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
from adaptive.embeddings.planning.layout import Group, make_groups_without_keys
from adaptive.errors import ConfigError
from adaptive.studies.profile import LeftOut, MovementPoint, MovementProfile
from adaptive.studies.profile.id_trace import OnProgress, RowNumbers, mean_of
from adaptive.studies.profile.step_profile import endless
from adaptive.training.components import Components, build, first_batches, open_data, prepare, set_rates, torch_settings
from adaptive.training.trainer import Trainer

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]

THRESHOLDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
JUDGED_FROM: Final = 8  # lookups in an interval
WATCHED_FROM: Final = 64  # lookups in the first batches
MAX_WATCHED: Final = 200_000
FIRST_BATCHES: Final = 64  # batches from which the watched rows are chosen
TRIED_BATCHES: Final = 4  # latest batches, to which thresholds are applied
BANDS: Final = (("hottest", 0.0, 0.01), ("hot", 0.01, 0.1), ("warm", 0.1, 1.0))  # of the watched rows, hottest first
QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class MovementLength:
    """Length of the watched training, and of an interval, in steps."""

    steps: int = 400
    every: int = 50


def profile_movement(
    config: TrainConfig,
    length: MovementLength,
    *,
    dataset: Dataset | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = lambda steps: None,
) -> MovementProfile:
    """Train, and measure after each interval how far the watched rows moved in it.

    Args:
        config: settings of the training.
        length: of the training.
        dataset: that of the settings, if it is open already.
        is_stopped: asked after each interval.
        on_progress: called with the number of trained steps.

    Raises:
        AdaptiveError: for settings that cannot be trained, or if no row is frequent enough to be watched.
    """
    dataset = open_data(config) if dataset is None else dataset
    components = build(config, dataset, first_batches(config, dataset))
    with components.embeddings as embeddings, torch_settings(config):
        if embeddings.defers or embeddings.drops_updates:
            raise ConfigError(
                "profile --sections movement: expected a policy that skips nothing, as it watches rows that get all "
                f"updates, got {config.policy}"
            )
        embeddings.calibrate(prepare([embeddings.policy], config, dataset))
        (group, *others) = make_groups_without_keys(components.tables, config.seed)
        if others:
            raise ConfigError("profile --sections movement: expected rows of one width. Leave model.widths out")
        numbers = RowNumbers(group)
        watched = _most_frequent(islice(endless(config, dataset), FIRST_BATCHES), numbers)
        if not len(watched):
            raise ConfigError(
                f"profile --sections movement: expected rows with {WATCHED_FROM} lookups in the first {FIRST_BATCHES} "
                "batches, got none. Use larger batches, or fewer rows"
            )
        watch = _Watch(components, group, watched)
        latest: deque[Batch] = deque(maxlen=TRIED_BATCHES)
        points: list[MovementPoint] = []
        trainer = Trainer(
            embeddings,
            components.model,
            components.optimizer,
            set_rates=lambda step: set_rates(config, components, step),
        )
        batches = endless(config, dataset)
        done = 0
        while done < length.steps and not is_stopped():
            size = min(length.every, length.steps - done)
            counts = np.zeros(group.num_rows, np.int64)
            trainer.train(_counted(islice(batches, size), numbers, counts, latest), depth=config.depth)
            done += size
            on_progress(done)
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


def _most_frequent(batches: Iterator[Batch], numbers: RowNumbers) -> Int64s:
    """Return the rows (W,) to watch, most frequent first."""
    counts = np.zeros(numbers.group.num_rows, np.int64)
    for batch in batches:
        access.count_rows(numbers.of(batch), counts)
    often = np.flatnonzero(counts >= WATCHED_FROM)
    return often[np.argsort(-counts[often], kind="stable")][:MAX_WATCHED]


def _counted(batches: Iterator[Batch], numbers: RowNumbers, counts: Int64s, latest: deque[Batch]) -> Iterator[Batch]:
    for batch in batches:
        access.count_rows(numbers.of(batch), counts)
        latest.append(batch)
        yield batch


class _Watch:
    """The watched rows (W,) and their latest values."""

    def __init__(self, components: Components, group: Group, watched: Int64s) -> None:
        self._embeddings, self._group, self._watched = components.embeddings, group, watched
        self._batch, self._places = _batch_of(group, watched)
        self._values = self._read()

    def look(self, steps: int, visits: Int64s, batches: Sequence[Batch], numbers: RowNumbers) -> MovementPoint:
        """Measure movement since the last reading, and what thresholds would leave out.

        Args:
            steps: trained so far.
            visits: lookups (W,) since the last reading.
            batches: the latest ones.
            numbers: maps their ids to rows.
        """
        values = self._read()
        moved = movement(self._values, values)
        self._values = values
        judged = visits >= JUDGED_FROM
        stale = [np.zeros(self._group.num_rows, np.bool_) for _ in THRESHOLDS]
        for threshold, mask in zip(THRESHOLDS, stale, strict=True):
            mask[self._watched[judged & (moved < threshold)]] = True
        is_watched = np.zeros(self._group.num_rows, np.bool_)
        is_watched[self._watched] = True
        lookups = [(numbers.of(batch), batch) for batch in batches]
        return MovementPoint(
            steps=steps,
            judged_rows=int(judged.sum()),
            below=[mean_of(moved[judged] < threshold) for threshold in THRESHOLDS],
            bands={name: _quantiles(moved, judged, low, high) for name, low, high in BANDS},
            dropped=[left_out(lookups, mask, is_watched) for mask in stale],
        )

    def _read(self) -> Floats:
        """Values (W, D) of the watched rows."""
        with torch.no_grad():
            stacked = self._embeddings.stack(self._embeddings.read(self._batch))
        flat = stacked.transpose(0, 1).reshape(-1, stacked.shape[2])
        return flat[torch.as_tensor(self._places, device=flat.device)].cpu().numpy()


def _batch_of(group: Group, watched: Int64s) -> tuple[Batch, Int64s]:
    """Build a batch that looks up every watched row once, by the first feature of its table.

    Returns:
        The batch, and the position (feature * samples + sample) of each row's vector among the pooled vectors.
    """
    first: dict[int, int] = {}
    for feature in group.features:
        first.setdefault(feature.table, feature.position)
    tables = group.tables_of(watched)
    by_table = [np.flatnonzero(tables == table) for table in range(len(group.tables))]
    samples = max(map(len, by_table))
    lengths = np.zeros((len(group.features), samples), np.int64)
    ids, places = [], np.empty(len(watched), np.int64)
    for table, rows in sorted(enumerate(by_table), key=lambda entry: first[entry[0]]):
        lengths[first[table], : len(rows)] = 1
        ids.append(watched[rows] - group.table_starts[table])
        places[rows] = first[table] * samples + np.arange(len(rows))
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    none = np.zeros((samples, 0), np.float32)
    return Batch(none, np.concatenate(ids), offsets, np.zeros(samples, np.float32)), places


def movement(previous: Floats, current: Floats) -> NDArray[np.float64]:
    """Return |current - previous| / |previous| (W,) of rows (W, D); 1 from 0."""
    way = np.linalg.norm(current.astype(np.float64) - previous, axis=1)
    length = np.linalg.norm(previous.astype(np.float64), axis=1)
    moved: NDArray[np.float64] = np.where(length > 0, way / np.where(length > 0, length, 1.0), (way > 0).astype(float))
    return moved


def left_out(batches: Sequence[tuple[Int64s, Batch]], stale: NDArray[np.bool_], watched: NDArray[np.bool_]) -> LeftOut:
    """Return the shares of inputs and row updates that a rule would leave out; masks are (R,)."""
    stale_shares, hot, updates = [], [], []
    for rows, batch in batches:
        samples = np.tile(np.arange(batch.num_samples), batch.num_features)
        sample = np.repeat(samples, np.diff(batch.offsets))
        number = np.maximum(np.bincount(sample, minlength=batch.num_samples), 1)
        stale_shares.append(np.bincount(sample, stale[rows], batch.num_samples) / number)
        hot.append(np.bincount(sample, watched[rows], batch.num_samples) / number == 1)
        updates.append(stale[np.unique(rows)])
    share, is_hot, left = map(np.concatenate, (stale_shares, hot, updates))
    return LeftOut(
        all=mean_of(share == 1),
        most=mean_of(share >= 0.75),
        any=mean_of(share > 0),
        hot=mean_of((share >= 0.75) & is_hot),
        updates=mean_of(left),
    )


def _quantiles(moved: NDArray[np.float64], judged: NDArray[np.bool_], low: float, high: float) -> list[float] | None:
    part = slice(int(low * len(moved)), max(int(high * len(moved)), 1))
    ways = moved[part][judged[part]]
    return [float(value) for value in np.quantile(ways, QUANTILES)] if len(ways) else None
