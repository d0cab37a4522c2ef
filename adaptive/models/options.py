"""Which models there are by name, each with its settings (`model.NAME`)."""

from adaptive.models.dlrm import DLRMConfig, TowerConfig
from adaptive.models.tbsm import TBSMConfig

OPTIONS: dict[str, type[TowerConfig]] = {"dlrm": DLRMConfig, "tbsm": TBSMConfig}
SEQUENCE_DATA = {"tbsm": "sequences"}  # what a model over sequences trains on where no data are given
