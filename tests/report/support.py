"""What the report tests share: the lab on the path, the synthetic data, and how to read results from plain objects."""

import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LAB = HERE.parent.parent / "lab"
for folder in (LAB, HERE / "data"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import synthetic  # noqa: E402
from verbena_lab import calibration, reproduction, results, units, views  # noqa: E402

__all__ = ["HERE", "LAB", "banded", "calibration", "load", "one_view", "reproduction", "results", "synthetic", "units", "views"]


def load(*documents):
    """Loads result documents the way the command does, from files."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [synthetic.write(pathlib.Path(directory) / f"{index}.json", one) for index, one in enumerate(documents)]
        return results.load(paths)


def banded(row, *p50s_ns):
    """The row as of a simulated device with a variant for each of these medians, all with one pending request."""
    rates = [1e9 / p50 for p50 in p50s_ns]
    runs = [{"variant": number, "rate_per_s": 1e9 / p50, "p50_ns": p50} for number, p50 in enumerate(p50s_ns)]
    return row | {
        "device": "sim:connectx3-fdr",
        "variants": len(p50s_ns),
        "rate_band": [min(rates), max(rates)],
        "p50_band": [min(p50s_ns), max(p50s_ns)],
        "run_results": runs,
    }


def one_view(rows):
    """The only view of these result rows."""
    found = views.make_views(load(synthetic.document(rows)).measurements)
    assert len(found) == 1, [view.label for view in found]
    return found[0]
