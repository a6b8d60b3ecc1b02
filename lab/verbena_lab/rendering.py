"""Pages from the templates in `templates/`. Text from result files is foreign: everything is escaped unless it is ours."""

import functools
import json
import pathlib

from . import units
from .errors import ReportError
from .figures import trace_name

_TEMPLATES = pathlib.Path(__file__).parent / "templates"


def render_page(template, plotly_source, **values):
    """The page as text. `plotly_source` goes into a script element as it is."""
    environment, markup = _environment()
    return environment.get_template(template).render(plotly_source=markup(plotly_source), **values)


@functools.cache
def _environment():
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise ReportError(
            f"the template library Jinja2 is missing ({error}): install the package python3-jinja2 "
            "(apt-get install python3-jinja2)"
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain_value": _plain_value, "trace_name": trace_name}
    environment.globals["asset"] = lambda name: Markup((_TEMPLATES / name).read_text(encoding="utf-8"))
    # tojson escapes what could end a script element.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment, Markup


def _plain_value(value):
    """Any value of a JSON file as short text."""
    if isinstance(value, str):
        return value
    return units.significant(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
