"""`Locality`: how look-ups and inputs concentrate on the hottest rows, counted in some data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from adaptive.data.dataset import Dataset
from adaptive.embeddings.planning.layout import Group
from adaptive.studies.profile.data_profile import DataQuestion, profile_data

SHARES: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75)
SAMPLES: Final = 200_000


@dataclass(frozen=True)
class Locality:
    """By share of the rows on the device: look-ups of these rows, inputs all of whose rows they are; by batch size:
    distinct rows over look-ups. Between the points that were counted lines are drawn."""

    source: str
    shares: tuple[float, ...]
    lookups: tuple[float, ...]
    inputs: tuple[float, ...]
    sizes: tuple[float, ...]
    distinct: tuple[float, ...]

    def lookup_share(self, share: float) -> float:
        return float(np.interp(share, (0.0, *self.shares, 1.0), (0.0, *self.lookups, 1.0)))

    def hot_inputs(self, share: float) -> float:
        return float(np.interp(share, (0.0, *self.shares, 1.0), (0.0, *self.inputs, 1.0)))

    def distinct_share(self, batch_size: int) -> float:
        """Beyond the sizes that were counted: that of the nearest one."""
        return float(np.interp(np.log(batch_size), np.log(self.sizes), self.distinct))


def locality_of(dataset: Dataset, group: Group, row_bytes: int, source: str) -> Locality:
    """Counted in the first samples of the data (measured)."""
    budgets = tuple((f"{share:g}", max(int(share * group.num_rows), 1)) for share in SHARES)
    return from_profile(profile_data(dataset, group, row_bytes, DataQuestion(SAMPLES, budgets)), source)


def from_profile(data: Mapping[str, Any], source: str) -> Locality:
    """Of what `profile_data` found.

    A budget below what is seen of the rows may be larger than all that were seen: the rest of the curve is theirs.
    """
    each = data["lookups"] / data["samples"]
    sizes = {
        float(size): found / (each * float(size)) for size, found in data["reuse"]["distinct_by_batch_size"].items()
    }
    return Locality(
        source=source,
        shares=tuple(one["rows_that_fit"] / data["rows"] for one in data["hot"]),
        lookups=tuple(one["lookup_share"] for one in data["hot"]),
        inputs=tuple(one["hot_input_share"] for one in data["hot"]),
        sizes=tuple(sizes),
        distinct=tuple(sizes.values()),
    )
