"""Equations as MathML, which browsers draw by themselves: no script, no font, no network."""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOG = logging.getLogger(__name__)


def _converted(node: nodes.Element, as_block: bool) -> str:
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        LOG.warning("cannot draw %r: %s", node.astext(), error, location=node)
        return nodes.unescape(node.astext())


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write an equation inside a line."""
    self.body.append(_converted(node, as_block=False))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write an equation on a line of its own, which scrolls where the page is narrow."""
    self.body.append(self.starttag(node, "div", CLASS="equation"))
    self.body.append(_converted(node, as_block=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Make ``html_math_renderer = "mathml"`` known."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
