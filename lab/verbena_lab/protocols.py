"""What a reader must know about each request/response protocol, and how it is drawn.

The first word is the verb of the request, the second that of the response.
"""

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Protocol:
    key: str
    name: str
    slot: int  # colour, marker and dash: one slot means the same protocol on every plot of every report
    mechanism: str  # what happens on both sides, one sentence
    needs: str  # what it asks of the system that uses it
    runs_handler: bool = True  # False: the responder's CPU computes nothing, so it is no remote procedure call
    why: dict = field(default_factory=dict, compare=False)  # question -> the mechanism behind a win there

    def reason(self, question_key, mark_layout):
        """Why it wins there, in one or two sentences; empty where nothing is known about it."""
        if mark_layout == "immediate" and "write" in self.key:
            return _IMMEDIATE
        return self.why.get(question_key, self.mechanism)


# Devices that do not promise the order of a WRITE's bytes cannot be polled for a mark.
_IMMEDIATE = (
    "The WRITEs carry immediate data here: the bytes land where they belong, and each message takes a posted receive "
    "and a completion instead of a mark in memory."
)

_KNOWN = (
    Protocol(
        "write/write",
        "WRITE/WRITE",
        0,
        "Request and response land directly in memory that the peer polls: no receive is posted and no receive "
        "completion is taken on either side.",
        "a mailbox per requester at the responder, so polling work grows with the number of clients",
        why={
            "latency": "Neither side posts a receive or takes a receive completion: each one sees the message in the "
            "memory it polls.",
            "throughput": "No receives to repost and no receive completions to take, on either side.",
            "responder_cpu": "The responder finds the request in the memory it polls and answers with a single "
            "unsignaled WRITE: no receives to repost, hardly any completions.",
        },
    ),
    Protocol(
        "send/write",
        "SEND/WRITE",
        1,
        "The request arrives through the responder's shared receive queue; the response lands directly in memory that "
        "the requester polls.",
        "receives posted at the responder; one queue to poll there, however many clients there are",
        why={
            "latency": "The response needs no receive at the requester, and the responder polls one completion queue "
            "instead of mailboxes.",
            "throughput": "One shared receive queue feeds the responder, and the requester reposts nothing.",
            "responder_cpu": "One queue to poll however many clients there are, and the WRITE of the response needs "
            "no completion.",
        },
    ),
    Protocol(
        "write/send",
        "WRITE/SEND",
        2,
        "The request lands in a mailbox that the responder polls; the response takes a posted receive and a completion "
        "at the requester.",
        "a mailbox per requester at the responder and receives posted at the requester",
        why={
            "latency": "The responder sees the request in the memory it polls and posts no receive for it.",
            "throughput": "The responder reposts no receives, and the requester takes responses from its completion "
            "queue.",
            "responder_cpu": "The responder posts no receives and takes no receive completions.",
        },
    ),
    Protocol(
        "send/send",
        "SEND/SEND",
        3,
        "Request and response each take a posted receive and a completion.",
        "receives posted on both sides; in exchange no address is exchanged and one shared receive queue copes with "
        "many clients",
        why={
            "latency": "On this device a receive and its completion cost no more than polling memory for a mark.",
            "throughput": "Completions are taken many at a time, and one shared receive queue feeds the responder.",
            "responder_cpu": "The responder polls one queue only, whatever the number of clients.",
        },
    ),
    Protocol(
        "read",
        "READ",
        4,
        "The requester fetches the bytes itself from memory it knows the address of; the responder's CPU takes no part.",
        "an address the requester knows in advance and an answer that already lies there; no handler runs",
        runs_handler=False,
        why={
            "latency": "One verb fetches the answer: nobody has to notice a request first.",
            "throughput": "Only the requester's side works; no responder thread has to keep up.",
            "responder_cpu": "The responder's CPU takes no part in a READ.",
        },
    ),
)
_BY_KEY = {protocol.key: protocol for protocol in _KNOWN}
LONGEST_NAME = 32
SLOTS = 8  # the page has this many colours and markers; names beyond them share


def protocol_key(name):
    return re.sub(r"[\s/_-]+", "/", name.strip().lower())


def find_protocol(name):
    """The protocol of a result's name; an unknown name gets a slot of its own after the known ones."""
    key = protocol_key(name)
    known = _BY_KEY.get(key)
    if known:
        return known
    slot = len(_KNOWN) + sum(key.encode(errors="replace")) % (SLOTS - len(_KNOWN))
    shown = name.strip().upper() or "(no name)"
    return Protocol(key, shown if len(shown) <= LONGEST_NAME else shown[: LONGEST_NAME - 1] + "…", slot, "", "")
