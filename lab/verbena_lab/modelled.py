"""What must be said of results that were simulated: that they are modelled, and what the model rests on."""

from . import units

_PREFIX = "sim:"
_EVIDENCE = ("documented", "calibrated", "assumed")


def is_modelled(device):
    return device.startswith(_PREFIX)


def modelled_text(device, models):
    """One sentence or two; empty for devices that exist. `models` are those of result files, by device."""
    if not is_modelled(device):
        return ""
    text = f"{device} is modelled, not measured: "
    model = models.get(device)
    counts = model.get("parameters") if isinstance(model, dict) else None
    if not isinstance(counts, dict) or not all(isinstance(counts.get(key), int) for key in _EVIDENCE):
        return text + "the file does not say how much of its profile is assumed (verbena sim profiles does)."
    total = sum(counts[key] for key in _EVIDENCE)
    shares = [f"{counts[key]} {key} ({units.percent_text(counts[key] / total if total else 0)})" for key in _EVIDENCE]
    return text + f"of the {total} parameters of its profile {shares[0]}, {shares[1]}, {shares[2]}."


def modelled_texts(measurements):
    """One per simulated device among the measurements."""
    models = {}
    for one in measurements:
        models.setdefault(one.device, {}).update(one.source.models)
    return [text for device in sorted(models) if (text := modelled_text(device, models[device]))]
