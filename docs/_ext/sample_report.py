"""A real report beside the pages, so that readers see one without installing anything."""

from pathlib import Path

from sphinx.application import Sphinx


def write(app: Sphinx, problem: Exception | None) -> None:
    """Choose ten pixels of digits and report on them; once, for it does not depend on the pages."""
    page = Path(app.outdir) / "report.html"
    if problem is not None or app.builder.format != "html" or page.exists():
        return
    from sklearn.datasets import load_digits  # noqa: PLC0415

    import fewer  # noqa: PLC0415

    X = load_digits(as_frame=True).data / 16
    panel = fewer.select(X[:1400], k=10, scale="none", random_state=0)
    panel.report(page, X[1400:], title="Ten pixels of sixty-four")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write it when the pages are done."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
