#include "src/rpc/notification_board.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "src/base/assert.h"
#include "verbena/data_path.h"

namespace verbena::rpc {

void NotificationBoard::Unmap::operator()(char* memory) const { munmap(memory, size_bytes); }

// Pages of its own: the device is given access to them, and nothing else shall lie there.
Result<NotificationBoard> NotificationBoard::create(uint32_t connections, uint32_t slots) {
  NotificationBoard board;
  board.stride_bytes_ = channel::NotificationArray::stride_bytes(slots);
  const uint64_t size_bytes =
      round_up(uint64_t{connections} * board.stride_bytes_, uint64_t{channel::kWordBytes});
  void* memory =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(
        StatusCode::kLimitExceeded,
        fmt::format(
            "cannot allocate {} bytes for the notification bytes of {} connections ({}); lower "
            "max_connections or pending",
            size_bytes, connections, std::strerror(errno)));
  }
  board.memory_ = {static_cast<char*>(memory), Unmap{size_bytes}};
  return board;
}

Result<MemoryRegion> NotificationBoard::offer(const ProtectionDomain& domain, uint32_t connection,
                                              uint32_t slots) const {
  VERBENA_ASSERT(slots <= stride_bytes_);
  clear_bytes(notifications(connection), stride_bytes_);
  return MemoryRegion::create(domain, notifications(connection), slots,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

}  // namespace verbena::rpc
