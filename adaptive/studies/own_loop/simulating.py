"""`simulate_policies`: what device sizes and policies would give, from batches of one's own; no row has a value."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from adaptive.batch import Batch, as_batch, in_order
from adaptive.config import OptimizerConfig, SkipConfig, TableConfig, TrainConfig
from adaptive.data.dataset import Dataset, Feature
from adaptive.embeddings.planning.layout import feature_order, make_groups
from adaptive.errors import ConfigError
from adaptive.studies.own_loop.comparing import arguments_of
from adaptive.studies.simulate.simulation import simulate_group
from adaptive.studies.simulate.simulation_report import simulation_document
from adaptive.studies.step_model import Machine

EXAMPLE = Machine(link=50e9, device=4000e9, host=100e9, dense_ms=0.0)


def simulate_policies(
    batches: Sequence[Batch] | Callable[[], Iterable[Batch]],
    tables: Sequence[TableConfig],
    policies: Sequence[str] = ("lru", "lfu"),
    device_rows: Sequence[str] = ("1%", "5%", "10%", "20%"),
    *,
    depth: int = 4,
    optimizer: str = "adagrad",
    machine: Machine = EXAMPLE,
) -> dict[str, Any]:
    """Hit rates, traffic, Belady's bound and modelled step times.

    Args:
        batches: read several times, in the same order: a list, or a function that begins anew.
        tables: of one width and one `lr_scale`; others one after the other.
        policies: names, with a skip rule as in `lfu+skip=defer`.
        device_rows: as in `TierConfig.device_rows`.
        depth: batches of look-ahead.
        optimizer: `sgd`, `adagrad`, `rowwise_adagrad` or `adam`: how large a row is with its state.
        machine: bandwidths in bytes a second; the default is the one of the command line.

    Returns:
        What `adaptive-train simulate --json` prints; `table` is its text.

    Raises:
        ConfigError: for tables of several widths, or batches that can be read only once.
    """
    groups = make_groups(tables, 0)
    if len(groups) != 1:
        widths = ", ".join(f"{group.embedding_dim} (lr_scale {group.lr_scale:g})" for group in groups)
        raise ConfigError(f"simulate_policies: tables of one width are needed, found {widths}; simulate each alone")
    dataset = _Given(batches, tables)
    rows = OptimizerConfig.model_validate({"name": optimizer})
    cases = []
    for label in policies:
        arguments = arguments_of(label)
        skip = SkipConfig(rule=arguments["skip"]) if "skip" in arguments else None
        cases.append((label, TrainConfig(policy=arguments["policy"], skip=skip, depth=depth, optimizer=rows)))
    found = simulate_group(cases, list(device_rows), machine, (dataset, groups[0]))
    return {**asdict(found), "table": simulation_document(found).to_text()}


class _Given(Dataset):
    """Batches of one's own as a data set without an evaluation part."""

    def __init__(self, batches: Sequence[Batch] | Callable[[], Iterable[Batch]], tables: Sequence[TableConfig]) -> None:
        if not callable(batches) and isinstance(batches, Iterator):
            raise ConfigError(
                "batches that can be read once are not enough, as they are read several times: give a list, or a "
                "function that begins anew"
            )
        rows = {name: table.num_embeddings for table in tables for name in table.feature_names}
        self._batches, self._order = batches, feature_order(tables)
        self.features = tuple(Feature(name, rows[name]) for name in self._order)
        self.num_dense = 0

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        given = self._batches() if callable(self._batches) else self._batches
        return (as_batch(in_order(batch, self._order)).unshared() for batch in given)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return iter(())

    def num_train_samples(self) -> int | None:
        return None

    def fingerprint(self) -> dict[str, object]:
        return {"kind": "batches of one's own"}
