#include "src/bench/verbs/verbs_connection.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "src/bench/run/coordination.h"
#include "src/bench/run/socket_choice.h"
#include "src/bench/verbs/verbs_settings.h"
#include "src/connect/exchange.h"

namespace verbena::bench {

namespace {

constexpr connect::Layer kLayer = {
    .name = "raw verbs", .magic = 0x53425256 /* "VRBS" */, .version = 1};

uint32_t send_depth(const Point& point) {
  // One more: a requester may ask for the completion of what it posted unsignaled.
  return point.pending * verbs_settings(point).requests_per_operation() + 1;
}

// As many as may be on their way, and as many again while the responder posts anew.
uint32_t receive_depth(const Device& device, const Point& point) {
  return std::min(2 * point.pending * verbs_settings(point).requests_per_operation(),
                  device.info().max_queue_pair_wrs);
}

}  // namespace

bool post_receive(const VerbsConnection& connection, const Point& point, uint64_t number) {
  const VerbsSettings& verbs = verbs_settings(point);
  const uint64_t bytes = verbs.header_bytes() + verbs.request_bytes();
  const uint64_t place = number % (verbs.region_bytes / bytes) * bytes;
  ibv_sge sge = {.addr = reinterpret_cast<uint64_t>(connection.endpoint.arena.data()) + place,
                 .length = static_cast<uint32_t>(bytes),
                 .lkey = connection.endpoint.arena.lkey()};
  ibv_recv_wr request{.wr_id = number, .next = nullptr, .sg_list = &sge, .num_sge = 1};
  ibv_recv_wr* rejected = nullptr;
  return ibv_post_recv(connection.endpoint.queue_pair.get(), &request, &rejected) == 0;
}

namespace {

Result<VerbsConnection> connect_planned(const Device& device, const ProtectionDomain& domain,
                                        const Point& point, bool responds,
                                        const CompletionQueue* completions, bool first,
                                        ControlConnection& control) {
  const VerbsSettings& verbs = verbs_settings(point);
  unsigned access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (device.info().atomics) access |= IBV_ACCESS_REMOTE_ATOMIC;
  const bool gathers = has_entries(verbs.operation) && verbs.method == VectorMethod::kSgl;
  const bool receives = responds && verbs.operation == Operation::kSend;
  VERBENA_RETURN_IF_ERROR(run_at(responds ? verbs.remote_core : verbs.core, device));
  connect::EndpointPlan plan;
  plan.transport = verbs.transport;
  plan.shared_send_completions = completions;
  plan.arena_bytes = first ? verbs.region_bytes : sizeof(uint64_t);
  VERBENA_ASSIGN_OR_RETURN(plan.arena_socket,
                           choose_socket(responds ? verbs.remote_memory : verbs.memory, device));
  plan.arena_access = access;
  const bool only_address = !first && verbs.transport == Transport::kUd;
  plan.send_depth_wrs = responds || only_address ? 1 : send_depth(point);
  plan.max_send_sges = gathers ? verbs.entries : 1;
  plan.inline_bytes = std::min(point.inline_bytes, device.info().max_inline_bytes);
  plan.max_outstanding_reads = connect::outstanding_reads(device.info());
  plan.own_receives = receives ? receive_depth(device, point) : 0;
  plan.huge_pages = point.huge_pages != 0;
  VERBENA_ASSIGN_OR_RETURN(connect::Endpoint endpoint,
                           connect::make_endpoint(device, domain, plan));
  std::optional<RegisteredArena> staging;
  if (!responds && verbs.method == VectorMethod::kSp && has_entries(verbs.operation)) {
    VERBENA_ASSIGN_OR_RETURN(
        staging, RegisteredArena::create(domain, point.pending * verbs.operation_bytes(),
                                         IBV_ACCESS_LOCAL_WRITE,
                                         connect::wants_huge_pages(device, plan.huge_pages)));
  }

  VerbsConnection connection{.endpoint = std::move(endpoint), .staging = std::move(staging)};
  for (; receives && connection.receives < plan.own_receives; ++connection.receives) {
    if (!post_receive(connection, point, connection.receives)) {
      return Status(StatusCode::kLimitExceeded,
                    "the queue pair takes fewer receives than it was made for; lower --pending");
    }
  }
  const RegisteredArena& region = connection.endpoint.arena;
  WireWriter mine;
  mine.u64(reinterpret_cast<uint64_t>(region.data()));
  mine.u32(region.rkey());
  VERBENA_RETURN_IF_ERROR(connect::join(
      control, kLayer, &connection.endpoint,
      std::vector<std::byte>(mine.bytes().begin(), mine.bytes().end()),
      [&connection](WireReader& theirs) {
        connection.remote = {.address = theirs.u64(), .rkey = theirs.u32()};
        return Status::ok_status();
      },
      kSetupTimeoutNs));
  return connection;
}

}  // namespace

Result<VerbsConnection> connect_verbs(const Device& device, const ProtectionDomain& domain,
                                      const Point& point, bool responds,
                                      ControlConnection& control) {
  return connect_planned(device, domain, point, responds, nullptr, /*first=*/true, control);
}

Result<VerbsConnection> connect_peer(const Device& device, const ProtectionDomain& domain,
                                     const Point& point, const CompletionQueue& completions,
                                     bool first, ControlConnection& control) {
  return connect_planned(device, domain, point, /*responds=*/false, &completions, first, control);
}

}  // namespace verbena::bench
