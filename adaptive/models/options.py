"""Which models there are by name, each with its settings (`model.NAME`)."""

from adaptive.models.common import ModelConfig
from adaptive.models.dcn import DCNConfig
from adaptive.models.deepfm import DeepFMConfig
from adaptive.models.dlrm import DLRMConfig
from adaptive.models.multi_task import MultiTaskConfig
from adaptive.models.tbsm import TBSMConfig
from adaptive.models.two_tower import TwoTowerConfig

OPTIONS: dict[str, type[ModelConfig]] = {
    "dlrm": DLRMConfig,
    "dcn": DCNConfig,
    "deepfm": DeepFMConfig,
    "two-tower": TwoTowerConfig,
    "multi-task": MultiTaskConfig,
    "tbsm": TBSMConfig,
}
BUILT_IN_DATA: dict[str, dict[str, str | int]] = {
    "tbsm": {"data": "sequences"},
    "multi-task": {"data.synthetic.labels": 2},
}  # what a model trains on where no data are given, unless it is the default
