"""The plots of a view as Plotly figures (plain objects).

Colours are the page's business, which knows the theme: a trace names its slot.
"""

import html
import math

from . import units
from .modelled import band_text
from .questions import value_bandwidth_band
from .views import series_of

_MAX_TICKS = 9


def figures(view):
    """A list of plots; each has variants (other pending depths, sizes) of which the page shows one at a time."""
    by_series = series_of(view)
    plots = [
        _by_response_size(view, by_series, _LATENCY),
        _by_response_size(view, by_series, _BANDWIDTH),
        _rate_by_pending(view, by_series),
        _cpu_by_protocol(view, by_series),
    ]
    return [plot for plot in plots if plot]


_LATENCY = {
    "id": "latency",
    "title": "Latency by response size",
    "caption": "Round trip from posting the request to holding the response, log-log. Lines: median; whiskers reach up "
    "to p99. Lower is better.",
    "axis": "median latency, whiskers to p99",
    "tick": units.time_text,
    "value": lambda one: one.p50_ns,
    "above": lambda one: max(0.0, one.p99_ns - one.p50_ns),
    "below": lambda one: 0.0,
    "text": lambda one: f"{units.time_text(one.p50_ns)} · p99 {units.time_text(one.p99_ns)}"
    f" · p99.9 {units.time_text(one.p999_ns)}" + banded(one, one.bands and one.bands.p50, units.time_text),
    "first_pending": min,
}
_BANDWIDTH = {
    "id": "bandwidth",
    "title": "Value bandwidth by response size",
    "caption": "Response bytes per second, without the requests’, log-log. Whiskers: lowest and highest run, where the "
    "results have them. Higher is better.",
    "axis": "value bandwidth",
    "tick": units.bandwidth_text,
    "value": lambda one: one.value_bandwidth_bytes_per_s,
    "above": lambda one: scaled_reach(one, one.value_bandwidth_bytes_per_s)[0],
    "below": lambda one: scaled_reach(one, one.value_bandwidth_bytes_per_s)[1],
    "text": lambda one: f"{units.bandwidth_text(one.value_bandwidth_bytes_per_s)} · {units.rate_text(one.rate_per_s)}"
    f" · in total {units.bandwidth_text(one.total_bandwidth_bytes_per_s)}"
    + banded(one, one.bands and value_bandwidth_band(one), units.bandwidth_text),
    "first_pending": max,
}


def banded(one, band, text):
    """The band of what a mark shows, behind its number; empty for devices that exist."""
    found = band_text(one.device, band, text)
    return found and f" · {found}"


def scaled_reach(one, value):
    """How far the runs reach above and below `value`, which moves with the rate."""
    if not one.rate_range or not one.rate_per_s:
        return 0.0, 0.0
    scale = value / one.rate_per_s
    return max(0.0, one.rate_range.high * scale - value), max(0.0, value - one.rate_range.low * scale)


def _by_response_size(view, by_series, kind):
    variants = []
    requests = _values(view, lambda one: one.request_bytes)
    depths = _values(view, lambda one: one.pending)
    first = kind["first_pending"](depths) if depths else None
    for request in requests:
        for pending in sorted(depths, key=lambda depth: (depth != first, depth)):
            traces = []
            sizes = set()
            for series, members in by_series.items():
                points = sorted(
                    (
                        one
                        for one in members
                        if (one.request_bytes, one.pending) == (request, pending)
                        and one.response_bytes > 0
                        and kind["value"](one) > 0
                    ),
                    key=lambda one: one.response_bytes,
                )
                if points:
                    sizes.update(one.response_bytes for one in points)
                    traces.append(
                        line(
                            series,
                            [one.response_bytes for one in points],
                            [kind["value"](one) for one in points],
                            [kind["above"](one) for one in points],
                            [kind["below"](one) for one in points],
                            [
                                hover(series, f"{units.size_text(one.response_bytes)} response", kind["text"](one))
                                for one in points
                            ],
                        )
                    )
            if traces:
                label = f"{pending:,} pending" + (f", {units.size_text(request)} request" if len(requests) > 1 else "")
                layout = {
                    "xaxis": measured_axis("response size", sizes, units.size_text),
                    "yaxis": decade_axis(kind["axis"], traces, kind["tick"]),
                }
                variants.append({"label": label, "data": traces, "layout": layout})
    return _plot(kind["id"], kind["title"], kind["caption"], variants)


def _rate_by_pending(view, by_series):
    variants = []
    shapes = sorted({(one.request_bytes, one.response_bytes) for one in view.valid})
    several_requests = len({request for request, _ in shapes}) > 1
    for request, response in shapes:
        traces = []
        depths = set()
        for series, members in by_series.items():
            points = sorted(
                (one for one in members if (one.request_bytes, one.response_bytes) == (request, response)),
                key=lambda one: one.pending,
            )
            if points:
                depths.update(one.pending for one in points)
                traces.append(
                    line(
                        series,
                        [one.pending for one in points],
                        [one.rate_per_s for one in points],
                        [scaled_reach(one, one.rate_per_s)[0] for one in points],
                        [scaled_reach(one, one.rate_per_s)[1] for one in points],
                        [
                            hover(
                                series,
                                f"{one.pending:,} pending",
                                f"{units.rate_text(one.rate_per_s)} · median {units.time_text(one.p50_ns)}"
                                + banded(one, one.bands and one.bands.rate, units.rate_text),
                            )
                            for one in points
                        ],
                    )
                )
        label = f"{units.size_text(response)} response"
        if several_requests:
            label += f", {units.size_text(request)} request"
        layout = {
            "xaxis": measured_axis("pending requests per queue pair", depths, str),
            "yaxis": {"title": {"text": "responses per second"}, "rangemode": "tozero", "tickformat": "~s"},
        }
        variants.append({"label": label, "data": traces, "layout": layout, "points": len(depths)})
    # A sweep over depths says more than a single one.
    most = max((variant["points"] for variant in variants), default=0)
    variants = [variant for variant in variants if variant.pop("points") == most]
    caption = (
        "Responses per second against the number of requests in flight. Whiskers: lowest and highest run, where the "
        "results have them. Higher is better."
    )
    if most == 1:
        caption += " Only one depth was measured; --pending 1,16 shows the trend."
    return _plot("rate", "Rate by pending depth", caption, variants)


