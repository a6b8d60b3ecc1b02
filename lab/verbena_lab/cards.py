"""What the card of one question shows, beside the answer's own sentences."""

from . import advice
from .modelled import band_text
from .views import common_name


def card(answer):
    if not answer.answered:
        return {"answer": answer}
    question, first = answer.question, answer.ranking[0]
    return {
        "answer": answer,
        "headline": _headline(answer),
        "winners": [one.series for one in answer.tied],
        "value": question.text(first.measurement, first.value),
        "detail": question.detail(first.measurement),
        "band": _band(question, first),
        "bars": _bars(answer) if len(answer.ranking) > 1 else [],
        "condition": f"{advice.configuration_text(answer.configuration)}. {answer.absent}".strip(),
    }


def _band(question, first):
    """Of the winning number, where it was simulated and the question is about one that has a band."""
    if question.band is None:
        return ""
    one = first.measurement
    band = one.bands and question.band(one)
    return band_text(one.device, band, lambda value: question.text(one, value))


def _headline(answer):
    """What stands above the names of more than two winners, or of variants; empty where their names are enough."""
    if len(answer.tied) == 1:
        return ""
    if advice.one_protocol(answer.tied):
        return common_name([one.series for one in answer.tied])
    if len(answer.tied) == 2:
        return ""
    return "All are level" if len(answer.tied) == len(answer.ranking) else "Several are level"


def _bars(answer):
    top = max(one.value for one in answer.ranking) or 1
    return [
        {"series": one.series, "width": f"{100 * one.value / top:.1f}%", "value": _bare(answer.question, one)}
        for one in answer.ranking
    ]


def _bare(question, candidate):
    """The value for a narrow column."""
    return (
        question.text(candidate.measurement, candidate.value)
        .replace(" per message", "")
        .replace(" instructions", " instr.")
    )
