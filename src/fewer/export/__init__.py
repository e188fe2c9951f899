"""Panels for other programs: an ONNX graph, a description."""

from fewer.export.description import describe
from fewer.export.onnx_graph import export_onnx

__all__ = ["describe", "export_onnx"]
