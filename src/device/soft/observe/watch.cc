#include "src/device/soft/observe/watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "src/base/file_descriptor.h"
#include "src/device/soft/atomic_write.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/observe/counter_file.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/registry.h"
#include "src/device/soft/sysfs_tree.h"

namespace verbena::soft {
namespace {

int read_all(void* context, void (*process)(void*, const WatchedProcess*),
             void (*queue_pair)(void*, const WatchedQueuePair*), Counts* device) {
  fail(0, "");
  const Result<Registry> registry = Registry::open();
  if (!registry.ok()) return fail(registry.status());
  const Status read = read_counters(
      *registry, [&](const WatchedProcess& found) { process(context, &found); },
      [&](const WatchedQueuePair& found) { queue_pair(context, &found); }, *device);
  return read.ok() ? 0 : fail(read);
}

// Readers find the old file or the new one, whole.
bool put_number(const std::string& root, const std::string& path, uint64_t value) {
  static std::atomic<uint32_t> made{0};
  const std::string unfinished = fmt::format("{}/.{}.{}", root, getpid(), made.fetch_add(1));
  const std::string text = fmt::format("{}\n", value);
  const auto make = [&unfinished] {
    return open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
  };
  FileDescriptor file(make());
  // What a former process by this number has left.
  if (!file.valid() && errno == EEXIST && unlink(unfinished.c_str()) == 0) {
    file = FileDescriptor(make());
  }
  const bool good =
      file.valid() &&
      write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fchmod(file.get(), 0444) == 0 && rename(unfinished.c_str(), path.c_str()) == 0;
  if (!good && file.valid()) unlink(unfinished.c_str());
  return good;
}

void refresh_sysfs() {
  const char* root = sysfs_root();
  const Result<Registry> registry = Registry::open();
  Counts device{};
  if (root == nullptr || !registry.ok()) return;
  const auto ignore = [](const auto&) {};
  if (!read_counters(*registry, ignore, ignore, device).ok()) return;
  // The devices are one RNIC, whose counters they all show.
  for (uint32_t index = 0; index < device_count(); ++index) {
    const std::string port =
        fmt::format("{}/sys/class/infiniband/{}/ports/1/", root, soft::device(index)->name);
    for (const auto& [name, value] : sysfs_counters(device)) {
      if (!put_number(root, port + name, value)) return;
    }
  }
}

}  // namespace

std::vector<std::pair<std::string, uint64_t>> sysfs_counters(const Counts& device) {
  const auto of = [&device](ibv_wr_opcode opcode) { return device.requests[opcode]; };
  const uint64_t writes = of(IBV_WR_RDMA_WRITE) + of(IBV_WR_RDMA_WRITE_WITH_IMM) + of(kAtomicWrite);
  const uint64_t sends = of(IBV_WR_SEND) + of(IBV_WR_SEND_WITH_IMM) + of(IBV_WR_SEND_WITH_INV);
  const uint64_t reads = of(IBV_WR_RDMA_READ);
  const uint64_t atomics = of(IBV_WR_ATOMIC_CMP_AND_SWP) + of(IBV_WR_ATOMIC_FETCH_AND_ADD);
  const uint64_t messages = writes + sends + reads + atomics;
  // What one process sends another one receives, through the one port; in words of 4 bytes.
  const uint64_t words = device.bytes / 4;
  return {{"counters/port_rcv_data", words},
          {"counters/port_rcv_packets", messages},
          {"counters/port_xmit_data", words},
          {"counters/port_xmit_packets", messages},
          {"counters/port_xmit_wait", 0},
          {"counters/unicast_rcv_packets", messages},
          {"counters/unicast_xmit_packets", messages},
          {"counters/multicast_rcv_packets", 0},
          {"counters/multicast_xmit_packets", 0},
          {"hw_counters/out_of_buffer", device.dropped},
          {"hw_counters/req_cqe_error", device.errors},
          {"hw_counters/resp_cqe_error", device.receive_errors},
          {"hw_counters/rnr_nak_retry_err", device.waits},
          {"hw_counters/rx_atomic_requests", atomics},
          {"hw_counters/rx_read_requests", reads},
          {"hw_counters/rx_send_requests", sends},
          {"hw_counters/rx_write_requests", writes}};
}

const Watch& watch() {
  static const Watch table = {.read = read_all, .refresh_sysfs = refresh_sysfs};
  return table;
}

}  // namespace verbena::soft
