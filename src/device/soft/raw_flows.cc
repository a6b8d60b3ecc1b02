#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>

#include "src/base/shared_memory.h"
#include "src/device/soft/raw.h"
#include "src/device/soft/refusal.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

using Words = uint64_t[FlowShared::kWords];

// Under `control`: no other thread writes.
void write_flow(FlowShared& flow, const FlowRule& rule) {
  Words value;
  Words mask;
  std::memcpy(value, &rule.value, sizeof(value));
  std::memcpy(mask, &rule.mask, sizeof(mask));
  const uint64_t version = flow.version.load(std::memory_order_relaxed);
  flow.version.store(version + 1, std::memory_order_relaxed);
  // Release: who sees a word of the new flow sees the odd version.
  std::atomic_thread_fence(std::memory_order_release);
  for (uint32_t i = 0; i < FlowShared::kWords; ++i) {
    flow.value[i].store(value[i], std::memory_order_relaxed);
    flow.mask[i].store(mask[i], std::memory_order_relaxed);
  }
  flow.rank.store(rule.rank, std::memory_order_relaxed);
  // Release: who sees the even version sees the flow.
  flow.version.store(version + 2, std::memory_order_release);
}

// The rank of a flow that matches, or 0; also of one that is just being changed.
uint32_t rank_if_match(const FlowShared& flow, const Words& frame) {
  // Acquire: the words are of this version, or of a later one.
  const uint64_t version = flow.version.load(std::memory_order_acquire);
  const uint32_t rank = flow.rank.load(std::memory_order_relaxed);
  if (rank == 0 || version % 2 != 0) return 0;
  uint64_t differs = 0;
  for (uint32_t i = 0; i < FlowShared::kWords; ++i) {
    differs |= (frame[i] ^ flow.value[i].load(std::memory_order_relaxed)) &
               flow.mask[i].load(std::memory_order_relaxed);
  }
  // Acquire: no word was of a later version if the version is still this one.
  std::atomic_thread_fence(std::memory_order_acquire);
  return differs == 0 && flow.version.load(std::memory_order_relaxed) == version ? rank : 0;
}

}  // namespace

FlowMatch match_flows(const FlowShared* flows, const FrameFields& frame) {
  Words words;
  std::memcpy(words, &frame, sizeof(words));
  FlowMatch match;
  for (uint32_t i = 0; i < kMaxFlows; ++i) {
    const uint32_t rank = rank_if_match(flows[i], words);
    if (rank == kSnifferRank) {
      match.sniffs = true;
    } else if (rank != 0 && rank < match.rank) {
      match.rank = rank;
    }
  }
  return match;
}

ibv_gid raw_group() {
  ibv_gid group{};
  constexpr char kText[] = "raw packets";
  static_assert(sizeof(kText) <= sizeof(group.raw));
  std::memcpy(group.raw, kText, sizeof(kText));
  return group;
}

ibv_flow* create_flow(ibv_qp* verbs, ibv_flow_attr* attributes) {
  if (check_valid<Qp>(verbs) != 0) return nullptr;
  Qp& qp = as_qp(verbs);
  if (qp.transport != Transport::kRawPacket) {
    fail(EOPNOTSUPP, "soft0: flows are of queue pairs of type RAW_PACKET");
    return nullptr;
  }
  const std::optional<FlowRule> rule = rule_of(*attributes);
  if (!rule.has_value()) return nullptr;
  const std::lock_guard guard(qp.control);
  uint32_t place = 0;
  while (place < kMaxFlows && qp.flows[place].rank.load(std::memory_order_relaxed) != 0) ++place;
  if (place == kMaxFlows) {
    fail(ENOMEM, fmt::format("soft0: the queue pair has {} flows, the most that one can have; "
                             "destroy some, or use another queue pair",
                             kMaxFlows));
    return nullptr;
  }
  write_flow(qp.flows[place], *rule);
  if (qp.flow_count == 0) {
    if (const Status joined = join_group(qp, raw_group()); !joined.ok()) {
      write_flow(qp.flows[place], {});
      fail(joined);
      return nullptr;
    }
  }
  ++qp.flow_count;
  auto flow = std::make_unique<Flow>();
  flow->verbs.context = verbs->context;
  flow->verbs.handle = place;
  flow->qp = &qp;
  flow->place = place;
  make_valid(*flow, verbs->context);
  return &flow.release()->verbs;
}

int destroy_flow(ibv_flow* verbs) {
  if (const int error = check_valid<Flow>(verbs); error != 0) return error;
  auto* flow = reinterpret_cast<Flow*>(verbs);
  Qp& qp = *flow->qp;
  const std::lock_guard guard(qp.control);
  write_flow(qp.flows[flow->place], {});
  VERBENA_ASSERT(qp.flow_count > 0);
  if (--qp.flow_count == 0) leave_group(qp, raw_group());
  retire(flow);
  return 0;
}

}  // namespace verbena::soft
