#include "src/bench/verbs/verbs_connection.h"

#include <algorithm>
#include <utility>

#include "src/bench/messages.h"

namespace verbena::bench {

namespace {

constexpr uint32_t kAddressTag = 0x76657262;  // "verb"
constexpr uint32_t kReadyTag = 0x72647921;    // "rdy!"

struct Address {
  QueuePairAddress queue_pair{};
  RemoteRegion region{};
};

uint64_t request_bytes(const Point& point) {
  return operation_bytes(point) / requests_per_operation(point);
}

uint32_t send_depth(const Point& point) {
  // One more: a requester may ask for the completion of what it posted unsignaled.
  return point.pending * requests_per_operation(point) + 1;
}

// As many as may be on their way, and as many again while the responder posts anew.
uint32_t receive_depth(const Device& device, const Point& point) {
  return std::min(2 * point.pending * requests_per_operation(point),
                  device.info().max_queue_pair_wrs);
}

}  // namespace

bool post_receive(const VerbsConnection& connection, const Point& point, uint64_t number) {
  const uint64_t bytes = request_bytes(point);
  const uint64_t place = number % (point.region_bytes / bytes) * bytes;
  ibv_sge sge = {.addr = reinterpret_cast<uint64_t>(connection.region.data()) + place,
                 .length = static_cast<uint32_t>(bytes),
                 .lkey = connection.region.lkey()};
  ibv_recv_wr request{.wr_id = number, .next = nullptr, .sg_list = &sge, .num_sge = 1};
  ibv_recv_wr* rejected = nullptr;
  return ibv_post_recv(connection.queue_pair.get(), &request, &rejected) == 0;
}

Result<VerbsConnection> connect_verbs(const Device& device, const ProtectionDomain& domain,
                                      const Point& point, bool responds,
                                      ControlConnection& control) {
  unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (device.info().atomics) access |= IBV_ACCESS_REMOTE_ATOMIC;
  const bool huge_pages = point.huge_pages != 0;
  VERBENA_ASSIGN_OR_RETURN(RegisteredArena region,
                           RegisteredArena::create(domain, point.region_bytes, access, huge_pages));
  std::optional<RegisteredArena> staging;
  if (!responds && point.method == VectorMethod::kSp && has_entries(point.operation)) {
    VERBENA_ASSIGN_OR_RETURN(staging,
                             RegisteredArena::create(domain, point.pending * operation_bytes(point),
                                                     IBV_ACCESS_LOCAL_WRITE, huge_pages));
  }
  const bool gathers = has_entries(point.operation) && point.method == VectorMethod::kSgl;
  const bool receives = responds && point.operation == Operation::kSend;
  const uint32_t sends = responds ? 1 : send_depth(point);
  const uint32_t receive_wrs = receives ? receive_depth(device, point) : 1;
  VERBENA_ASSIGN_OR_RETURN(CompletionQueue send_completions,
                           CompletionQueue::create(device, {.depth_cqes = sends}));
  VERBENA_ASSIGN_OR_RETURN(CompletionQueue receive_completions,
                           CompletionQueue::create(device, {.depth_cqes = receive_wrs}));
  VERBENA_ASSIGN_OR_RETURN(
      QueuePair queue_pair,
      QueuePair::create(domain, {.send_cq = &send_completions,
                                 .recv_cq = &receive_completions,
                                 .send_depth_wrs = sends,
                                 .recv_depth_wrs = receive_wrs,
                                 .max_send_sges = gathers ? point.entries : 1,
                                 .max_inline_bytes = std::min(point.inline_bytes,
                                                              device.info().max_inline_bytes)}));
  VERBENA_RETURN_IF_ERROR(queue_pair.init(access & ~unsigned{IBV_ACCESS_LOCAL_WRITE}));

  VerbsConnection connection{.region = std::move(region),
                             .staging = std::move(staging),
                             .send_completions = std::move(send_completions),
                             .receive_completions = std::move(receive_completions),
                             .queue_pair = std::move(queue_pair)};
  for (; receives && connection.receives < receive_wrs; ++connection.receives) {
    if (!post_receive(connection, point, connection.receives)) {
      return Status(StatusCode::kLimitExceeded,
                    "the queue pair takes fewer receives than it was made for; lower --pending");
    }
  }
  Address mine;
  VERBENA_ASSIGN_OR_RETURN(mine.queue_pair, connection.queue_pair.address());
  mine.region = {reinterpret_cast<uint64_t>(connection.region.data()), connection.region.rkey()};
  VERBENA_ASSIGN_OR_RETURN(const Address theirs,
                           control.exchange(kAddressTag, mine, kSetupTimeoutNs));
  VERBENA_RETURN_IF_ERROR(connection.queue_pair.connect(theirs.queue_pair));
  connection.remote = theirs.region;
  // Neither may send before both are connected.
  VERBENA_RETURN_IF_ERROR(control.exchange(kReadyTag, uint8_t{1}, kSetupTimeoutNs).status());
  return connection;
}

}  // namespace verbena::bench
