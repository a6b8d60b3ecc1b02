"""The plain answer on the terminal: python3 -m verbena_lab.answer FILE|DIR...

The same sentences as at the top of the page, for `verbena demo`.
"""

import argparse
import sys
import textwrap

from . import advice
from .errors import ReportError
from .results import load
from .verdict import verdict
from .views import make_views

USAGE_ERROR = 2
WIDTH = 100


def answer_text(results):
    """The verdict of every view, each sentence on a line of its own; empty lines between views."""
    views = make_views(results.measurements)
    blocks = []
    for view in views:
        lines = [f"On {view.label}:"] if len(views) > 1 else []
        sentences = verdict(advice.answers(view)) + [advice.excluded_text(view)]
        for sentence in filter(None, sentences):
            lines += textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="    ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="verbena_lab.answer", description="Which protocol to use, from result files.")
    parser.add_argument("inputs", metavar="FILE|DIR", nargs="+", help="result files, or directories with *.json")
    given = parser.parse_args(arguments)
    try:
        print(answer_text(load(given.inputs)))
    except ReportError as error:
        print(f"verbena report: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
