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

Settings = dict[str, str | int | float]


def _dlrm(bottom_mlp: str, top_mlp: str, embedding_dim: int, num_dense: int, tables: int) -> Settings:
    return {
        "model.embedding_dim": embedding_dim,
        "model.bottom_mlp": bottom_mlp,
        "model.top_mlp": top_mlp,
        "data.synthetic.num_dense": num_dense,
        "data.synthetic.tables": tables,
        "data.synthetic.lookups": 1,
    }


PRESETS: dict[str, Settings] = {
    "rmc1": {
        "model": "tbsm",
        "model.embedding_dim": 16,
        "model.bottom_mlp": "16",
        "model.top_mlp": "15-15",
        "model.attention_mlp": "15-15",
        "model.final_mlp": "60-1",
        "data.history": 20,
        "optimizer.name": "adagrad",
        "optimizer.lr": 0.05,
        "dense_optimizer.name": "adagrad",
        "dense_optimizer.lr": 0.05,
    },
    "rmc2": _dlrm("512-256-64-16", "512-256-1", 16, 13, 26),  # Criteo Kaggle
    "rmc3": _dlrm("512-256-64", "512-512-256-1", 64, 13, 26),  # Criteo Terabyte
    "rmc4": _dlrm("512-256-64-16", "512-256-1", 16, 1, 21),  # Avazu
    "mlperf": _dlrm("512-256-128", "1024-1024-512-256-1", 128, 13, 26),
}
"""Name -> the settings of a preset. MLPs are without their inputs."""
