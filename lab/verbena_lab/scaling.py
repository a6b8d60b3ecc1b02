"""How rate and latency move with the shape of a topology: nodes, threads, responders, the share of active requesters.

A view holds one shape, so these plots reach over views: those of one device, machine, commit and topology that differ in
a single axis. Only protocols within one plot are to be compared.
"""

from dataclasses import dataclass
from typing import Callable

from . import figures, units
from .results import SETTING_KEYS, SETTINGS
from .views import configuration, plain, series_of


@dataclass(frozen=True)
class Axis:
    key: str
    title: str
    value: Callable  # view -> number or None
    text: Callable  # number -> text on the axis


def _setting(key):
    return lambda view: view.settings[SETTING_KEYS.index(key)]


def _count(value):
    return f"{value:,.0f}"


# The nodes of a topology are those of both roles together; what grows is what people set.
AXES = (
    Axis("requester_nodes", "requester nodes", _setting("requester_nodes"), _count),
    Axis("threads", "requesting threads per node", lambda view: view.threads, _count),
    Axis("responder_nodes", "responder nodes", _setting("responder_nodes"), _count),
    Axis("responder_threads", "responding threads per node", _setting("responder_threads"), _count),
    Axis("arrival_rate_per_s", "requests that arrive per second", _setting("arrival_rate_per_s"), units.rate_text),
    Axis("active_share", "share of requests that are sent", _setting("active_share"), units.percent_text),
)
# What follows from another axis does not vary by itself: the responders of M:M are its nodes, and so on.
_FOLLOWS = {
    ("M:1", "responder_threads"): ("threads",),
    ("1:M", "responder_threads"): ("threads",),
    ("M:M", "responder_threads"): ("threads",),
    ("M:M", "responder_nodes"): ("requester_nodes",),
}


def scaling_plots(views):
    """One plot per topology and axis along which at least two shapes were measured."""
    families = {}
    for view in views:
        if view.valid:
            families.setdefault((view.device, view.machine, view.commit, view.topology), []).append(view)
    plots = []
    for (device, machine, commit, topology), members in families.items():
        for axis in AXES:
            variants = _variants(topology, axis, members)
            if not variants:
                continue
            others = [family for family in families if family[3] == topology]
            where = f" on {device}" if len({family[0] for family in others}) > 1 else ""
            plots.append(
                {
                    "id": f"scaling-{len(plots)}",
                    "title": f"{topology}{where}: rate by {axis.title}",
                    "caption": "Responses per second of all requesting threads together. Whiskers: lowest and highest "
                    "run, where the results have them. More threads than cores share them: see the machine below.",
                    "variants": variants,
                }
            )
    return plots


def _variants(topology, axis, views):
    groups = {}
    for view in views:
        if axis.value(view) is None:
            continue
        rest = tuple(
            other.value(view)
            for other in AXES
            if other.key != axis.key and axis.key not in _FOLLOWS.get((topology, other.key), ())
        )
        # An axis that only follows another one has its plot there.
        if any(_varies(views, leader) for leader in _FOLLOWS.get((topology, axis.key), ())):
            continue
        groups.setdefault((rest, _further(view)), []).append(view)
    variants = []
    for members in groups.values():
        if len({axis.value(view) for view in members}) < 2:
            continue
        for shape in sorted({configuration(one) for view in members for one in view.valid}):
            variant = _variant(axis, members, shape, _fixed_text(axis, members[0], views))
            if variant:
                variants.append(variant)
    return variants


def _further(view):
    """The settings that are no axis of these plots: they do not vary within one."""
    drawn = {axis.key for axis in AXES}
    return tuple(value for value, (key, _) in zip(view.settings, SETTINGS) if key not in drawn)


def _varies(views, key):
    axis = next(one for one in AXES if one.key == key)
    return len({axis.value(view) for view in views}) > 1


def _fixed_text(axis, view, views):
    """What else differs within the family, as words."""
    parts = []
    for other in AXES:
        values = {other.value(one) for one in views}
        if other.key != axis.key and len(values) > 1 and other.value(view) is not None:
            parts.append(f"{other.text(other.value(view))} {other.title}")
    drawn = {one.key for one in AXES}
    for index, (key, text) in enumerate(SETTINGS):
        values = {one.settings[index] for one in views}
        if key not in drawn and len(values) > 1 and view.settings[index] is not None:
            parts.append(text.format(plain(view.settings[index])))
    return parts


def _variant(axis, members, shape, fixed):
    request, response, pending = shape
    lines = {}
    for view in members:
        for series, measurements in series_of(view).items():
            for one in measurements:
                if configuration(one) == shape:
                    lines.setdefault(series, []).append((axis.value(view), one))
    traces, values = [], set()
    for series, points in lines.items():
        points.sort(key=lambda point: point[0])
        values.update(value for value, _ in points)
        traces.append(
            figures.line(
                series,
                [value for value, _ in points],
                [one.rate_per_s for _, one in points],
                [figures.scaled_reach(one, one.rate_per_s)[0] for _, one in points],
                [figures.scaled_reach(one, one.rate_per_s)[1] for _, one in points],
                [
                    figures.hover(
                        series,
                        f"{axis.text(value)} {axis.title}",
                        f"{units.rate_text(one.rate_per_s)} · {units.bandwidth_text(one.value_bandwidth_bytes_per_s)}"
                        f" · median {units.time_text(one.p50_ns)}"
                        + figures.banded(one, one.bands and one.bands.rate, units.rate_text),
                    )
                    for value, one in points
                ],
            )
        )
    if len(values) < 2:
        return None
    label = ", ".join(
        [f"{units.size_text(response)} response", f"{pending:,} pending", f"{units.size_text(request)} request", *fixed]
    )
    layout = {
        "xaxis": figures.measured_axis(axis.title, values, axis.text),
        "yaxis": {"title": {"text": "responses per second"}, "rangemode": "tozero", "tickformat": "~s"},
    }
    return {"label": label, "data": traces, "layout": layout}
