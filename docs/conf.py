"""How Sphinx makes the site of this folder: `make docs`."""

import latex2mathml.converter
from docutils import nodes

import layernorm

project, author = "layernorm", "the authors of layernorm"
copyright = f"2026, {author}"
version = release = layernorm.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
default_role = "py:obj"  # `name` in a docstring
html_theme = "furo"
html_title = "layernorm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

autodoc_mock_imports = ["sb3_contrib", "tensordict", "torchrl"]  # bases of two modules
autodoc_typehints = "none"  # signatures have them; the docstrings say what they mean
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 88

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # as GitHub makes them
nb_execution_mode = "force"
nb_execution_in_temp = True  # it saves files
nb_execution_raise_on_error = True
nb_execution_timeout = 120

html_math_renderer = "mathml"


def _inline(self, node):
    self.body.append(latex2mathml.converter.convert(node.astext()))
    raise nodes.SkipNode


def _displayed(self, node):
    formula = node.astext()
    if r"\\" in formula and r"\begin" not in formula:
        formula = rf"\begin{{align*}}{formula}\end{{align*}}"
    self.body.append(f'<div class="math">{latex2mathml.converter.convert(formula, display="block")}</div>')
    raise nodes.SkipNode


def _skip(app, what, name, item, skip, options):
    """Leaves out the fields of named tuples, whose docstrings are Python's."""
    return skip or (getattr(item, "__doc__", None) or "").startswith("Alias for field number")


def setup(app):
    """Formulas become MathML, which browsers draw by themselves: the site loads nothing from elsewhere."""
    app.connect("autodoc-skip-member", _skip)
    app.add_html_math_renderer("mathml", (_inline, None), (_displayed, None))
