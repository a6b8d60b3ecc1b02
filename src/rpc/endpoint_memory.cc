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

}  // namespace

Status check_memory(const EndpointMemory& memory, const EndpointNeeds& needs) {
  const auto wrong = [](const char* what) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("the peer's {}; run the same release on both sides", what));
  };
  if (memory.connection >= kMaxConnections) return wrong("connection number is out of range");
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
  VERBENA_RETURN_IF_ERROR(connect::join(
      control, kLayer, endpoint,
      mine.ok() ? Result<std::vector<std::byte>>(encode(*mine)) : mine.status(),
      [&](WireReader& reader) {
        theirs = decode(reader);
        return check_memory(theirs, needs);
      },
      timeout_ns));
  return theirs;
}

}  // namespace verbena::rpc
