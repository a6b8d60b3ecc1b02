"""The page about a calibration: what was measured, how well the profile explains it, and what it predicts."""

import json
from dataclasses import dataclass

from . import units
from .errors import ReportError
from .figures import hover, trace_name
from .page import drawings, placed
from .page_file import checked_target, write_page
from .plotly_js import plotly_js
from .protocols import find_protocol
from .rendering import render_page
from .tables import Cell
from .views import Series

# What a simulation may differ from its measurement to count as explained, as `verbena calibrate` prints it.
_EXPLAINED = 0.03


@dataclass(frozen=True)
class Prediction:
    setting: str
    series: Series
    median: float  # measured, per second, as the next two
    least: float
    most: float
    predicted: float

    @property
    def error(self):
        return self.predicted / self.median - 1

    @property
    def text(self):
        spread = f"{units.rate_text(self.least)} to {units.rate_text(self.most)}"
        return f"measured {units.rate_text(self.median)} ({spread}) · predicted {units.rate_text(self.predicted)}"


def write_calibration(out, path):
    """Writes the page for the data in `path` to `out`. Raises ReportError; then `out` is as it was before."""
    target = checked_target(out)
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        text = render(data, plotly_js())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ReportError(f"{path}: is no result of verbena calibrate ({error}): let --json of that write it") from None
    write_page(target, text)


def render(data, plotly_source):
    """The page as text."""
    predictions = [_prediction(one) for one in data.get("predictions", ())]
    plots = placed([_all_points(predictions), _by_setting(predictions)] if predictions else [], "p-")
    machine = data["machine"]
    return render_page(
        "calibration.html",
        plotly_source,
        title=f"Verbena: calibration of {data['device']}",
        eyebrow="Verbena calibration",
        heading=f"{data['device']}: what its profile explains, and what it predicts",
        facts=_facts(data),
        notices=_notices(data),
        summary=_summary(data["summary"]) if predictions else "",
        series=sorted({one.series for one in predictions}, key=lambda series: series.key),
        plots=plots,
        predictions=_table(_PREDICTED, sorted(predictions, key=lambda one: -abs(one.error))),
        observations=_table(_OBSERVED, data["observations"]),
        parameters=_table(_PARAMETERS, sorted(data["parameters"].items())),
        sources=[("Device", data["device"]), ("Commit", data["commit"]), ("Command", data["command"])]
        + sorted(machine.items() if isinstance(machine, dict) else [("machine", machine)]),
        drawings=drawings(plots),
    )


def _facts(data):
    machine = data["machine"]
    processor = machine.get("cpu") if isinstance(machine, dict) else machine
    facts = [f"{len(data['observations'])} measurements", f"{len(data['parameters'])} parameters"]
    return facts + ([str(processor)] if processor else []) + [f"commit {data['commit']}"]


def _notices(data):
    notices = [f"Warning: {data['warning']}."] if "warning" in data else []
    if not data.get("predictions"):
        notices.append("Nothing was predicted: --check also measures what nothing is calibrated by.")
    return notices


def _summary(summary):
    text = (
        f"Of {summary['points']} points that nothing was calibrated by, half are predicted within "
        f"{units.percent_text(summary['median_error'])}."
    )
    if not summary["pairs"]:
        if not summary.get("has_spread", True):
            return f"{text} Which protocol is faster takes --rounds 2 at least to tell."
        return f"{text} No two protocols differed by more than their spread."
    return (
        f"{text} Of {summary['pairs']} pairs of protocols of which one was faster in every round, "
        f"{summary['pairs_in_order']} are predicted in the right order."
    )


def _prediction(one):
    protocol = find_protocol(one["protocol"])
    measured = one["measured_per_s"]
    return Prediction(
        setting=one["setting"],
        series=Series((protocol.slot, one["protocol"]), (), protocol.slot, 0, protocol),
        median=measured["median"],
        least=measured["least"],
        most=measured["most"],
        predicted=one["predicted_per_s"],
    )


# --- plots ---


def _all_points(predictions):
    rates = [rate for one in predictions for rate in (one.least, one.most, one.predicted) if rate > 0]
    ends = [min(rates) / 1.3, max(rates) * 1.3]
    layout = {
        "xaxis": {"type": "log", "dtick": 1, "tickformat": "~s", "title": {"text": "measured, per second"}},
        "yaxis": {"type": "log", "dtick": 1, "tickformat": "~s", "title": {"text": "predicted, per second"}},
        "shapes": [
            {
                "type": "line",
                "layer": "below",
                "x0": ends[0],
                "x1": ends[1],
                "y0": ends[0],
                "y1": ends[1],
                "line": {"width": 1, "dash": "dash", "color": "#8a8a8a"},
            }
        ],
    }
    traces = [_points(series, of) for series, of in _by_series(predictions).items()]
    return {
        "id": "all",
        "title": "Predicted against measured rates",
        "caption": "Each mark is a point that nothing was calibrated by, log-log. On the dashed line a prediction is "
        "exact; above it too much was predicted. Whiskers: the slowest and the fastest round.",
        "variants": [{"label": f"all {len(predictions)} points", "data": traces, "layout": layout}],
    }


