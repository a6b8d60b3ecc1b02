#include "src/rpc/design_load.h"

#include <algorithm>
#include <cmath>

namespace verbena::rpc {
namespace {

// Of a WQE in front of its gather list or inlined payload, and one SGE.
constexpr double kEntryHeadBytes = 32;
constexpr double kSgeBytes = 16;
constexpr double kInlineHeadBytes = 4;

double units_of_64(double bytes) { return std::ceil(bytes / 64); }

struct MessageWay {
  const channel::MessageCost& cost;
  const StepCosts& steps;
  double mtu_bytes;
  bool shared_receives;

  double bytes() const { return cost.wire_bytes; }
  double payload_packets() const { return std::max(1.0, std::ceil(bytes() / mtu_bytes)); }
  double packets() const { return payload_packets() + cost.wire_messages - 1; }
  double first_packet_bytes() const { return std::min(bytes(), mtu_bytes); }
  // What an RNIC does by itself: the response of a READ.
  bool by_thread() const { return cost.sender.work_requests > 0; }
  bool inlined() const { return cost.sender.device_reads == 0; }

  // The bytes of the WQE where it goes with its doorbell, else 0.
  double entry_bytes() const {
    const bool lone = cost.sender.work_requests == 1 && cost.sender.doorbells == 1;
    if (!lone || (steps.entry_only_inline && !inlined())) return 0;
    const double entry = kEntryHeadBytes + (inlined() ? kInlineHeadBytes + bytes() : kSgeBytes);
    return entry <= steps.entry_max_bytes ? entry : 0;
  }

  double posting_ns() const {
    if (!by_thread()) return 0;
    const double entry = entry_bytes();
    const double doorbell = entry > 0
                                ? units_of_64(entry) * steps.entry_line_ns + steps.entry_lock_ns
                                : cost.sender.doorbells * steps.doorbell_ns;
    const double copied = inlined() || steps.moves_payload ? bytes() : 0;
    return cost.sender.work_requests * steps.post_request_ns + doorbell + copied * steps.byte_ns;
  }
  double reaping_ns() const {
    return by_thread() ? cost.sender.completions * (steps.completion_ns + steps.device_line_ns) : 0;
  }
  // Nothing arrives that a thread takes: a READ at the responder.
  bool is_taken() const { return cost.receiver.polled_lines > 0; }
  double taking_ns() const {
    if (!is_taken()) return 0;
    const double found = cost.receiver.completions > 0 ? steps.poll_queue_ns + steps.completion_ns
                                                       : steps.poll_memory_ns;
    // The completion of a READ says all, of other messages the first bytes are looked at: of what a
    // receive brought they lie beside its completion, in another line.
    const double lines = cost.receiver.receives > 0 ? 2 : 1;
    if (by_thread()) return found + lines * steps.device_line_ns + steps.message_ns;
    // Where threads move payloads, the requester's own has brought what a READ asks for.
    return found + (steps.moves_payload ? bytes() * steps.byte_ns : steps.device_line_ns);
  }
  double clearing_ns() const { return cost.receiver.cleared_bytes * steps.byte_ns; }
  double reposting_ns() const {
    return cost.receiver.receives *
           (shared_receives ? steps.post_shared_receive_ns : steps.post_receive_ns);
  }

  // From the beginning of the post until the receiver has the message.
  double latency_ns() const {
    const double fetched = first_packet_bytes() * steps.bus_byte_ns;
    double ns = posting_ns();
    if (by_thread()) {
      ns += steps.bus_one_way_ns;
      // A READ has no payload to send; else WQE and payload are fetched one after the other.
      if (entry_bytes() == 0) ns += steps.bus_read_ns;
    }
    if (!inlined()) ns += steps.bus_read_ns + fetched;
    ns += steps.send_packet_ns + units_of_64(first_packet_bytes()) * steps.send_64_ns;
    ns += (cost.wire_messages - 1) * steps.write_gap_ns;
    ns += steps.path_ns + first_packet_bytes() * steps.link_byte_ns;
    ns += (bytes() - first_packet_bytes()) * std::max(steps.link_byte_ns, steps.bus_byte_ns);
    ns += steps.receive_packet_ns + units_of_64(first_packet_bytes()) * steps.receive_64_ns;
    ns += cost.receiver.receives * steps.take_receive_ns;
    if (is_taken()) ns += steps.bus_one_way_ns + fetched;
    return ns + taking_ns() + clearing_ns();
  }

  double queue_pair_ns() const {
    const double gap = is_taken() && by_thread() ? steps.write_gap_ns : steps.read_gap_ns;
    double ns = by_thread() ? cost.wire_messages * gap : 0;
    if (!inlined() && steps.fetch_ahead_bytes > 0) {
      // Each packet's payload takes its place in what may be fetched ahead from then until it is
      // sent.
      const double ahead = std::max(2.0, steps.fetch_ahead_bytes / mtu_bytes);
      const double each = steps.bus_read_ns + first_packet_bytes() * steps.bus_byte_ns +
                          steps.send_packet_ns +
                          units_of_64(first_packet_bytes()) * steps.send_64_ns;
      ns = std::max(ns, payload_packets() / ahead * each);
    }
    return ns;
  }

  void add_to(SideLoad& sender, SideLoad& receiver) const {
    sender.thread += posting_ns() + reaping_ns();
    sender.send_unit += packets() * steps.send_packet_ns + units_of_64(bytes()) * steps.send_64_ns;
    sender.bus = std::max(sender.bus, inlined() ? 0 : bytes() * steps.bus_byte_ns);
    sender.link += (bytes() + packets() * steps.packet_overhead_bytes) * steps.link_byte_ns;
    sender.queue_pair = queue_pair_ns();
    receiver.thread += taking_ns() + clearing_ns() + reposting_ns();
    receiver.receive_unit += packets() * steps.receive_packet_ns +
                             units_of_64(bytes()) * steps.receive_64_ns +
                             cost.receiver.receives * steps.take_receive_ns;
    receiver.bus = std::max(receiver.bus, bytes() * steps.bus_byte_ns);
  }
};

}  // namespace

DesignLoad load_of(const DesignCost& cost, const LoadInputs& inputs) {
  const auto mtu_bytes = static_cast<double>(inputs.mtu_bytes);
  const MessageWay request{cost.request, inputs.steps, mtu_bytes, inputs.shared_receives};
  const MessageWay response{cost.response, inputs.steps, mtu_bytes, false};
  DesignLoad load;
  request.add_to(load.requester, load.responder);
  response.add_to(load.responder, load.requester);
  const double handed_over_ns = inputs.hand_overs * inputs.steps.hand_over_ns;
  load.requester.thread += handed_over_ns;
  load.responder.thread += inputs.responder_rounds * inputs.responder_round_ns;
  // A lone message meets a polling loop in the middle of its round, as a mean.
  load.round_trip_ns = request.latency_ns() + response.latency_ns() + handed_over_ns +
                       (inputs.requester_round_ns + inputs.responder_round_ns) / 2;
  return load;
}

}  // namespace verbena::rpc
