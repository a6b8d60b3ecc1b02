// Unreliable datagrams: a work request names its receiver by an address handle and a queue pair
// number. What cannot be delivered, for whatever reason on the other side, vanishes.
//
//   ud_address.cc       address handles
//   ud_destinations.cc  from queue pair numbers to rings of other processes
//   ud_send.cc          SEND, to one queue pair or to a multicast group
//   ud_receive.cc       what a poll makes of a datagram; its ring is datagram_ring.h
//   ud_multicast.cc     who is in which group
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "src/device/soft/gather_list.h"
#include "src/device/soft/network_header.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/peer_memory.h"
#include "src/device/soft/soft_rnic.h"

namespace verbena::soft {

// An address handle.
struct Ah {
  static constexpr const char* kName = "address handle";
  // Where what is sent to it goes.
  enum class Route : uint8_t { kNowhere, kPort, kGroup };

  ibv_ah verbs{};
  Validity validity;
  const Ah* self = nullptr;  // for the data path: set as long as the handle lives
  Domain* domain = nullptr;
  ibv_ah_attr attributes{};
  Route route = Route::kNowhere;
  uint8_t origin = 0;
  NetworkHeader header;  // if attributes.is_global
};
inline Ah& as_ah(ibv_ah* verbs) { return *reinterpret_cast<Ah*>(verbs); }

// What a completion says of where a datagram is from: the service level, the sender's device.
inline constexpr uint32_t kServiceLevelBits = 4;
inline constexpr uint32_t kServiceLevelMask = (1u << kServiceLevelBits) - 1;
static_assert(kMostSoftDevices <= 1u << (8 - kServiceLevelBits));
constexpr uint8_t make_origin(uint8_t service_level, uint32_t device) {
  return static_cast<uint8_t>((service_level & kServiceLevelMask) | device << kServiceLevelBits);
}

ibv_ah* create_ah(ibv_pd*, ibv_ah_attr*);
int destroy_ah(ibv_ah*);
// The attributes of a handle that answers the sender of a datagram.
int init_ah_from_wc(ibv_context*, uint8_t port, const ibv_wc*, const ibv_grh*, ibv_ah_attr*);

// These with last_error() about the latest call.
const DatagramVerbs& datagram_verbs();

inline constexpr uint32_t kMulticastQpNumber = 0xffffff;

int attach_mcast(ibv_qp*, const ibv_gid*, uint16_t lid);
int detach_mcast(ibv_qp*, const ibv_gid*, uint16_t lid);
// As these, for groups of any name.
Status join_group(Qp&, const ibv_gid&);
bool leave_group(Qp&, const ibv_gid&);
// Leaves all groups, before the queue pair is destroyed.
void leave_groups(Qp&);

// A queue pair that datagrams are sent to, mapped and checked.
struct Destination {
  uint32_t number = 0;  // 0: nothing is known of any
  std::shared_ptr<Peer> process;
  QpShared* shared = nullptr;
  // The gate's values while it receives.
  uint64_t gate_ready = kNoGate;
  uint64_t gate_sending = kNoGate;
  std::atomic<uint64_t>* claims = nullptr;
  Datagram* datagrams = nullptr;
  std::byte* payloads = nullptr;
  uint32_t mask = 0;
  const SrqShared* srq = nullptr;     // null: it has receives of its own
  const FlowShared* flows = nullptr;  // of raw packets
  PeerCq cq;
  uint32_t next = 0;          // where a free position may be
  uint32_t known_limit = 0;   // positions before this one are to be taken
  uint64_t ask_again_ns = 0;  // where no such process was found

