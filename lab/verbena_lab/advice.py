"""The plain answer: which protocol wins where, by how much, and how sure that is."""

from dataclasses import dataclass, field
from typing import Optional

from . import units
from .protocols import find_protocol
from .questions import QUESTIONS, Question
from .views import common_name, configuration, series_of

SINGLE_RUN_TIE = 0.05  # without a known spread, a smaller difference is no difference
LARGE_DISTANCE = 1.5  # a factor no spread of a sane run makes up for
MOST_VARIANTS = 0.8  # of a simulated device: whoever is ahead on so many of them is ahead
REAL_DIFFERENCE = 0.01  # nobody should choose by less, however narrow the spread


@dataclass(frozen=True)
class Candidate:
    series: object
    measurement: object
    value: float
    low: Optional[float]  # over the runs; None where the spread is not known
    high: Optional[float]
    of_variants: tuple = ()  # of a simulated device: what decides, on each variant of its profile

    @property
    def has_spread(self):
        return self.low is not None


@dataclass
class Answer:
    question: Question
    ranking: list = field(default_factory=list)  # candidates, best first
    tied: list = field(default_factory=list)  # the first and all that cannot be told apart from it
    configuration: tuple = ()
    comparison: str = ""  # by how much
    remark: str = ""  # how sure
    confidence: str = ""  # "clear", "far", "single", "tie" or "alone"
    why: str = ""
    alternative: str = ""  # the best one that runs a handler, where the winner does not
    absent: str = ""  # protocols that are missing from the comparison, and why
    missing: str = ""  # why there is no answer, and what to do

    @property
    def answered(self):
        return bool(self.ranking)


def answers(view):
    """One Answer per question, in the order of the page."""
    return [_answer(question, view) for question in QUESTIONS]


def serves(candidate):
    return candidate.series.protocol.runs_handler


def excluded_text(view, limit=6):
    """Says what was left out because of errors; empty where nothing was."""
    if not view.failed:
        return ""
    named = [
        f"{find_protocol(one.protocol).name}, {configuration_text(configuration(one))}: {one.errors:,}"
        f" error{'s' if one.errors > 1 else ''}"
        for one in view.failed[:limit]
    ]
    more = len(view.failed) - limit
    if more > 0:
        named.append(f"and {more:,} more")
    total = len(view.valid) + len(view.failed)
    return f"{len(view.failed):,} of {total:,} measurements had errors and count nowhere below: {'; '.join(named)}."


def configuration_text(key):
    request_bytes, response_bytes, pending = key
    return (
        f"{units.size_text(request_bytes)} request, {units.size_text(response_bytes)} response, "
        f"{pending:,}{units.NO_BREAK_SPACE}pending"
    )


def listed(items, word="and"):
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def candidates_of(question, view):
    """Those that answer the question, by configuration."""
    rows = [(series, one) for series, members in series_of(view).items() for one in question.pool(members)]
    # In files of earlier versions a run without any answer has a latency of 0 ns.
    rows = [(series, one) for series, one in rows if question.value(one) is not None and one.rate_per_s > 0]
    if question.key == "responder_cpu":
        rows = _one_unit(rows)
    groups = {}
    for series, one in rows:
        spread = question.value_range(one)
        candidate = Candidate(
            series,
            one,
            question.value(one),
            spread.low if spread else None,
            spread.high if spread else None,
            _of_variants(question, one),
        )
        groups.setdefault(configuration(one), []).append(candidate)
    return groups


def _answer(question, view):
    answer = Answer(question)
    groups = candidates_of(question, view)
    if not groups:
        answer.missing = "Every measurement for this had errors." if question.pool(view.failed) else question.missing
        return answer
    chosen = max(groups, key=lambda key: (len(groups[key]),) + question.prefer(key, groups[key]))
    sign = 1 if question.lower_is_better else -1
    answer.configuration = chosen
    answer.ranking = sorted(groups[chosen], key=lambda candidate: (sign * candidate.value, candidate.series.slot))
    answer.tied = [answer.ranking[0]] + [one for one in answer.ranking[1:] if level(answer.ranking[0], one)]
    _compare(answer)
    _explain(answer)
    _name_absent(answer, view, chosen)
    return answer


def _of_variants(question, measurement):
    if measurement.bands is None or question.of_variant is None:
        return ()
    return tuple(question.of_variant(rate_per_s, p50_ns) for rate_per_s, p50_ns in measurement.bands.each)


def _share_ahead(first, other):
    """On how many of the same variants the two differ as their values do, and on how many both were measured. Each
    variant is one device, so how far all of them reach together says nothing about who is ahead."""
    pairs = list(zip(first.of_variants, other.of_variants))
    if len(first.of_variants) != len(other.of_variants):
        return 0, 0
    return sum((one - two) * (first.value - other.value) > 0 for one, two in pairs), len(pairs)


def _one_unit(rows):
    """Instructions and cycles cannot be compared: keep the unit that more protocols have."""
    found = {}
    for series, one in rows:
        found.setdefault(one.responder_cpu.unit, set()).add(series)
    if len(found) < 2:
        return rows
    unit = max(found, key=lambda name: (len(found[name]), name == "instructions"))
    return [(series, one) for series, one in rows if one.responder_cpu.unit == unit]


