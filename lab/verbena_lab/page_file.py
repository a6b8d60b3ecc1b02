"""Writes a page: whole or not at all."""

import os
import pathlib
import tempfile

from .errors import ReportError

def checked_target(out):
    """The file that `out` means; ReportError where it cannot be one."""
    target = pathlib.Path(os.path.realpath(out))
    if os.path.isdir(target):
        raise ReportError(f"{out}: is a directory: name the file to write, e.g. {pathlib.Path(out) / 'report.html'}")
    if os.path.exists(target) and not os.path.isfile(target):
        raise ReportError(f"{out}: is not a regular file: give the page a file name of its own")
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
