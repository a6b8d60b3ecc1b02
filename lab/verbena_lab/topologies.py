"""How the topologies compare where several were measured: per question the best of each, ranked.

A view has one topology, so this reaches over views: those of one device, machine and commit.
"""

from dataclasses import dataclass, replace

from . import advice
from .questions import QUESTIONS

_PER_NODE = ("throughput", "bandwidth")  # questions about what all nodes do together
NOTE = (
    "Rates and bandwidths are those of one node of the role that has fewer, through which everything goes; in M:M of "
    "one node on average."
)


@dataclass(frozen=True)
class Place:
    """The best of one topology."""

    topology: str
    shape: str
    candidate: advice.Candidate


@dataclass(frozen=True)
class TopologyAnswer:
    question: object
    configuration: tuple
    places: list  # best first

    @property
    def tied(self):
        return [one for one in self.places if advice.level(self.places[0].candidate, one.candidate)]


def topology_answers(views):
    """(label, answers) per device, machine and commit with several topologies; the label is empty where there is one."""
    families = {}
    for view in views:
        families.setdefault((view.device, view.machine, view.commit), []).append(view)
    found = []
    for key, members in families.items():
        answers = [answer for question in QUESTIONS if (answer := _answer(question, members))]
        if answers:
            found.append((f"{key[0]} on {key[1]}" if len(families) > 1 else "", answers))
    return found


def sentence(answer):
    """"Latency: M:1 is best (READ, 1.20 µs), then 1:M (…)." """
    # One that spreads little may lie between two that spread so much that they are level.
    tied = answer.tied
    behind = [one for one in answer.places if one not in tied]
    first = advice.listed([_place_text(answer, one) for one in tied])
    rest = f", then {advice.listed([_place_text(answer, one) for one in behind])}" if behind else ""
    subject = answer.question.subject
    return f"{subject[0].upper()}{subject[1:]}: {first} {'are level' if len(tied) > 1 else 'is best'}{rest}."


def sentences(views):
    """What the terminal says about topologies, as lines."""
    lines = []
    for label, answers in topology_answers(views):
        lines += [f"Topologies{f' on {label}' if label else ''}:"] + [f"  {sentence(answer)}" for answer in answers]
        lines.append(f"  {NOTE}")
    return lines


def _answer(question, views):
    """None where no configuration was measured in two topologies."""
    groups = {}  # configuration -> topology -> places
    for view in views:
        for configuration, candidates in advice.candidates_of(question, view).items():
            places = groups.setdefault(configuration, {}).setdefault(view.topology, [])
            places += [Place(view.topology, _shape(view), _per_node(question, one, view)) for one in candidates]
    groups = {configuration: found for configuration, found in groups.items() if len(found) > 1}
    if not groups:
        return None
    chosen = max(groups, key=lambda key: (len(groups[key]),) + question.prefer(key, _candidates(groups[key])))
    sign = 1 if question.lower_is_better else -1
    places = [min(found, key=lambda one: sign * one.candidate.value) for found in groups[chosen].values()]
    places.sort(key=lambda one: sign * one.candidate.value)
    if question.key == "responder_cpu" and len({one.candidate.measurement.responder_cpu.unit for one in places}) > 1:
        return None  # instructions and cycles cannot be compared
    return TopologyAnswer(question, chosen, places)


def _candidates(places_of):
    return [one.candidate for places in places_of.values() for one in places]


def _per_node(question, candidate, view):
    if question.key not in _PER_NODE:
        return candidate
    roles = [candidate.measurement.setting(key) for key in ("requester_nodes", "responder_nodes")]
    nodes = max(1, min(roles)) if None not in roles else 1
    parts = {name: getattr(candidate, name) for name in ("value", "low", "high")}
    return replace(
        candidate,
        of_variants=tuple(one / nodes for one in candidate.of_variants),
        **{name: part if part is None else part / nodes for name, part in parts.items()},
    )


def _shape(view):
    return f"{view.nodes} nodes, {view.threads} requesting thread{'' if view.threads == 1 else 's'} each"


def _place_text(answer, place):
    one = place.candidate
    value = answer.question.text(one.measurement, one.value)
    return f"{place.topology} ({one.series.name}, {value}, {place.shape})"
