"""No page may load anything from elsewhere: the documentation is read without a network, too."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(https?:)?//([^\"/]+)")


def check(app: Sphinx, problem: Exception | None) -> None:
    """Warn of each page that would ask another host for a script, a style or a picture."""
    if problem is not None or app.builder.format != "html":
        return
    for page in sorted(Path(app.outdir).rglob("*.html")):
        for found in LOADED.finditer(page.read_text(encoding="utf-8")):
            LOG.warning("%s loads something from %s", page.relative_to(app.outdir), found[2])


def setup(app: Sphinx) -> dict[str, bool]:
    """Look when everything is written."""
    app.connect("build-finished", check, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
