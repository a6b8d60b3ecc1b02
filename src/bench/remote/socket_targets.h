// Memory of a back-end on several sockets, and the ways of a front-end's threads to it ("memsem"
// III-D).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/bench/remote/remote_settings.h"
#include "src/bench/remote/remote_thread.h"
#include "src/bench/remote/write_operation.h"
#include "src/bench/run/node_job.h"
#include "src/bench/run/socket_parts.h"
#include "verbena/remote.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// A thread's regions: one with all parts, or one for each part.
struct SocketRegions {
  std::vector<ReachedPart> parts{};
  uint32_t queue_pairs = 0;  // opened for them, of proxies those that this thread has started
};
Result<SocketRegions> connect_socket_regions(NodeJob& job, uint32_t number);

// Writes that go to all parts.
class SocketWrites {
 public:
  SocketWrites(const RemoteThread& thread, const SocketRegions& own);

  void begin(bool verify);
  void end(Report& report);
  const Status& status() const { return status_; }

  PostResult post(uint32_t slot) {
    const WrittenPart::Write write = part_.next();
    const uint64_t part = own_.parts.size() == 1 ? 0 : write.offset_bytes / socket_bytes_;
    ++written_;
    return own_.parts[part].region->post_write(write.offset_bytes - part * socket_bytes_,
                                               write.bytes, slot);
  }
  template <typename Take>
  uint32_t poll(Take&& done) {
    uint32_t found = 0;
    for (const ReachedPart& part : own_.parts) {
      if (part.region->outstanding() == 0) continue;
      found += part.region->poll(
          [&done](const RemoteCompletion& one) { done(static_cast<uint32_t>(one.token)); });
      if (!part.region->status().ok()) [[unlikely]]
        fail(part.region->status());
    }
    return found;
  }
  uint32_t outstanding() const;

 private:
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  const SocketRegions& own_;
  const uint64_t socket_bytes_;
  const bool first_;  // of all requesting threads
  WrittenPart part_;
  uint64_t written_ = 0;
  bool verify_ = false;
  Status status_;
};

}  // namespace verbena::bench
