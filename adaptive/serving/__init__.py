"""Serve a trained run: score data files, and export models for plain torch and ONNX."""

from adaptive.serving.exporting import export_run
from adaptive.serving.increments import apply_increment, export_increment
from adaptive.serving.key_list import list_keys
from adaptive.serving.predicting import predict_run

__all__ = ["apply_increment", "export_increment", "export_run", "list_keys", "predict_run"]