  bool receives() const {
    if (shared == nullptr) return false;
    // Acquire: what was set up before the gate was opened is visible.
    const uint64_t gate = shared->gate.load(std::memory_order_acquire);
    return (gate == gate_sending || gate == gate_ready) && !process->dead();
  }
  uint32_t generation() const { return static_cast<uint32_t>(gate_ready >> 32); }
};

// The members of a multicast group, as a sender knows them.
struct KnownGroup {
  ibv_gid gid{};
  uint16_t lid = 0;
  uint64_t epoch = 0;  // 0: not asked yet
  std::vector<uint32_t> members;
};

// The destinations of a queue pair, those used last. Under send_lock.
class Destinations {
 public:
  // Those of `transport`, the sender's own one.
  explicit Destinations(Transport transport) : transport_(transport) {}
  // Null if there is no such queue pair, or it does not receive.
  Destination* find(Rnic& rnic, uint32_t number) {
    Destination& place = places_[(number ^ number >> kQpIndexBits) % kPlaces];
    if (place.number == number && place.receives()) [[likely]]
      return &place;
    return look_up(rnic, number, place) ? &place : nullptr;
  }
  // A process that has ended: nothing of it stays mapped.
  void forget(const Peer& process);
  // Queue pair numbers. Asks the registry again when somebody has joined or left a group since.
  const std::vector<uint32_t>& members(Rnic& rnic, const ibv_gid& gid, uint16_t lid);

 private:
  static constexpr uint32_t kPlaces = 64;
  static constexpr uint32_t kGroups = 16;
  bool look_up(Rnic& rnic, uint32_t number, Destination& place) const;
  Transport transport_;
  std::array<Destination, kPlaces> places_;
  std::array<KnownGroup, kGroups> groups_;
  bool said_unread_ = false;
  uint32_t next_group_ = 0;
};

inline bool ud_accepts(const Qp& qp, const ibv_send_wr& wr) {
  if (wr.opcode != IBV_WR_SEND && wr.opcode != IBV_WR_SEND_WITH_IMM) return false;
  const auto* handle = reinterpret_cast<const Ah*>(wr.wr.ud.ah);
  return handle != nullptr && handle->self == handle && handle->domain->id == qp.domain;
}

// The short way of what most requests are: a SEND of one piece to one queue pair, short enough for
// the ring's slot. Posts it, carries it out and completes it. False: nothing was done, and it is
// the general way's to decide. Holds send_lock; the queue pair is in RTS and has a place.
bool ud_post_at_once(Qp& qp, const ibv_send_wr& wr);

// Carries out what was posted at `position`. Holds send_lock.
void ud_post(Qp& qp, const ibv_send_wr& wr, uint32_t position);

// What a sender knows of its message before it is sent to one or many.
struct DatagramMessage {
  Pieces pieces;
  std::array<std::byte, kNetworkHeaderBytes> grh;
  uint32_t grh_bytes = 0;
  uint32_t immediate = 0;
  uint8_t flags = 0;
  uint8_t origin = 0;
};
// Completes what was posted at `position` with an error of this side. Holds send_lock.
void fail_datagram(Qp& qp, const ibv_send_wr& wr, uint32_t position, ibv_wc_status status);

// What became of a datagram for one destination.
enum class Delivery : uint8_t {
  kDone,
  kDropped,  // nobody receives it
  kNotHere,  // this side's memory was deregistered
};
// Takes a position of the destination's ring, fills it and publishes it. `own` is the memory of the
// message's pieces. Holds send_lock.
Delivery deliver_datagram(Qp& qp, Destination& destination, const DatagramMessage& message,
                          RequestMemory& own);

// Makes the completion of a datagram that has arrived, if there is one. Holds the lock of the
// receive completion queue.
struct Broken;
bool ud_take(Qp& qp, ibv_wc& wc, Broken& broken);

// On the service thread, for queue pairs that ud_take() found held up.
void ud_look_after(Qp& qp);
// Now and then, on the service thread: gives back the receives that senders took and that ended
// before their datagrams were there. No later datagram shows them where they hold all receives.
void ud_take_back(Qp& qp);
// Nobody needs to look after it any more.
void ud_end_looking_after(Qp& qp);

// Drops what has arrived, and forgets destinations: of a reset.
void ud_reset(Qp& qp);

}  // namespace verbena::soft
