"""What must be said of results that were simulated: that they are modelled, and what the model rests on."""

from . import units

NO_BAND = "no band measured"

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


def band_text(device, band, text):
    """From where to where a simulated number moves with its device's parameters; empty for devices that exist. `band`: a
    Range, or None where variants were not measured; `text` formats one end."""
    if not is_modelled(device):
        return ""
    return f"band {text(band.low)} to {text(band.high)}" if band else NO_BAND


def _bands_text(results):
    """What the bands of simulated results are, or that there are none."""
    without = sum(one.bands is None for one in results)
    if without == len(results):
        return f"{NO_BAND.capitalize()}: --variants 5 tells how far the numbers depend on what is assumed."
    variants = sorted({one.bands.variants for one in results if one.bands})
    text = (
        f"Bands reach from the least to the most over {' or '.join(map(str, variants))} variants of the profile, each "
        "parameter within ±20\u00a0% or, where it is assumed, within its range."
    )
    return f"{text} Of {without:,} of {len(results):,} results {NO_BAND}." if without else text


def modelled_texts(measurements):
    """One per simulated device among the measurements, and one about their bands."""
    models = {}
    for one in measurements:
        models.setdefault(one.device, {}).update(one.source.models)
    texts = [text for device in sorted(models) if (text := modelled_text(device, models[device]))]
    simulated = [one for one in measurements if is_modelled(one.device) and one.errors == 0]
    return texts + [_bands_text(simulated)] if simulated else texts
