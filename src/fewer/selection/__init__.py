"""`fewer.select`: strategies propose panels, held-out rows compare them, the best is refitted."""

from fewer.selection.api import attach, select
from fewer.selection.size import Reach

__all__ = ["Reach", "attach", "select"]
