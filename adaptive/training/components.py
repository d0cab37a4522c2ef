"""Build tables, embeddings, model and optimizer of a run from its settings and data."""

import contextlib
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptive.batch import Batch
from adaptive.config import DenseOptimizerConfig, TableConfig, TierConfig, TrainConfig, parse_sample
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import NOTHING, Dataset, DataShape, by_table, shape_of, tables_of
from adaptive.data.open import open_dataset
from adaptive.data.rows.followed_folder import FollowedFolder
from adaptive.data.sampling import Sample, take_share
from adaptive.distributed.peers import Peers
from adaptive.distributed.sharded_embedding_bag import Embeddings, ShardedEmbeddingBag
from adaptive.embeddings.checks import check_arguments
from adaptive.embeddings.engine.build import SizedEngine, size_engine
from adaptive.embeddings.planning.sizing import held_rows
from adaptive.embeddings.rows_optimizer import without_compiler
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.dense.base import Inputs
from adaptive.models.factory import AnyConfig, checked, make_model, model_config, options_of, rows_config
from adaptive.models.model_settings import DINConfig
from adaptive.optim import row_optimizer
from adaptive.plugins import make_policy, with_rule
from adaptive.policy import Calibrates, InputPolicy, Policy

FUSED_ADAGRAD = "2.12"  # the first torch whose Adagrad is fused on CUDA
FIRST_BATCHES = 16  # that determine the size of the device tier
CALIBRATION_SHARE = 0.05  # of all inputs, as in the paper of FAE
LEAST_SAMPLE, DEFAULT_SAMPLE, LARGEST_SAMPLE = (
    1 << 15,
    1 << 18,
    1 << 22,
)  # inputs; with 26 ids each: 14 MB, 110 MB, 1.8 GB

# Deterministic products require it. Torch reads it once, at the first product of any kind.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@dataclass(frozen=True)
class Components:
    """The trained objects of a run: tables, their embeddings, the model and its optimizer."""

    tables: tuple[TableConfig, ...]
    embeddings: Embeddings  # close it
    model: nn.Module
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class SizedComponents:
    """Sizes of the components of a run, without rows."""

    tables: tuple[TableConfig, ...]
    embeddings: SizedEngine
    dense_parameters: int


def open_data(config: TrainConfig, run_directory: Path | None = None) -> Dataset:
    """Open the dataset of a run; rejects and vocabulary go to `run_directory`."""
    options = checked(DataOptions, "data", config.data_options)
    if config.follow:
        return FollowedFolder(config.data, options, run_directory)
    return by_table(open_dataset(config.data, options, run_dir=run_directory))


def first_batches(config: TrainConfig, dataset: Dataset) -> list[Batch]:
    """Read the first batches, which determine the size of the device tier."""
    number = None if config.calibrate is None else parse_sample(config.calibrate)
    number = number if isinstance(number, int) else FIRST_BATCHES
    return list(islice(dataset.train(config.batch_size), max(number, 1)))


def prepare(policies: Sequence[Policy], config: TrainConfig, dataset: Dataset) -> list[Batch]:
    """Return the sample for calibration, empty if no policy calibrates.

    Sets `epoch_batches` of policies that arrange inputs.
    """
    sample = (
        _calibration_sample(config, dataset)
        if any(isinstance(policy, Calibrates) for policy in policies)
        else Sample([])
    )
    for policy in policies:
        if isinstance(policy, InputPolicy):
            counted = dataset.num_train_samples()
            policy.epoch_batches = _epoch_batches(config, sample.num_samples if counted is None else counted)
    return sample.batches


def _calibration_sample(config: TrainConfig, dataset: Dataset) -> Sample:
    """Read the sample of `calibrate`.

    A share is of the inputs of the first epoch, which is read completely for every value of `steps`, so runs of
    different lengths calibrate alike. A sample of more than 4 million inputs is thinned out evenly. The default is 5%,
    but at least 32,768 inputs, since less would teach little. To start fast on huge data it stops reading at 262,144
    inputs (5% of 5 million), so it then sees the beginning only.
    """
    wanted = None if config.calibrate is None else parse_sample(config.calibrate)
    if isinstance(wanted, int):
        return Sample(list(islice(dataset.train(config.batch_size), wanted)))
    batches, default = dataset.train(config.batch_size), wanted is None
    if wanted is None:
        wanted = max(CALIBRATION_SHARE, min(LEAST_SAMPLE / (dataset.num_train_samples() or math.inf), 1.0))
    most = DEFAULT_SAMPLE if default else LARGEST_SAMPLE
    size = config.batch_size
    return take_share(batches, wanted, seed=config.seed, most=most, read_all=not default, batch_size=size)


