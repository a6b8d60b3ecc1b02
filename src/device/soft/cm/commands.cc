// What programs ask of the connection manager: one function for each command of rdma_user_cm.h.
// Each returns 0 or an errno value, those that the kernel returns for the same reason.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/log.h"
#include "src/device/soft/cm/connection_manager.h"
#include "src/device/soft/cm/own_descriptors.h"
#include "src/device/soft/cm/user_memory.h"

namespace verbena::soft::cm {
namespace {

constexpr uint32_t kMaxBacklog = 1024;
constexpr uint8_t kConsumerDefined = 28;

// Newer than the oldest rdma_user_cm.h that is supported.
struct WriteCmEvent {
  uint32_t id;
  uint32_t reserved;
  uint32_t event;
  uint32_t status;
  uint64_t argument;  // in a union that may be longer
};

// Of programs with an older or newer rdma_user_cm.h: what is missing is zero, what is more is left.
template <typename Command>
bool read_command(std::span<const std::byte> in, Command& command,
                  size_t least_bytes = sizeof(Command)) {
  command = {};
  if (in.size() < least_bytes) return false;
  std::memcpy(&command, in.data(), std::min(in.size(), sizeof(command)));
  return true;
}

template <typename Response>
int answer(uint64_t address, const Response& response, size_t out_bytes, size_t least_bytes) {
  if (out_bytes < least_bytes) return ENOSPC;
  return copy_to_program(address, &response, std::min(out_bytes, sizeof(response)));
}

template <typename Response>
int answer(uint64_t address, const Response& response, size_t out_bytes) {
  return answer(address, response, out_bytes, sizeof(response));
}

}  // namespace

int ConnectionManager::execute(int fd, uint32_t command, std::span<const std::byte> in,
                               size_t out_bytes) {
  std::lock_guard guard(mutex_);
  const std::shared_ptr<Channel> channel = channel_of(fd);
  if (channel == nullptr) return EBADF;
  const Call call{fd, channel, in, out_bytes};
  switch (command) {
    case RDMA_USER_CM_CMD_CREATE_ID:
      return create_id(call);
    case RDMA_USER_CM_CMD_DESTROY_ID:
      return destroy_id(call);
    case RDMA_USER_CM_CMD_BIND_IP:
    case RDMA_USER_CM_CMD_BIND:
      return bind_ip(call, command);
    case RDMA_USER_CM_CMD_RESOLVE_IP:
    case RDMA_USER_CM_CMD_RESOLVE_ADDR:
      return resolve_ip(call, command);
    case RDMA_USER_CM_CMD_RESOLVE_ROUTE:
      return resolve_route(call);
    case RDMA_USER_CM_CMD_QUERY_ROUTE:
      return query_route(call);
    case RDMA_USER_CM_CMD_CONNECT:
      return connect(call);
    case RDMA_USER_CM_CMD_LISTEN:
      return listen(call);
    case RDMA_USER_CM_CMD_ACCEPT:
      return accept(call);
    case RDMA_USER_CM_CMD_REJECT:
      return reject(call);
    case RDMA_USER_CM_CMD_DISCONNECT:
      return disconnect(call);
    case RDMA_USER_CM_CMD_INIT_QP_ATTR:
      return initialize_attributes(call);
    case RDMA_USER_CM_CMD_SET_OPTION:
      return set_option(call);
    case RDMA_USER_CM_CMD_NOTIFY:
      return notify(call);
    case RDMA_USER_CM_CMD_JOIN_IP_MCAST:
    case RDMA_USER_CM_CMD_JOIN_MCAST:
      return join_group(call, command);
    case RDMA_USER_CM_CMD_LEAVE_MCAST:
      return leave_group(call);
    case RDMA_USER_CM_CMD_MIGRATE_ID:
      return migrate(call);
    case kWriteCmEvent:
      return write_event(call);
    case RDMA_USER_CM_CMD_GET_OPTION:  // the kernel has none either
    case RDMA_USER_CM_CMD_QUERY:       // librdmacm asks where addresses of InfiniBand can be bound
      return ENOSYS;
    default:
      return EINVAL;
  }
}

int ConnectionManager::take_event(int fd, std::span<const std::byte> in, size_t out_bytes) {
  rdma_ucm_get_event command;
  if (!read_command(in, command)) return EINVAL;
  constexpr size_t kOldResponseBytes = offsetof(rdma_ucm_event_resp, reserved);
  if (out_bytes < kOldResponseBytes) return ENOSPC;
  std::lock_guard guard(mutex_);
  const std::shared_ptr<Channel> channel = channel_of(fd);
  if (channel == nullptr) return EBADF;
  if (channel->events.empty()) return EAGAIN;
  const Event event = channel->events.front();
  const char byte = 0;
  if (answer(command.response, event.response, out_bytes, kOldResponseBytes) != 0) {
    if (write_own(channel->write_fd, &byte, 1) != 1) ++channel->bytes_owed;
    return EFAULT;
  }
  channel->events.pop_front();
  if (channel->bytes_owed > 0 && write_own(channel->write_fd, &byte, 1) == 1) --channel->bytes_owed;
  if (Identifier* owner = find(event.owner)) {
    ++owner->events_reported;
    if (event.request != 0) ++owner->backlog;
  }
  if (Identifier* made = find(event.request)) made->channel = channel;
  if (const auto group = groups_.find(event.multicast); group != groups_.end()) {
    ++group->second.events_reported;
  }
  return 0;
}

Identifier* ConnectionManager::find(const Call& call, uint32_t number) {
  Identifier* id = find(number);
  // What a request made is the program's once it has the event.
  if (id == nullptr) {
    errno = ENOENT;
  } else if (id->channel != call.channel) {
    errno = EINVAL;
    return nullptr;
  }
  return id;
}

int ConnectionManager::create_id(const Call& call) {
  rdma_ucm_create_id command;
  if (!read_command(call.in, command, offsetof(rdma_ucm_create_id, reserved))) return EINVAL;
  uint8_t type = command.qp_type;
  switch (command.ps) {
    case RDMA_PS_TCP:
      type = IBV_QPT_RC;
      break;
    case RDMA_PS_UDP:
    case RDMA_PS_IPOIB:
      type = IBV_QPT_UD;
      break;
    case RDMA_PS_IB:
      break;
    default:
      return EINVAL;
  }
  const rdma_ucm_create_id_resp response{.id = free_number()};
  if (response.id == 0) return ENOMEM;
  if (const int error = answer(command.response, response, call.out_bytes); error != 0) {
    return error;
  }
  auto id = std::make_unique<Identifier>();
  id->id = response.id;
  id->user_word = command.uid;
  id->port_space = command.ps;
  id->queue_pair_type = type;
  id->channel = call.channel;
  identifiers_.emplace(id->id, std::move(id));
  return 0;
}

int ConnectionManager::destroy_id(const Call& call) {
  rdma_ucm_destroy_id command;
  if (!read_command(call.in, command)) return EINVAL;
  if (call.out_bytes < sizeof(rdma_ucm_destroy_id_resp)) return ENOSPC;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  const rdma_ucm_destroy_id_resp response{.events_reported = id->events_reported};
  take_back_bytes(call.fd, drop_events(*call.channel, id->id));
  destroy(*id);
  return answer(command.response, response, call.out_bytes);
}

int ConnectionManager::bind(Identifier& id, const Endpoint& endpoint) {
  if (id.state != State::kIdle) return EINVAL;
  if (endpoint.family != AF_INET && endpoint.family != AF_INET6) return EAFNOSUPPORT;
  if (!endpoint.is_wildcard() && !is_local(endpoint)) return EADDRNOTAVAIL;
  id.port = {.space = id.port_space,
             .id = id.id,
             .endpoint = endpoint,
             .reusable = id.reusable,
             .only_ipv6 = id.only_ipv6};
  if (const int error = ports_->bind(id.port); error != 0) return error;
  id.has_port = true;
  id.source = id.port.endpoint;
  id.has_device = !endpoint.is_wildcard();
  id.state = State::kBound;
  return 0;
}

int ConnectionManager::bind_ip(const Call& call, uint32_t number) {
  uint32_t id_number = 0;
  std::optional<Endpoint> endpoint;
  if (number == RDMA_USER_CM_CMD_BIND_IP) {
    rdma_ucm_bind_ip command;
    if (!read_command(call.in, command)) return EINVAL;
    id_number = command.id;
    endpoint = read_endpoint(&command.addr, sizeof(command.addr));
    if (!endpoint) return EINVAL;
  } else {
    rdma_ucm_bind command;
    if (!read_command(call.in, command) || command.addr_size > sizeof(command.addr)) return EINVAL;
    id_number = command.id;
    endpoint = read_endpoint(&command.addr, command.addr_size);
    // Addresses of InfiniBand: librdmacm asks once, and goes by IP then.
    if (!endpoint) return EAFNOSUPPORT;
  }
  Identifier* id = find(call, id_number);
  return id == nullptr ? errno : bind(*id, *endpoint);
}

int ConnectionManager::resolve_ip(const Call& call, uint32_t number) {
  uint32_t id_number = 0;
  std::optional<Endpoint> source;
  std::optional<Endpoint> target;
  if (number == RDMA_USER_CM_CMD_RESOLVE_IP) {
    rdma_ucm_resolve_ip command;
    if (!read_command(call.in, command)) return EINVAL;
    id_number = command.id;
    source = read_endpoint(&command.src_addr, sizeof(command.src_addr));
    target = read_endpoint(&command.dst_addr, sizeof(command.dst_addr));
  } else {
    rdma_ucm_resolve_addr command;
    if (!read_command(call.in, command) || command.src_size > sizeof(command.src_addr) ||
        command.dst_size > sizeof(command.dst_addr)) {
      return EINVAL;
    }
    id_number = command.id;
    source = read_endpoint(&command.src_addr, command.src_size);
    target = read_endpoint(&command.dst_addr, command.dst_size);
  }
  if (!target) return EINVAL;
  Identifier* id = find(call, id_number);
  if (id == nullptr) return errno;
  if (id->state != State::kIdle && id->state != State::kBound) return EINVAL;
  const std::optional<Endpoint> found = source_for(*target);
  if (id->state == State::kIdle) {
    Endpoint own = found.value_or(Endpoint{.family = target->family});
    if (source && !source->is_wildcard()) own = *source;
    if (source) own.port = source->port;
    if (const int error = bind(*id, own); error != 0) return error;
  }
  if (!found || found->family != id->source.family) {
    if (!found) {
      log_info(
          "soft0: an address of another host cannot be resolved: soft0 connects processes of "
          "one host");
    }
    report(*id, EventType::kAddressError, found ? -EINVAL : -EHOSTUNREACH);
    return 0;
  }
  if (id->source.is_wildcard()) {
    id->source.address = found->address;
    id->source.scope = found->scope;
  }
  id->target = *target;
  if (target->is_wildcard()) id->target.address = found->address;
  id->has_device = true;
  id->state = State::kAddressResolved;
  report(*id, EventType::kAddressResolved);
  return 0;
}

int ConnectionManager::resolve_route(const Call& call) {
  rdma_ucm_resolve_route command;
  if (!read_command(call.in, command)) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  if (id->state != State::kAddressResolved) return EINVAL;
  id->state = State::kRouteResolved;
  report(*id, EventType::kRouteResolved);
  return 0;
}

int ConnectionManager::query_route(const Call& call) {
  rdma_ucm_query command;
  if (!read_command(call.in, command, sizeof(command))) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  rdma_ucm_query_route_resp response{};
  write_endpoint(id->source, response.src_addr);
  write_endpoint(id->target, response.dst_addr);
  response.ibdev_index = UINT32_MAX;  // the GUID tells which device
  if (id->has_device) {
    const uint32_t own = device_of(id->source);
    const uint32_t peer = device_of(id->target);
    const bool ethernet = link_layer_ == LinkLayer::kEthernet;
    const uint8_t gid_index = ethernet ? kEthernetIpv4Index : 0;
    ibv_gid_entry entry;
    response.node_guid = node_guid(own);
    response.port_num = 1;
    ib_user_path_rec& path = response.ib_route[0];
    describe_gid(own, link_layer_, gid_index, &entry);
    std::memcpy(path.sgid, entry.gid.raw, sizeof(path.sgid));
    if (id->target.family != AF_UNSPEC) {
      describe_gid(peer, link_layer_, gid_index, &entry);
      std::memcpy(path.dgid, entry.gid.raw, sizeof(path.dgid));
    }
    path.pkey = 0xffff;  // the same in both byte orders
    if (id->state >= State::kRouteResolved && id->state != State::kListening) {
      constexpr uint8_t kExactly = 2;
      constexpr uint8_t kPacketLifeTime = 18;
      response.num_paths = 1;
      path.dlid = __builtin_bswap16(describe_port(peer, link_layer_).lid);
      path.slid = __builtin_bswap16(describe_port(own, link_layer_).lid);
      path.reversible = 1;
      path.numb_path = 1;
      path.mtu_selector = kExactly;
      path.mtu = describe_port(own, link_layer_).active_mtu;
      path.rate_selector = kExactly;
      path.rate = IBV_RATE_100_GBPS;
      path.packet_life_time_selector = kExactly;
      path.packet_life_time = kPacketLifeTime;
      path.hop_limit = ethernet ? kHopLimit : 1;
    }
  }
  return answer(command.response, response, call.out_bytes,
                offsetof(rdma_ucm_query_route_resp, ibdev_index));
}

int ConnectionManager::listen(const Call& call) {
  rdma_ucm_listen command;
  if (!read_command(call.in, command)) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  if (id->state == State::kIdle) {
    if (const int error = bind(*id, {.family = AF_INET}); error != 0) return error;
  }
  if (id->state != State::kBound) return EINVAL;
  if (const int error = ports_->listen(id->port); error != 0) return error;
  id->backlog =
      command.backlog > 0 && command.backlog < kMaxBacklog ? command.backlog : kMaxBacklog;
  id->state = State::kListening;
  return 0;
}

int ConnectionManager::connect(const Call& call) {
  rdma_ucm_connect command;
  if (!read_command(call.in, command, offsetof(rdma_ucm_connect, ece))) return EINVAL;
  if (command.conn_param.valid == 0) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  if (id->state != State::kRouteResolved) return EINVAL;
  return start_connecting(*id, command);
}

int ConnectionManager::accept(const Call& call) {
  rdma_ucm_accept command;
  if (!read_command(call.in, command, offsetof(rdma_ucm_accept, ece))) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  if (command.conn_param.valid == 0) return confirm(*id);
  return accept_request(*id, command);
}

int ConnectionManager::reject(const Call& call) {
  rdma_ucm_reject command;
  if (!read_command(call.in, command)) return EINVAL;
  const uint32_t reason = command.reason == 0 ? kConsumerDefined : command.reason;
  if (reason != kRejectByConsumer && reason != kRejectVendorOption) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  return reject_request(*id, reason, {command.private_data, command.private_data_len});
}

int ConnectionManager::disconnect(const Call& call) {
  rdma_ucm_disconnect command;
  if (!read_command(call.in, command)) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  switch (id->state) {
    case State::kAnswered:
    case State::kAccepted:
    case State::kConnected:
      if (id->is_datagram()) return EINVAL;
      send(id->link, message_of(*id, MessageType::kDisconnect));
      end_connection(*id);
      return 0;
    case State::kConnecting:
    case State::kRequested:
    case State::kDisconnected:
    case State::kRefused:
      return 0;  // nothing to end, which is no error to the kernel
    default:
      return EINVAL;
  }
}

int ConnectionManager::initialize_attributes(const Call& call) {
  rdma_ucm_init_qp_attr command;
  if (!read_command(call.in, command)) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  ib_uverbs_qp_attr attributes{};
  if (const int error = fill_attributes(*id, command.qp_state, attributes); error != 0) {
    return error;
  }
  return answer(command.response, attributes, call.out_bytes);
}

int ConnectionManager::set_port_options(Identifier& id, bool reusable, bool only_ipv6) {
  if (id.has_port) {
    PortWish changed = id.port;
    changed.reusable = reusable;
    changed.only_ipv6 = only_ipv6;
    if (const int error = ports_->set_options(changed); error != 0) return error;
    id.port = changed;
  }
  id.reusable = reusable;
  id.only_ipv6 = only_ipv6;
  return 0;
}

int ConnectionManager::set_option(const Call& call) {
  rdma_ucm_set_option command;
  if (!read_command(call.in, command)) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  if (command.level == RDMA_OPTION_IB && command.optname == RDMA_OPTION_IB_PATH) {
    // A path that the program found itself: soft0 has one only.
    if (id->state != State::kAddressResolved) return EINVAL;
    id->state = State::kRouteResolved;
    report(*id, EventType::kRouteResolved);
    return 0;
  }
  if (command.level != RDMA_OPTION_ID) return ENOSYS;
  const bool is_byte =
      command.optname == RDMA_OPTION_ID_TOS || command.optname == RDMA_OPTION_ID_ACK_TIMEOUT;
  if (command.optlen != (is_byte ? sizeof(uint8_t) : sizeof(int))) return EINVAL;
  int value = 0;
  if (const int error = copy_from_program(command.optval, &value, command.optlen); error != 0) {
    return error;
  }
  switch (command.optname) {
    case RDMA_OPTION_ID_TOS:
      return 0;
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      if (value > 31) return EINVAL;
      id->ack_timeout = value;
      return 0;
    case RDMA_OPTION_ID_REUSEADDR:
      if (id->state != State::kIdle && (value == 0 || id->state == State::kListening)) {
        return EINVAL;
      }
      return set_port_options(*id, value != 0, id->only_ipv6);
    case RDMA_OPTION_ID_AFONLY:
      if (id->state != State::kIdle && id->state != State::kBound) return EINVAL;
      return set_port_options(*id, id->reusable, value != 0);
    default:
      return ENOSYS;
  }
}

int ConnectionManager::notify(const Call& call) {
  rdma_ucm_notify command;
  if (!read_command(call.in, command)) return EINVAL;
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  if (!id->has_device) return EINVAL;
  if (command.event != IBV_EVENT_COMM_EST) return 0;
  if (id->state == State::kConnected) return EISCONN;
  if (id->state != State::kAccepted) return EINVAL;
  establish(*id);
  return 0;
}

int ConnectionManager::join_group(const Call& call, uint32_t number) {
  uint32_t id_number = 0;
  Multicast group;
  uint64_t response_address = 0;
  std::optional<Endpoint> address;
  if (number == RDMA_USER_CM_CMD_JOIN_IP_MCAST) {
    rdma_ucm_join_ip_mcast command;
    if (!read_command(call.in, command)) return EINVAL;
    id_number = command.id;
    group.user_word = command.uid;
    response_address = command.response;
    address = read_endpoint(&command.addr, sizeof(command.addr));
  } else {
    rdma_ucm_join_mcast command;
    if (!read_command(call.in, command) || command.addr_size > sizeof(command.addr)) return EINVAL;
    id_number = command.id;
    group.user_word = command.uid;
    response_address = command.response;
    address = read_endpoint(&command.addr, command.addr_size);
  }
  if (!address) return EINVAL;
  Identifier* id = find(call, id_number);
  if (id == nullptr) return errno;
  if (!id->has_device || !id->is_datagram()) return EINVAL;
  const rdma_ucm_create_id_resp response{.id = free_number()};
  if (response.id == 0) return ENOMEM;
  if (const int error = answer(response_address, response, call.out_bytes); error != 0) {
    return error;
  }
  group.identifier = id->id;
  groups_.emplace(response.id, group);
  report_join(*id, response.id, *address);
  return 0;
}

int ConnectionManager::leave_group(const Call& call) {
  rdma_ucm_destroy_id command;
  if (!read_command(call.in, command)) return EINVAL;
  if (call.out_bytes < sizeof(rdma_ucm_destroy_id_resp)) return ENOSPC;
  const auto group = groups_.find(command.id);
  if (group == groups_.end()) return ENOENT;
  if (find(call, group->second.identifier) == nullptr) return EINVAL;
  const size_t before = call.channel->events.size();
  std::erase_if(call.channel->events,
                [&](const Event& event) { return event.multicast == command.id; });
  take_back_bytes(call.fd, call.channel->forget_owed(before - call.channel->events.size()));
  const rdma_ucm_destroy_id_resp response{.events_reported = group->second.events_reported};
  groups_.erase(group);
  return answer(command.response, response, call.out_bytes);
}

int ConnectionManager::migrate(const Call& call) {
  rdma_ucm_migrate_id command;
  if (!read_command(call.in, command)) return EINVAL;
  if (call.out_bytes < sizeof(rdma_ucm_migrate_resp)) return ENOSPC;
  const auto old_fd = static_cast<int>(command.fd);
  const std::shared_ptr<Channel> old = channel_of(old_fd);
  if (old == nullptr) return EINVAL;
  Identifier* id = find({old_fd, old, call.in, call.out_bytes}, command.id);
  if (id == nullptr) return errno;
  const rdma_ucm_migrate_resp response{.events_reported = id->events_reported};
  if (const int error = answer(command.response, response, call.out_bytes); error != 0) {
    return error;
  }
  if (old == call.channel) return 0;
  std::deque<Event> moved;
  std::erase_if(old->events, [&](const Event& event) {
    if (event.owner != id->id) return false;
    moved.push_back(event);
    return true;
  });
  take_back_bytes(old_fd, old->forget_owed(moved.size()));
  id->channel = call.channel;
  for (const Event& event : moved) {
    // What a request made moves along, and does not end with the old channel.
    if (Identifier* made = find(event.request)) made->channel = call.channel;
    queue(*call.channel, event);
  }
  return 0;
}

int ConnectionManager::write_event(const Call& call) {
  WriteCmEvent command;
  if (!read_command(call.in, command)) return EINVAL;
  if (command.event != static_cast<uint32_t>(EventType::kUser) &&
      command.event != static_cast<uint32_t>(EventType::kInternal)) {
    return EINVAL;
  }
  Identifier* id = find(call, command.id);
  if (id == nullptr) return errno;
  // What a request made has no place in the program before it is accepted.
  if (id->user_word == 0) return EINVAL;
  Event event;
  event.response.event = command.event;
  event.response.status = command.status;
  static_assert(sizeof(command.argument) <= sizeof(event.response.param));
  std::memcpy(&event.response.param, &command.argument, sizeof(command.argument));
  report(*id, event);
  return 0;
}

}  // namespace verbena::soft::cm
