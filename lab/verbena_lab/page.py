"""Puts the report page together."""

import html
import os

from . import advice, figures
from .cards import answer_card
from .errors import ReportError
from .markup import escaped, swatch
from .modelled import is_modelled, modelled_texts
from .plotly_js import plotly_js
from .results import load
from .scaling import scaling_plots
from .shell import checked_target, page_text, write_page
from .tables import peers_section, provenance_section, results_section
from .topologies import topology_section
from .verdict import verdict
from .views import make_views, series_of


def write_report(out, inputs):
    """Writes the page for `inputs` to `out`. Raises ReportError; then `out` is as it was before."""
    results = load(inputs)
    target = checked_target(out)
    if any(os.path.realpath(file) == str(target) for file in results.files):
        raise ReportError(f"{out}: is one of the result files: give the page another name")
    write_page(target, render(results, plotly_js()))


def render(results, plotly_source):
    """The page as text."""
    views = make_views(results.measurements)
    devices = sorted({view.device for view in views})
    plots = []  # what the script draws, in the order of the page
    sections = "".join(_view_section(view, index, len(views) > 1, plots) for index, view in enumerate(views))
    body = (
        _header(results, views, devices)
        + _modelled_notice(results)
        + topology_section(views)
        + _view_choice(views)
        + sections
        + _scaling_section(views, plots)
        + peers_section(results.peers)
        + results_section(results.measurements)
        + provenance_section(results)
    )
    return page_text(f"Verbena report: {', '.join(devices)}", body, plots, plotly_source)


def _header(results, views, devices):
    machines = sorted({view.machine for view in views})
    count = len(results.measurements)
    modelled = "modelled " if all(map(is_modelled, devices)) else ""
    facts = [f"{count:,} {modelled}measurement{'' if count == 1 else 's'}", f"device {', '.join(devices)}"]
    if len(machines) == 1 and len(machines[0]) <= 60:
        facts.append(machines[0])
    facts.append(_verified_text(results.measurements))
    return (
        '<header><p class="eyebrow">Verbena report</p><h1>Which one should I use here?</h1>'
        f'<p class="facts">{" · ".join(map(escaped, facts))}</p></header>\n'
    )


def _modelled_notice(results):
    texts = modelled_texts(results.measurements)
    return "".join(f'<p class="notice" role="note">{escaped(text)}</p>\n' for text in texts)


def _verified_text(measurements):
    verified = sum(one.verified for one in measurements)
    if verified == len(measurements):
        return "every payload byte verified"
    if verified == 0:
        return "payloads not verified (--verify checks them)"
    return f"payload bytes verified in {verified:,} of them"


def _view_choice(views):
    if len(views) < 2:
        return ""
    options = "".join(f'<option value="{index}">{escaped(view.label)}</option>' for index, view in enumerate(views))
    return (
        f'<div class="choose"><label for="view">Measured on</label><select id="view">{options}</select>'
        f"<span>{len(views)} set-ups; protocols are compared within a set-up only</span></div>\n"
    )


def _view_section(view, index, several, plots):
    found = advice.answers(view)
    parts = [f'<section class="view" data-view="{index}">']
    if several:
        parts.append(f"<h2>On {escaped(view.label)}</h2>")
    parts.append('<div class="verdict">' + "".join(f"<p>{escaped(line)}</p>" for line in verdict(found)) + "</div>")
    excluded = advice.excluded_text(view)
    if excluded:
        parts.append(f'<p class="notice" role="note">{escaped(excluded)}</p>')
    if view.merged:
        parts.append(
            f'<p class="note">{view.merged:,} configurations were measured more than once: medians count, and their '
            "spread reaches over all of them.</p>"
        )
    parts.append('<div class="answers">' + "".join(map(answer_card, found)) + "</div>")
    parts.append(_limits(view))
    drawn = figures.figures(view)
    if drawn:
        parts.append("<h2>The measurements behind it</h2>")
        parts.append('<div class="evidence">')
        parts.append(legend(series_of(view)))
        parts.append(
            "<noscript><p class=notice>The plots need JavaScript; the answers above and the table below do not."
            "</p></noscript>"
        )
        parts.append('<div class="plots">')
        for plot in drawn:
            parts.append(plot_figure(plot, f"v{index}-{plot['id']}"))
            plots.append({"element": f"v{index}-{plot['id']}", "name": plot["title"], "variants": plot["variants"]})
        parts.append("</div></div>")
    parts.append("</section>\n")
    return "\n".join(parts)


