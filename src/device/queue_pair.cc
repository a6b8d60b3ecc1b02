#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/device/explain.h"
#include "src/device/path_settings.h"
#include "src/device/port.h"
#include "src/device/verbs_control.h"
#include "verbena/device.h"

namespace verbena {

namespace {

constexpr uint32_t kSequenceNumberMask = 0xffffff;  // 24 bits

Status check(const ReliabilityOptions& options) {
  struct Limit {
    const char* name;
    unsigned value;
    unsigned max;
  };
  const Limit limits[] = {{"retry_count", options.retry_count, 7},
                          {"rnr_retry_count", options.rnr_retry_count, 7},
                          {"ack_timeout", options.ack_timeout, 31},
                          {"min_rnr_timer", options.min_rnr_timer, 31}};
  for (const Limit& limit : limits) {
    if (limit.value > limit.max) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{} is {}; it must be at most {}", limit.name, limit.value, limit.max)};
    }
  }
  return {};
}

Result<PathSettings> settings_for(const VerbsControl& control) {
  return &control == &hardware_control() ? path_settings() : PathSettings{};
}

// The path to `peer` over `port`.
Result<ibv_ah_attr> path_to(const QueuePairAddress& peer, const Port& port, const char* device,
                            const PathSettings& settings) {
  if (!port.active()) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("port {} of {} is {}; bring its link up", port.number, device,
                              port_state_name(port.attributes.state)));
  }
  ibv_ah_attr path{};
  path.port_num = port.number;
  path.dlid = peer.lid;
  path.sl = settings.service_level;
  if (!port.routed_by_gid()) {
    if (port.attributes.link_layer == IBV_LINK_LAYER_ETHERNET) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("port {} of {} has no usable GID; give its network interface an IP "
                                "address",
                                port.number, device));
    }
    if (peer.lid == 0) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("the peer has no LID, but {} is InfiniBand; both sides must use "
                                "devices of one network",
                                device));
    }
    return path;
  }
  if (peer.has_gid == 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the peer has no GID, but {} needs one ({}); both sides must use "
                              "devices of one network",
                              device, link_layer_name(port.attributes.link_layer)));
  }
  path.is_global = 1;
  path.grh.sgid_index = static_cast<uint8_t>(port.gid_index);
  path.grh.hop_limit = 64;
  path.grh.traffic_class = settings.traffic_class;
  std::memcpy(path.grh.dgid.raw, peer.gid, sizeof(peer.gid));
  return path;
}

constexpr const char kInitToRtr[] = "INIT to RTR";
constexpr const char kRtrToRts[] = "RTR to RTS";

std::string with_route_remark(std::string what, const ibv_ah_attr& path, int error) {
  if (path.is_global != 0 &&
      (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH)) {
    what += "; the peer's GID does not resolve: check the route between the two interfaces";
  }
  return what;
}

// Of the queue pair with this sequence number, which is drawn: datagrams of a former connection
// have another one. Its highest bit must be 0.
uint32_t queue_key(uint32_t packet_sequence_number) {
  constexpr uint32_t kBase = 0x11000000;
  return kBase | (packet_sequence_number & kSequenceNumberMask);
}

ibv_qp_type type_of(Transport transport) {
  switch (transport) {
    case Transport::kUc:
      return IBV_QPT_UC;
    case Transport::kUd:
      return IBV_QPT_UD;
    case Transport::kRc:
      break;
  }
  return IBV_QPT_RC;
}

// A datagram's work request has an address, too, which some devices take from the inline bytes: so
// a UD queue pair has as many as can be had.
ibv_qp* create_with_inline(const ProtectionDomain& domain, ibv_qp_init_attr* attributes) {
  constexpr uint32_t kStepBytes = 64;
  const ibv_qp_cap asked = attributes->cap;
  uint32_t inline_bytes = asked.max_inline_data;
  for (;;) {
    attributes->cap = asked;
    attributes->cap.max_inline_data = inline_bytes;
    ibv_qp* handle = domain.control().create_qp(domain.get(), attributes);
    if (handle != nullptr || inline_bytes == 0 || attributes->qp_type != IBV_QPT_UD) return handle;
    inline_bytes -= std::min(inline_bytes, kStepBytes);
  }
}

}  // namespace

void DatagramPeer::set_destination(ibv_send_wr& request) const {
  request.wr.ud = {.ah = handle_.get(), .remote_qpn = number_, .remote_qkey = queue_key_};
}

