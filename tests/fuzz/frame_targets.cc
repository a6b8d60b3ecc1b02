// What peers, ranks, nodes and launchers send.
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "src/base/file_descriptor.h"
#include "src/base/wire.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/run/coordination.h"
#include "src/connect/exchange.h"
#include "src/job/member.h"
#include "src/job/pmi_client.h"
#include "src/rpc/endpoint_memory.h"
#include "src/rpc/layer.h"
#include "src/rpc/negotiation.h"
#include "tests/fuzz/connection_pair.h"
#include "tests/fuzz/targets.h"
#include "verbena/device.h"

namespace verbena::fuzz {
namespace {

void send_as_peer(std::span<const std::byte> frame) {
  const Status sent = connection_pair().peer.send(frame);
  require(sent.ok(), sent.message());
}

// The frames that came to an end, and are gone from the connection then.
std::vector<Bytes> frames_at(ControlConnection& end) {
  std::vector<Bytes> frames;
  for (;;) {
    Result<Bytes> frame = end.receive(0);
    if (!frame.ok()) return frames;
    frames.push_back(std::move(*frame));
  }
}
std::vector<Bytes> frames_at_peer() { return frames_at(connection_pair().peer); }

// --- which design requester and responder use ---

constexpr rpc::DesignRequest kOffered = {.protocol = Protocol::kWriteWrite,
                                         .layout = MarkLayout::kLastBit,
                                         .writes_in_order = true,
                                         .request_max_bytes = 4096,
                                         .response_max_bytes = 4096,
                                         .pending = 16};

Status run_design_request(std::span<const std::byte> input) {
  send_as_peer(input);
  const auto agreed = rpc::accept_design(connection_pair().own, kOffered, kTimeoutNs);
  require_readable(agreed.status());
  if (agreed.ok()) {
    require(agreed->protocol == kOffered.protocol && agreed->layout == kOffered.layout &&
                agreed->request_max_bytes <= kOffered.request_max_bytes &&
                agreed->response_max_bytes <= kOffered.response_max_bytes && agreed->pending >= 1 &&
                agreed->pending <= kOffered.pending,
            "what is agreed on is within the offer");
  }
  require(frames_at_peer().size() == 1, "the requester gets one answer");
  return agreed.status();
}
Status run_design_accept(std::span<const std::byte> input) {
  send_as_peer(input);
  const auto agreed = rpc::request_design(connection_pair().own, kOffered, kTimeoutNs);
  require_readable(agreed.status());
  require(frames_at_peer().size() == 1, "the responder gets one request");
  return agreed.status();
}
std::vector<Bytes> design_seeds(bool request) {
  // The frame that the other side waits for, taken from the wire.
  ConnectionPair& pair = connection_pair();
  const auto refused = [] {
    WireWriter nothing;
    nothing.u8(0);
    return Bytes(nothing.bytes().begin(), nothing.bytes().end());
  }();
  send_as_peer(refused);
  static_cast<void>(rpc::request_design(pair.own, kOffered, kTimeoutNs));
  const Bytes asked = frames_at_peer().at(0);
  if (request) return {asked};
  send_as_peer(asked);
  static_cast<void>(rpc::accept_design(pair.own, kOffered, kTimeoutNs));
  const Bytes accepted = frames_at_peer().at(0);
  return {accepted};
}
std::vector<Bytes> design_request_seeds() { return design_seeds(true); }
std::vector<Bytes> design_accept_seeds() { return design_seeds(false); }

// --- where its messages may go ---

// An endpoint that stays unconnected unless the input is right, which is why it is made anew then.
struct OwnSide {
  Device device;
  ProtectionDomain domain;
  connect::Endpoint endpoint;
};

connect::Endpoint make_endpoint(const Device& device, const ProtectionDomain& domain) {
  auto endpoint = connect::make_endpoint(
      device, domain, {.arena_bytes = 4096, .send_depth_wrs = 4, .own_receives = 1});
  require(endpoint.ok(), endpoint.status().message());
  return std::move(*endpoint);
}

OwnSide& own_side() {
  static OwnSide side = [] {
    auto device = Device::open("soft0");
    require(device.ok(), device.status().message());
    auto domain = ProtectionDomain::create(*device);
    require(domain.ok(), domain.status().message());
    connect::Endpoint endpoint = make_endpoint(*device, *domain);
    return OwnSide{std::move(*device), std::move(*domain), std::move(endpoint)};
  }();
  return side;
}

constexpr rpc::EndpointNeeds kNeeds = {.slots_bytes = 4096};

Status run_endpoint(std::span<const std::byte> input) {
  // The step after it, which a peer sends once it is connected.
  WireWriter ready;
  connect::begin_step(ready, rpc::kLayer, 2, Status::ok_status());
  send_as_peer(input);
  send_as_peer(ready.bytes());
  OwnSide& own = own_side();
  const auto theirs =
      rpc::join(connection_pair().own, &own.endpoint, rpc::EndpointMemory{}, kNeeds, kTimeoutNs);
  require_readable(theirs.status());
  if (theirs.ok()) require(theirs->slots_bytes >= kNeeds.slots_bytes, "the peer's memory suffices");
  // A frame that is no step at all is the last one that is read.
  static_cast<void>(frames_at(connection_pair().own));
  static_cast<void>(frames_at_peer());
  if (own.endpoint.queue_pair.get()->state != IBV_QPS_INIT) {
    own.endpoint = make_endpoint(own.device, own.domain);
  }
  return theirs.status();
}
std::vector<Bytes> endpoint_seeds() {
  OwnSide& own = own_side();
  send_as_peer(as_bytes("no step"));
  const rpc::EndpointMemory memory{.slots_address = 0x10000, .slots_bytes = 8192, .slots_rkey = 1};
  static_cast<void>(rpc::join(connection_pair().own, &own.endpoint, memory, kNeeds, kTimeoutNs));
  return {frames_at_peer().at(0)};
}

// --- how ranks of a job meet ---

Status run_rank(std::span<const std::byte> input) {
  const auto request = job::decode_request(input, "10.0.0.1:4711");
  require_readable(request.status());
  if (request.ok()) {
    require(job::decode_request(job::encode(*request), "again").ok(), "what was read can be sent");
  }
  const Status refusal = job::refusal_in(input);
  const auto members = job::decode_members(input, 3, "10.0.0.1:4711");
  require_readable(refusal);
  require_readable(members.status());
  require(refusal.ok() || !members.ok(), "a refusal is no list");
  if (members.ok()) require(members->size() == 3, "a list has a line for each rank");
  return request.ok() || members.ok() ? Status::ok_status() : request.status();
}
std::vector<Bytes> rank_seeds() {
  const std::vector<job::Member> members = {{.address = {}, .port = 7, .host = "node-a"},
                                            {.address = "10.0.0.2", .port = 7, .host = "node-b"},
                                            {.address = "10.0.0.3", .port = 8, .host = {}}};
  return {job::encode(job::JoinRequest{.rank = 1, .size = 3, .port = 4711, .host = "node-a"}),
          job::encode(Result<std::vector<job::Member>>(members))};
}
// A refusal is an error, however right it is.
Status run_refusal(std::span<const std::byte> input) {
  const Status refusal = job::refusal_in(input);
  require_readable(refusal);
  require_readable(job::decode_members(input, 3, "10.0.0.1:4711").status());
  return refusal.ok() ? Status(StatusCode::kInvalidArgument, "no refusal") : Status::ok_status();
}
std::vector<Bytes> refusal_seeds() {
  return {job::encode(Result<std::vector<job::Member>>(
              Status(StatusCode::kTimeout, "rank 2 did not come; start it"))),
          job::encode(Result<std::vector<job::Member>>(Status(StatusCode::kTimeout, "")))};
}

Status run_pmi(std::span<const std::byte> input) {
  int sockets[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0, "there are sockets");
  const FileDescriptor client(sockets[0]);
  const FileDescriptor server(sockets[1]);
  // All answers at once, and no more of them.
  require(send(server.get(), input.data(), input.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(input.size()),
          "a socket takes the longest input");
  shutdown(server.get(), SHUT_WR);
  const Status status = [&]() -> Status {
    VERBENA_ASSIGN_OR_RETURN(job::PmiClient pmi, job::PmiClient::start(client.get(), kTimeoutNs));
    VERBENA_RETURN_IF_ERROR(pmi.put("key", "value"));
    VERBENA_RETURN_IF_ERROR(pmi.barrier());
    return pmi.get("key").status();
  }();
  require_readable(status);
  return status;
}
std::vector<Bytes> pmi_seeds() {
  return {
      as_bytes("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
               "cmd=my_kvsname kvsname=kvs_1\n"
               "cmd=put_result rc=0 msg=success\n"
               "cmd=barrier_out\n"
               "cmd=get_result rc=0 msg=success value=abc\n")};
}

// --- a benchmark's nodes ---

Status run_coordination(std::span<const std::byte> input) {
  send_as_peer(input);
  const auto message = bench::receive_message(connection_pair().own, kTimeoutNs);
  require_readable(message.status());
  if (message.ok()) {
    require(bench::send_message(connection_pair().own, *message).ok(), "what was read can be sent");
    require(frames_at_peer().size() == 1, "one message is one frame");
  }
  return message.status();
}
std::vector<Bytes> coordination_seeds() {
  using bench::MessageKind;
  const bench::Point point = bench::request_response_workload().point();
  bench::Report report{.requests = 1000, .last_ns = 5000};
  report.counters = {4000, 3000};
  report.costs.push_back({.cost = {.cycles = 100, .instructions = 200}, .messages = 1000});
  report.latencies.push_back({.ns = 900, .count = 1000});
  const std::vector<bench::Message> messages = {
      {.kind = MessageKind::kHello, .hello = {.host = "node-a", .cpus = {0, 1}, .token = 7}},
      {.kind = MessageKind::kSetup,
       .setup = {.point = point, .node = 1, .run_key = 2, .seed = 3, .cpus = {0}}},
      {.kind = MessageKind::kConnect, .addresses = {{"127.0.0.1", 1}, {"127.0.0.1", 2}}},
      {.kind = MessageKind::kPhase, .phase = {.verify = true, .number = 5}},
      {.kind = MessageKind::kGo, .go = {.host = "node-a", .now_ns = 1}},
      {.kind = MessageKind::kReport, .report = report},
      {.kind = MessageKind::kFailed, .cause = "no memory", .code = StatusCode::kLimitExceeded},
      {.kind = MessageKind::kBye},
  };
  std::vector<Bytes> seeds;
  for (const bench::Message& message : messages) {
    const Status sent = bench::send_message(connection_pair().own, message);
    require(sent.ok(), sent.message());
    seeds.push_back(*connection_pair().peer.receive(kTimeoutNs));
  }
  return seeds;
}

}  // namespace

std::vector<FuzzTarget> frame_targets() {
  return {
      {"design_request", run_design_request, design_request_seeds},
      {"design_accept", run_design_accept, design_accept_seeds},
      {"endpoint", run_endpoint, endpoint_seeds},
      {"rank", run_rank, rank_seeds},
      {"refusal", run_refusal, refusal_seeds},
      {"pmi", run_pmi, pmi_seeds},
      {"coordination", run_coordination, coordination_seeds},
  };
}

}  // namespace verbena::fuzz
