"""The report page: what its template shows."""

import os

from . import advice, figures, topologies
from .application_plots import application_sections
from .cards import card
from .errors import ReportError
from .modelled import is_modelled, modelled_texts
from .page_file import checked_target, write_page
from .plotly_js import plotly_js
from .rendering import render_page
from .results import load
from .scaling import scaling_plots
from .tables import results_table
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
    everything = results.measurements + results.applications
    devices = sorted({one.device for one in everything})
    shown = [_view(view, index) for index, view in enumerate(views)]
    scaling = placed(scaling_plots(views), "")
    applications = [
        section | {"plots": placed(section["plots"], "")} for section in application_sections(results.applications)
    ]
    of_applications = [plot for section in applications for plot in section["plots"]]
    return render_page(
        "report.html",
        plotly_source,
        title=f"Verbena report: {', '.join(devices)}",
        eyebrow="Verbena report",
        heading="Which one should I use here?" if views else "What the applications do here",
        facts=_facts(everything, devices),
        notices=modelled_texts(everything),
        topologies=_topologies(views),
        topology_note=topologies.NOTE,
        views=shown,
        scaling={"plots": scaling, "series": _all_series(views)},
        applications=applications,
        peers=results.peers,
        table=results_table(results.measurements) if views else None,
        sources=results.sources,
        drawings=drawings([plot for view in shown for plot in view["plots"]] + scaling + of_applications),
    )


def placed(plots, prefix):
    """Plots with the identifiers of their elements on the page, and their heights where they need more than usual."""
    return [plot | {"element": prefix + plot["id"], "height_rem": _height_rem(plot)} for plot in plots]


def drawings(plots):
    """What the script draws, and where."""
    return [{"element": plot["element"], "name": plot["title"], "variants": plot["variants"]} for plot in plots]


def _height_rem(plot):
    """Bars of many protocols need more room than a plot usually has."""
    rows = max(len(trace["y"]) if trace["type"] == "bar" else 0 for one in plot["variants"] for trace in one["data"])
    return f"{rows * 3.2 + 6:g}" if rows > 6 else ""


def _facts(measurements, devices):
    machines = sorted({one.source.machine_name() for one in measurements})
    count = len(measurements)
    modelled = "modelled " if all(map(is_modelled, devices)) else ""
    facts = [f"{count:,} {modelled}measurement{'' if count == 1 else 's'}", f"device {', '.join(devices)}"]
    if len(machines) == 1 and len(machines[0]) <= 60:
        facts.append(machines[0])
    return [*facts, _verified_text(measurements)]


def _verified_text(measurements):
    verified = sum(one.verified for one in measurements)
    if verified == len(measurements):
        return "every payload byte verified"
    if verified == 0:
        return "payloads not verified (--verify checks them)"
    return f"payload bytes verified in {verified:,} of them"


def _topologies(views):
    return [
        {
            "label": label,
            "lines": [
                {
                    "sentence": topologies.sentence(answer),
                    "configuration": advice.configuration_text(answer.configuration),
                }
                for answer in answers
            ],
        }
        for label, answers in topologies.topology_answers(views)
    ]


def _view(view, index):
    answers = advice.answers(view)
    return {
        "label": view.label,
        "verdict": list(verdict(answers)),
        "excluded": advice.excluded_text(view),
        "merged": view.merged,
        "cards": list(map(card, answers)),
        "limits": _limits(view),
        "series": list(series_of(view)),
        "plots": placed(figures.figures(view), f"v{index}-"),
    }


def _all_series(views):
    found = {series for view in views for series in series_of(view)}
    return sorted(found, key=lambda series: (series.slot, series.key))


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
    return parts