def _cpu_by_protocol(view, by_series):
    variants = []
    measured = [one for one in view.valid if one.requester_cpu or one.responder_cpu]
    shapes = sorted(
        {(one.request_bytes, one.response_bytes, one.pending) for one in measured},
        key=lambda shape: (-shape[2], shape[1], shape[0]),
    )
    several_requests = len({shape[0] for shape in shapes}) > 1
    found_units = {cost.unit for one in measured for cost in (one.requester_cpu, one.responder_cpu) if cost}
    for unit in sorted(found_units, key=lambda name: name != "instructions"):
        for request, response, pending in shapes:
            bars = {"requester": [], "responder": []}
            for series, members in by_series.items():
                for one in members:
                    if (one.request_bytes, one.response_bytes, one.pending) != (request, response, pending):
                        continue
                    for side, cost in (("requester", one.requester_cpu), ("responder", one.responder_cpu)):
                        if cost and cost.unit == unit:
                            bars[side].append((series, cost.per_message))
            traces = [
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": side,
                    "y": [trace_name(series) for series, _ in points],
                    "x": [cost for _, cost in points],
                    "text": [units.count_text(cost) for _, cost in points],
                    "textposition": "outside",
                    "cliponaxis": False,
                    "customdata": [
                        hover(series, f"{side}", f"{units.count_text(cost)} {unit} per message")
                        for series, cost in points
                    ],
                    "hovertemplate": "%{customdata}<extra></extra>",
                    "meta": {"side": side},
                }
                for side, points in bars.items()
                if points
            ]
            if traces:
                label = f"{units.size_text(response)} response, {pending:,} pending"
                if several_requests:
                    label += f", {units.size_text(request)} request"
                if len(found_units) > 1:
                    label += f", {unit}"
                layout = {
                    "barmode": "group",
                    "xaxis": {"title": {"text": f"{unit} per message"}, "rangemode": "tozero", "tickformat": "~s"},
                    "yaxis": {"type": "category", "autorange": "reversed"},
                }
                variants.append({"label": label, "data": traces, "layout": layout})
    how = {
        frozenset({"instructions"}): "Instructions retired per message on each side",
        frozenset({"cycles"}): "Cycles of the time-stamp counter per message on each side",
    }.get(frozenset(found_units), "CPU cost per message on each side")
    return _plot("cpu", "CPU cost per message", f"{how}; polls that found nothing are left out. Lower is better.", variants)


def _plot(identifier, title, caption, variants):
    if not variants:
        return None
    return {"id": identifier, "title": title, "caption": caption, "variants": variants}


def _values(view, get):
    return sorted({get(one) for one in view.valid})


def trace_name(series):
    """Plotly takes names for its own kind of HTML."""
    return html.escape(series.name)


def hover(series, condition, text):
    return f"<b>{trace_name(series)}</b> · {html.escape(condition)}<br>{html.escape(text)}"


def line(series, x, y, above, below, hover):
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": trace_name(series),
        "x": x,
        "y": y,
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "line": {"width": 2, "dash": series.dash},
        "marker": {"size": 8, "symbol": series.marker},
        "meta": {"slot": series.slot},
    }
    if any(above) or any(below):
        trace["error_y"] = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return trace


def measured_axis(title, values, text):
    """Ticks only where something was measured, evenly thinned."""
    ticks = sorted(values)
    if len(ticks) > _MAX_TICKS:
        step = math.ceil(len(ticks) / _MAX_TICKS)
        ticks = ticks[::step]
    axis = {"type": "log", "title": {"text": title}, "tickvals": ticks, "ticktext": [text(tick) for tick in ticks]}
    if len(values) == 1:  # a single point has no range of its own
        centre = math.log10(ticks[0])
        axis["range"] = [centre - 0.5, centre + 0.5]
    return axis


def decade_axis(title, traces, text):
    """Ticks at 1, 2, 5 in each decade, in human units; decades alone where that would be too many."""
    values = [value for trace in traces for value in trace["y"]]
    values += [
        value + above
        for trace in traces
        if "error_y" in trace
        for value, above in zip(trace["y"], trace["error_y"]["array"])
    ]
    low, high = math.log10(min(values)), math.log10(max(values))
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [step * 10.0**decade for decade in range(math.floor(low) - 1, math.ceil(high) + 2) for step in steps]
    axis = {
        "type": "log",
        "title": {"text": title},
        "tickvals": ticks,
        "ticktext": [text(tick, trim=True) for tick in ticks],
    }
    if high - low < 0.5:  # wide enough for two ticks, and small differences stay small
        axis["range"] = [low - 0.3, high + 0.3]
    return axis
