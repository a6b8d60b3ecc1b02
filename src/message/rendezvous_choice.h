// Which way a long message takes, from what each way costs; pure.
//
// All of it is time until the message is in the receiver's memory, on queue pairs that have nothing
// else to do. Bytes count once by READ and WRITE, and in chunks as the slowest of three: the copy
// at each end and the wire. What a message is sent from that is not registered yet is registered
// first, and the receiver's memory is taken to be in the same state: who sends from the same
// buffers again receives into the same ones.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "src/device/step_costs.h"
#include "src/memory/reuse_thresholds.h"
#include "src/message/message_header.h"
#include "verbena/message_protocol.h"

namespace verbena::message {

const char* method_name(Method method);
inline MessageProtocol protocol_of(Method method) {
  return method == Method::kRead    ? MessageProtocol::kRead
         : method == Method::kWrite ? MessageProtocol::kWrite
                                    : MessageProtocol::kPipelined;
}

// A message that is copied to a slot, and from it.
double eager_ns(const StepCosts& steps, uint64_t bytes, bool by_ring);
// To register memory so that peers reach it.
double registration_ns(const StepCosts& steps, uint64_t bytes);
// The same of memory that is left in place, with what a READ of it then costs more.
double in_place_ns(const StepCosts& steps, uint64_t bytes);
// How many messages of a size one buffer is READ in place for, before its pages are shared.
double messages_in_place(const StepCosts& steps, uint64_t bytes);

// A line through what messages of all sizes cost.
struct MethodCost {
  double fixed_ns = 0;
  double byte_ns = 0;
  double of(uint64_t bytes) const { return fixed_ns + byte_ns * static_cast<double>(bytes); }
};

struct RendezvousCosts {
  std::array<MethodCost, kMethods> methods;

  // For chunks of so many bytes, as many on their way as there are credits. Control path.
  static RendezvousCosts from_steps(const StepCosts& steps, uint32_t chunk_bytes, uint32_t credits);
  double of(Method method, uint64_t bytes) const {
    return methods[static_cast<uint32_t>(method)].of(bytes);
  }
  // What a registration has to save, for the table of used buffers: the copies in chunks.
  ReuseCostModel saved_by_registering(const StepCosts& steps) const;
};

// The memory of one message.
struct MessageState {
  bool readable = false;    // registered for peers to READ
  bool source = false;      // registered for this side's own posts
  bool often_used = false;  // so that a registration is for many messages
  // To register it for each use, with what that use then costs more, and the receiver's.
  double readable_ns = 0;
  double source_ns = 0;
  double target_ns = 0;
  double read_target_ns = 0;  // where the receiver's READs alone fill it
};

struct MethodChoice {
  Method method = Method::kRead;
  std::array<double, kMethods> ns = {};  // of each
};
MethodChoice choose_method(const RendezvousCosts& costs, LongMessages asked, uint64_t bytes,
                           const MessageState& state);
// For people: the estimates, and what decided.
std::string explain_choice(const MethodChoice& choice, LongMessages asked,
                           const MessageState& state);

}  // namespace verbena::message
