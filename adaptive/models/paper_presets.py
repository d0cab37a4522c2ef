"""Shapes of models from papers, for `--preset NAME`.

`adaptive.training.settings` applies them. A preset sets the model's MLPs and width, and the built-in stream's dense
inputs, features and lookups. Any other setting takes precedence. Rows are not part of a preset: tables have
`data.synthetic.rows` rows together, in the proportions of Criteo Kaggle; `published_tables` has the sizes of the paper.
Every bag has `lookups` ids; papers give a mean.

| preset | source |
|---|---|
| rmc1 | facebookresearch/tbsm, its command for Taobao, which is FAE's RMC1: a TBSM over sequences |
| rmc2, rmc3, rmc4 | FAE (Adnan et al., PVLDB 15(1), 2022), its table of models and data sets; Hotline's RM2 to RM4 |
| syn-m1, syn-m2 | Hotline, first version (arXiv 2204.05436v1), figure 20; not the SYN models of FAE's table 8 |
| m1prod, m2prod, m3prod | Acun et al. (arXiv 2011.05497, HPCA 2021), table II |
| mlperf | facebookresearch/dlrm, its command for MLPerf (Criteo Terabyte) |

`ours` lists choices that are not from the source. RMC1 also sets its optimizer. Its tables are those of
`data.sequences`.
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
    source: str
    published_tables: str  # size of all tables together in the source
    lookups: int = 1  # of a bag
    ours: str = "nothing"  # choices that are not from the source
    steps: int = 1  # of a sample; dense inputs and tables are those of a step
    more: Mapping[str, str | int | float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def settings(self) -> dict[str, str | int | float]:
        """The settings of the preset, key -> value."""
        stream = {
            "data.synthetic.num_dense": self.num_dense,
            "data.synthetic.tables": self.tables,
            "data.synthetic.lookups": self.lookups,
        }
        return {
            "model.embedding_dim": self.embedding_dim,
            "model.bottom_mlp": self.bottom_mlp,
            "model.top_mlp": self.top_mlp,
            **({"data.history": self.steps - 1} if self.steps > 1 else stream),
            **self.more,
        }


_FAE = "FAE (PVLDB 15(1), 2022), table of models and data sets"
_HOTLINE = "Hotline (arXiv 2204.05436v1), figure 20"
_ACUN = "Acun et al. (arXiv 2011.05497), table II"
_OURS_SYN = "MLPs and width, which are rmc3's"
_OURS_PROD = "width; the bottom MLP's last layer, which dot products need; dot products themselves"

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
    "rmc1": Preset(
        "16",
        "15-15",
        16,
        1,
        3,
        "facebookresearch/tbsm, command for Taobao; FAE (PVLDB 15(1), 2022), table of models and data sets",
        "5.1 million rows, 0.3 GB",
        steps=21,
        more=_RMC1,
    ),
    "rmc2": Preset("512-256-64-16", "512-256-1", 16, 13, 26, f"{_FAE}: Criteo Kaggle", "33.8 million rows, 2 GB"),
    "rmc3": Preset("512-256-64", "512-512-256-1", 64, 13, 26, f"{_FAE}: Criteo Terabyte", "266 million rows, 63 GB"),
    "rmc4": Preset("512-256-64-16", "512-256-1", 16, 1, 21, f"{_FAE}: Avazu", "9.3 million rows, 0.55 GB"),
    "syn-m1": Preset("512-256-64", "512-512-256-1", 64, 54, 102, _HOTLINE, "196 GB", ours=_OURS_SYN),
    "syn-m2": Preset("512-256-64", "512-512-256-1", 64, 102, 204, _HOTLINE, "390 GB", ours=_OURS_SYN),
    "m1prod": Preset("512-64", "512-512-512-1", 64, 800, 30, _ACUN, "tens of GB", lookups=28, ours=_OURS_PROD),
    "m2prod": Preset("1024-64", "1024-1024-512-1", 64, 504, 13, _ACUN, "tens of GB", lookups=17, ours=_OURS_PROD),
    "m3prod": Preset(
        "512-64", "512-256-512-256-512-1", 64, 809, 127, _ACUN, "hundreds of GB", lookups=49, ours=_OURS_PROD
    ),
    "mlperf": Preset(
        "512-256-128",
        "1024-1024-512-256-1",
        128,
        13,
        26,
        "facebookresearch/dlrm, command for MLPerf",
        "at most 40 million rows a table",
    ),
}
