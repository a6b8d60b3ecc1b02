"""Reads and checks result files of `verbena bench` and `bench-peers.json`. lab/README.md describes both formats."""

import json
import os
import pathlib
import statistics
from dataclasses import dataclass
from typing import Any, Optional

from .applications import RESULT_KEYS, ApplicationResult, application_of
from .errors import ReportError
from .protocols import protocol_key

# Further axes of a benchmark, which older files lack: key, and how a value reads in a label. Measurements that differ here
# are never merged, and compared only where views.DESIGN has the axis. An axis more is a line here.
SETTINGS = (
    ("requester_nodes", "{} requester nodes"),
    ("responder_nodes", "{} responder nodes"),
    ("responder_threads", "{} responder threads"),
    ("active_share", "{:g} of all requests sent"),
    ("think_ns", "rests of {} ns"),
    ("arrival_rate_per_s", "{} arrivals/s"),
    ("arrivals", "{} arrivals"),
    ("model", "{} connections"),
    ("receive_queues", "{} receive queues"),
    ("wait", "waiting by {}"),
    ("inline_bytes", "inline up to {}"),
    ("signal_interval", "signal interval {}"),
    ("post_batch", "{} per doorbell"),
    ("poll_batch", "{} per poll"),
    ("huge_pages", "huge pages {}"),
    ("receive_slack", "receive slack {}"),
    ("transport", "over {}"),
)
SETTING_KEYS = tuple(key for key, _ in SETTINGS)
_WORDS = ("model", "receive_queues", "wait", "inline_bytes", "arrivals", "transport")  # whose values may be texts
_CLOSED_LOOP = {"arrival_rate_per_s": 0, "arrivals": "none"}  # as in files that lack them
MAX_FILE_BYTES = 64 << 20
MAX_MEASUREMENTS = 100_000
MAX_WHOLE = 1 << 62
# Beyond any rate or time in these units, and far from overflow when numbers are multiplied or divided.
MIN_NUMBER, MAX_NUMBER = 1e-18, 1e18


@dataclass(frozen=True)
class Source:
    """One result file: where its measurements come from."""

    file: str
    device: str
    machine: Any
    commit: str
    command: str
    models: dict  # device -> what its model rests on, of simulated devices
    extra: dict  # further top-level keys of the file, shown as they are

    def machine_name(self):
        """What tells machines apart; other machine keys (load, free memory) may change from run to run."""
        if isinstance(self.machine, dict):
            for key in ("hostname", "host", "name", "node"):
                if self.machine.get(key):
                    return str(self.machine[key])
            return json.dumps(self.machine, sort_keys=True)
        return str(self.machine)


@dataclass(frozen=True)
class Range:
    """Lowest and highest value seen over the runs of one measurement."""

    low: float
    high: float


@dataclass(frozen=True)
class Bands:
    """How far a simulated result moves with what is not known exactly of its device: over variants of the profile."""

    variants: int
    rate: Range  # in 1/s
    p50: Range  # in ns
    each: tuple = ()  # (rate in 1/s, p50 in ns) of each variant, where the file has its runs


@dataclass(frozen=True)
class Cpu:
    """CPU cost per message of one side; `unit` is "instructions" or "cycles"."""

    per_message: float
    unit: str


@dataclass(frozen=True)
class Measurement:
    source: Source
    topology: str
    protocol: str
    device: str
    request_bytes: int
    response_bytes: int
    pending: int
    nodes: int
    threads: int
    rate_per_s: Optional[float]  # None only where errors > 0
    value_bandwidth_bytes_per_s: Optional[float]  # of the responses alone
    total_bandwidth_bytes_per_s: Optional[float]  # of requests and responses together
    p50_ns: Optional[float]
    p99_ns: Optional[float]
    p999_ns: Optional[float]
    verified: bool
    errors: int
    runs: int
    rate_range: Optional[Range]
    p50_range: Optional[Range]
    requester_cpu: Optional[Cpu]
    responder_cpu: Optional[Cpu]
    mark_layout: str
    settings: tuple  # the values of SETTINGS
    empty_poll_share: Optional[float]  # of the responders' polls, those that found nothing
    resent_per_request: Optional[float]  # messages of both sides, by transports that lose some
    queue_pairs_per_node: Optional[int]  # of the node that has most
    rate_mean_per_s: Optional[float]  # over the runs, beside the median
    rate_deviation_per_s: Optional[float]
    bands: Optional[Bands]
    offered_rate_per_s: Optional[float]  # of an open loop: what arrived, answered or not
    saturated: Optional[bool]  # less was answered than arrived

    def setting(self, key):
        return self.settings[SETTING_KEYS.index(key)]


