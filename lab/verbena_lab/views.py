"""Groups measurements into views: what may be compared with each other."""

import statistics
from dataclasses import dataclass, replace

from .protocols import LONGEST_NAME, find_protocol
from .results import SETTING_KEYS, SETTINGS, Bands, Range

# Choices of a design beside its protocol and mark layout, ranked like these: key, and how a value reads in a name.
DESIGN = (("model", "{}"), ("receive_queues", "{} receives"), ("wait", "{}"), ("transport", "over {}"))
_DESIGN_KEYS = tuple(key for key, _ in DESIGN)


@dataclass(frozen=True)
class View:
    """Measurements of one device, machine, commit, topology, node and thread count, and further settings. Protocols are
    compared within a view only."""

    device: str
    machine: str
    commit: str
    topology: str
    nodes: int
    threads: int
    settings: tuple  # as in Measurement; None for the axes of DESIGN
    label: str  # tells it apart from the other views of the report
    valid: list  # one measurement per series and configuration, without errors
    failed: list  # those with errors > 0, as they were read
    merged: int  # how many configurations were measured more than once


@dataclass(frozen=True)
class Series:
    """One line on a plot: a protocol, and what else of its design the view has several of."""

    key: tuple
    parts: tuple  # of the name behind the protocol's: what of the design varies here, else ""
    slot: int
    variant_rank: int  # 0 for the only or first design of the protocol
    protocol: object

    @property
    def name(self):
        return common_name([self])

    @property
    def dash(self):
        return _DASHES[(self.slot + 2 * self.variant_rank) % len(_DASHES)]

    @property
    def marker(self):
        return _MARKERS[self.slot] + ("", "-open", "-open-dot")[min(self.variant_rank, 2)]


# Besides their colours, series differ in marker and dash, so that they can be told apart without colour.
_MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "pentagon", "cross")
_DASHES = ("solid", "6px,3px", "8px,3px,2px,3px", "2px,3px", "11px,3px", "4px,2px")


def common_parts(series):
    """What the designs of several series have in common, of what varies at all."""
    return [parts[0] for parts in zip(*(one.parts for one in series)) if parts[0] and len(set(parts)) == 1]


def common_name(series):
    """The name of several of one protocol."""
    return " · ".join([series[0].protocol.name, *common_parts(series)])


def configuration(measurement):
    """Only measurements with the same configuration are ranked against each other."""
    return (measurement.request_bytes, measurement.response_bytes, measurement.pending)


def make_views(measurements):
    groups = {}
    for measurement in measurements:
        key = (
            measurement.device,
            measurement.source.machine_name(),
            measurement.source.commit,
            measurement.topology,
            measurement.nodes,
            measurement.threads,
            tuple(
                None if key in _DESIGN_KEYS else value for key, value in zip(SETTING_KEYS, measurement.settings)
            ),
        )
        groups.setdefault(key, []).append(measurement)
    labels = _labels(list(groups))
    views = []
    for (key, members), label in zip(groups.items(), labels):
        valid, merged = _merge_repeats([one for one in members if one.errors == 0])
        views.append(
            View(*key, label=label, valid=valid, failed=[one for one in members if one.errors > 0], merged=merged)
        )
    return views


def series_of(view):
    """The series of a view in the order of the legend, with the measurements of each."""
    designs = {}
    for one in view.valid + view.failed:
        designs.setdefault(one.protocol, set()).add(_design(one))
    series = {}
    for one in view.valid:
        design = _design(one)
        several = sorted(designs[one.protocol])
        protocol = find_protocol(one.protocol)
        varying = tuple(part if len(set(values)) > 1 else "" for part, values in zip(design, zip(*several)))
        entry = Series((one.protocol, *design), varying, protocol.slot, several.index(design), protocol)
        series.setdefault(entry, []).append(one)
    return dict(sorted(series.items(), key=lambda item: (item[0].slot, item[0].key)))


def _design(one):
    """What tells designs of one protocol from each other, as words; empty where the results do not say."""
    further = (one.setting(key) for key, _ in DESIGN)
    texts = ["" if value is None else text.format(plain(value)) for value, (_, text) in zip(further, DESIGN)]
    return tuple(text[:LONGEST_NAME] for text in [one.mark_layout, *texts])


def _labels(keys):
    """The device always, and whatever else differs between the views."""
    texts = [
        [device, machine, f"commit {short_commit(commit)}", topology, f"{nodes} nodes", f"{threads} threads"]
        + ["" if value is None else text.format(plain(value)) for value, (_, text) in zip(settings, SETTINGS)]
        for device, machine, commit, topology, nodes, threads, settings in keys
    ]
    varying = [len({text[part] for text in texts}) > 1 for part in range(len(texts[0]))] if texts else []
    return [
        " · ".join(part for index, part in enumerate(text) if part and (index == 0 or varying[index])) for text in texts
    ]


def short_commit(commit):
    """Its first digits, and what is behind them: that of a build whose files differed from it ends with -dirty."""
    digits, dash, further = commit.partition("-")
    return digits[:12] + dash + further[:12]


def plain(value):
    """4.0 nodes are 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _merge_repeats(measurements):
    groups = {}
    for one in measurements:
        groups.setdefault((one.protocol, _design(one)) + configuration(one), []).append(one)
    merged = [_merge(members) for members in groups.values()]
    return merged, sum(len(members) > 1 for members in groups.values())


def _merge(members):
    """The median of each number; the spread reaches over everything that was seen."""
    if len(members) == 1:
        return members[0]

    def median(name):
        return statistics.median(getattr(one, name) for one in members)

    def reach(value_name, range_name):
        lows = [(getattr(one, range_name) or Range(getattr(one, value_name), 0)).low for one in members]
        highs = [(getattr(one, range_name) or Range(0, getattr(one, value_name))).high for one in members]
        return Range(min(lows), max(highs))

    def cpu(name):
        costs = [getattr(one, name) for one in members]
        if None in costs or len({cost.unit for cost in costs}) > 1:
            return None
        return replace(costs[0], per_message=statistics.median(cost.per_message for cost in costs))

    return replace(
        members[0],
        rate_per_s=median("rate_per_s"),
        value_bandwidth_bytes_per_s=median("value_bandwidth_bytes_per_s"),
        total_bandwidth_bytes_per_s=median("total_bandwidth_bytes_per_s"),
        p50_ns=median("p50_ns"),
        p99_ns=median("p99_ns"),
        p999_ns=median("p999_ns"),
        verified=all(one.verified for one in members),
        runs=sum(one.runs for one in members),
        rate_range=reach("rate_per_s", "rate_range"),
        p50_range=reach("p50_ns", "p50_range"),
        requester_cpu=cpu("requester_cpu"),
        responder_cpu=cpu("responder_cpu"),
        bands=_merge_bands([one.bands for one in members]),
        # Of one measurement's runs; there is none over several.
        rate_mean_per_s=None,
        rate_deviation_per_s=None,
        empty_poll_share=None,
        resent_per_request=None,
        offered_rate_per_s=None if members[0].offered_rate_per_s is None else median("offered_rate_per_s"),
        saturated=None if members[0].saturated is None else any(one.saturated for one in members),
    )


def _merge_bands(bands):
    """None where one of them has none: what is not known may reach further."""
    if None in bands:
        return None

    def reach(name):
        ends = [getattr(one, name) for one in bands]
        return Range(min(one.low for one in ends), max(one.high for one in ends))

    return Bands(min(one.variants for one in bands), reach("rate"), reach("p50"))
