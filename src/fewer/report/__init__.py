"""What a panel looks like: figures and pages."""

from fewer.report.render import brief, write

__all__ = ["brief", "write"]