@dataclass(frozen=True)
class Peer:
    """One line of bench-peers.json: a ratio against another stack and the target it must hold."""

    name: str
    ratio: Any
    target: Any
    holds: bool


@dataclass(frozen=True)
class Results:
    files: list  # everything that was read, bench-peers.json too
    sources: list
    measurements: list  # of request and response
    applications: list
    peers: list


def load(paths):
    """Reads files and directories (their *.json, not recursively). Raises ReportError for anything that does not fit."""
    sources, measurements, applications, peers = [], [], [], []
    files = _expand(paths)
    for path in files:
        document = _parse(path)
        if _is_peers(document):
            peers += [_peer(entry, path, index) for index, entry in enumerate(document)]
            continue
        source, rows, of_applications = _result_file(document, path)
        sources.append(source)
        measurements += rows
        applications += of_applications
        if len(measurements) + len(applications) > MAX_MEASUREMENTS:
            raise ReportError(
                f"{path}: more than {MAX_MEASUREMENTS:,} measurements in one report: give fewer files at a time"
            )
    if not measurements and not applications:
        raise ReportError(
            f"no measurements of protocols or applications in {', '.join(map(str, paths))}: write some with "
            "'verbena bench one-to-one --protocol all --json FILE'"
        )
    return Results(files, sources, measurements, applications, peers)


def _expand(paths):
    files, seen = [], set()
    for given in paths:
        path = pathlib.Path(given)
        if os.path.isdir(path):
            try:
                found = sorted(entry for entry in path.iterdir() if entry.name.endswith(".json"))
            except OSError as error:
                raise ReportError(f"{path}: cannot list the directory ({error.strerror})") from None
            if not found:
                raise ReportError(
                    f"{path}: no result file (*.json) in this directory: write one with "
                    "'verbena bench one-to-one --protocol all --json FILE'"
                )
        else:
            found = [path]
        for file in found:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                files.append(file)
    return files


def _reject_constant(name):
    raise ValueError(f"{name} is not a number in JSON")


