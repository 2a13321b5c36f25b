"""How does Sphinx build the site? From a folder that `tools/site` assembles, without any download.

The folder contains the pages in docs/, the notebooks, and pages generated from the code. Readers download nothing
either.
"""

from __future__ import annotations

import simulator

project = "Cluster simulator"
copyright = "the cluster simulator's authors"  # noqa: A001
version = release = simulator.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "tools.site.mathml",
]
root_doc = "index"
nitpicky = True
# Readers copy code: --set keeps two hyphens, and quotes stay straight.
smartquotes = False

# Headings get GitHub's anchors, and formulas have the notebooks' syntax.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]

# Notebooks appear with their stored outputs; tests compare the stored outputs with the code's outputs.
nb_execution_mode = "off"
nb_ipywidgets_js = {}

autosummary_generate = False
autodoc_default_options = {"members": True}
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = project
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
}
