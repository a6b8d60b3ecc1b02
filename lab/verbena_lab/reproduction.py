"""The page about a reproduction of the papers: their figures as they came out, with what the papers state on them."""

import json

from . import units
from .errors import ReportError
from .figures import hover, line, measured_axis
from .modelled import NO_BAND, is_modelled, modelled_text
from .page import drawings, placed
from .page_file import checked_target, write_page
from .plotly_js import plotly_js
from .protocols import find_protocol
from .rendering import render_page
from .views import Series

_AXIS_NAMES = {
    "response": "response size",
    "pending": "pending requests",
    "requesters": "requesting threads",
    "nodes": "nodes",
    "responders": "responding nodes",
    "threads": "requesting threads per node",
    "responding-threads": "responding threads",
    "empty-percent": "empty mailboxes, %",
}
_CAPTION = "Lines: {}. Stars: stated by the paper, hollow where the claim fails; whiskers: a stated range."


def write_reproduction(out, path):
    """Writes the page for the data in `path` to `out`. Raises ReportError; then `out` is as it was before."""
    target = checked_target(out)
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        text = render(data, plotly_js())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{path}: is no data of verbena reproduce ({error}): let --report of that write it") from None
    write_page(target, text)


def render(data, plotly_source):
    """The page as text."""
    how = "simulated" if all(map(is_modelled, data["devices"])) else "measured"
    papers = []
    for paper in data["papers"]:
        name = paper["paper"]
        drawn = [one for one in data["figures"] if one["paper"] == name]
        papers.append(
            {
                "name": name,
                "summary": paper["summary"],
                "series": _all_series(drawn),
                "plots": placed([_plot(one, index, how) for index, one in enumerate(drawn)], f"p{len(papers)}-"),
                "claims": [_claim(one) for one in data["verdicts"] if one["paper"] == name],
            }
        )
    varied = any("variants" in one for one in data["verdicts"])
    facts = [f"{how} on {', '.join(data['devices'])}" if data["devices"] else "nothing was simulated"]
    texts = [modelled_text(device, data.get("models", {})) for device in data["devices"]]
    return render_page(
        "reproduction.html",
        plotly_source,
        title="Verbena: the papers' figures",
        eyebrow="Verbena reproduction",
        heading="What the papers state, and what came out",
        facts=[*facts, f"commit {data['commit']}"],
        notices=[text for text in texts if text] + _variants_notice(data, varied),
        varied=varied,
        papers=papers,
        how=how,
        drawings=drawings([plot for paper in papers for plot in paper["plots"]]),
    )


def _variants_notice(data, varied):
    if varied or not any(map(is_modelled, data["devices"])):
        return []
    return [f"{NO_BAND.capitalize()}: --variants 5 tells which claims hang on what is assumed of the device."]


def _series(protocol):
    known = find_protocol(protocol)
    return Series((known.slot, protocol), (), known.slot, 0, known)


def _all_series(figures):
    names = sorted({one["protocol"] for figure in figures for one in figure["lines"]})
    return sorted(map(_series, names), key=lambda series: series.key)


def _plot(figure, index, how):
    return {
        "id": str(index),
        "title": f"{figure['experiment']} ({figure['topology']})",
        "caption": _CAPTION.format(how),
        "variants": _variants(figure, how),
    }


def _variants(figure, how):
    variants = []
    for name in dict.fromkeys(one["variant"] for one in figure["lines"]):
        lines = [one for one in figure["lines"] if one["variant"] == name]
        traces = [_found(figure, one, how) for one in lines]
        traces += [_stated(figure, one) for one in figure["stated"] if one["variant"] == name]
        places = {x for one in lines for x in one["x"]}
        unit = f", {figure['unit']}" if figure["unit"] else ""
        layout = {
            "xaxis": _x_axis(figure["x"], places),
            "yaxis": _y_axis(figure["metric"] + unit, [y for one in lines for y in one["y"]]),
        }
        variants.append({"label": name or "all", "data": traces, "layout": layout})
    # What the paper says most about comes first.
    variants.sort(key=lambda variant: -len(variant["data"]))
    return variants


def _x_axis(name, places):
    title = _AXIS_NAMES.get(name, name)
    if min(places) <= 0:
        return {"title": {"text": title}}
    return measured_axis(title, places, _x_text(name))


def _y_axis(title, values):
    axis = {"title": {"text": title}, "rangemode": "tozero"}
    # Small values next to very large ones would lie on the ground.
    if min(values) > 0 and max(values) > 100 * min(values):
        axis = {"title": {"text": title}, "type": "log", "dtick": 1, "tickformat": "~g"}
    return axis


def _x_text(name):
    return (lambda x: units.size_text(int(x))) if name == "response" else (lambda x: f"{x:g}")


def _found(figure, one, how):
    series = _series(one["protocol"])
    text = _x_text(figure["x"])
    texts = [
        hover(series, text(x), f"{how} {units.significant(y)} {figure['unit']}") for x, y in zip(one["x"], one["y"])
    ]
    none = [0] * len(one["x"])
    return line(series, one["x"], one["y"], none, none, texts)


def _stated(figure, one):
    series = _series(one["protocol"])
    middle = (one["low"] + one["high"]) / 2
    reach = one["high"] - middle
    text = f"stated {one['text']}: {one['claim']} ({one['verdict']})"
    trace = line(series, [one["x"]], [middle], [reach], [reach], [hover(series, _x_text(figure["x"])(one["x"]), text)])
    # Larger than the line's own marks, and hollow where it is missed, whatever its protocol's symbol.
    symbol = "star" if one["verdict"] == "pass" else "star-open"
    trace.update(mode="markers", marker={"size": 15, "symbol": symbol})
    return trace


def _claim(one):
    error = ""
    if "error_points" in one:
        error = f"{one['error_points']:+.1f} points"
    elif "error_percent" in one:
        error = f"{one['error_percent']:+.0f} %"
    texts = ("id", "figure", "stated_text", "simulated_text", "verdict", "reason")
    robust = f"{one['holds']}: {one['variants_held']} of {one['variants']}" if "variants" in one else ""
    return {text: one[text] for text in texts} | {"error": error, "over_variants": robust}
