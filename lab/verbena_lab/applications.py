"""The applications of remote memory, and what their rows in result files say.

Whatever a row has beside results (RESULT_KEYS) is an axis: a whole number or a text. A run sweeps those that differ.
"""

from dataclasses import dataclass
from typing import Any, Optional

from . import units

# Keys of a row that are no axes. Metrics of a workload are numbers with a fraction, and so are none either.
RESULT_KEYS = frozenset(
    "topology plan_number verified errors error runs nodes device rate_per_s value_bandwidth_bytes_per_s latency_ns kinds "
    "total_bandwidth_bytes_per_s value_bandwidth_per_node_bytes_per_s requests_measured mean spread cpu queue_pairs "
    "run_results profile usage variants rate_band p50_band".split()
)
_TITLES = {
    "requester_nodes": "nodes",
    "pending": "pending operations",
    "key_bytes": "key size",
    "value_bytes": "value size",
    "reads_percent": "searches in percent",
    "entry_bytes": "entry size",
    "record_bytes": "record size",
    "tuple_bytes": "tuple size",
    "buffer_bytes": "buffer",
    "capacity_bytes": "capacity",
    "hot": "one hot key of",
}


@dataclass(frozen=True)
class Application:
    key: str
    title: str
    sign: str  # the key that only its rows have
    things: str  # of which the rate is told
    each: Optional[str]  # the axis that says how many of them an operation has
    operation: str  # whose latency it is
    titles: dict  # of axes, where they are its own


APPLICATIONS = (
    Application("hashtable", "Hashtable", "mix", "operations", None, "an operation", {"responder_nodes": "back-ends"}),
    Application(
        "log",
        "Log",
        "capacity_bytes",
        "entries",
        "entries",
        "appending a batch",
        {"responder_nodes": "replicas", "entries": "entries of a batch"},
    ),
    Application(
        "shuffle",
        "Shuffle",
        "record_bytes",
        "records",
        "entries",
        "taking a chunk",
        {
            "responder_nodes": "receiver nodes",
            "responder_threads": "receivers per node",
            "batch": "records of a WRITE",
            "entries": "records of a chunk",
        },
    ),
    Application("join", "Join", "tuples", "tuples", None, "the join", {"batch": "tuples of a WRITE"}),
    Application(
        "message",
        "Messages",
        "queue_credits",
        "operations",
        None,
        "an operation",
        {
            "responder_nodes": "peers",
            "responder_threads": "ranks of a peer",
            "size_bytes": "message size",
            "eager_bytes": "eager limit",
            "window": "messages of a window",
        },
    ),
)


@dataclass(frozen=True)
class ApplicationResult:
    source: Any
    application: Application
    device: str
    axes: dict  # key -> whole number or text
    rate_per_s: Optional[float]  # of things; None only where errors > 0
    value_bandwidth_bytes_per_s: Optional[float]
    rate_range: Any  # of operations
    bands: Any  # of things; None where there are none
    latencies: dict  # "" for all operations, and the kinds -> {"p50", "p99", "p999"}
    usage: dict  # role -> unit -> {"mean", "most"}
    verified: bool
    errors: int

    @property
    def each(self):
        return self.axes[self.application.each] if self.application.each else 1


def application_of(row):
    """The application that a row is of, or None."""
    if not isinstance(row, dict):
        return None
    return next((one for one in APPLICATIONS if one.sign in row), None)


def axis_text(key, value):
    if isinstance(value, str):
        return value
    if key.endswith("_bytes"):
        return units.size_text(value)
    return units.time_text(value) if key.endswith("_ns") else f"{value:,}"


def axis_title(application, key):
    name = key.removesuffix("_bytes").removesuffix("_ns").replace("_", " ")
    return application.titles.get(key) or _TITLES.get(key) or name
