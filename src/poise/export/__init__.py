"""Classifiers as ONNX files, which run without torch and without poise."""

from poise.export.onnx_write import export_onnx
from poise.export.reopen import open_onnx

__all__ = ["export_onnx", "open_onnx"]
