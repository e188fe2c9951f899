"""Reports on panels: one HTML page, and what a notebook shows."""

from fewer.report.render import brief, write

__all__ = ["brief", "write"]
