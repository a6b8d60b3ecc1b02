"""Finds the Plotly library that goes into the page."""

import os
import pathlib

from .errors import ReportError

# Where the distribution's python3-plotly keeps it, so that any Python on the machine can make reports.
_DISTRIBUTION_FILE = pathlib.Path("/usr/share/python3-plotly/plotly.js")
_OVERRIDE = "VERBENA_PLOTLY_JS"
_REMEDY = "install the package python3-plotly (apt-get install python3-plotly)"


def plotly_js():
    """The library's source text. Raises ReportError where there is none."""
    override = os.environ.get(_OVERRIDE)
    if override:
        return _checked(_read(pathlib.Path(override)), override)
    if _DISTRIBUTION_FILE.exists():
        return _checked(_read(_DISTRIBUTION_FILE), str(_DISTRIBUTION_FILE))
    try:
        from plotly.offline import get_plotlyjs

        return _checked(get_plotlyjs(), "the Python package plotly")
    except (ImportError, OSError) as error:
        raise ReportError(f"the plotting library Plotly is missing ({error}): {_REMEDY}") from None


def _read(path):
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"cannot read Plotly from {path} ({error}): {_REMEDY} or set {_OVERRIDE}") from None


def _checked(text, origin):
    if "plotly.js v" not in text[:400] and "plotly.js (" not in text[:400]:
        raise ReportError(f"{origin} is not a Plotly library: {_REMEDY}")
    # A script element ends at the first such tag, also inside a string of the library.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
