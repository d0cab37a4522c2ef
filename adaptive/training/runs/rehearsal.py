"""`rehearse`: compile the kernels of a run before its first step.

numba compiles a kernel at its first call. Many kernels are first called in the middle of a run: when the device tier is
full, when updates begin to wait. So a run of a few batches over small tables calls all of them first. Compiled kernels
are cached (`kernels.jit`), and a marker in the cache says for which settings that is done.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TextIO

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset, DataShape, Feature, shape_of
from adaptive.errors import AdaptiveError
from adaptive.kernels.jit import compilation, compile_marker
from adaptive.policy import Calibrates, RowStats
from adaptive.training.components import build
from adaptive.training.evaluation import evaluate
from adaptive.training.telemetry.record import RunTotals
from adaptive.training.trainer import Trainer

BATCHES: Final = 12
MOST_LOOKUPS: Final = 1 << 17  # of a batch: enough that threads share its work, as they do in large batches
LINE: Final = "compiling kernels, once on this machine for these settings (about half a minute)\n"
_KINDS: Final = ("policy", "policy_options", "skip", "model", "optimizer", "tier", "depth")


def rehearse(config: TrainConfig, dataset: Dataset, sample: Sequence[Batch], stream: TextIO | None) -> float:
    """Compile the kernels of a run; return the seconds it took, 0 if all are compiled.

    Custom policies and rules are not called: their kernels compile when the run needs them.

    Args:
        sample: the first batches of the training data.
        stream: receives a line before the first compilation.
    """
    is_custom = any(":" in (name or "") for name in (config.policy, config.skip and config.skip.rule, config.model))
    if is_custom or not sample or not sample[0].num_samples:
        return 0.0
    # Settings as they are rehearsed: where rows are stored, and how many are on the device, compiles nothing.
    kinds = [*(_small(config).model_dump(mode="json", include=set(_KINDS)).items()), [str(f) for f in dataset.features]]
    marker = compile_marker(hashlib.sha256(json.dumps(kinds, default=str).encode()).hexdigest()[:16])
    if marker is not None and marker.exists():
        return 0.0
    started, count = time.perf_counter(), compilation.count
    compilation.announce = None if stream is None else partial(stream.write, LINE)
    # The run itself reports settings that do not fit each other or the data.
    with suppress(AdaptiveError, OSError):
        train_little(config, shape_of(dataset), sample)
    compilation.announce = None
    if marker is not None:
        with suppress(OSError):
            marker.touch()
    return time.perf_counter() - started if compilation.count > count else 0.0


def train_little(config: TrainConfig, shape: DataShape, sample: Sequence[Batch]) -> RunTotals:
    """Train and evaluate a few batches over small tables, so that rows are evicted and updates deferred.

    Returns the counts of the training.
    """
    num_samples = sample[0].num_samples
    num_samples = min(num_samples, max(1, MOST_LOOKUPS * num_samples // max(len(sample[0].ids), 1)))
    batches = [batch.take(np.arange(min(num_samples, batch.num_samples))) for batch in sample[:BATCHES]]
    most = max(batch.num_lookups(number) for batch in batches for number in range(batch.num_features))
    sizes = [min(feature.num_embeddings, 4 * max(most, 16)) for feature in shape.features]
    features = [Feature(f.name, size) for f, size in zip(shape.features, sizes, strict=True)]
    components = build(_small(config), replace(shape, features=tuple(features)), batches)
    with components.embeddings as embeddings:
        if embeddings.policy.rule is not None:
            embeddings.policy.rule.warmup = 2
            vars(embeddings.policy.rule)["visits"] = _every_other
        moved = [_other_ids(batches[i % len(batches)], sizes, i) for i in range(BATCHES)]
        if isinstance(embeddings.policy, Calibrates):
            embeddings.calibrate(moved)
        trainer = Trainer(embeddings, components.model, components.optimizer)
        trainer.train(moved, depth=0)
        evaluate(embeddings, components.model, moved[:1])
        return trainer.recorder.totals


def _small(config: TrainConfig) -> TrainConfig:
    """Return settings under which rows of small tables are evicted and updates deferred within a few batches."""
    tier = {"device_rows": "auto" if config.tier.device_rows == "0" else "50%", "host": "memory", "held_rows": 0}
    quick = {"interval": 2, "min_accesses": 1, "feedback_delay": 1}
    update = {
        "tier": config.tier.model_copy(update=tier),
        "skip": config.skip and config.skip.model_copy(update=quick),
    }
    return config.model_copy(update=update)


def _every_other(rows: RowStats) -> NDArray[np.int64]:
    """Let every row wait for its next visit."""
    return np.full(len(rows), 2)


def _other_ids(batch: Batch, sizes: Sequence[int], number: int) -> Batch:
    """Return the batch with ids within the tables, different ones for each number, so that rows are evicted."""
    size = np.repeat(sizes, [batch.num_lookups(feature) for feature in range(batch.num_features)])
    ids = (batch.ids + number * (size // 4)) % size
    return replace(batch, ids=ids.astype(batch.ids.dtype))