def _points(series, predictions):
    return {
        "type": "scatter",
        "mode": "markers",
        "name": trace_name(series),
        "x": [one.median for one in predictions],
        "y": [one.predicted for one in predictions],
        "error_x": _reach(predictions),
        "customdata": [hover(series, one.setting, f"{one.text} ({_error_text(one.error)})") for one in predictions],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"size": 9, "symbol": series.marker},
        "meta": {"slot": series.slot},
    }


def _by_setting(predictions):
    variants = []
    for setting in dict.fromkeys(one.setting for one in predictions):
        of = [one for one in predictions if one.setting == setting]
        layout = {
            "barmode": "group",
            "xaxis": {"title": {"text": "requests per second"}, "rangemode": "tozero", "tickformat": "~s"},
            "yaxis": {"type": "category", "autorange": "reversed"},
        }
        data = [
            _bars("measured", of, [one.median for one in of]) | {"error_x": _reach(of)},
            _bars("predicted", of, [one.predicted for one in of]),
        ]
        variants.append({"label": setting, "data": data, "layout": layout})
    return {
        "id": "settings",
        "title": "Rates by setting",
        "caption": "What was measured and what the profile predicts, side by side. Whiskers: the slowest and the "
        "fastest round.",
        "variants": variants,
    }


def _bars(side, predictions, rates):
    return {
        "type": "bar",
        "orientation": "h",
        "name": side,
        "y": [trace_name(one.series) for one in predictions],
        "x": rates,
        "text": [units.rate_text(rate) for rate in rates],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [hover(one.series, side, f"{one.text} ({_error_text(one.error)})") for one in predictions],
        "hovertemplate": "%{customdata}<extra></extra>",
        "meta": {"side": side},
    }


def _reach(predictions):
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, one.most - one.median) for one in predictions],
        "arrayminus": [max(0.0, one.median - one.least) for one in predictions],
    }


def _by_series(predictions):
    found = {}
    for one in sorted(predictions, key=lambda one: one.series.key):
        found.setdefault(one.series, []).append(one)
    return found


# --- tables ---


def _error_text(error):
    return f"{100 * error:+.0f}{units.NO_BREAK_SPACE}%"


def _simulated_error(one):
    return one["simulated_ns"] / one["ns"]["median"] - 1


# (title, value to sort by, text; None: the value is a text already)
_PREDICTED = (
    ("Setting", lambda one: one.setting, None),
    ("Protocol", lambda one: one.series.name, None),
    ("Measured", lambda one: one.median, units.rate_text),
    ("Least", lambda one: one.least, units.rate_text),
    ("Most", lambda one: one.most, units.rate_text),
    ("Predicted", lambda one: one.predicted, units.rate_text),
    ("Error", lambda one: one.error, _error_text),
)
_OBSERVED = (
    ("Measured", lambda one: one["measured"], None),
    ("Parameters set by it", lambda one: ", ".join(one["parameters"]), None),
    ("Median", lambda one: one["ns"]["median"], units.time_text),
    ("Least", lambda one: one["ns"]["least"], units.time_text),
    ("Most", lambda one: one["ns"]["most"], units.time_text),
    ("Simulated", lambda one: one["simulated_ns"], units.time_text),
    ("Error", _simulated_error, _error_text),
    ("Explained", lambda one: "yes" if abs(_simulated_error(one)) <= _EXPLAINED else "no", None),
)
_PARAMETERS = (
    ("Parameter", lambda one: one[0], None),
    ("Value", lambda one: one[1]["value"], units.significant),
    ("Unit", lambda one: one[1]["unit"], None),
    ("Evidence", lambda one: one[1]["evidence"], None),
    ("Source", lambda one: one[1]["source"], None),
)


def _table(columns, items):
    rows = [[_cell(value(one), text) for _, value, text in columns] for one in items]
    return {"columns": [{"title": title, "numeric": text is not None} for title, _, text in columns], "rows": rows}


def _cell(value, text):
    return Cell(value, str(value) if text is None else text(value), text is not None)
