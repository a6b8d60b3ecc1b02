"""HTML pieces that the parts of the page share."""

import html

from .protocols import SLOTS


def escaped(value):
    """Anything as text that is safe in HTML, in attributes too."""
    return html.escape(str(value))


_SHAPES = (
    '<circle cx="13" cy="6" r="4"/>',
    '<rect x="9.4" y="2.4" width="7.2" height="7.2"/>',
    '<path d="M13 1l5 5-5 5-5-5z"/>',
    '<path d="M13 1.4l4.8 8.4H8.2z"/>',
    '<path d="M10 1.6l3 3 3-3 1.4 1.4-3 3 3 3-1.4 1.4-3-3-3 3L8.6 9l3-3-3-3z"/>',
    '<path d="M13 10.6L8.2 2.2h9.6z"/>',
    '<path d="M13 1l5 3.6-1.9 5.8H9.9L8 4.6z"/>',
    '<path d="M10.8 1h4.4v2.8H18v4.4h-2.8V11h-4.4V8.2H8V3.8h2.8z"/>',
)
assert len(_SHAPES) == SLOTS


def swatch(series):
    """The line and marker that stand for a series on every plot."""
    dash = series.dash.replace("px", "")
    stroke = f' stroke-dasharray="{dash}"' if dash != "solid" else ""
    kind = f"s{series.slot}" + (" layout" if series.variant_rank else "")
    return (
        f'<svg class="swatch {kind}" viewBox="0 0 26 12" width="26" height="12" aria-hidden="true">'
        f'<path class="line" d="M0 6h26"{stroke}/>{_SHAPES[series.slot]}</svg>'
    )
