"""The table of all results, and the same as CSV."""

import csv
import io
import pathlib
from dataclasses import dataclass
from typing import Any, Callable

from . import units
from .modelled import band_text, is_modelled
from .protocols import find_protocol
from .views import plain, short_commit

# A spreadsheet takes a text for a formula that begins with one of these.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
# The page says these of all rows elsewhere.
_SAID_ELSEWHERE = ("modelled", "machine", "commit", "file")


@dataclass(frozen=True)
class Column:
    title: str
    name: str  # in the CSV file, with the unit
    value: Callable  # measurement -> number, text, or None where it is not known
    text: Callable  # value -> text for people
    always: bool  # else only where values differ between the rows
    where: tuple = ("page", "csv")


@dataclass(frozen=True)
class Cell:
    value: Any  # what the table sorts by
    text: str
    numeric: bool


@dataclass(frozen=True)
class Row:
    cells: list
    failed: bool


def results_table(measurements):
    """All measurements as rows of formatted cells, what all of them share as texts, and everything as CSV."""
    known = [[column.value(one) for one in measurements] for column in _COLUMNS]
    shown, same = [], []
    for column, values in zip(_COLUMNS, known):
        if "page" not in column.where:
            continue
        if column.always or len(set(values)) > 1:
            shown.append((column, values, all(map(_is_number, filter(_is_known, values)))))
        elif _is_known(values[0]) and column.name not in _SAID_ELSEWHERE and column.text(values[0]):
            same.append(f"{column.title.lower()} {column.text(values[0])}")
    cells = [
        [Cell(value, "" if value is None else column.text(value), numeric) for value in values]
        for column, values, numeric in shown
    ]
    return {
        "columns": [{"title": column.title, "numeric": numeric} for column, _, numeric in shown],
        "rows": [Row(list(row), one.errors > 0) for row, one in zip(zip(*cells), measurements)],
        "same": same,
        "modelled": all(is_modelled(one.device) for one in measurements),
        "csv": _csv_text(known),
    }


def _csv_text(known):
    """Every column of every row, unrounded."""
    file = io.StringIO()
    writer = csv.writer(file)
    written = [(column.name, values) for column, values in zip(_COLUMNS, known) if "csv" in column.where]
    writer.writerow(name for name, _ in written)
    writer.writerows(map(_csv_cell, row) for row in zip(*(values for _, values in written)))
    return file.getvalue()


def _csv_cell(value):
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return "'" + value
    return "" if value is None else value


def _is_known(value):
    return value is not None


def _is_number(value):
    return isinstance(value, (int, float))


def _count(value):
    return f"{value:,.0f}"


def _size_or_word(value):
    return value if isinstance(value, str) else units.size_text(value)


def _attribute(name):
    return lambda one: getattr(one, name)


def _setting(key):
    return lambda one: plain(one.setting(key))


def _cost(side, unit):
    def value(one):
        cost = getattr(one, side)
        return cost.per_message if cost and cost.unit == unit else None

    return value


def _spread_share(one):
    if not one.rate_range or not one.rate_per_s:
        return None
    return (one.rate_range.high - one.rate_range.low) / one.rate_per_s


def _band(name, text):
    """For the page: both ends, or that nobody measured them; None for devices that exist."""
    return lambda one: band_text(one.device, one.bands and getattr(one.bands, name), text) or None


def _band_end(name, end):
    return lambda one: getattr(getattr(one.bands, name), end) if one.bands else None


def _yes_or_no(flag):
    return "yes" if flag else "no"


