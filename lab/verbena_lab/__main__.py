"""Command line: python3 -m verbena_lab report OUT.html FILE|DIR..."""

import argparse
import sys

from .errors import ReportError
from .page import write_report

USAGE_ERROR = 2


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; try --help\n")


def main(arguments=None):
    parser = _Parser(prog="verbena_lab", description="Report pages from result files of verbena bench.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser, metavar="COMMAND")
    report = commands.add_parser(
        "report",
        help="write one self-contained HTML page",
        description="Writes one self-contained HTML page from result files.",
        epilog="example: python3 -m verbena_lab report report.html results/",
    )
    report.add_argument("out", metavar="OUT.html", help="the page to write; replaced only when the report is complete")
    report.add_argument("inputs", metavar="FILE|DIR", nargs="+", help="result files, or directories with *.json")
    given = parser.parse_args(arguments)
    try:
        write_report(given.out, given.inputs)
    except ReportError as error:
        print(f"verbena report: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("verbena report: interrupted, nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
