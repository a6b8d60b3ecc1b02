"""The plain answer on the terminal: python3 -m verbena_lab.answer FILE|DIR...

The same sentences as at the top of the page, for `verbena demo`.
"""

import argparse
import sys
import textwrap

from . import advice, topologies
from .errors import ReportError
from .modelled import modelled_texts
from .results import load
from .verdict import verdict
from .views import make_views

USAGE_ERROR = 2
WIDTH = 100


def answer_text(results):
    """The verdict of every view, each sentence on a line of its own; views of one verdict together, empty lines
    between verdicts. Then the topologies, and what is modelled."""
    views = make_views(results.measurements)
    labels = {}  # by sentences
    for view in views:
        sentences = verdict(advice.answers(view)) + [advice.excluded_text(view)]
        labels.setdefault(tuple(filter(None, sentences)), []).append(view.label)
    blocks = [
        [f"On {'; on '.join(members)}:" if len(views) > 1 else "", *(f"  {sentence}" for sentence in sentences)]
        for sentences, members in labels.items()
    ]
    blocks += [topologies.sentences(views), [f"  {text}" for text in modelled_texts(results.measurements)]]
    return "\n\n".join("\n".join(map(_wrapped, filter(None, block))) for block in blocks if block)


def _wrapped(line):
    """Continued lines stand two columns further in than their first."""
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(line.strip(), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


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