def level(first, other):
    """True where the two cannot honestly be told apart."""
    larger = max(abs(first.value), abs(other.value))
    difference = abs(first.value - other.value) / larger if larger else 0
    if difference < REAL_DIFFERENCE:
        return True
    ahead, variants = _share_ahead(first, other)
    if variants:
        return ahead < MOST_VARIANTS * variants
    if first.has_spread and other.has_spread:
        return first.low <= other.high and other.low <= first.high
    return difference < SINGLE_RUN_TIE


def _compare(answer):
    question, first = answer.question, answer.ranking[0]
    if len(answer.ranking) == 1:
        answer.confidence = "alone"
        answer.comparison = "The only one measured in this configuration: nothing to compare it with."
        return
    second = answer.ranking[1]
    others = [one for one in answer.ranking if one not in answer.tied] if one_protocol(answer.tied) else []
    if others:  # variants of one protocol share the first place
        second = others[0]
    distance = _distance(question, first.value, second.value)
    place = "second-placed " if others or len(answer.tied) == 1 else ""
    text = f"{distance} {place}{second.series.name} ({question.text(second.measurement, second.value)})."
    answer.comparison = text[0].upper() + text[1:]
    if len(answer.tied) > 1:
        answer.confidence = "tie"
        known = all(candidate.has_spread for candidate in answer.tied)
        which = "any of its variants" if one_protocol(answer.tied) else f"any of {names_of(answer.tied)}"
        ahead, variants = _share_ahead(first, answer.tied[1])
        close = "Within the spread of the runs" if known else "Too close to call"
        if variants and ahead < variants:
            close = f"Ahead on {ahead} of {variants} variants of the simulated device only"
        answer.remark = f"{close}: take {which}"
        answer.remark += "." if known else ", or measure more runs."
    elif (found := _share_ahead(first, second))[1]:
        answer.confidence = "clear"
        answer.remark = f"Clear: ahead on {found[0]} of {found[1]} variants of the simulated device."
    elif first.has_spread and second.has_spread:
        answer.confidence = "clear"
        runs = min(first.measurement.runs, second.measurement.runs)
        over = f" over {runs:,} runs" if runs > 1 else ""
        answer.remark = f"Clear: the ranges{over} do not overlap."
    elif max(first.value, second.value) >= LARGE_DISTANCE * min(first.value, second.value):
        answer.confidence = "far"
        answer.remark = "The spread is not known here, but the distance is large."
    else:
        answer.confidence = "single"
        answer.remark = "The spread is not known here: repeat the runs before building on a small difference."
    if question.key == "responder_cpu":
        answer.remark += " Polls that found no request are not counted."


def names_of(candidates, word="and"):
    """The candidates' names; where several variants of one protocol are among them, once what they share."""
    by_protocol = {}
    for candidate in candidates:
        by_protocol.setdefault(candidate.series.protocol, []).append(candidate.series)
    return listed([common_name(found) for found in by_protocol.values()], word)


def one_protocol(candidates):
    """The protocol they all share, or None."""
    protocols = {candidate.series.protocol for candidate in candidates}
    return protocols.pop() if len(protocols) == 1 else None


def _distance(question, first, second):
    """How the better value relates to the other one, up to and including the word before the other's name."""
    low, high = sorted((first, second))
    if high - low < high * 0.0005:
        return "practically the same as" if low != high else "the same as"
    if low == 0:
        return "nothing at all, against" if question.lower_is_better else "more than"
    if question.lower_is_better:
        if high >= 2 * low:
            return f"{units.percent_text(low / high)} of"
        return f"{units.percent_text(1 - low / high)} less than"
    if high >= 2 * low:
        return f"{units.significant(high / low, 2)} times"
    return f"{units.percent_text(high / low - 1)} more than"


def _explain(answer):
    parts = []
    if answer.question.key == "bandwidth":
        parts.append("At this size moving the bytes is nearly all of the work; the verbs around it matter little.")
    if len(answer.tied) < len(answer.ranking) or len(answer.ranking) == 1:
        first_of = {}
        for candidate in answer.tied:
            first_of.setdefault(candidate.series.protocol, candidate.measurement)
        protocols = list(first_of)
        for protocol in protocols[:2]:
            reason = protocol.reason(answer.question.key, first_of[protocol].mark_layout)
            needs = f"Needs {protocol.needs}." if protocol.needs else ""
            text = " ".join(filter(None, (reason, needs)))
            parts.append(f"{protocol.name}: {text}" if text and len(protocols) > 1 else text)
    answer.why = " ".join(filter(None, parts))
    serving = [candidate for candidate in answer.ranking if serves(candidate)]
    if serving and not any(map(serves, answer.tied)):
        best = serving[0]
        answer.alternative = (
            f"If the responder has to compute the answer: {best.series.name}, "
            f"{answer.question.text(best.measurement, best.value)}."
        )


def _name_absent(answer, view, chosen):
    ranked = {candidate.series.protocol.key for candidate in answer.ranking}
    failed = {one.protocol for one in view.failed if configuration(one) == chosen} - ranked
    elsewhere = {one.protocol for one in view.valid + view.failed}
    unmeasured = elsewhere - ranked - failed
    parts = []
    if failed:
        parts.append(f"Left out because of errors: {_protocol_names(failed)}.")
    if unmeasured:
        parts.append(f"Not measured in this configuration: {_protocol_names(unmeasured)}.")
    answer.absent = " ".join(parts)


def _protocol_names(keys):
    protocols = sorted((find_protocol(key) for key in keys), key=lambda protocol: protocol.slot)
    return listed([protocol.name for protocol in protocols])
