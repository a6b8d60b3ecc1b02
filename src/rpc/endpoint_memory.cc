#include "src/rpc/endpoint_memory.h"

#include <fmt/format.h>

#include <cstddef>
#include <vector>

#include "src/base/wire.h"
#include "src/rpc/layer.h"
#include "verbena/rpc.h"

namespace verbena::rpc {
namespace {

std::vector<std::byte> encode(const EndpointMemory& memory) {
  WireWriter writer;
  writer.u32(memory.connection);
  writer.u32(memory.first_slot);
  writer.u32(memory.queue_pair_slots);
  writer.u32(memory.generation);
  writer.u64(memory.slots_address);
  writer.u64(memory.slots_bytes);
  writer.u32(memory.slots_rkey);
  writer.u64(memory.notifications_address);
  writer.u64(memory.notifications_bytes);
  writer.u32(memory.notifications_rkey);
  writer.u64(memory.readable_address);
  writer.u64(memory.readable_bytes);
  writer.u32(memory.readable_rkey);
  return {writer.bytes().begin(), writer.bytes().end()};
}

EndpointMemory decode(WireReader& reader) {
  EndpointMemory memory;
  memory.connection = reader.u32();
  memory.first_slot = reader.u32();
  memory.queue_pair_slots = reader.u32();
  memory.generation = reader.u32();
  memory.slots_address = reader.u64();
  memory.slots_bytes = reader.u64();
  memory.slots_rkey = reader.u32();
  memory.notifications_address = reader.u64();
  memory.notifications_bytes = reader.u64();
  memory.notifications_rkey = reader.u32();
  memory.readable_address = reader.u64();
  memory.readable_bytes = reader.u64();
  memory.readable_rkey = reader.u32();
  return memory;
}

bool lies_in_address_space(uint64_t address, uint64_t size_bytes) {
  return address != 0 && address + size_bytes >= address;
}

Result<std::vector<std::byte>> encoded(const Result<EndpointMemory>& memory) {
  if (!memory.ok()) return memory.status();
  return encode(*memory);
}

// What reads the peer's description.
auto decode_to(EndpointMemory* theirs, const EndpointNeeds& needs) {
  return [theirs, &needs](WireReader& reader) {
    *theirs = decode(reader);
    return check_memory(*theirs, needs);
  };
}

}  // namespace

Status check_memory(const EndpointMemory& memory, const EndpointNeeds& needs) {
  const auto wrong = [](const char* what) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("the peer's {}; run the same release on both sides", what));
  };
  if (memory.connection >= kMaxConnections) return wrong("connection number is out of range");
  if (memory.queue_pair_slots > kMaxQueuePairSlots ||
      (needs.queue_pair_slots > 0 &&
       uint64_t{memory.first_slot} + needs.queue_pair_slots > memory.queue_pair_slots)) {
    return wrong("slots of the queue pair are fewer than agreed or too many");
  }
  if (needs.slots_bytes > 0 && (memory.slots_bytes < needs.slots_bytes ||
                                !lies_in_address_space(memory.slots_address, memory.slots_bytes))) {
    return wrong("slots are smaller than agreed or lie at an impossible address");
  }
  if (needs.notifications_bytes > 0 &&
      (memory.notifications_bytes < needs.notifications_bytes ||
       !lies_in_address_space(memory.notifications_address, memory.notifications_bytes))) {
    return wrong("notification bytes are fewer than agreed or lie at an impossible address");
  }
  if (needs.readable && !lies_in_address_space(memory.readable_address, memory.readable_bytes)) {
    return wrong("readable memory lies at an impossible address");
  }
  return Status::ok_status();
}

Result<EndpointMemory> join(ControlConnection& control, connect::Endpoint* endpoint,
                            const Result<EndpointMemory>& mine, const EndpointNeeds& needs,
                            int64_t timeout_ns) {
  EndpointMemory theirs;
  VERBENA_RETURN_IF_ERROR(connect::join(control, kLayer, endpoint, encoded(mine),
                                        decode_to(&theirs, needs), timeout_ns));
  return theirs;
}

Result<EndpointMemory> join(ControlConnection& control, const QueuePair* queue_pair,
                            DatagramPeer* peer, const Result<EndpointMemory>& mine,
                            const EndpointNeeds& needs, int64_t timeout_ns) {
  EndpointMemory theirs;
  VERBENA_RETURN_IF_ERROR(connect::join(control, kLayer, queue_pair, peer, encoded(mine),
                                        decode_to(&theirs, needs), timeout_ns));
  return theirs;
}

}  // namespace verbena::rpc
