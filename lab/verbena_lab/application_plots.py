"""Of each application a section of the page: rate and latency by the axes that were swept, and a table."""

import statistics
from dataclasses import dataclass

from . import figures, units
from .applications import APPLICATIONS, axis_text, axis_title
from .modelled import band_text, is_modelled
from .views import Series

_SLOTS = 8  # of colours and markers


def application_sections(results):
    """For the page, one section per application, device, machine and commit: plots with their legend, and a table."""
    families = {}
    for one in results:
        key = (APPLICATIONS.index(one.application), one.device, one.source.machine_name(), one.source.commit)
        families.setdefault(key, []).append(one)
    several = [key[0] for key in families]
    return [
        _section(f"app{index}", families[key], several.count(key[0]) > 1) for index, key in enumerate(sorted(families))
    ]


def _section(identifier, rows, is_one_of_several):
    application = rows[0].application
    keys = list(dict.fromkeys(key for row in rows for key in row.axes))
    swept = [key for key in keys if len({row.axes.get(key) for row in rows}) > 1]
    # Of all rows: where those of a text failed, numbers on the same axis are still names of lines.
    words = [key for key in swept if _is_word(rows, key)]
    series = _series(application, rows, words)
    title = application.title
    if is_one_of_several:
        title += f" on {rows[0].device}"
    return {
        "title": title,
        "series": sorted(series.values(), key=lambda one: (one.variant_rank, one.slot)),
        "plots": _plots(identifier, application, [row for row in rows if row.errors == 0], swept, words, series),
        "table": _table(application, rows, swept, [key for key in keys if key not in swept]),
    }


# ---- plots ----


@dataclass(frozen=True)
class _Named:
    name: str
    mechanism: str = ""


def _is_word(rows, key):
    return any(isinstance(row.axes.get(key), str) for row in rows)


def _words_of(row, words):
    return tuple(str(row.axes.get(key, "")) for key in words)


def _series(application, rows, words):
    """A line for each combination of texts."""
    found = dict.fromkeys(_words_of(row, words) for row in rows)
    return {
        one: Series((index, *one), (), index % _SLOTS, index // _SLOTS, _Named(" · ".join(one) or application.title))
        for index, one in enumerate(found)
    }


def _plots(identifier, application, rows, swept, words, series):
    numbers = [key for key in swept if key not in words and not _follows(rows, key, words)]
    plots = []
    for axis in numbers or [None]:
        others = [key for key in numbers if key != axis]
        title = " and ".join(axis_title(application, key) for key in ([axis] if axis else words))
        for kind in (_rate, _latency):
            variants = _variants(_Drawn(application, axis, title, words, series, kind), rows, others)
            if variants:
                plots.append(
                    {
                        "id": f"{identifier}-{len(plots)}",
                        "title": f"{application.title}: {kind.title(application)} by {title}",
                        "caption": kind.caption,
                        "variants": variants,
                    }
                )
    return plots


def _follows(rows, key, words):
    """What the texts decide, such as the share of searches of a mix, does not vary by itself."""
    values = {}
    for row in rows:
        values.setdefault(_words_of(row, words), set()).add(row.axes.get(key))
    return all(len(one) == 1 for one in values.values())


@dataclass(frozen=True)
class _Drawn:
    application: object
    axis: str  # None: the texts, a line each
    title: str  # of the axis
    words: list
    series: dict
    kind: object

    def place(self, row):
        return row.axes[self.axis] if self.axis else self.series[_words_of(row, self.words)].name

    def place_text(self, place):
        return axis_text(self.axis or "", place)


class _Rate:
    caption = "Of all threads together. Whiskers: lowest and highest run, where the results have them. Higher is better."

    @staticmethod
    def title(application):
        return f"{application.things} per second"

    @staticmethod
    def parts(_):
        return [""]

    @staticmethod
    def value(row, _):
        return row.rate_per_s

    @staticmethod
    def reach(row, _):
        if not row.rate_range:
            return 0.0, 0.0
        return max(0.0, row.rate_range.high * row.each - row.rate_per_s), max(
            0.0, row.rate_per_s - row.rate_range.low * row.each
        )

    @staticmethod
    def text(row, _):
        bandwidth = units.bandwidth_text(row.value_bandwidth_bytes_per_s)
        band = figures.banded(row, row.bands and row.bands.rate, units.rate_text)
        return f"{units.rate_text(row.rate_per_s)} {row.application.things} · {bandwidth}{band}"

    @staticmethod
    def axis(application, _):
        return {"title": {"text": f"{application.things} per second"}, "rangemode": "tozero", "tickformat": "~s"}


class _Latency:
    caption = "Lines: median; whiskers reach up to p99. Lower is better."

    @staticmethod
    def title(application):
        return f"latency of {application.operation}"

    @staticmethod
    def parts(rows):
        """All operations, and each kind of them."""
        return list(dict.fromkeys(part for row in rows for part in row.latencies))

    @staticmethod
    def value(row, part):
        return row.latencies.get(part, {}).get("p50") or None

    @staticmethod
    def reach(row, part):
        return max(0.0, row.latencies[part]["p99"] - row.latencies[part]["p50"]), 0.0

    @staticmethod
    def text(row, part):
        one = row.latencies[part]
        text = " · ".join(
            [units.time_text(one["p50"]), f"p99 {units.time_text(one['p99'])}", f"p99.9 {units.time_text(one['p999'])}"]
        )
        # Of all operations, not of their kinds.
        return text + (figures.banded(row, row.bands and row.bands.p50, units.time_text) if part == "" else "")

    @staticmethod
    def axis(_, traces):
        return figures.decade_axis("median latency, whiskers to p99", traces, units.time_text)


_rate, _latency = _Rate(), _Latency()


def _variants(drawn, rows, others):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row.axes.get(key) for key in others), []).append(row)
    variants = []
    for fixed, members in groups.items():
        texts = [
            f"{axis_title(drawn.application, key)} {axis_text(key, value)}"
            for key, value in zip(others, fixed)
            if value is not None  # rows of other versions lack axes
        ]
        for part in drawn.kind.parts(members):
            traces, places = _traces(drawn, members, part)
            if len(places) < 2:
                continue
            layout = {"xaxis": _x_axis(drawn, places), "yaxis": drawn.kind.axis(drawn.application, traces)}
            label = ", ".join(filter(None, [part, *texts])) or "all"
            variants.append({"label": label, "data": traces, "layout": layout})
    return variants


