#include "src/message/rendezvous_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace verbena::message {
namespace {

// The look-ups in the table of used buffers and in the registration cache.
constexpr double kLookUpNs = 100;

// A small message, from the call of its sender until its receiver has taken it.
double hop_ns(const StepCosts& steps) {
  return steps.post_request_ns + steps.doorbell_ns + 2 * steps.bus_one_way_ns +
         steps.send_packet_ns + steps.path_ns + steps.receive_packet_ns + steps.take_receive_ns +
         steps.device_line_ns + steps.completion_ns + steps.message_ns;
}

double wire_byte_ns(const StepCosts& steps) {
  return std::max(
      {steps.link_byte_ns, steps.bus_byte_ns, steps.moves_payload ? steps.byte_ns : 0.0});
}

}  // namespace

const char* method_name(Method method) { return message_protocol_name(protocol_of(method)); }

double eager_ns(const StepCosts& steps, uint64_t bytes, bool by_ring) {
  const double copies = 2 + (steps.moves_payload ? 1 : 0);
  const double taken =
      by_ring ? 0 : steps.take_receive_ns + steps.completion_ns + steps.post_shared_receive_ns;
  return hop_ns(steps) - steps.take_receive_ns - steps.completion_ns + taken +
         static_cast<double>(bytes) *
             (copies * steps.byte_ns + (steps.moves_payload ? 0 : wire_byte_ns(steps)));
}

double registration_ns(const StepCosts& steps, uint64_t bytes) {
  constexpr double kPageBytes = 4096;
  return steps.registration_ns +
         steps.registration_page_ns * (1 + static_cast<double>(bytes) / kPageBytes);
}

double in_place_ns(const StepCosts& steps, uint64_t bytes) {
  return steps.in_place_registration_ns + steps.in_place_use_ns +
         steps.in_place_byte_ns * static_cast<double>(bytes);
}

double messages_in_place(const StepCosts& steps, uint64_t bytes) {
  const double use_ns = steps.in_place_use_ns + steps.in_place_byte_ns * static_cast<double>(bytes);
  return std::ceil(registration_ns(steps, bytes) / use_ns);
}

RendezvousCosts RendezvousCosts::from_steps(const StepCosts& steps, uint32_t chunk_bytes,
                                            uint32_t credits) {
  RendezvousCosts costs;
  const double hop = hop_ns(steps);
  const double post = steps.post_request_ns + steps.doorbell_ns;
  // The request, and the READ there and back.
  MethodCost& read = costs.methods[static_cast<uint32_t>(Method::kRead)];
  read.fixed_ns = hop + post + 2 * steps.bus_one_way_ns + 2 * steps.path_ns + steps.bus_read_ns +
                  steps.send_packet_ns + steps.receive_packet_ns + steps.completion_ns +
                  steps.read_gap_ns + 2 * steps.region_check_ns;
  read.byte_ns = wire_byte_ns(steps);
  // The request, the answer, the WRITE, and the word that it is done, which follows it closely.
  MethodCost& write = costs.methods[static_cast<uint32_t>(Method::kWrite)];
  write.fixed_ns = 3 * hop + steps.bus_read_ns + steps.write_gap_ns + steps.region_check_ns;
  write.byte_ns = wire_byte_ns(steps);
  // The request, the answer, and chunks: the first through all steps, the others behind the
  // slowest. No more than the credits are between two returns of them.
  MethodCost& pipelined = costs.methods[static_cast<uint32_t>(Method::kPipelined)];
  const double copy = chunk_bytes * steps.byte_ns;
  const double sending = post + copy + (steps.moves_payload ? copy : 0);
  const double wire = chunk_bytes * wire_byte_ns(steps) + steps.write_gap_ns;
  const double receiving = steps.post_shared_receive_ns + steps.completion_ns +
                           steps.device_line_ns + steps.message_ns + copy;
  const double window = (2 * hop + copy) / std::max(1.0, credits / 2.0);
  const double chunk = std::max({sending, wire, receiving, window});
  pipelined.fixed_ns = 3 * hop + copy;
  pipelined.byte_ns = chunk / chunk_bytes;
  return costs;
}

ReuseCostModel RendezvousCosts::saved_by_registering(const StepCosts& steps) const {
  const MethodCost& chunks = methods[static_cast<uint32_t>(Method::kPipelined)];
  const MethodCost& read = methods[static_cast<uint32_t>(Method::kRead)];
  const MethodCost& write = methods[static_cast<uint32_t>(Method::kWrite)];
  return {.registration_ns = steps.registration_ns,
          .registration_page_ns = steps.registration_page_ns,
          .copy_ns = chunks.fixed_ns - std::min(read.fixed_ns, write.fixed_ns),
          .copy_byte_ns = chunks.byte_ns - std::min(read.byte_ns, write.byte_ns),
          .overhead_ns = kLookUpNs};
}

MethodChoice choose_method(const RendezvousCosts& costs, LongMessages asked, uint64_t bytes,
                           const MessageState& state) {
  MethodChoice choice;
  for (uint32_t i = 0; i < kMethods; ++i) choice.ns[i] = costs.methods[i].of(bytes);
  if (!state.often_used) {
    if (!state.readable) {
      choice.ns[static_cast<uint32_t>(Method::kRead)] += state.readable_ns + state.read_target_ns;
    }
    if (!state.source) {
      choice.ns[static_cast<uint32_t>(Method::kWrite)] += state.source_ns + state.target_ns;
    }
  }
  switch (asked) {
    case LongMessages::kRead:
      choice.method = Method::kRead;
      break;
    case LongMessages::kWrite:
      choice.method = Method::kWrite;
      break;
    case LongMessages::kPipelined:
      choice.method = Method::kPipelined;
      break;
    case LongMessages::kAutomatic:
      choice.method = static_cast<Method>(std::min_element(choice.ns.begin(), choice.ns.end()) -
                                          choice.ns.begin());
      break;
  }
  return choice;
}

std::string explain_choice(const MethodChoice& choice, LongMessages asked,
                           const MessageState& state) {
  const char* memory = state.readable && state.source ? "registered for READ and WRITE"
                       : state.readable               ? "registered for READ"
                       : state.source                 ? "registered for WRITE"
                       : state.often_used             ? "not registered, but used often"
                                                      : "not registered";
  std::string text = fmt::format(
      "estimated {:.1f} us by READ, {:.1f} us by WRITE, {:.1f} us in chunks; its memory is {}",
      choice.ns[0] / 1000, choice.ns[1] / 1000, choice.ns[2] / 1000, memory);
  if (!state.readable && !state.source && !state.often_used) {
    text += fmt::format(" (to register it takes {:.1f} us, the receiver's as long)",
                        std::min(state.readable_ns, state.source_ns) / 1000);
  }
  if (asked != LongMessages::kAutomatic) text += "; the option long_messages asks for it";
  return text;
}

}  // namespace verbena::message

namespace verbena {

const char* message_protocol_name(MessageProtocol protocol) {
  switch (protocol) {
    case MessageProtocol::kToSelf:
      return "to itself";
    case MessageProtocol::kEager:
      return "eager";
    case MessageProtocol::kRead:
      return "rendezvous by READ";
    case MessageProtocol::kWrite:
      return "rendezvous by WRITE";
    case MessageProtocol::kPipelined:
      return "rendezvous in chunks";
  }
  return "?";
}

}  // namespace verbena
