// The states of a connection: what the two sides tell each other, and what their programs learn.
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/device/soft/cm/connection_manager.h"
#include "src/device/soft/cm/own_descriptors.h"

namespace verbena::soft::cm {
namespace {

constexpr uint64_t kNsPerSecond = 1'000'000'000;
// Until the other process must have received a request; the kernel asks 16 times within 69 s.
constexpr uint64_t kRequestTimeoutNs = 60 * kNsPerSecond;
constexpr uint64_t kListenerRetryNs = 1'000'000;
// Until its program must have answered.
constexpr uint64_t kAnswerTimeoutNs = 900 * kNsPerSecond;
// After a connection, as long as packets of it could be on a network's way.
constexpr uint64_t kTimewaitNs = 1 * kNsPerSecond;

// What InfiniBand's messages have room for, less the header of IP addresses in requests. Programs
// always get that many bytes, with zeros behind what the peer gave.
constexpr uint8_t kRequestDataBytes = 56;
constexpr uint8_t kReplyDataBytes = 196;
constexpr uint8_t kRejectDataBytes = 148;
constexpr uint8_t kDatagramRequestDataBytes = 180;
constexpr uint8_t kDatagramReplyDataBytes = 136;

constexpr uint32_t kQueueKeyUdp = 0x01234567;  // RDMA_UDP_QKEY of rdma_cma.h
constexpr uint32_t kQueueKeyIpoib = 0x0b1b;
constexpr uint32_t kMulticastQueuePair = 0xffffff;

constexpr uint8_t kDefaultAckTimeout = 18;  // 1 s
constexpr uint32_t kNumberMask = 0xffffff;

uint32_t random_packet_number() {
  uint32_t number = 0;
  if (getrandom(&number, sizeof(number), GRND_NONBLOCK) < 0) return 0;
  return number & kNumberMask;
}

void put_endpoint(const Endpoint& endpoint, std::array<uint8_t, 28>& bytes) {
  sockaddr_in6 address;
  write_endpoint(endpoint, address);
  static_assert(sizeof(address) == std::tuple_size_v<std::array<uint8_t, 28>>);
  std::memcpy(bytes.data(), &address, sizeof(address));
}

uint32_t default_queue_key(const Identifier& id) {
  return id.port_space == RDMA_PS_IPOIB ? kQueueKeyIpoib : kQueueKeyUdp;
}

// Connection parameters as events have them.
rdma_ucm_conn_param connection_event(const Message& message, uint8_t data_bytes) {
  rdma_ucm_conn_param event{};
  event.qp_num = message.queue_pair_number;
  event.qkey = message.queue_key;
  std::copy_n(message.private_data.begin(), data_bytes, event.private_data);
  event.private_data_len = data_bytes;
  event.srq = message.has_shared_receive_queue;
  // What the peer can answer is what this side may ask, and the other way round.
  event.responder_resources = message.initiator_depth;
  event.initiator_depth = message.responder_resources;
  event.flow_control = message.flow_control;
  event.retry_count = message.retry_count;
  event.rnr_retry_count = message.rnr_retry_count;
  return event;
}

void add_parameters(Message& message, const rdma_ucm_conn_param& parameters) {
  message.queue_pair_number = parameters.qp_num & kNumberMask;
  message.has_shared_receive_queue = parameters.srq != 0 ? 1 : 0;
  message.responder_resources = parameters.responder_resources;
  message.initiator_depth = parameters.initiator_depth;
  message.flow_control = parameters.flow_control != 0 ? 1 : 0;
  message.retry_count = std::min<uint8_t>(parameters.retry_count, 7);
  message.rnr_retry_count = std::min<uint8_t>(parameters.rnr_retry_count, 7);
  std::copy_n(parameters.private_data, parameters.private_data_len, message.private_data.begin());
}

// To a sender whose message meets nothing.
Message refusal_of(const Message& message, uint32_t reason) {
  Message refusal{};
  refusal.magic = kMessageMagic;
  refusal.type = MessageType::kReject;
  refusal.source_id = message.target_id != 0 ? message.target_id : 1;
  refusal.target_id = message.source_id;
  refusal.reason = reason;
  return refusal;
}

}  // namespace

Message ConnectionManager::message_of(const Identifier& id, MessageType type) const {
  Message message{};
  message.magic = kMessageMagic;
  message.type = type;
  message.port_space = id.port_space;
  message.source_id = id.id;
  message.target_id = id.remote_id;
  message.queue_pair_type = id.queue_pair_type;
  return message;
}

// ---- this side begins ----

void ConnectionManager::set_listener_patience(uint64_t ns) {
  std::lock_guard guard(mutex_);
  listener_patience_ns_ = ns;
}

int ConnectionManager::start_connecting(Identifier& id, const rdma_ucm_connect& command) {
  const rdma_ucm_conn_param& parameters = command.conn_param;
  if (parameters.private_data_len >
      (id.is_datagram() ? kDatagramRequestDataBytes : kRequestDataBytes)) {
    return EINVAL;
  }
  id.own_queue_pair = parameters.qp_num & kNumberMask;
  id.own_packet_number = random_packet_number();
  id.retry_count = std::min<uint8_t>(parameters.retry_count, 7);
  Message request = message_of(
      id, id.is_datagram() ? MessageType::kDatagramRequest : MessageType::kConnectRequest);
  add_parameters(request, parameters);
  request.packet_number = id.own_packet_number;
  request.ece_vendor = command.ece.vendor_id;
  request.ece_options = command.ece.attr_mod;
  put_endpoint(id.source, request.source_address);
  put_endpoint(id.target, request.target_address);
  id.state = State::kConnecting;
  id.request = request;
  id.listener_until_ns = now_ns() + listener_patience_ns_;
  send_request(id);
  return 0;
}

Result<std::shared_ptr<Link>> ConnectionManager::link_to_listener(Identifier& id) {
  VERBENA_ASSIGN_OR_RETURN(const PortRecord listener, ports_->listener(id.port_space, id.target));
  VERBENA_RETURN_IF_ERROR(reach(listener.owner));
  id.request.target_id = listener.id;
  return link_to(listener.owner);
}

void ConnectionManager::send_request(Identifier& id) {
  const Result<std::shared_ptr<Link>> link = link_to_listener(id);
  if (!link.ok()) return miss_listener(id, link.status());
  id.link = *link;
  set_deadline(id, kRequestTimeoutNs);
  send(std::shared_ptr<Link>(id.link), id.request);
}

bool ConnectionManager::may_get_listener(const Identifier& id) const {
  // Closed ones are among them for a moment.
  if (channels_.size() > 1) return true;
  for (const auto& [number, other] : identifiers_) {
    if (number != id.id && other->state <= State::kListening) return true;
  }
  const Result<std::vector<uint32_t>> slots = registry_.slots();
  if (!slots.ok()) return true;
  return std::any_of(slots->begin(), slots->end(),
                     [this](uint32_t slot) { return slot != self_.slot && registry_.taken(slot); });
}

void ConnectionManager::miss_listener(Identifier& id, const Status& why) {
  id.link = nullptr;
  const bool nobody = why.code() == StatusCode::kUnavailable;
  if (!nobody) log_unreachable(why);
  const bool may_change = nobody || why.code() == StatusCode::kLimitExceeded;
  if (may_change && now_ns() < id.listener_until_ns && may_get_listener(id)) {
    return set_deadline(id, kListenerRetryNs);
  }
  refuse(id, id.is_datagram() ? kDatagramNoService : kRejectInvalidService);
}

void ConnectionManager::refuse(Identifier& id, uint32_t reason, const Message* answer) {
  id.state = State::kRefused;
  id.link = nullptr;
  set_deadline(id, 0);
  Event event;
  event.response.status = reason;
  if (id.is_datagram()) {
    event.response.event = static_cast<uint32_t>(EventType::kUnreachable);
  } else {
    event.response.event = static_cast<uint32_t>(EventType::kRejected);
    event.response.param.conn.private_data_len = kRejectDataBytes;
    if (answer != nullptr) {
      std::copy_n(answer->private_data.begin(), kRejectDataBytes,
                  event.response.param.conn.private_data);
    }
  }
  report(id, event);
}

int ConnectionManager::confirm(Identifier& id) {
  if (id.state != State::kAnswered) return EINVAL;
  id.state = State::kConnected;
  set_deadline(id, 0);
  send(std::shared_ptr<Link>(id.link), message_of(id, MessageType::kReadyToUse));
  return 0;
}

void ConnectionManager::receive_reply(Identifier& id, const Message& message) {
  // The listener that was found is gone since; another may have its port.
  if (id.is_datagram() && message.reason == kDatagramNoService)
    return miss_listener(id, nobody_listens());
  id.remote_id = message.source_id;
  id.remote = message;
  if (id.is_datagram()) {
    if (message.reason != 0) return refuse(id, message.reason);
    id.state = State::kConnected;
    id.link = nullptr;
    set_deadline(id, 0);
    Event event;
    event.response.event = static_cast<uint32_t>(EventType::kEstablished);
    rdma_ucm_ud_param& parameters = event.response.param.ud;
    parameters.qp_num = message.queue_pair_number;
    parameters.qkey = message.queue_key;
    parameters.ah_attr = path(id);
    parameters.private_data_len = kDatagramReplyDataBytes;
    std::copy_n(message.private_data.begin(), kDatagramReplyDataBytes, parameters.private_data);
    event.response.ece = {message.ece_vendor, message.ece_options};
    return report(id, event);
  }
  id.state = State::kAnswered;
  id.responder_resources = message.initiator_depth;
  id.initiator_depth = message.responder_resources;
  id.rnr_retry_count = message.rnr_retry_count;
  set_deadline(id, kAnswerTimeoutNs);
  Event event;
  event.response.event = static_cast<uint32_t>(EventType::kConnectResponse);
  event.response.param.conn = connection_event(message, kReplyDataBytes);
  event.response.ece = {message.ece_vendor, message.ece_options};
  report(id, event);
}

// ---- the other side begins ----

void ConnectionManager::receive_request(const std::shared_ptr<Link>& link, const Message& message) {
  const bool is_datagram = message.type == MessageType::kDatagramRequest;
  Identifier* listener = find(message.target_id);
  const bool listens = listener != nullptr && listener->state == State::kListening &&
                       listener->port_space == message.port_space &&
                       listener->is_datagram() == is_datagram;
  const uint32_t number = listens && listener->backlog > 0 ? free_number() : 0;
  if (number == 0) {
    const uint32_t busy = is_datagram ? kDatagramRejected : kRejectByConsumer;
    const uint32_t nobody = is_datagram ? kDatagramNoService : kRejectInvalidService;
    Message refusal = refusal_of(message, listens ? busy : nobody);
    if (is_datagram) refusal.type = MessageType::kDatagramReply;
    return send(link, refusal);
  }
  auto made = std::make_unique<Identifier>();
  Identifier& id = *made;
  id.id = number;
  id.listener = listener->id;
  id.port_space = listener->port_space;
  id.queue_pair_type = listener->queue_pair_type;
  id.channel = listener->channel;
  id.state = State::kRequested;
  id.has_device = true;
  id.link = link;
  id.remote_id = message.source_id;
  id.remote = message;
  id.own_packet_number = random_packet_number();
  id.ack_timeout = listener->ack_timeout;
  id.retry_count = message.retry_count;
  id.rnr_retry_count = message.rnr_retry_count;
  id.responder_resources = message.initiator_depth;
  id.initiator_depth = message.responder_resources;
  id.source = *read_endpoint(message.target_address.data(), message.target_address.size());
  id.target = *read_endpoint(message.source_address.data(), message.source_address.size());
  identifiers_.emplace(number, std::move(made));
  --listener->backlog;
  if (!is_datagram) send(link, message_of(id, MessageType::kRequestReceived));

  Event event;
  event.request = number;
  event.response.id = number;
  event.response.event = static_cast<uint32_t>(EventType::kConnectRequest);
  if (is_datagram) {
    rdma_ucm_ud_param& parameters = event.response.param.ud;
    parameters.private_data_len = kDatagramRequestDataBytes;
    std::copy_n(message.private_data.begin(), kDatagramRequestDataBytes, parameters.private_data);
  } else {
    event.response.param.conn = connection_event(message, kRequestDataBytes);
  }
  event.response.ece = {message.ece_vendor, message.ece_options};
  report(*listener, event);
}

int ConnectionManager::accept_request(Identifier& id, const rdma_ucm_accept& command) {
  const rdma_ucm_conn_param& parameters = command.conn_param;
  if (id.state != State::kRequested || id.link == nullptr) return EINVAL;
  if (parameters.private_data_len >
      (id.is_datagram() ? kDatagramReplyDataBytes : kReplyDataBytes)) {
    return EINVAL;
  }
  id.user_word = command.uid;
  id.own_queue_pair = parameters.qp_num & kNumberMask;
  const std::shared_ptr<Link> link = id.link;
  Message reply =
      message_of(id, id.is_datagram() ? MessageType::kDatagramReply : MessageType::kConnectReply);
  add_parameters(reply, parameters);
  reply.packet_number = id.own_packet_number;
  reply.ece_vendor = command.ece.vendor_id;
  reply.ece_options = command.ece.attr_mod;
  if (id.is_datagram()) {
    reply.queue_key = parameters.qkey != 0 ? parameters.qkey : default_queue_key(id);
    id.state = State::kConnected;
    id.link = nullptr;
  } else {
    id.responder_resources = parameters.responder_resources;
    id.initiator_depth = parameters.initiator_depth;
    id.state = State::kAccepted;
    set_deadline(id, kAnswerTimeoutNs);
  }
  send(link, reply);
  return 0;
}

int ConnectionManager::reject_request(Identifier& id, uint32_t reason,
                                      std::span<const uint8_t> private_data) {
  const bool answers =
      id.state == State::kRequested || id.state == State::kAnswered || id.state == State::kAccepted;
  if (!answers || id.link == nullptr) return EINVAL;
  if (private_data.size() > (id.is_datagram() ? kDatagramReplyDataBytes : kRejectDataBytes)) {
    return EINVAL;
  }
  Message refusal =
      message_of(id, id.is_datagram() ? MessageType::kDatagramReply : MessageType::kReject);
  refusal.reason = id.is_datagram() ? kDatagramRejected : reason;
  std::copy(private_data.begin(), private_data.end(), refusal.private_data.begin());
  send(std::shared_ptr<Link>(id.link), refusal);
  id.state = State::kRefused;
  id.link = nullptr;
  set_deadline(id, 0);
  return 0;
}

void ConnectionManager::establish(Identifier& id) {
  id.state = State::kConnected;
  set_deadline(id, 0);
  report(id, EventType::kEstablished);
}

// ---- both ----

void ConnectionManager::receive(const std::shared_ptr<Link>& link, const Message& message) {
  if (message.type == MessageType::kConnectRequest ||
      message.type == MessageType::kDatagramRequest) {
    return receive_request(link, message);
  }
  Identifier* id = find(message.target_id);
  const bool is_known = id != nullptr && id->link == link &&
                        (id->remote_id == 0 || id->remote_id == message.source_id);
  // Late ones, and those of a peer that does not keep to the order, have no effect here.
  if (!is_known) {
    if (message.type == MessageType::kConnectReply) send(link, refusal_of(message, kRejectTimeout));
    return;
  }
  const bool is_answer = id->state == State::kConnecting;
  switch (message.type) {
    case MessageType::kRequestReceived:
      if (!is_answer) return;
      id->remote_id = message.source_id;
      return set_deadline(*id, kAnswerTimeoutNs);
    case MessageType::kConnectReply:
      if (is_answer && !id->is_datagram()) receive_reply(*id, message);
      return;
    case MessageType::kDatagramReply:
      if (is_answer && id->is_datagram()) receive_reply(*id, message);
      return;
    case MessageType::kReadyToUse:
      if (id->state == State::kAccepted) establish(*id);
      return;
    case MessageType::kReject:
      if (id->state == State::kConnected) return end_connection(*id);
      if (is_answer && message.reason == kRejectInvalidService)
        return miss_listener(*id, nobody_listens());
      return refuse(*id, message.reason, &message);
    case MessageType::kDisconnect:
      if (is_answer || id->state == State::kRequested) return;
      return end_connection(*id);
    default:
      return;
  }
}

void ConnectionManager::end_connection(Identifier& id) {
  id.state = State::kDisconnected;
  id.link = nullptr;
  set_deadline(id, kTimewaitNs);
  report(id, EventType::kDisconnected);
}

void ConnectionManager::expire(Identifier& id) {
  switch (id.state) {
    case State::kDisconnected:
      return report(id, EventType::kTimewaitExit);
    case State::kConnecting:
      if (id.link == nullptr) return send_request(id);
      [[fallthrough]];
    case State::kAnswered:
    case State::kAccepted:
      hang_up(id);
      id.state = State::kRefused;
      id.link = nullptr;
      return report(id, EventType::kUnreachable, -ETIMEDOUT);
    default:
      return;
  }
}

void ConnectionManager::hang_up(Identifier& id) {
  const std::shared_ptr<Link> link = id.link;
  if (link == nullptr) return;
  Message message = message_of(id, MessageType::kReject);
  switch (id.state) {
    case State::kConnecting:
      // Where the peer has not told its number yet, its answer will be refused.
      if (id.remote_id == 0 || id.is_datagram()) return;
      message.reason = kRejectTimeout;
      break;
    case State::kRequested:
      message.reason = kRejectByConsumer;
      if (id.is_datagram()) {
        message.type = MessageType::kDatagramReply;
        message.reason = kDatagramRejected;
      }
      break;
    case State::kAnswered:
    case State::kAccepted:
      message.reason = kRejectByConsumer;
      break;
    case State::kConnected:
      message.type = MessageType::kDisconnect;
      break;
    default:
      return;
  }
  send(link, message);
}

void ConnectionManager::release_port(Identifier& id) {
  if (id.has_port) ports_->release(id.port);
  id.has_port = false;
  if (ports_->owes()) wake();
}

void ConnectionManager::destroy(Identifier& id) {
  hang_up(id);
  release_port(id);
  set_deadline(id, 0);
  const uint32_t number = id.id;
  const std::shared_ptr<Channel> channel = id.channel;
  if (Identifier* listener = find(id.listener)) {
    for (const Event& event : channel->events) {
      if (event.request == number) ++listener->backlog;
    }
  }
  identifiers_.erase(number);
  std::erase_if(groups_, [&](const auto& entry) { return entry.second.identifier == number; });
  // Where the program destroys it, its events are gone already, with their bytes.
  drop_events(*channel, number);
}

// Takes it by value: what it is called with may be among what it drops.
void ConnectionManager::drop_link(std::shared_ptr<Link> link) {  // NOLINT
  if (link->fd < 0) return;
  close_own(link->fd);
  link->fd = -1;
  links_.erase(link->token);
  std::vector<uint32_t> connected;
  for (const auto& entry : identifiers_) {
    if (entry.second->link == link) connected.push_back(entry.first);
  }
  for (const uint32_t number : connected) {
    Identifier& id = *find(number);
    if (id.state == State::kConnected) {
      end_connection(id);
    } else {
      // As the kernel of a program that ends tells its peers.
      refuse(id, id.is_datagram() ? kDatagramRejected : kRejectByConsumer);
    }
  }
}

// ---- what queue pairs and groups get ----

ib_uverbs_ah_attr ConnectionManager::path(const Identifier& id) const {
  const uint32_t peer = device_of(id.target);
  ib_uverbs_ah_attr address{};
  address.dlid = describe_port(peer, link_layer_).lid;
  address.port_num = 1;
  if (link_layer_ == LinkLayer::kEthernet) {
    ibv_gid_entry entry;
    describe_gid(peer, link_layer_, kEthernetIpv4Index, &entry);
    address.is_global = 1;
    address.grh.sgid_index = kEthernetIpv4Index;
    address.grh.hop_limit = kHopLimit;
    std::memcpy(address.grh.dgid, entry.gid.raw, sizeof(address.grh.dgid));
  }
  return address;
}

uint32_t device_of(const Endpoint& address) {
  const std::array<uint8_t, 16>& bytes = address.address;
  if (address.family != AF_INET || bytes[0] != 127 || bytes[1] != 0 || bytes[2] != 0) return 0;
  return bytes[3] >= 1 && bytes[3] <= device_count() ? bytes[3] - 1u : 0;
}

int ConnectionManager::fill_attributes(const Identifier& id, uint32_t state,
                                       ib_uverbs_qp_attr& attributes) const {
  if (!id.has_device) return EINVAL;
  attributes.qp_state = state;
  attributes.port_num = 1;
  if (id.is_datagram()) {
    attributes.qkey = default_queue_key(id);
    attributes.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    return 0;
  }
  const bool has_peer = id.state == State::kAnswered || id.state == State::kRequested ||
                        id.state == State::kAccepted || id.state == State::kConnected;
  const bool is_reliable = id.queue_pair_type != IBV_QPT_UC;
  switch (state) {
    case IBV_QPS_INIT:
      attributes.qp_attr_mask =
          IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
      if (!has_peer) return 0;
      attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
      if (id.responder_resources > 0 && is_reliable) {
        attributes.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
      }
      return 0;
    case IBV_QPS_RTR:
      if (!has_peer) return EINVAL;
      attributes.qp_attr_mask =
          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
      if (is_reliable) {
        attributes.qp_attr_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
      }
      attributes.ah_attr = path(id);
      attributes.path_mtu = describe_port(device_of(id.source), link_layer_).active_mtu;
      attributes.dest_qp_num = id.remote.queue_pair_number;
      attributes.rq_psn = id.remote.packet_number;
      attributes.max_dest_rd_atomic = id.responder_resources;
      attributes.min_rnr_timer = 0;
      return 0;
    case IBV_QPS_RTS:
      if (!has_peer) return EINVAL;
      attributes.qp_attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
      attributes.sq_psn = id.own_packet_number;
      if (is_reliable) {
        attributes.qp_attr_mask |=
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        attributes.timeout =
            static_cast<uint8_t>(id.ack_timeout >= 0 ? id.ack_timeout : kDefaultAckTimeout);
        attributes.retry_cnt = id.retry_count;
        attributes.rnr_retry = id.rnr_retry_count;
        attributes.max_rd_atomic = id.initiator_depth;
      }
      return 0;
    default:
      return EINVAL;
  }
}

ibv_gid group_of(const Endpoint& group, uint16_t port_space) {
  ibv_gid gid{};
  gid.raw[0] = 0xff;
  if (group.family == AF_INET6) {
    // RFC 4391, or a GID that the program chose itself (ff10:a01b::).
    if (group.address[0] == 0xff && group.address[1] == 0x10 && group.address[2] == 0xa0 &&
        group.address[3] == 0x1b) {
      std::copy(group.address.begin(), group.address.end(), gid.raw);
      return gid;
    }
    gid.raw[1] = 0x10 | (group.address[1] & 0x0f);
    gid.raw[2] = 0x60;
    gid.raw[3] = 0x1b;
    gid.raw[4] = 0xff;
    gid.raw[5] = 0xff;
    std::copy(group.address.begin() + 7, group.address.end(), gid.raw + 7);
  } else {
    gid.raw[1] = 0x12;
    gid.raw[2] = 0x40;
    gid.raw[3] = 0x1b;
    gid.raw[4] = 0xff;
    gid.raw[5] = 0xff;
    gid.raw[12] = group.address[0] & 0x0f;
    std::copy(group.address.begin() + 1, group.address.begin() + 4, gid.raw + 13);
  }
  if (port_space == RDMA_PS_UDP) gid.raw[7] = 0x01;  // kept apart from IP over InfiniBand
  return gid;
}

// The address itself, as a GID.
ibv_gid roce_group_of(const Endpoint& group) {
  ibv_gid gid{};
  if (group.family == AF_INET6) {
    std::copy(group.address.begin(), group.address.end(), gid.raw);
    return gid;
  }
  gid.raw[10] = 0xff;
  gid.raw[11] = 0xff;
  std::copy_n(group.address.begin(), 4, gid.raw + 12);
  return gid;
}

void ConnectionManager::report_join(Identifier& id, uint32_t number, const Endpoint& address) {
  constexpr uint16_t kFirstMulticastLid = 0xc000;
  constexpr uint16_t kMulticastLids = 0x3ffe;
  Event event;
  event.multicast = number;
  event.response.uid = groups_.at(number).user_word;
  event.response.id = number;
  event.response.event = static_cast<uint32_t>(EventType::kMulticastJoin);
  rdma_ucm_ud_param& parameters = event.response.param.ud;
  parameters.qp_num = kMulticastQueuePair;
  parameters.qkey = default_queue_key(id);
  parameters.ah_attr = path(id);
  parameters.ah_attr.is_global = 1;
  const bool ethernet = link_layer_ == LinkLayer::kEthernet;
  const ibv_gid gid = ethernet ? roce_group_of(address) : group_of(address, id.port_space);
  std::memcpy(parameters.ah_attr.grh.dgid, gid.raw, sizeof(gid.raw));
  uint32_t hash = 0;
  for (const uint8_t byte : gid.raw) hash = hash * 31 + byte;
  if (!ethernet) {
    parameters.ah_attr.dlid = static_cast<uint16_t>(kFirstMulticastLid + hash % kMulticastLids);
  }
  report(id, event);
}

}  // namespace verbena::soft::cm
