#include "src/bench/baselines/queue_pair_memory.h"

#include <infiniband/verbs.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "src/bench/baselines/verbs_end.h"

namespace verbena::bench::baselines {

namespace {

// What one side has.
struct Crowd {
  Device device;
  ProtectionDomain domain;
  CompletionQueue completions;
  std::vector<QueuePair> queue_pairs;
};

Result<double> proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::ostringstream text;
  text << file.rdbuf();
  return parse_proportional_bytes(text.str());
}

Status connect_all(Side& side, Crowd& crowd, uint32_t count) {
  QueuePairOptions options;
  options.send_cq = &crowd.completions;
  options.recv_cq = &crowd.completions;
  options.max_inline_bytes = sizeof(uint64_t);
  auto* const mine = reinterpret_cast<QueuePairAddress*>(side.board().memory[side.number()]);
  const auto* const theirs =
      reinterpret_cast<const QueuePairAddress*>(side.board().memory[1 - side.number()]);
  const size_t first = crowd.queue_pairs.size();
  for (uint32_t i = 0; i < count; ++i) {
    VERBENA_ASSIGN_OR_RETURN(QueuePair made, QueuePair::create(crowd.domain, options));
    VERBENA_RETURN_IF_ERROR(made.init(IBV_ACCESS_REMOTE_WRITE));
    VERBENA_ASSIGN_OR_RETURN(mine[i], made.address());
    crowd.queue_pairs.push_back(std::move(made));
  }
  VERBENA_RETURN_IF_ERROR(side.meet());
  for (uint32_t i = 0; i < count; ++i)
    VERBENA_RETURN_IF_ERROR(crowd.queue_pairs[first + i].connect(theirs[i]));
  return side.meet();
}

// Each queue pair receives and sends as many messages as its queues have places, into and from the
// same few bytes.
Status use_all(Side& side, Crowd& crowd, const ibv_sge& place) {
  constexpr uint32_t kDepth = QueuePairOptions{}.send_depth_wrs;
  static_assert(kDepth == QueuePairOptions{}.recv_depth_wrs);
  ibv_sge element = place;
  ibv_recv_wr receive{};
  receive.sg_list = &element;
  receive.num_sge = 1;
  ibv_send_wr send{};
  send.sg_list = &element;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  for (const QueuePair& queue_pair : crowd.queue_pairs) {
    for (uint32_t i = 0; i < kDepth; ++i) {
      ibv_recv_wr* bad = nullptr;
      if (ibv_post_recv(queue_pair.get(), &receive, &bad) != 0)
        return Status(StatusCode::kUnavailable, "a receive could not be posted");
    }
  }
  VERBENA_RETURN_IF_ERROR(side.meet());
  for (const QueuePair& queue_pair : crowd.queue_pairs) {
    for (uint32_t i = 1; i <= kDepth; ++i) {
      send.send_flags = IBV_SEND_INLINE | (i == kDepth ? unsigned{IBV_SEND_SIGNALED} : 0);
      ibv_send_wr* bad = nullptr;
      if (ibv_post_send(queue_pair.get(), &send, &bad) != 0)
        return Status(StatusCode::kUnavailable, "a SEND could not be posted");
    }
  }
  const uint64_t all = crowd.queue_pairs.size() * (kDepth + 1);
  for (uint64_t i = 0; i < all; ++i)
    VERBENA_RETURN_IF_ERROR(wait_for_completion(crowd.completions.get()));
  return side.meet();
}

Status measure_growth(Side& side, uint32_t count) {
  struct alignas(4096) Page {
    char bytes[4096] = {};
  };
  const auto page = std::make_unique<Page>();
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(CompletionQueue completions,
                           CompletionQueue::create(device, {.depth_cqes = 2 * count}));
  Crowd crowd{std::move(device), std::move(domain), std::move(completions), {}};
  // After the crowd, so that it ends before its domain.
  VERBENA_ASSIGN_OR_RETURN(
      const MemoryRegion region,
      MemoryRegion::create(crowd.domain, page->bytes, sizeof(page->bytes), IBV_ACCESS_LOCAL_WRITE));
  const ibv_sge place{reinterpret_cast<uint64_t>(page->bytes), sizeof(uint64_t), region.lkey()};
  // What a process has once is there with the first one.
  VERBENA_RETURN_IF_ERROR(connect_all(side, crowd, 1));
  VERBENA_RETURN_IF_ERROR(use_all(side, crowd, place));
  VERBENA_ASSIGN_OR_RETURN(const double before, proportional_bytes());
  VERBENA_RETURN_IF_ERROR(side.meet());
  VERBENA_RETURN_IF_ERROR(connect_all(side, crowd, count));
  VERBENA_RETURN_IF_ERROR(use_all(side, crowd, place));
  VERBENA_ASSIGN_OR_RETURN(const double after, proportional_bytes());
  side.set_result((after - before) / count);
  return side.meet();
}

}  // namespace

Result<double> parse_proportional_bytes(const std::string& rollup) {
  std::istringstream lines(rollup);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name;
    double kilobytes = 0;
    if (fields >> name >> kilobytes && name == "Pss:") return kilobytes * 1024;
  }
  return Status(StatusCode::kUnavailable, "/proc/self/smaps_rollup says no Pss");
}

Result<double> queue_pair_memory_bytes(const CpuPair& cpus, uint32_t count) {
  return run_pair(cpus, [&](Side& side) { return measure_growth(side, count); });
}

}  // namespace verbena::bench::baselines
