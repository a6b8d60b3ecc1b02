"""One card per question: the winner, by how much, how sure, and why."""

from . import advice
from .markup import escaped, swatch
from .views import common_name


def answer_card(answer):
    question = answer.question
    if not answer.answered:
        return (
            f'<article class="answer open"><h3>{escaped(question.title)}</h3><p class="winner">Not measured</p>'
            f'<p class="comparison">{escaped(answer.missing)}</p></article>'
        )
    first = answer.ranking[0]
    names = [f'<span class="name">{swatch(one.series)}{escaped(one.series.name)}</span>' for one in answer.tied]
    shared = common_name([one.series for one in answer.tied]) if advice.one_protocol(answer.tied) else ""
    if len(names) == 1:
        winner = f'<p class="winner">{names[0]}</p>'
    elif shared:
        winner = f'<p class="winner">{escaped(shared)}</p><p class="level">{" ".join(names)}</p>'
    elif len(names) == 2:
        winner = f'<p class="winner">{" <span class=or>or</span> ".join(names)}</p>'
    else:
        which = "All" if len(names) == len(answer.ranking) else "Several"
        winner = f'<p class="winner">{which} are level</p><p class="level">{" ".join(names)}</p>'
    detail = question.detail(first.measurement)
    number = f"<strong>{escaped(question.text(first.measurement, first.value))}</strong> {escaped(question.metric)}"
    if detail:
        number += f" · {escaped(detail)}"
    parts = [
        f'<article class="answer {answer.confidence}"><h3>{escaped(question.title)}</h3>',
        winner,
        f'<p class="number">{number}</p>',
        f'<p class="comparison">{escaped(answer.comparison)}</p>',
    ]
    if answer.remark:
        parts.append(f'<p class="remark">{escaped(answer.remark)}</p>')
    if answer.alternative:
        parts.append(f'<p class="alternative">{escaped(answer.alternative)}</p>')
    parts.append(_ranking(answer))
    parts.append(f'<p class="why"><b>Why</b> {escaped(answer.why)}</p>' if answer.why else "")
    condition = f"{advice.configuration_text(answer.configuration)}. {answer.absent}".strip()
    parts.append(f'<p class="condition">{escaped(condition)}</p></article>')
    return "".join(parts)


def _ranking(answer):
    if len(answer.ranking) < 2:
        return ""
    top = max(one.value for one in answer.ranking) or 1
    rows = "".join(
        f'<li><span class="name">{swatch(one.series)}{escaped(one.series.name)}</span>'
        f'<span class="bar"><i style="width:{100 * one.value / top:.1f}%;background:var(--series-{one.series.slot})">'
        f"</i></span><span class=value>{escaped(_bare(answer.question, one))}</span></li>"
        for one in answer.ranking
    )
    better = "shorter" if answer.question.lower_is_better else "longer"
    return f'<ol class="ranking" aria-label="All measured, best first; {better} is better">{rows}</ol>'


def _bare(question, candidate):
    """The value for a narrow column."""
    return (
        question.text(candidate.measurement, candidate.value)
        .replace(" per message", "")
        .replace(" instructions", " instr.")
    )
