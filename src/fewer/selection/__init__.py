"""`fewer.select`: strategies propose panels, held-out rows compare them, the best is refitted."""

from fewer.selection.api import select

__all__ = ["select"]
