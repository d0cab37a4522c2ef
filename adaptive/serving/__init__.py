"""From a trained run to serving: scores of samples, and exports that plain torch scores with."""

from adaptive.serving.exporting import export_run
from adaptive.serving.predicting import predict_run

__all__ = ["export_run", "predict_run"]
