"""The one exception the lab reports to its user."""


class ReportError(Exception):
    """A report cannot be made; the text is one line: cause, limit, remedy."""
