// The objects of the connection manager: what programs know as struct rdma_cm_id, as the kernel's
// side of it would keep it; event channels; links to other processes.
#pragma once

#include <rdma/rdma_user_cm.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "src/device/soft/cm/endpoint.h"
#include "src/device/soft/cm/port_files.h"
#include "src/device/soft/cm/wire.h"

namespace verbena::soft::cm {

// Of packets with a global route; more than 1 tells programs that a path needs one.
inline constexpr uint8_t kHopLimit = 64;

// RDMA_USER_CM_CMD_WRITE_CM_EVENT of newer rdma_user_cm.h.
inline constexpr uint32_t kWriteCmEvent = 24;

// Numbers that programs know from rdma_cma.h.
enum class EventType : uint32_t {
  kAddressResolved = 0,
  kAddressError = 1,
  kRouteResolved = 2,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kMulticastJoin = 12,
  kTimewaitExit = 15,
  // Written by the program: its own, and librdmacm's.
  kUser = 18,
  kInternal = 19,
};

// Why a connection is refused: InfiniBand's codes.
inline constexpr uint32_t kRejectTimeout = 4;
inline constexpr uint32_t kRejectInvalidService = 8;
inline constexpr uint32_t kRejectByConsumer = 28;
inline constexpr uint32_t kRejectVendorOption = 35;
// The same for datagrams.
inline constexpr uint32_t kDatagramNoService = 1;
inline constexpr uint32_t kDatagramRejected = 2;

enum class State : uint8_t {
  kIdle,
  kBound,
  kAddressResolved,
  kRouteResolved,
  kListening,
  kConnecting,  // the request is on its way, or with the peer's program
  kAnswered,    // the peer accepted; the program's queue pair is next
  kRequested,   // made by a peer's request, which the program has not answered yet
  kAccepted,    // answered; the peer's program is next
  kConnected,
  kDisconnected,
  kRefused,  // an attempt that failed, in either direction
};

// A socket to the connection manager of another process, or to this process's own.
struct Link {
  int fd = -1;
  uint64_t token = 0;  // what epoll says
  PortOwner peer;      // of links that this process made
  std::deque<Message> waiting;
};

struct Event {
  rdma_ucm_event_resp response{};
  uint32_t owner = 0;      // the identifier that counts it
  uint32_t multicast = 0;  // the group that does, too
  uint32_t request = 0;    // the identifier that a connection request made
};

// An event channel: to the program, the read end of a pipe in which lies a byte for each event.
struct Channel {
  uint64_t inode = 0;
  uint64_t token = 0;
  int write_fd = -1;
  std::deque<Event> events;
  size_t bytes_owed = 0;  // that the pipe had no room for

  // For events that were removed: how many of them have a byte in the pipe.
  size_t forget_owed(size_t removed) {
    const size_t not_written = std::min(removed, bytes_owed);
    bytes_owed -= not_written;
    return removed - not_written;
  }
};

struct Multicast {
  uint32_t identifier = 0;
  uint64_t user_word = 0;
  uint32_t events_reported = 0;
};

struct Identifier {
  uint32_t id = 0;
  uint64_t user_word = 0;  // what events of it carry; 0 until the program accepts
  uint16_t port_space = 0;
  uint8_t queue_pair_type = 0;
  State state = State::kIdle;
  std::shared_ptr<Channel> channel;
  uint32_t events_reported = 0;

  Endpoint source;
  Endpoint target;
  bool has_device = false;  // an address chose it
  bool has_port = false;    // `port` is taken by this one, and not by a listener
  PortWish port;
  bool reusable = false;
  bool only_ipv6 = false;
  int ack_timeout = -1;  // of its queue pair; -1: the default

  uint32_t backlog = 0;  // of a listener: requests that it still takes
  uint32_t listener = 0;

  Message request{};               // while it connects
  uint64_t listener_until_ns = 0;  // until when it is sent again where nobody listens
  std::shared_ptr<Link> link;
  uint32_t remote_id = 0;
  Message remote{};  // what its queue pair is to be connected with
  uint32_t own_packet_number = 0;
  uint32_t own_queue_pair = 0;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry_count = 0;
  uint64_t deadline_ns = 0;  // 0: none

  bool is_datagram() const { return port_space == RDMA_PS_UDP || port_space == RDMA_PS_IPOIB; }
};

}  // namespace verbena::soft::cm
