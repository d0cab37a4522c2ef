"""Serve a trained run: score data files, and export models for plain torch."""

from adaptive.serving.exporting import export_run
from adaptive.serving.predicting import predict_run

__all__ = ["export_run", "predict_run"]
