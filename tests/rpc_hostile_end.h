// A side of a connection that finishes the handshake and then sends whatever it likes.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/channel/work_request.h"
#include "src/rpc/connection_end.h"
#include "src/rpc/designs.h"
#include "src/rpc/endpoint_memory.h"
#include "src/rpc/requester_control.h"
#include "tests/rpc_support.h"

namespace verbena::rpc_test {

struct Side {
  Device device;
  ProtectionDomain domain;
};

inline Result<Side> open_side() {
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  return Side{std::move(device), std::move(domain)};
}

// A side of a connection by its handshake, and after that whatever a test wants to send.
template <typename Outgoing, typename Incoming>
class HostileEnd {
 public:
  // Joins the peer at the other end of `control`, with which the design is agreed.
  static Result<std::unique_ptr<HostileEnd>> join(Side& side, ControlConnection& control,
                                                  const rpc::EndOptions& options) {
    auto hostile = std::make_unique<HostileEnd>();
    auto mine = hostile->end_.prepare(side.device, side.domain, options);
    VERBENA_ASSIGN_OR_RETURN(hostile->peer_, rpc::join(control, hostile->end_.endpoint(), mine,
                                                       hostile->end_.needs(), kTimeoutNs));
    hostile->end_.start(hostile->peer_);
    return hostile;
  }

  const rpc::EndpointMemory& peer() const { return peer_; }

  // Overwrites the peer's slots with `bytes`, from their start on.
  void write(const std::vector<char>& bytes) {
    post(bytes, [this](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
      channel::set_write(request, address, lkey, peer_.slots_address, peer_.slots_rkey);
    });
  }
  void write_with_immediate(const std::vector<char>& bytes, uint32_t immediate) {
    post(bytes, [&](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
      channel::set_write_with_immediate(request, address, lkey, peer_.slots_address,
                                        peer_.slots_rkey, immediate);
    });
  }
  void send(const std::vector<char>& bytes, uint32_t immediate) {
    post(bytes, [immediate](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
      channel::set_send(request, address, lkey, immediate);
    });
  }
  // Sets the notification byte of one of the peer's slots, where the layout has notifications.
  void notify(uint32_t slot, uint8_t value) {
    post({static_cast<char>(value)},
         [&](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
           channel::set_write(request, address, lkey, peer_.notifications_address + slot,
                              peer_.notifications_rkey);
         });
  }
  void send_without_immediate(const std::vector<char>& bytes) {
    post(bytes, [](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
      channel::set_send(request, address, lkey, 0);
      request.request.opcode = IBV_WR_SEND;
    });
  }

 private:
  template <typename Prepare>
  void post(const std::vector<char>& bytes, Prepare&& prepare) {
    connect::Endpoint& endpoint = *end_.endpoint();
    VERBENA_ASSERT(bytes.size() <= endpoint.arena.size_bytes());
    // Not over what may still be on its way.
    if (next_byte_ + bytes.size() > endpoint.arena.size_bytes()) next_byte_ = 0;
    char* local = endpoint.arena.data() + next_byte_;
    next_byte_ += bytes.size();
    std::copy(bytes.begin(), bytes.end(), local);
    channel::SlotRequest request;
    prepare(request, reinterpret_cast<uint64_t>(local), endpoint.arena.lkey());
    channel::set_size_or_empty(request, static_cast<uint32_t>(bytes.size()), 0);
    request.request.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* rejected = nullptr;
    int error = ENOMEM;
    // Where many are sent, they have to wait for room, unless the peer has ended it.
    const uint64_t start_ns = now_ns();
    while ((error = ibv_post_send(endpoint.queue_pair.get(), &request.request, &rejected)) ==
               ENOMEM &&
           now_ns() - start_ns < uint64_t{kTimeoutNs}) {
      ibv_wc completion;
      if (ibv_poll_cq(endpoint.send_completions.get(), 1, &completion) == 1 &&
          completion.status != IBV_WC_SUCCESS) {
        return;
      }
    }
    VERBENA_ASSERT(error == 0);
  }

  rpc::ConnectionEnd<Outgoing, Incoming, false> end_;
  rpc::EndpointMemory peer_;
  uint64_t next_byte_ = 0;
};

template <typename Design>
using HostileRequester =
    HostileEnd<typename Design::RequestChannel, typename Design::ResponseChannel>;
template <typename Design>
using HostileResponder =
    HostileEnd<typename Design::ResponseChannel, typename Design::RequestChannel>;

// Behaves until it is connected.
template <typename Design>
Result<std::unique_ptr<HostileRequester<Design>>> join_hostile_requester(Side& side,
                                                                         ControlConnection& control,
                                                                         const Case& c) {
  const RequesterOptions options = requester_options(c);
  VERBENA_ASSIGN_OR_RETURN(
      [[maybe_unused]] const rpc::DesignRequest agreed,
      rpc::request_design(c.protocol, c.layout, side.device, control, options));
  return HostileRequester<Design>::join(side, control, rpc::end_options(options));
}

// --- the other process ---

// What rpc_hostile_process is told over the control connection that it opens to the test: once it
// is connected, to overwrite the first bytes of the responder's slots, and to notify.
struct HostileTask {
  Case c;
  std::array<char, 512> slots{};
  uint32_t slots_bytes = 0;
  uint32_t notified_slot = 0;
  uint8_t notification = 0;  // 0: none
};
inline constexpr uint32_t kHostileTaskType = 0x7a52;

template <typename Requester>
void carry_out(const HostileTask& task, Requester& requester) {
  requester.write({task.slots.begin(), task.slots.begin() + task.slots_bytes});
  if (task.notification != 0) requester.notify(task.notified_slot, task.notification);
}

}  // namespace verbena::rpc_test
