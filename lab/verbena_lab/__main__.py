"""Command line: python3 -m verbena_lab report OUT.html FILE|DIR..., or reproduction or calibration OUT.html FILE."""

import argparse
import sys

from .calibration import write_calibration
from .errors import ReportError
from .page import write_report
from .reproduction import write_reproduction

USAGE_ERROR = 2


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; try --help\n")


def main(arguments=None):
    parser = _Parser(prog="verbena_lab", description="Report pages from what verbena measured.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser, metavar="COMMAND")
    report = commands.add_parser(
        "report",
        help="write one self-contained HTML page",
        description="Writes one self-contained HTML page from result files.",
        epilog="example: python3 -m verbena_lab report report.html results/",
    )
    report.add_argument("out", metavar="OUT.html", help="the page to write; replaced only when the report is complete")
    report.add_argument("inputs", metavar="FILE|DIR", nargs="+", help="result files, or directories with *.json")
    reproduction = commands.add_parser(
        "reproduction",
        help="write the page about a reproduction of the papers",
        description="Writes one self-contained HTML page from what verbena reproduce --report hands over.",
        epilog="example: python3 -m verbena_lab reproduction figures.html data.json",
    )
    reproduction.add_argument("out", metavar="OUT.html", help="the page to write")
    reproduction.add_argument("data", metavar="FILE", help="figures and verdicts")
    calibration = commands.add_parser(
        "calibration",
        help="write the page about a calibration",
        description="Writes one self-contained HTML page from what verbena calibrate --json writes.",
        epilog="example: python3 -m verbena_lab calibration soft0.html soft0.json",
    )
    calibration.add_argument("out", metavar="OUT.html", help="the page to write")
    calibration.add_argument("data", metavar="FILE", help="what was measured, fitted and predicted")
    given = parser.parse_args(arguments)
    try:
        if given.command == "reproduction":
            write_reproduction(given.out, given.data)
        elif given.command == "calibration":
            write_calibration(given.out, given.data)
        else:
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