Result<QueuePair> QueuePair::create(const ProtectionDomain& domain,
                                    const QueuePairOptions& options) {
  if (options.send_cq == nullptr || options.recv_cq == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "a queue pair needs a completion queue for sends and one for receives");
  }
  const VerbsControl& control = domain.control();
  const bool own_receives = options.shared_receive_queue == nullptr;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = options.send_cq->get();
  attributes.recv_cq = options.recv_cq->get();
  attributes.srq = own_receives ? nullptr : options.shared_receive_queue->get();
  attributes.qp_type = type_of(options.transport);
  attributes.sq_sig_all = options.signal_all ? 1 : 0;
  attributes.cap = {.max_send_wr = options.send_depth_wrs,
                    .max_recv_wr = own_receives ? options.recv_depth_wrs : 0,
                    .max_send_sge = options.max_send_sges,
                    .max_recv_sge = own_receives ? options.max_recv_sges : 0,
                    .max_inline_data = options.max_inline_bytes};
  VERBENA_ASSIGN_OR_RETURN(const Port port, choose_port(domain.get()->context, control));
  ibv_qp* handle = create_with_inline(domain, &attributes);
  if (handle == nullptr) return explain_queue_pair_error(domain, options, errno);

  QueuePair queue_pair({handle, control}, options.transport);
  queue_pair.max_inline_bytes_ = attributes.cap.max_inline_data;
  queue_pair.port_ = port.number;
  // Drawn, so that late packets of an earlier connection are not taken for this one's.
  secure_random(&queue_pair.local_psn_, sizeof(queue_pair.local_psn_));
  queue_pair.local_psn_ &= kSequenceNumberMask;
  return queue_pair;
}

Result<QueuePairAddress> QueuePair::address() const {
  VERBENA_ASSIGN_OR_RETURN(const Port port, query_port(get()->context, handle_.control(), port_));
  QueuePairAddress address;
  address.queue_pair_number = number();
  address.packet_sequence_number = local_psn_;
  address.lid = port.attributes.lid;
  address.mtu = static_cast<uint8_t>(port.attributes.active_mtu);
  if (port.routed_by_gid()) {
    std::memcpy(address.gid, port.gid.raw, sizeof(address.gid));
    address.has_gid = 1;
  }
  return address;
}

Status QueuePair::init(unsigned remote_access) {
  VERBENA_ASSIGN_OR_RETURN(const PathSettings settings, settings_for(handle_.control()));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = settings.pkey_index;
  attributes.port_num = port_;
  attributes.qp_access_flags = remote_access;
  attributes.qkey = queue_key(local_psn_);
  const int error = handle_.control().modify_qp(
      get(), &attributes,
      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
          (transport_ == Transport::kUd ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  if (error != 0) {
    return verbs_error(handle_.control(),
                       fmt::format("cannot initialize queue pair {} (RESET to INIT)", number()),
                       error);
  }
  return {};
}

Status QueuePair::connect(const QueuePairAddress& peer, const ReliabilityOptions& options) {
  VERBENA_RETURN_IF_ERROR(check(options));
  ibv_context* context = get()->context;
  VERBENA_ASSIGN_OR_RETURN(const Port port, query_port(context, handle_.control(), port_));
  VERBENA_ASSIGN_OR_RETURN(const PathSettings settings, settings_for(handle_.control()));
  VERBENA_ASSIGN_OR_RETURN(const ibv_ah_attr path,
                           path_to(peer, port, context->device->name, settings));
  if (peer.mtu < IBV_MTU_256 || peer.mtu > IBV_MTU_4096) {
    return {StatusCode::kProtocolViolation,
            fmt::format("the peer's MTU code is {}; valid codes are {} to {}", peer.mtu,
                        static_cast<int>(IBV_MTU_256), static_cast<int>(IBV_MTU_4096))};
  }
  const ibv_mtu mtu = std::min(port.attributes.active_mtu, static_cast<ibv_mtu>(peer.mtu));
  switch (transport_) {
    case Transport::kUc:
      return connect_unreliable(peer, path, mtu);
    case Transport::kUd: {
      VERBENA_RETURN_IF_ERROR(start_datagrams());
      VERBENA_ASSIGN_OR_RETURN(DatagramPeer destination, datagram_peer(peer, path));
      peer_ = std::make_unique<DatagramPeer>(std::move(destination));
      return {};
    }
    case Transport::kRc:
      break;
  }
  return connect_reliable(peer, options, path, mtu);
}

Status QueuePair::connect_reliable(const QueuePairAddress& peer, const ReliabilityOptions& options,
                                   const ibv_ah_attr& path, ibv_mtu mtu) {
  ibv_context* context = get()->context;
  VERBENA_ASSIGN_OR_RETURN(const PathSettings settings, settings_for(handle_.control()));
  ibv_device_attr limits{};
  const int error = handle_.control().query_device(context, &limits);
  if (error != 0) {
    return verbs_error(handle_.control(), fmt::format("cannot query {}", context->device->name),
                       error);
  }

  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = mtu;
  attributes.dest_qp_num = peer.queue_pair_number;
  attributes.rq_psn = peer.packet_sequence_number & kSequenceNumberMask;
  attributes.max_dest_rd_atomic = static_cast<uint8_t>(
      std::clamp<int>(options.max_outstanding_reads, 0, limits.max_qp_rd_atom));
  attributes.min_rnr_timer = options.min_rnr_timer;
  attributes.ah_attr = path;
  VERBENA_RETURN_IF_ERROR(enter(attributes,
                                IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                                kInitToRtr, peer, path));

  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = settings.ack_timeout.value_or(
      ack_timeout_for(options.ack_timeout, limits.local_ca_ack_delay));
  attributes.retry_cnt = options.retry_count;
  attributes.rnr_retry = options.rnr_retry_count;
  attributes.sq_psn = local_psn_;
  attributes.max_rd_atomic = static_cast<uint8_t>(
      std::clamp<int>(options.max_outstanding_reads, 0, limits.max_qp_init_rd_atom));
  return enter(attributes,
               IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                   IBV_QP_MAX_QP_RD_ATOMIC,
               kRtrToRts, peer, path);
}

Status QueuePair::connect_unreliable(const QueuePairAddress& peer, const ibv_ah_attr& path,
                                     ibv_mtu mtu) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = mtu;
  attributes.dest_qp_num = peer.queue_pair_number;
  attributes.rq_psn = peer.packet_sequence_number & kSequenceNumberMask;
  attributes.ah_attr = path;
  VERBENA_RETURN_IF_ERROR(enter(attributes,
                                IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
                                kInitToRtr, peer, path));
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = local_psn_;
  return enter(attributes, IBV_QP_SQ_PSN, kRtrToRts, peer, path);
}

Status QueuePair::start_datagrams() {
  for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    attributes.sq_psn = local_psn_;
    const int error = handle_.control().modify_qp(
        get(), &attributes, IBV_QP_STATE | (state == IBV_QPS_RTS ? IBV_QP_SQ_PSN : 0));
    if (error != 0) {
      return verbs_error(handle_.control(),
                         fmt::format("cannot start the datagrams of queue pair {} ({})", number(),
                                     state == IBV_QPS_RTR ? kInitToRtr : kRtrToRts),
                         error);
    }
  }
  return {};
}

