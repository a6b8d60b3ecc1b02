#include "src/bench/baselines/copies.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/baselines/verbs_end.h"
#include "src/bench/result/statistics.h"

namespace verbena::bench::baselines {

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kGigabyte = uint64_t{1} << 30;

struct UnmapBytes {
  uint64_t bytes = 0;
  void operator()(char* memory) const { munmap(memory, bytes); }
};
using Mapping = std::unique_ptr<char, UnmapBytes>;

// Private memory as malloc() gives it to an application, every page written.
Result<Mapping> map_private(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot map {} bytes of memory: {}", bytes, std::strerror(errno)));
  }
  std::memset(memory, 1, bytes);
  return Mapping(static_cast<char*>(memory), UnmapBytes{bytes});
}

// Side 0 copies in batches, of which the median counts; side 1 sleeps until that is done. A copy
// counts for `worth`, of which the result is how much per second.
template <typename Copy>
Status copy_while_other_sleeps(Side& side, uint64_t messages, uint64_t worth, Copy&& copy) {
  constexpr uint64_t kBatch = 16;
  constexpr uint64_t kSleepNs = 1'000'000;
  std::atomic<uint64_t>& done = side.board().ball[0].value;
  VERBENA_RETURN_IF_ERROR(side.meet());
  if (side.number() == 1) {
    while (done.load(std::memory_order_acquire) == 0 &&
           side.board().failed[0].value.load(std::memory_order_acquire) == 0) {
      sleep_ns(kSleepNs);
    }
    return side.meet();
  }
  for (uint64_t i = 0; i < kBatch; ++i) VERBENA_RETURN_IF_ERROR(copy());
  std::vector<double> bandwidths;
  for (uint64_t copied = 0; copied < messages; copied += kBatch) {
    const uint64_t start_ns = now_ns();
    for (uint64_t i = 0; i < kBatch; ++i) VERBENA_RETURN_IF_ERROR(copy());
    bandwidths.push_back(static_cast<double>(kBatch * worth) /
                         static_cast<double>(now_ns() - start_ns) * 1e9);
  }
  side.set_result(median(bandwidths));
  done.store(1, std::memory_order_release);
  return side.meet();
}

Status register_again(Side& side, uint64_t registrations) {
  if (side.number() == 1) return Status::ok_status();
  VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(const ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(const Mapping memory, map_private(kPageBytes));
  constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  const auto register_it = [&] {
    return MemoryRegion::create(domain, memory.get(), kPageBytes, kAccess);
  };
  // Another registration keeps the page converted.
  VERBENA_ASSIGN_OR_RETURN(const MemoryRegion first, register_it());
  std::vector<double> times_us;
  for (uint64_t i = 0; i < registrations; ++i) {
    const uint64_t start_ns = now_ns();
    const Result<MemoryRegion> region = register_it();
    const uint64_t end_ns = now_ns();
    VERBENA_RETURN_IF_ERROR(region.status());
    times_us.push_back(static_cast<double>(end_ns - start_ns) / 1e3);
  }
  side.set_result(median(times_us));
  return Status::ok_status();
}

Status register_gigabyte(Side& side) {
  if (side.number() == 1) return Status::ok_status();
  VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(const ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(const Mapping memory, map_private(kGigabyte));
  const uint64_t start_ns = now_ns();
  VERBENA_ASSIGN_OR_RETURN(const MemoryRegion region,
                           MemoryRegion::create(domain, memory.get(), kGigabyte,
                                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  side.set_result(static_cast<double>(now_ns() - start_ns) / 1e9);
  return Status::ok_status();
}

}  // namespace

Result<double> write_bandwidth(const CpuPair& cpus, uint64_t message_bytes, uint64_t messages) {
  return run_pair(cpus, [&](Side& side) -> Status {
    VERBENA_ASSIGN_OR_RETURN(const Mapping memory, map_private(message_bytes));
    VERBENA_ASSIGN_OR_RETURN(const auto end, VerbsEnd::connect(side, memory.get(), message_bytes));
    ibv_sge element{};
    element.addr = reinterpret_cast<uint64_t>(memory.get());
    element.length = static_cast<uint32_t>(message_bytes);
    element.lkey = end->lkey();
    ibv_send_wr request{};
    request.sg_list = &element;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = end->remote_address();
    request.wr.rdma.rkey = end->remote_rkey();
    return copy_while_other_sleeps(side, messages, message_bytes, [&]() -> Status {
      ibv_send_wr* bad = nullptr;
      if (ibv_post_send(end->queue_pair(), &request, &bad) != 0) {
        return Status(StatusCode::kUnavailable, "a WRITE could not be posted");
      }
      return wait_for_completion(end->send_completions());
    });
  });
}

Result<double> memcpy_bandwidth(const CpuPair& cpus, uint64_t message_bytes, uint64_t messages) {
  return run_pair(cpus, [&](Side& side) -> Status {
    // Each side writes its own buffer first, as above; both lie in shared mappings.
    std::memset(side.board().memory[side.number()], 1, message_bytes);
    return copy_while_other_sleeps(side, messages, message_bytes, [&]() -> Status {
      std::memcpy(side.board().memory[1], side.board().memory[0], message_bytes);
      // Copies whose result nobody reads must not be left out.
      asm volatile("" ::: "memory");
      return Status::ok_status();
    });
  });
}

Result<double> write_rate(const CpuPair& cpus, uint64_t writes) {
  return run_pair(cpus, [&](Side& side) -> Status {
    constexpr uint64_t kTogether = 1024;
    VERBENA_ASSIGN_OR_RETURN(const Mapping memory, map_private(kPageBytes));
    VERBENA_ASSIGN_OR_RETURN(const auto end, VerbsEnd::connect(side, memory.get(), kPageBytes));
    InlineSender sender(*end);
    sender.request().opcode = IBV_WR_RDMA_WRITE;
    sender.request().wr.rdma.remote_addr = end->remote_address();
    sender.request().wr.rdma.rkey = end->remote_rkey();
    return copy_while_other_sleeps(side, writes / kTogether, kTogether, [&]() -> Status {
      for (uint64_t i = 0; i < kTogether; ++i) {
        if (!sender.send(i)) return Status(StatusCode::kUnavailable, "a WRITE failed");
      }
      return Status::ok_status();
    });
  });
}

Result<double> registration_again_us(const CpuPair& cpus, uint64_t registrations) {
  return run_pair(cpus, [&](Side& side) { return register_again(side, registrations); });
}

Result<double> registration_of_gigabyte_s(const CpuPair& cpus) {
  return run_pair(cpus, [](Side& side) { return register_gigabyte(side); });
}

}  // namespace verbena::bench::baselines
