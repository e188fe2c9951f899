"""How `make docs` builds the documentation; nothing is fetched, every warning is an error."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import fewer

project = "fewer"
author = "the authors of fewer"
copyright = "2026, the authors of fewer"
version = release = fewer.__version__

extensions = [
    "commands",
    "mathml",
    "myst_parser",
    "numpydoc",
    "offline",
    "sample_report",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_ext", "gallery/**/*.ipynb", "gallery/**/*.py", "gallery/**/*.md5"]
nitpicky = True
nitpick_ignore_regex = [("py:obj", r"[a-z_]+|[A-Z]\w+Error")]  # plain words are parameters
default_role = "autolink"  # `name` in a docstring links where it can, and is plain text elsewhere

# -- pages -------------------------------------------------------------------------------------
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

# -- reference ---------------------------------------------------------------------------------
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # types are in the text of each parameter
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
templates_path = ["_templates"]

# -- look --------------------------------------------------------------------------------------
html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = f"fewer {release}"
html_static_path = ["_static"]
html_css_files = ["fewer.css"]
html_favicon = "_static/logo.svg"
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {
    page: [] for page in ("index", "start", "method", "comparison", "tried", "changelog")
}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "fewer", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "navbar_end": ["theme-switcher"],
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

# -- gallery -----------------------------------------------------------------------------------
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": "gallery.place",
    "reset_modules": ("gallery.reset",),
    "only_warn_on_example_error": True,  # -W makes it an error, --keep-going shows all of them
    "ignore_repr_types": r"matplotlib|class 'list'|class 'tuple'",  # what drawing returns
    "download_all_examples": False,
    "write_computation_times": False,  # that page would fetch scripts from elsewhere
    "show_signature": False,
}