_COLUMNS = (
    Column("Protocol", "protocol", _attribute("protocol"), lambda key: find_protocol(key).name, True),
    Column("Mark layout", "mark_layout", _attribute("mark_layout"), str, False),
    Column("Device", "device", _attribute("device"), str, False),
    Column("Modelled", "modelled", lambda one: _yes_or_no(is_modelled(one.device)), str, False),
    Column("Machine", "machine", lambda one: one.source.machine_name(), str, False),
    Column("Commit", "commit", lambda one: one.source.commit, short_commit, False),
    Column("Topology", "topology", _attribute("topology"), str, False),
    Column("Nodes", "nodes", _attribute("nodes"), _count, False),
    Column("Threads", "threads", _attribute("threads"), _count, False),
    Column("Requester nodes", "requester_nodes", _setting("requester_nodes"), _count, False),
    Column("Responder nodes", "responder_nodes", _setting("responder_nodes"), _count, False),
    Column("Responder threads", "responder_threads", _setting("responder_threads"), _count, False),
    Column("Connections", "model", _setting("model"), str, False),
    Column("Receive queues", "receive_queues", _setting("receive_queues"), str, False),
    Column("Transport", "transport", _setting("transport"), str, False),
    Column("Waiting", "wait", _setting("wait"), str, False),
    Column("Inline", "inline_bytes", _setting("inline_bytes"), _size_or_word, False),
    Column("Signal interval", "signal_interval", _setting("signal_interval"), _count, False),
    Column("Per doorbell", "post_batch", _setting("post_batch"), _count, False),
    Column("Per poll", "poll_batch", _setting("poll_batch"), _count, False),
    Column("Huge pages", "huge_pages", _setting("huge_pages"), _count, False),
    Column("Receive slack", "receive_slack", _setting("receive_slack"), _count, False),
    Column("Active", "active_share", _setting("active_share"), units.percent_text, False),
    Column("Think time", "think_ns", _setting("think_ns"), units.time_text, False),
    Column("Arrival rate", "arrival_rate_per_s", _setting("arrival_rate_per_s"), units.rate_text, False),
    Column("Arrivals", "arrivals", _setting("arrivals"), str, False),
    Column("Queue pairs per node", "queue_pairs_per_node", _attribute("queue_pairs_per_node"), _count, False),
    Column("Request", "request_bytes", _attribute("request_bytes"), units.size_text, False),
    Column("Response", "response_bytes", _attribute("response_bytes"), units.size_text, False),
    Column("Pending", "pending", _attribute("pending"), _count, False),
    Column("Median", "p50_ns", _attribute("p50_ns"), units.time_text, True),
    Column("p99", "p99_ns", _attribute("p99_ns"), units.time_text, True),
    Column("p99.9", "p999_ns", _attribute("p999_ns"), units.time_text, True),
    Column("Rate", "rate_per_s", _attribute("rate_per_s"), units.rate_text, True),
    Column(
        "Value bandwidth",
        "value_bandwidth_bytes_per_s",
        _attribute("value_bandwidth_bytes_per_s"),
        units.bandwidth_text,
        True,
    ),
    Column(
        "Total bandwidth",
        "total_bandwidth_bytes_per_s",
        _attribute("total_bandwidth_bytes_per_s"),
        units.bandwidth_text,
        True,
    ),
    Column("Offered rate", "offered_rate_per_s", _attribute("offered_rate_per_s"), units.rate_text, False),
    Column(
        "Saturated",
        "saturated",
        lambda one: None if one.saturated is None else _yes_or_no(one.saturated),
        str,
        False,
    ),
    Column("Mean rate", "rate_mean_per_s", _attribute("rate_mean_per_s"), units.rate_text, False),
    Column("Deviation", "rate_deviation_per_s", _attribute("rate_deviation_per_s"), units.rate_text, False),
    Column("Spread", "rate_spread_share", _spread_share, units.percent_text, False),
    Column("Runs", "runs", _attribute("runs"), _count, False),
    Column("Over variants: median", "p50_band", _band("p50", units.time_text), str, False, ("page",)),
    Column("Over variants: rate", "rate_band", _band("rate", units.rate_text), str, False, ("page",)),
    Column("", "variants", lambda one: one.bands and one.bands.variants, _count, False, ("csv",)),
    Column("", "p50_band_least_ns", _band_end("p50", "low"), units.time_text, False, ("csv",)),
    Column("", "p50_band_most_ns", _band_end("p50", "high"), units.time_text, False, ("csv",)),
    Column("", "rate_band_least_per_s", _band_end("rate", "low"), units.rate_text, False, ("csv",)),
    Column("", "rate_band_most_per_s", _band_end("rate", "high"), units.rate_text, False, ("csv",)),
    Column(
        "Requester instructions",
        "requester_instructions_per_message",
        _cost("requester_cpu", "instructions"),
        units.count_text,
        False,
    ),
    Column(
        "Responder instructions",
        "responder_instructions_per_message",
        _cost("responder_cpu", "instructions"),
        units.count_text,
        False,
    ),
    Column(
        "Requester cycles", "requester_cycles_per_message", _cost("requester_cpu", "cycles"), units.count_text, False
    ),
    Column(
        "Responder cycles", "responder_cycles_per_message", _cost("responder_cpu", "cycles"), units.count_text, False
    ),
    Column("Empty polls", "empty_poll_share", _attribute("empty_poll_share"), units.percent_text, False),
    Column("Resent", "resent_per_request", _attribute("resent_per_request"), units.percent_text, False),
    Column("Verified", "verified", lambda one: _yes_or_no(one.verified), str, True),
    Column("Errors", "errors", _attribute("errors"), _count, True),
    Column("File", "file", lambda one: one.source.file, lambda path: pathlib.Path(path).name, False),
)