def _traces(drawn, rows, part):
    lines = {}
    for row in rows:
        if drawn.kind.value(row, part) is not None and (drawn.axis is None or drawn.axis in row.axes):
            lines.setdefault(_words_of(row, drawn.words), []).append(row)
    traces, places = [], {}
    for words, members in lines.items():
        line = drawn.series[words]
        points = _without_repeats(drawn, members, part)
        places.update(dict.fromkeys(place for place, _ in points))
        traces.append(
            figures.line(
                line,
                [place for place, _ in points],
                [drawn.kind.value(row, part) for _, row in points],
                [drawn.kind.reach(row, part)[0] for _, row in points],
                [drawn.kind.reach(row, part)[1] for _, row in points],
                [
                    figures.hover(line, f"{drawn.place_text(place)} {drawn.title}", drawn.kind.text(row, part))
                    for place, row in points
                ],
            )
        )
    return traces, list(places)


def _without_repeats(drawn, rows, part):
    """By place. Of rows at one place, which several files have, the one in the middle."""
    places = {}
    for row in rows:
        places.setdefault(drawn.place(row), []).append(row)
    points = []
    for place in sorted(places):
        values = [drawn.kind.value(row, part) for row in places[place]]
        points.append((place, places[place][values.index(statistics.median_low(values))]))
    return points


def _x_axis(drawn, places):
    if drawn.axis is None:
        return {"title": {"text": drawn.title}, "type": "category"}
    if min(places) > 0:
        return figures.measured_axis(drawn.title, set(places), drawn.place_text)
    # What begins with 0 has no logarithm.
    places = sorted(places)
    return {"title": {"text": drawn.title}, "tickvals": places, "ticktext": list(map(drawn.place_text, places))}


# ---- the table ----


def _busiest(usage):
    """The unit that was used most, of simulated nodes."""
    found = [
        (unit["most"], role, name)
        for role, its_units in usage.items()
        for name, unit in its_units.items()
        if isinstance(unit, dict)
    ]
    if not found:
        return ""
    share, role, name = max(found)
    return f"{role} {name.replace('_', ' ')} {units.percent_text(share)}"


def _table(application, rows, swept, constant):
    columns = [{"title": axis_title(application, key), "numeric": not _is_word(rows, key)} for key in swept]
    columns += [
        {"title": title, "numeric": True} for title in (f"{application.things}", "bandwidth", "median", "p99", "p99.9")
    ]
    modelled = any(is_modelled(row.device) for row in rows)
    if modelled:
        columns += [{"title": f"{application.things} over variants", "numeric": False}]
        columns += [{"title": "median over variants", "numeric": False}]
    with_usage = any(row.usage for row in rows)
    if with_usage:
        columns.append({"title": "busiest unit", "numeric": False})
    lines = []
    for row in rows:
        cells = [axis_text(key, row.axes[key]) if key in row.axes else "" for key in swept]
        if row.errors:
            cells += ["failed"] + [""] * (6 if modelled else 4)
        else:
            latency = row.latencies[""]
            cells += [units.rate_text(row.rate_per_s), units.bandwidth_text(row.value_bandwidth_bytes_per_s)]
            cells += [units.time_text(latency[quantile]) for quantile in ("p50", "p99", "p999")]
            if modelled:
                cells.append(band_text(row.device, row.bands and row.bands.rate, units.rate_text))
                cells.append(band_text(row.device, row.bands and row.bands.p50, units.time_text))
        if with_usage:
            cells.append(_busiest(row.usage))
        lines.append({"failed": row.errors > 0, "cells": list(zip(cells, columns))})
    same = [f"{axis_title(application, key)} {axis_text(key, rows[0].axes[key])}" for key in constant]
    return {"columns": columns, "rows": lines, "same": same, "modelled": is_modelled(rows[0].device)}