def _scaling_section(views, plots):
    """What moves with nodes and threads, over all views."""
    drawn = scaling_plots(views)
    if not drawn:
        return ""
    by_series = {series for view in views for series in series_of(view)}
    parts = ['<section><h2>How it scales</h2><div class="evidence">']
    parts.append(legend(sorted(by_series, key=lambda series: (series.slot, series.key))))
    parts.append('<div class="plots">')
    for plot in drawn:
        parts.append(plot_figure(plot, plot["id"]))
        plots.append({"element": plot["id"], "name": plot["title"], "variants": plot["variants"]})
    parts.append("</div></div></section>\n")
    return "\n".join(parts)


def _limits(view):
    """What these measurements cannot say."""
    parts = []
    if view.device.startswith("soft"):
        parts.append(
            f"{view.device} is the software RNIC: the CPUs of one host move the bytes, so distances between protocols "
            "differ on an RNIC. Repeat the run there before choosing for it."
        )
    if view.topology.replace("_", "-") == "one-to-one":
        parts.append(
            "One requester talks to one responder. With many clients, mailboxes for WRITE requests cost polling per "
            "client, while SEND requests share one receive queue."
        )
    if any(one.protocol == "read" for one in view.valid):
        parts.append("READ fits where the address is known and nothing has to be computed.")
    if not parts:
        return ""
    return (
        '<div class="limits"><h3>How far this goes</h3><ul>'
        + "".join(f"<li>{escaped(part)}</li>" for part in parts)
        + "</ul></div>"
    )


def legend(by_series):
    """One legend for the plots beside it; a press hides a series on all of them."""
    chips = "".join(
        f'<button type="button" aria-pressed="true" data-series="{escaped(html.escape(series.name))}">'
        f"{swatch(series)}{escaped(series.name)}</button>"
        for series in by_series
    )
    items = "".join(
        f'<li><span class="name">{swatch(series)}<b>{escaped(series.name)}</b></span> '
        f"<span class=mechanism>{escaped(series.protocol.mechanism)}</span></li>"
        for series in by_series
        if series.protocol.mechanism
    )
    details = (
        "<details><summary>What the protocols do</summary>"
        "<p>The first word is the verb of the request, the second that of the response.</p>"
        f"<ul>{items}</ul></details>"
    )
    return f'{details if items else ""}<div class="legend" role="group" aria-label="Shown on the plots">{chips}</div>'


def plot_figure(plot, element):
    # Bars of many protocols need more room than a plot usually has.
    rows = max(len(trace["y"]) if trace["type"] == "bar" else 0 for one in plot["variants"] for trace in one["data"])
    height = f' style="height:{rows * 3.2 + 6:g}rem"' if rows > 6 else ""
    if len(plot["variants"]) > 1:
        options = "".join(
            f'<option value="{index}">{escaped(variant["label"])}</option>'
            for index, variant in enumerate(plot["variants"])
        )
        choice = f'<select aria-label="{escaped(plot["title"])}: shown for" data-for="{element}">{options}</select>'
    else:
        choice = f'<span class="fixed">{escaped(plot["variants"][0]["label"])}</span>'
    return (
        f'<figure><div class="head"><h3 id="{element}-title">{escaped(plot["title"])}</h3>{choice}</div>'
        f'<div class="chart" id="{element}"{height} role="group" aria-labelledby="{element}-title"></div>'
        f'<figcaption>{escaped(plot["caption"])}</figcaption></figure>'
    )
