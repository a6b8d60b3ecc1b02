"""The four questions of the report page: what is compared, among which measurements, and in which words."""

from dataclasses import dataclass
from typing import Callable, Optional

from . import units

SMALL_BYTES = 1024  # up to here a message is small
LARGE_BYTES = 64 << 10  # from here on a response is large


@dataclass(frozen=True)
class Question:
    key: str
    title: str
    subject: str  # the title in one word, for sentences
    metric: str  # what follows the winning number
    lower_is_better: bool
    value: Callable  # measurement -> number or None
    value_range: Callable  # measurement -> Range or None
    band: Optional[Callable]  # measurement with bands -> Range; None where there is no band of this
    of_variant: Optional[Callable]  # (rate in 1/s, p50 in ns) of a variant -> what grows or falls as the value does
    text: Callable  # (measurement, number) -> text with unit
    detail: Callable  # measurement -> a second number worth reading, or ""
    pool: Callable  # measurements -> those that answer this question
    prefer: Callable  # (configuration, candidates) -> sort key among equally complete configurations; largest wins
    missing: str  # what to measure when nothing answers it


def _small(measurements):
    return [one for one in measurements if max(one.request_bytes, one.response_bytes) <= SMALL_BYTES]


def _latency_range(measurement):
    """Where only the rate's spread is known, latency moves with it: pending = rate x latency in a closed loop."""
    if measurement.p50_range:
        return measurement.p50_range
    rates = measurement.rate_range
    if not rates or not rates.low or not measurement.rate_per_s:
        return None
    scale = measurement.p50_ns * measurement.rate_per_s
    return type(rates)(scale / rates.high, scale / rates.low)


def _bandwidth_range(measurement):
    rates = measurement.rate_range
    if not rates or not measurement.rate_per_s:
        return None
    scale = measurement.value_bandwidth_bytes_per_s / measurement.rate_per_s
    return type(rates)(rates.low * scale, rates.high * scale)


def value_bandwidth_band(measurement):
    """Of a measurement with bands."""
    each = measurement.value_bandwidth_bytes_per_s / measurement.rate_per_s if measurement.rate_per_s else 0
    return type(measurement.bands.rate)(measurement.bands.rate.low * each, measurement.bands.rate.high * each)


def _cpu_text(measurement, value):
    return f"{units.count_text(value)} {measurement.responder_cpu.unit} per message"


QUESTIONS = (
    Question(
        key="latency",
        title="Small messages, lowest latency",
        subject="latency",
        metric="median latency",
        lower_is_better=True,
        value=lambda one: one.p50_ns,
        value_range=_latency_range,
        band=lambda one: one.bands.p50,
        of_variant=lambda rate, p50: p50,
        text=lambda one, value: units.time_text(value),
        detail=lambda one: f"p99 {units.time_text(one.p99_ns)}",
        pool=_small,
        prefer=lambda key, _: (-key[2], -key[1], -key[0]),
        missing=f"No response up to {units.size_text(SMALL_BYTES)} was measured: add --request 64 --response 64.",
    ),
    Question(
        key="throughput",
        title="Small messages, many pending",
        subject="throughput",
        metric="responses",
        lower_is_better=False,
        value=lambda one: one.rate_per_s,
        value_range=lambda one: one.rate_range,
        band=lambda one: one.bands.rate,
        of_variant=lambda rate, p50: rate,
        text=lambda one, value: units.rate_text(value),
        detail=lambda one: f"median {units.time_text(one.p50_ns)}",
        pool=lambda measurements: [one for one in _small(measurements) if one.pending > 1],
        prefer=lambda key, _: (key[2], -key[1], -key[0]),
        missing="Only one pending request was measured: add --pending 1,16.",
    ),
    Question(
        key="bandwidth",
        title="Large responses, bandwidth",
        subject="bandwidth",
        metric="of values",
        lower_is_better=False,
        value=lambda one: one.value_bandwidth_bytes_per_s,
        value_range=_bandwidth_range,
        band=value_bandwidth_band,
        of_variant=lambda rate, p50: rate,
        text=lambda one, value: units.bandwidth_text(value),
        detail=lambda one: f"median {units.time_text(one.p50_ns)}",
        pool=lambda measurements: [one for one in measurements if one.response_bytes >= LARGE_BYTES],
        prefer=lambda key, candidates: (key[1], max(candidate.value for candidate in candidates)),
        missing=f"No response of {units.size_text(LARGE_BYTES)} or more was measured: add --response 64,1MiB.",
    ),
    Question(
        key="responder_cpu",
        title="Least CPU at the responder",
        subject="responder CPU",
        metric="at the responder",
        lower_is_better=True,
        value=lambda one: one.responder_cpu.per_message if one.responder_cpu else None,
        value_range=lambda one: None,
        band=None,
        of_variant=None,
        text=_cpu_text,
        detail=lambda one: (
            f"{units.count_text(one.requester_cpu.per_message)} at the requester" if one.requester_cpu else ""
        ),
        pool=_small,
        prefer=lambda key, _: (key[2], -key[1], -key[0]),
        missing="The responder’s CPU cost is not in these results.",
    ),
)
