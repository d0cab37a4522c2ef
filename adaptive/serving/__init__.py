"""From a trained run to serving: scores of samples."""

from adaptive.serving.predicting import predict_run

__all__ = ["predict_run"]
