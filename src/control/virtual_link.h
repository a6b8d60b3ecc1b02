// Control connections between the threads of a simulation: frames in memory, in virtual time.
//
// Inside a simulation (virtual_time.h) ControlListener and ControlConnection use these instead of
// sockets. There are no strangers, so there is nothing to prove; a frame takes no time, since
// nothing that is measured waits for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "verbena/status.h"

namespace verbena {

// VirtualTime::taken_for_dead() of a node.
using NodeDeath = std::shared_ptr<const bool>;

class VirtualLink {
 public:
  VirtualLink(NodeDeath side_0, NodeDeath side_1) : dead_{std::move(side_0), std::move(side_1)} {}

  // One of the two ends. Movable by pointer only; closed when destroyed.
  class End {
   public:
    End(std::shared_ptr<VirtualLink> link, int side) : link_(std::move(link)), side_(side) {}
    ~End() { close(); }
    End(const End&) = delete;
    End& operator=(const End&) = delete;

    // False: the peer is gone.
    bool send(std::span<const std::byte> frame);
    // kTimeout or kUnavailable, with no message: the caller knows the names.
    StatusCode receive(int64_t timeout_ns, std::vector<std::byte>* frame);
    // Also once the peer's node is taken for dead.
    bool peer_closed() const {
      return link_->closed_[1 - side_] || link_->closed_[side_] || is_true(link_->dead_[1 - side_]);
    }
    void close();

   private:
    std::shared_ptr<VirtualLink> link_;
    int side_;
  };

 private:
  static bool is_true(const NodeDeath& dead) { return dead != nullptr && *dead; }

  // By the side that receives them. Null most of the time: connections stay long after their
  // handshake, which is all that most of them carry.
  struct Frames {
    std::vector<std::vector<std::byte>> to[2];  // few at once
    bool empty() const { return to[0].empty() && to[1].empty(); }
  };
  std::unique_ptr<Frames> frames_;
  bool closed_[2] = {false, false};
  NodeDeath dead_[2];
};

// Where connections arrive; its port is its name in the simulation.
class VirtualPort {
 public:
  // Port 0: the next free one. Null if the port is taken, or none is left.
  static std::unique_ptr<VirtualPort> listen(uint16_t port);
  ~VirtualPort();
  VirtualPort(const VirtualPort&) = delete;
  VirtualPort& operator=(const VirtualPort&) = delete;

  uint16_t port() const { return port_; }
  // Null after `timeout_ns`.
  std::unique_ptr<VirtualLink::End> accept(int64_t timeout_ns);
  // Null if nobody listens there within `timeout_ns`.
  static std::unique_ptr<VirtualLink::End> connect(uint16_t port, int64_t timeout_ns);

 private:
  VirtualPort(uint16_t port, NodeDeath dead) : port_(port), dead_(std::move(dead)) {}
  uint16_t port_;
  NodeDeath dead_;
  std::deque<std::unique_ptr<VirtualLink::End>> arrived_;
};

}  // namespace verbena
