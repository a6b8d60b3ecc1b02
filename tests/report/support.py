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
from verbena_lab import reproduction, results, units, views  # noqa: E402

__all__ = ["HERE", "LAB", "load", "one_view", "reproduction", "results", "synthetic", "units", "views"]


def load(*documents):
    """Loads result documents the way the command does, from files."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [synthetic.write(pathlib.Path(directory) / f"{index}.json", one) for index, one in enumerate(documents)]
        return results.load(paths)


def one_view(rows):
    """The only view of these result rows."""
    found = views.make_views(load(synthetic.document(rows)).measurements)
    assert len(found) == 1, [view.label for view in found]
    return found[0]