def _parse(path):
    try:
        if not path.exists():
            raise ReportError(f"{path}: no such file or directory")
        if not path.is_file():
            raise ReportError(f"{path}: not a regular file: give result files or directories with them")
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise ReportError(
                f"{path}: {size_bytes:,} bytes are more than a result file may have ({MAX_FILE_BYTES:,}): "
                "split the run into several files"
            )
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ReportError(f"{path}: cannot read it ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ReportError(f"{path}: not a text file in UTF-8, so no result file of verbena bench") from None
    if not text.strip():
        raise ReportError(f"{path}: the file is empty: run the benchmark again to write it")
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        # Errors at the very end are what a writer leaves that was interrupted.
        if error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated"):
            raise ReportError(
                f"{path}: the file ends in the middle (line {error.lineno}): it is half-written, run the benchmark again"
            ) from None
        raise ReportError(
            f"{path}: not JSON ({error.msg} in line {error.lineno}, column {error.colno}): give result files "
            "written by 'verbena bench … --json FILE'"
        ) from None
    except (ValueError, RecursionError) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ReportError(f"{path}: not a result file ({cause})") from None


def _is_peers(document):
    return isinstance(document, list) and all(isinstance(entry, dict) and "ratio" in entry for entry in document)


def _peer(entry, path, index):
    where = f"{path}: entry {index + 1}"
    if not isinstance(entry.get("name"), str) or not isinstance(entry.get("holds"), bool):
        raise ReportError(f"{where}: needs 'name' (text) and 'holds' (true or false) as 'make bench-peers' writes them")
    return Peer(entry["name"], entry["ratio"], entry.get("target", ""), entry["holds"])


def _result_file(document, path):
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise ReportError(
            f"{path}: not a result file: it needs an object with a list 'results' as 'verbena bench … --json FILE' writes"
        )
    for key in ("device", "commit", "command"):
        if not isinstance(document.get(key), str):
            raise ReportError(f"{path}: not a result file: '{key}' is missing or not text")
    if not isinstance(document.get("machine"), (str, dict)):
        raise ReportError(f"{path}: not a result file: 'machine' is missing or neither text nor an object")
    known = {"device", "machine", "commit", "command", "models", "results"}
    models = document.get("models")
    source = Source(
        file=str(path),
        device=document["device"],
        machine=document["machine"],
        commit=document["commit"],
        command=document["command"],
        models=models if isinstance(models, dict) else {},
        extra={key: value for key, value in document.items() if key not in known},
    )
    measurements, applications = [], []
    for index, row in enumerate(document["results"]):
        checked = _Row(row, path, index)
        application = application_of(row)
        if application:
            applications.append(_application_result(checked, row, application, source))
        elif "operation" not in row:  # of `verbena verbs` and `remote` the page has nothing
            measurements.append(_measurement(checked, source))
    return source, measurements, applications


class _Row:
    """Typed access to one object of `results`; every complaint names the file, the row and the key."""

    def __init__(self, row, path, index):
        self._where = f"{path}: result {index + 1}"
        if not isinstance(row, dict):
            raise ReportError(f"{self._where}: not an object")
        self._row = row

    def fail(self, key, wanted):
        value = json.dumps(self._row[key])[:40] if key in self._row else "missing"
        raise ReportError(
            f"{self._where}: '{key}' must be {wanted}, it is {value}: run the benchmark again to write it"
        )

    def has(self, key):
        return key in self._row

    def text(self, key, default=None):
        value = self._row.get(key, default)
        if not isinstance(value, str):
            self.fail(key, "text")
        return value

    def whole(self, key, minimum, default=None):
        value = self._row.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_WHOLE:
            self.fail(key, f"a whole number from {minimum} to {MAX_WHOLE}")
        return value

    def number(self, key, may_be_absent, former=None):
        """`former`: what older files call it."""
        value = self._row.get(key, self._row.get(former))
        if value is None and may_be_absent:
            return None
        if not _is_number(value):
            self.fail(key, f"a number from 0 to {MAX_NUMBER:g}")
        return float(value)

    def setting(self, key):
        """A number, or a text where the axis has words, or None."""
        value = self._row.get(key)
        if key in _CLOSED_LOOP and value == _CLOSED_LOOP[key]:
            return None
        return value if isinstance(value, str) and key in _WORDS else self.number(key, True)

    def flag(self, key):
        value = self._row.get(key)
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def ends(self, key):
        """Two numbers, the lower one first."""
        value = self._row.get(key)
        if not isinstance(value, list) or len(value) != 2 or not all(map(_is_number, value)) or value[0] > value[1]:
            self.fail(key, "a list of two numbers, the lower one first")
        return Range(float(value[0]), float(value[1]))

    def list(self, key):
        """Empty where there is none."""
        value = self._row.get(key)
        return value if isinstance(value, list) else []

    def part(self, key, may_be_absent):
        """An object inside the row."""
        value = self._row.get(key)
        if value is None and may_be_absent:
            return {}
        if not isinstance(value, dict):
            self.fail(key, "an object")
        return value


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and (value == 0 or MIN_NUMBER <= value <= MAX_NUMBER)


def _measurement(row, source):
    errors = row.whole("errors", 0)
    failed = errors > 0  # a failed run may have nothing to report
    latency_ns = row.part("latency_ns", failed)
    for quantile in ("p50", "p99", "p999"):
        value = latency_ns.get(quantile)
        if not _is_number(value) and not (failed and value is None):
            row.fail("latency_ns", "an object with the numbers p50, p99 and p999")
    cpu = row.part("cpu", True)
    mean = row.part("mean", True)
    rate_per_s = row.number("rate_per_s", failed)
    value_bandwidth, total_bandwidth = _bandwidths(row, rate_per_s, failed)
    return Measurement(
        source=source,
        topology=row.text("topology"),
        protocol=protocol_key(row.text("protocol")),
        device=row.text("device", source.device),
        request_bytes=row.whole("request_bytes", 0),
        response_bytes=row.whole("response_bytes", 0),
        pending=row.whole("pending", 1),
        nodes=row.whole("nodes", 1),
        threads=row.whole("threads", 1),
        rate_per_s=rate_per_s,
        value_bandwidth_bytes_per_s=value_bandwidth,
        total_bandwidth_bytes_per_s=total_bandwidth,
        p50_ns=latency_ns.get("p50"),
        p99_ns=latency_ns.get("p99"),
        p999_ns=latency_ns.get("p999"),
        verified=row.flag("verified"),
        errors=errors,
        runs=row.whole("runs", 1, default=1),
        rate_range=_range(row, ("rate_min", "rate_max"), ("rate_min_per_s", "rate_max_per_s")),
        p50_range=_range(row, ("p50_min_ns", "p50_max_ns"), ("p50_min", "p50_max")),
        requester_cpu=_cpu(cpu.get("requester")),
        responder_cpu=_cpu(cpu.get("responder")),
        mark_layout=row.text("mark_layout", ""),
        settings=tuple(row.setting(key) for key, _ in SETTINGS),
        empty_poll_share=row.number("empty_poll_share", True, former="empty_look_share"),
        resent_per_request=row.number("resent_per_request", True),
        rate_mean_per_s=_number_or_none(mean.get("rate_per_s")),
        rate_deviation_per_s=_number_or_none(mean.get("rate_deviation_per_s")),
        queue_pairs_per_node=_whole_or_none(row.part("queue_pairs", True).get("most_per_node")),
        bands=_bands(row, 1),
        offered_rate_per_s=row.number("offered_rate_per_s", True),
        saturated=row.flag("saturated") if row.has("saturated") else None,
    )


_QUANTILES = ("p50", "p99", "p999")


def _application_result(row, plain, application, source):
    errors = row.whole("errors", 0)
    failed = errors > 0
    axes = {
        key: value if isinstance(value, str) else row.whole(key, 0)
        for key, value in plain.items()
        if key not in RESULT_KEYS and isinstance(value, (int, str)) and not isinstance(value, bool)
    }
    if application.each:
        row.whole(application.each, 1)
    each = axes[application.each] if application.each else 1
    latencies = {"": row.part("latency_ns", failed)} | {
        str(kind): {"p50": one.get("p50_ns"), "p99": one.get("p99_ns"), "p999": one.get("p999_ns")}
        for kind, one in row.part("kinds", True).items()
        if isinstance(one, dict)
    }
    for name, latency in latencies.items():
        if not failed and not all(_is_number(latency.get(quantile)) for quantile in _QUANTILES):
            row.fail("kinds" if name else "latency_ns", "an object with the numbers p50, p99 and p999")
    rate = row.number("rate_per_s", failed)
    return ApplicationResult(
        source=source,
        application=application,
        device=row.text("device", source.device),
        axes=axes,
        rate_per_s=None if rate is None else rate * each,
        value_bandwidth_bytes_per_s=row.number("value_bandwidth_bytes_per_s", failed),
        rate_range=_range(row, ("rate_min", "rate_max")),
        bands=_bands(row, each),
        latencies=latencies,
        usage=_usage(row.part("usage", True)),
        verified=row.flag("verified"),
        errors=errors,
    )


def _usage(roles):
    """Units with a share, by role; what is none is left out."""
    return {
        str(role): {
            str(name): unit
            for name, unit in its_units.items()
            if isinstance(unit, dict) and _is_number(unit.get("most"))
        }
        for role, its_units in roles.items()
        if isinstance(its_units, dict)
    }


def _bandwidths(row, rate_per_s, failed):
    """Of the values and in total. Older files have one key alone, which is the total."""
    total_key = "total_bandwidth_bytes_per_s"
    if not row.has(total_key) and row.has("bandwidth_bytes_per_s"):
        total_key = "bandwidth_bytes_per_s"
    total = row.number(total_key, failed)
    value = row.number("value_bandwidth_bytes_per_s", True)
    if value is None and rate_per_s is not None:
        value = rate_per_s * row.whole("response_bytes", 0)
    return value, total


def _bands(row, each):
    """None where the row has none. `each`: of so many things is an operation, whose rate the row has."""
    if not row.has("variants"):
        return None
    rate, p50 = row.ends("rate_band"), row.ends("p50_band")
    variants = row.whole("variants", 2)
    return Bands(variants, Range(rate.low * each, rate.high * each), p50, _of_variants(row, variants))


def _of_variants(row, variants):
    """The median of each variant's runs; empty where a run does not say what it is of, or a variant has none."""
    runs = row.list("run_results")
    known = [one for one in runs if isinstance(one, dict) and _is_number(one.get("variant"))]
    numbers = {one["variant"] for one in known}
    # Their number first: a file may say any.
    if len(known) < len(runs) or len(numbers) != variants or numbers != set(range(variants)):
        return ()
    if not all(_is_number(one.get(key)) for one in known for key in ("rate_per_s", "p50_ns")):
        return ()
    return tuple(
        tuple(statistics.median(one[key] for one in known if one["variant"] == each) for key in ("rate_per_s", "p50_ns"))
        for each in range(variants)
    )


def _number_or_none(value):
    return float(value) if _is_number(value) else None


def _whole_or_none(value):
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _range(row, *key_pairs):
    """None of a single run: it does not say how far away another one would have been."""
    spread = row.part("spread", True)
    for low_key, high_key in key_pairs:
        low, high = spread.get(low_key), spread.get(high_key)
        if _is_number(low) and _is_number(high) and low <= high:
            # Where a file does not count them, ends that differ are of several.
            runs = row.whole("runs", 1, default=2 if low < high else 1)
            return Range(float(low), float(high)) if runs > 1 else None
    return None


def _cpu(side):
    if isinstance(side, dict):
        for unit in ("instructions", "cycles"):
            value = side.get(f"{unit}_per_message")
            if _is_number(value):
                return Cpu(float(value), unit)
    return None
