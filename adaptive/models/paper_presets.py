"""Shapes of models from papers, for `--preset NAME`.

`adaptive.training.settings` applies them. A preset sets the model's MLPs and width, and the built-in stream's dense
inputs, features and lookups. Any other setting takes precedence. Rows are not part of a preset: tables have
`data.synthetic.rows` rows together, in the proportions of Criteo Kaggle, and one lookup for each feature.

| preset | source |
|---|---|
| rmc1 | facebookresearch/tbsm, its command for Taobao, which is FAE's RMC1: a TBSM over sequences |
| rmc2, rmc3, rmc4 | FAE (Adnan et al., PVLDB 15(1), 2022), its table of models and data sets; Hotline's RM2 to RM4 |
| mlperf | facebookresearch/dlrm, its command for MLPerf (Criteo Terabyte) |

RMC1 also sets its optimizer. Its tables are those of `data.sequences`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Preset:
    """The shape of a model. MLPs are without their inputs."""

    bottom_mlp: str
    top_mlp: str
    embedding_dim: int
    num_dense: int
    tables: int
    steps: int = 1  # of a sample; dense inputs and tables are those of a step
    more: Mapping[str, str | int | float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def settings(self) -> dict[str, str | int | float]:
        """The settings of the preset, key -> value."""
        stream = {
            "data.synthetic.num_dense": self.num_dense,
            "data.synthetic.tables": self.tables,
            "data.synthetic.lookups": 1,
        }
        return {
            "model.embedding_dim": self.embedding_dim,
            "model.bottom_mlp": self.bottom_mlp,
            "model.top_mlp": self.top_mlp,
            **({"data.history": self.steps - 1} if self.steps > 1 else stream),
            **self.more,
        }


_RMC1: dict[str, str | int | float] = {
    "model": "tbsm",
    "model.attention_mlp": "15-15",
    "model.final_mlp": "60-1",
    "optimizer.name": "adagrad",
    "optimizer.lr": 0.05,
    "dense_optimizer.name": "adagrad",
    "dense_optimizer.lr": 0.05,
}

PRESETS = {
    "rmc1": Preset("16", "15-15", 16, 1, 3, steps=21, more=_RMC1),
    "rmc2": Preset("512-256-64-16", "512-256-1", 16, 13, 26),  # Criteo Kaggle
    "rmc3": Preset("512-256-64", "512-512-256-1", 64, 13, 26),  # Criteo Terabyte
    "rmc4": Preset("512-256-64-16", "512-256-1", 16, 1, 21),  # Avazu
    "mlperf": Preset("512-256-128", "1024-1024-512-256-1", 128, 13, 26),
}