def total_steps(config: TrainConfig, dataset: Dataset) -> int | None:
    """Return the steps of all epochs, up to `config.steps`, or None if the data must be read to know them."""
    samples = dataset.num_train_samples()
    if samples is None:
        return config.steps
    steps = config.epochs * -(-samples // config.batch_size)
    return min(steps, config.steps or sys.maxsize)


def total_samples(config: TrainConfig, dataset: Dataset) -> int | None:
    """Return the samples that all epochs read, up to `config.steps`; None if the data must be read to know them."""
    samples = dataset.num_train_samples()
    if samples is None:
        return None if config.steps is None else config.steps * config.batch_size
    return min(config.epochs * samples, (config.steps or sys.maxsize) * config.batch_size)


def _epoch_batches(config: TrainConfig, samples: int | None) -> int | None:
    if samples is None:
        return None
    batches = -(-samples // config.batch_size)
    return batches if config.steps is None else min(batches, config.steps)


def build(
    config: TrainConfig, dataset: Dataset | DataShape, sample: Sequence[Batch] = (), peers: Peers | None = None
) -> Components:
    """Build the components; initial values follow from `config.seed`.

    Args:
        sample: batches of the training data; `device_rows = "auto"` derives the rows in flight from them.
        peers: processes that train together.

    Raises:
        AdaptiveError: for settings that do not fit each other, the data, or the device.
    """
    inputs = inputs_of(dataset)
    shape = model_config(config.model, config.model_options, inputs)
    tables = _tables_of(dataset, shape)
    make = TieredEmbeddingBag if peers is None else partial(ShardedEmbeddingBag, process_group=peers)
    embeddings: Embeddings = make(
        tables,
        _sized_tier(config, sample),
        policy=make_policy(config.policy, config.policy_options),
        optimizer=row_optimizer(config.optimizer),
        skip=config.skip,
        seed=config.seed,
    )
    try:
        with embeddings.runtime.pipeline.running_out(
            "in building the model"
        ):  # an optimizer may allocate its state at once
            model = make_model(config.model, shape, inputs, seed=config.seed).to(embeddings.device)
            optimizer = dense_optimizer(config.dense_optimizer, model)
        return Components(tables, embeddings, model, optimizer)
    except BaseException:
        embeddings.close()
        raise


def size_components(config: TrainConfig, dataset: Dataset | DataShape, sample: Sequence[Batch]) -> SizedComponents:
    """Size the result of `build` without memory for rows; raises the same errors."""
    inputs = inputs_of(dataset)
    shape = model_config(config.model, config.model_options, inputs)
    tables = _tables_of(dataset, shape)
    tier, policy = _sized_tier(config, sample), make_policy(config.policy, config.policy_options)
    optimizer = row_optimizer(config.optimizer)
    check_arguments(tables, tier, optimizer, config.skip)
    skip = with_rule(policy, config.skip)
    embeddings = size_engine(tables, tier, policy, optimizer, skip, config.seed)
    model = make_model(config.model, shape, inputs, seed=config.seed)
    num_weights = sum(weight.numel() for weight in model.parameters())
    return SizedComponents(tables, embeddings, num_weights)


def _sized_tier(config: TrainConfig, sample: Sequence[Batch]) -> TierConfig:
    """The settings of the tiers, with the number of rows that the look-ahead needs at once."""
    return config.tier.model_copy(update={"held_rows": config.tier.held_rows or held_rows(sample, config.depth)})


def inputs_of(dataset: Dataset | DataShape) -> Inputs:
    """Facts of the data for building a model."""
    shape = shape_of(dataset) if isinstance(dataset, Dataset) else dataset
    sequences = {number: shape.sequences[feature.name] for number, feature in enumerate(shape.features)
                 if feature.name in shape.sequences}  # fmt: skip
    return Inputs(shape.tables, shape.num_dense, shape.dense_names, shape.steps, sequences)


def _tables_of(dataset: Dataset | DataShape, shape: AnyConfig) -> tuple[TableConfig, ...]:
    unpooled = _unpooled_tables(dataset, type(shape))
    return shape.format_rows(build_tables(dataset, shape.embedding_dim, shape.widths, unpooled))


def study_tables(config: TrainConfig, dataset: Dataset, embedding_dim: int) -> tuple[TableConfig, ...]:
    """Return the tables for studies that build no model, with rows of one width."""
    unpooled = _unpooled_tables(dataset, options_of(config.model))
    return rows_config(config.model_options).format_rows(build_tables(dataset, embedding_dim, unpooled=unpooled))


def _unpooled_tables(dataset: Dataset | DataShape, shape: type[AnyConfig]) -> set[str]:
    """Return the tables whose vectors a model of sequences takes one by one."""
    if not issubclass(shape, DINConfig):
        return set()
    names = zip(dataset.features, tables_of(dataset), strict=True)
    return {table for feature, table in names if feature.name in dataset.sequences}


def build_tables(
    dataset: Dataset | DataShape,
    embedding_dim: int,
    widths: Mapping[str, int] = NOTHING,
    unpooled: Collection[str] = (),
) -> tuple[TableConfig, ...]:
    """Return one table per feature, with its name, or one for all features that share it.

    Args:
        widths: table -> width, for tables with another width than `embedding_dim`.
        unpooled: tables whose features give one vector per lookup.
    """
    names = tables_of(dataset)
    features = {name: [f for f, n in zip(dataset.features, names, strict=True) if n == name] for name in names}
    keys: dict[str, Any] = {name: {"keys": "int64", **dict(rules)} for name, rules in dataset.key_rules.items()}
    return tuple(
        TableConfig(
            name=name,
            num_embeddings=members[0].num_embeddings,
            embedding_dim=widths.get(name, embedding_dim),
            features=tuple(member.name for member in members),
            pooling="none" if name in unpooled else "sum",
            **keys.get(name, {}),
        )
        for name, members in features.items()
    )


def dense_optimizer(config: DenseOptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return torch's optimizer for the parameters of the dense part."""
    kind: Any = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[config.name]
    kind = without_compiler(type(kind.__name__, (kind,), {}))
    parameters = list(model.parameters())
    # Fused optimizers read a flag on the device, so a step need not wait. On the CPU, others have other bits.
    on_gpu = bool(parameters) and parameters[0].is_cuda
    options = {"fused": True} if on_gpu and (config.name != "adagrad" or torch.__version__ >= FUSED_ADAGRAD) else {}
    optimizer: torch.optim.Optimizer = kind(parameters, lr=config.lr, **options)
    return optimizer


def set_rates(config: TrainConfig, components: Components, step: int) -> None:
    """Set the learning rates of a step (from 0), unless they are constant."""
    if config.schedule.is_constant:
        return
    factor = config.schedule.factor(step)
    components.embeddings.optimizer.lr = config.optimizer.lr * factor
    for group in components.optimizer.param_groups:
        group["lr"] = config.dense_optimizer.lr * factor


@contextlib.contextmanager
def torch_settings(config: TrainConfig) -> Iterator[None]:
    """Set torch's seed and switches for a run, and restore the caller's afterwards."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filling: Any = torch.utils.deterministic
    products: Any = torch.backends.cuda.matmul
    tf32 = products.allow_tf32
    fills = filling.fill_uninitialized_memory
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(config.seed)
        try:
            if config.tf32:
                products.allow_tf32 = True  # after `fp32_precision` torch's older getters would raise
            if config.deterministic:
                torch.use_deterministic_algorithms(True)
                # Filling every `torch.empty` would write 150 MB more per step of 16,384 samples.
                filling.fill_uninitialized_memory = False
            yield
        finally:
            filling.fill_uninitialized_memory = fills
            products.allow_tf32 = tf32
            if config.deterministic:  # the call imports torch's compiler, which takes 0.8 s
                torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
