// The dense array in which the requesters of one responder announce their messages
// (src/channel/dense_channel.h).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "src/channel/dense_channel.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::rpc {

class NotificationBoard {
 public:
  NotificationBoard() = default;
  // A byte for each of `slots` slots of each connection. kLimitExceeded: no memory.
  static Result<NotificationBoard> create(uint32_t connections, uint32_t slots);

  char* notifications(uint32_t connection) const {
    return memory_.get() + uint64_t{connection} * stride_bytes_;
  }
  // Clears one connection's part and registers it, and nothing beside it: no requester can announce
  // messages for another one.
  Result<MemoryRegion> offer(const ProtectionDomain& domain, uint32_t connection,
                             uint32_t slots) const;

  template <typename Visit>
  void for_each_notified(uint32_t connections, Visit&& visit) const {
    channel::NotificationArray::for_each_notified(memory_.get(), stride_bytes_, connections,
                                                  std::forward<Visit>(visit));
  }

 private:
  struct Unmap {
    uint64_t size_bytes = 0;
    void operator()(char* memory) const;
  };

  uint32_t stride_bytes_ = 1;
  std::unique_ptr<char, Unmap> memory_{nullptr, Unmap{}};
};

}  // namespace verbena::rpc
