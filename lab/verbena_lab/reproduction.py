"""The page about a reproduction of the papers: their figures as they came out, with what the papers state on them."""

import json

from . import units
from .errors import ReportError
from .figures import hover, line, measured_axis
from .markup import escaped
from .modelled import is_modelled, modelled_text
from .page import legend, plot_figure
from .plotly_js import plotly_js
from .protocols import find_protocol
from .shell import checked_target, page_text, write_page
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
    plots = []
    how = "simulated" if all(map(is_modelled, data["devices"])) else "measured"
    body = [_header(data, how)]
    for paper in data["papers"]:
        name = paper["paper"]
        body.append(f"<section><h2>{escaped(name)}</h2><p>{escaped(paper['summary'])}</p>")
        body.append(_figures([one for one in data["figures"] if one["paper"] == name], plots, how))
        body.append(_table([one for one in data["verdicts"] if one["paper"] == name], how))
        body.append("</section>\n")
    return page_text("Verbena: the papers' figures", "".join(body), plots, plotly_source)


def _header(data, how):
    facts = [f"{how} on {', '.join(data['devices'])}" if data["devices"] else "nothing was simulated"]
    facts.append(f"commit {data['commit']}")
    texts = [modelled_text(device, data.get("models", {})) for device in data["devices"]]
    notices = "".join(f'<p class="notice" role="note">{escaped(text)}</p>' for text in texts if text)
    return (
        '<header><p class="eyebrow">Verbena reproduction</p><h1>What the papers state, and what came out</h1>'
        f'<p class="facts">{" · ".join(map(escaped, facts))}</p></header>\n{notices}'
    )


def _series(protocol):
    known = find_protocol(protocol)
    return Series((known.slot, protocol), (), known.slot, 0, known)


def _figures(figures, plots, how):
    if not figures:
        return ""
    names = sorted({one["protocol"] for figure in figures for one in figure["lines"]})
    by_series = sorted(map(_series, names), key=lambda series: series.key)
    parts = ['<div class="evidence">', legend(by_series), '<div class="plots">']
    for figure in figures:
        element = f"r{len(plots)}"
        title = f"{figure['experiment']} ({figure['topology']})"
        plot = {"title": title, "caption": _CAPTION.format(how), "variants": _variants(figure, how)}
        parts.append(plot_figure(plot, element))
        plots.append({"element": element, "name": title, "variants": plot["variants"]})
    return "".join(parts) + "</div></div>"


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


def _error(one):
    if "error_points" in one:
        return f"{one['error_points']:+.1f} points"
    return f"{one['error_percent']:+.0f} %" if "error_percent" in one else ""


def _table(verdicts, how):
    rows = []
    for one in verdicts:
        mark = {"pass": "holds", "fail": "missed"}.get(one["verdict"], "")
        cells = [one["figure"], one["stated_text"], one["simulated_text"], _error(one)]
        rows.append(
            f"<tr><th scope=row>{escaped(one['id'])}</th>"
            + "".join(f"<td>{escaped(cell)}</td>" for cell in cells)
            + f'<td class="{mark}">{escaped(one["verdict"])}</td><td>{escaped(one["reason"])}</td></tr>'
        )
    heads = ("Claim", "Figure", "Stated", how.capitalize(), "Error", "Verdict", "Reason")
    return (
        "<details><summary>All claims</summary><div class='scroll tall' tabindex=0><table><thead><tr>"
        + "".join(f"<th scope=col>{head}</th>" for head in heads)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )
