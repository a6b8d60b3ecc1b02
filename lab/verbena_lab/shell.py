"""What every page of the lab is: one HTML file that needs nothing else, written whole or not at all."""

import json
import os
import pathlib
import tempfile

from .errors import ReportError
from .markup import escaped

_HERE = pathlib.Path(__file__).parent
# The page may not load anything from anywhere; the browser enforces it.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def checked_target(out):
    """The file that `out` means; ReportError where it cannot be one."""
    target = pathlib.Path(os.path.realpath(out))
    if os.path.isdir(target):
        raise ReportError(f"{out}: is a directory: name the file to write, e.g. {pathlib.Path(out) / 'report.html'}")
    if os.path.exists(target) and not os.path.isfile(target):
        raise ReportError(f"{out}: is no regular file: give the page a file name of its own")
    return target


def write_page(target, text):
    """A reader sees the old page or the complete new one."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            temporary = pathlib.Path(file.name)
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except BaseException as error:
        if temporary:
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise ReportError(
            f"{target}: cannot write the page ({error.strerror}): check that {target.parent}/ exists, is writable and "
            "has space"
        ) from None


def page_text(title, body, plots, plotly_source):
    """The page with this `body`, whose script draws `plots`."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(title)}</title>
<style>
{(_HERE / 'page.css').read_text(encoding='utf-8')}</style>
</head>
<body>
<main>
{body}</main>
<script type="application/json" id="verbena-plots">{_json(plots)}</script>
<script>{plotly_source}</script>
<script>
{(_HERE / 'page.js').read_text(encoding='utf-8')}</script>
</body>
</html>
"""


def _json(value):
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
