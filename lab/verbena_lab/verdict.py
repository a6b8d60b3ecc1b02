"""The whole answer in a few sentences, at the top of the page."""

from .advice import level, listed, names_of, serves
from .views import common_name, common_parts


def verdict(view_answers):
    """The answers as a few plain sentences, the most useful first."""
    answered = [answer for answer in view_answers if answer.answered]
    contested = [answer for answer in answered if len(answer.ranking) > 1]
    if not answered:
        return ["Nothing here can be compared: no measurement without errors answers a question below."]
    if not contested:
        names = sorted({answer.ranking[0].series.name for answer in answered})
        if len(names) == 1:
            return [f"Only {names[0]} was measured, so there is nothing to choose between: add --protocol all."]
        return ["No two protocols were measured in the same configuration, so nothing can be compared."]
    # READ runs no handler: what serves requests is chosen among the others, and READ comes as the exception it is.
    best_serving = {id(answer): _best_serving(answer) for answer in contested}
    decided = [answer for answer in contested if best_serving[id(answer)]]
    reading = [answer for answer in contested if not any(map(serves, answer.tied))]
    sentences = []
    if decided:
        read_measured = any(not serves(one) for answer in contested for one in answer.ranking)
        sentences += _serving_sentences(decided, best_serving, read_measured)
    if reading:
        better = "better still" if decided else "best"
        sentences.append(
            f"Use {reading[0].tied[0].series.name} where the answer already lies at an address the requester knows: "
            f"{better} in {_subjects(reading)}."
        )
    undecided = {}
    for answer in contested:
        if not best_serving[id(answer)] and (who := _who_is_level(answer)):
            undecided.setdefault(who, []).append(answer)
    sentences += [f"In {_subjects(found)} {who} are level." for who, found in undecided.items()]
    return sentences


def _serving_sentences(decided, best_serving, read_measured):
    """Recommends protocols, and of their designs what all have that lead: everywhere, or in one answer."""
    leading = {}
    for answer in decided:
        for candidate in best_serving[id(answer)]:
            answers_of = leading.setdefault(candidate.series.protocol, {})
            answers_of.setdefault(id(answer), []).append(candidate.series)
    best = max(leading, key=lambda protocol: (len(leading[protocol]), -protocol.slot))
    won = [answer for answer in decided if id(answer) in leading[best]]
    every = [series for found in leading[best].values() for series in found]

    def subject(answer):
        own = [part for part in common_parts(leading[best][id(answer)]) if part not in common_parts(every)]
        return answer.question.subject + (f" ({' · '.join(own)})" if own else "")

    alone = all({one.series.protocol for one in best_serving[id(answer)]} == {best} for answer in won)
    where = " where the responder computes the answer" if read_measured else ""
    how = "best" if alone else "best or level with the best"
    yield f"Use {common_name(every)}{where}: {how} in {listed(list(map(subject, won)))}."
    lost = [answer for answer in decided if answer not in won]
    if lost:
        parts = [f"{names_of(best_serving[id(answer)], 'or')} for {answer.question.subject}" for answer in lost]
        yield f"Prefer {listed(parts)}."


def _best_serving(answer):
    """Whom to take among those that run a handler; nobody where they are all level or the only one is not ahead."""
    serving = [one for one in answer.ranking if serves(one)]
    if len(serving) == 1:
        return serving if all(map(serves, answer.tied)) else []
    leaders = [one for one in serving if one is serving[0] or level(serving[0], one)]
    return leaders if len(leaders) < len(serving) else []


def _who_is_level(answer):
    """In an undecided answer, as words; empty where nobody shares a place."""
    others = [one for one in answer.ranking if not serves(one)]
    if not others or any(one in answer.tied for one in others) and any(map(serves, answer.tied)):
        return "all"
    if all(one in others for one in answer.tied):  # READ is ahead
        return "the others" if len(answer.ranking) - len(others) > 1 else ""
    return f"all but {names_of(others)}"


def _subjects(some_answers):
    return listed([answer.question.subject for answer in some_answers])