Result<DatagramPeer> QueuePair::datagram_peer(const QueuePairAddress& address) const {
  VERBENA_ASSIGN_OR_RETURN(const Port port, query_port(get()->context, handle_.control(), port_));
  VERBENA_ASSIGN_OR_RETURN(const PathSettings settings, settings_for(handle_.control()));
  VERBENA_ASSIGN_OR_RETURN(const ibv_ah_attr path,
                           path_to(address, port, get()->context->device->name, settings));
  return datagram_peer(address, path);
}

Result<DatagramPeer> QueuePair::datagram_peer(const QueuePairAddress& address,
                                              ibv_ah_attr path) const {
  VERBENA_ASSERT(transport_ == Transport::kUd);
  ibv_ah* handle = handle_.control().create_ah(get()->pd, &path);
  if (handle == nullptr) {
    return verbs_error(handle_.control(),
                       with_route_remark(fmt::format("cannot address datagrams of queue pair {} to "
                                                     "{}",
                                                     number(), address.queue_pair_number),
                                         path, errno),
                       errno);
  }
  DatagramPeer peer;
  peer.handle_ = {handle, handle_.control()};
  peer.number_ = address.queue_pair_number;
  peer.queue_key_ = queue_key(address.packet_sequence_number);
  return peer;
}

Status QueuePair::enter(ibv_qp_attr& attributes, int mask, const char* step,
                        const QueuePairAddress& peer, const ibv_ah_attr& path) {
  const int error = handle_.control().modify_qp(get(), &attributes, IBV_QP_STATE | mask);
  if (error == 0) return {};
  std::string what = fmt::format("cannot connect queue pair {} to {} ({})", number(),
                                 peer.queue_pair_number, step);
  if (step == kInitToRtr) what = with_route_remark(std::move(what), path, error);
  return verbs_error(handle_.control(), what, error);
}

Status QueuePair::to_error() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const int error = handle_.control().modify_qp(get(), &attributes, IBV_QP_STATE);
  if (error != 0) {
    return verbs_error(handle_.control(),
                       fmt::format("cannot bring queue pair {} to the error state", number()),
                       error);
  }
  return {};
}

}  // namespace verbena
