#include "src/control/virtual_link.h"

#include <algorithm>
#include <map>
#include <utility>

#include "src/base/assert.h"
#include "src/base/virtual_time.h"
#include "src/control/tcp_socket.h"

namespace verbena {

namespace {

static_assert(VirtualTime::kSilenceLimitNs == kHostSilenceLimitNs);

struct Network {
  std::map<uint16_t, VirtualPort*> ports;
  uint16_t next_port = 1;
};

VirtualTime& time_here() {
  VirtualTime* const time = VirtualTime::current();
  VERBENA_ASSERT(time != nullptr);
  return *time;
}

Network& network() {
  std::shared_ptr<void>& kept = time_here().control_network();
  if (kept == nullptr) kept = std::make_shared<Network>();
  return *static_cast<Network*>(kept.get());
}

uint64_t deadline_after(int64_t timeout_ns) {
  if (timeout_ns < 0) return UINT64_MAX;
  const uint64_t now_ns = time_here().now_ns();
  return now_ns + std::min(static_cast<uint64_t>(timeout_ns), UINT64_MAX - now_ns);
}

}  // namespace

bool VirtualLink::End::send(std::span<const std::byte> frame) {
  if (peer_closed()) return false;
  if (link_->frames_ == nullptr) link_->frames_ = std::make_unique<Frames>();
  link_->frames_->to[1 - side_].emplace_back(frame.begin(), frame.end());
  time_here().wake_waiting_at(link_.get());
  return true;
}

StatusCode VirtualLink::End::receive(int64_t timeout_ns, std::vector<std::byte>* frame) {
  const std::unique_ptr<Frames>& frames = link_->frames_;
  const auto nothing = [&] { return frames == nullptr || frames->to[side_].empty(); };
  const uint64_t deadline_ns = deadline_after(timeout_ns);
  while (nothing()) {
    if (peer_closed()) return StatusCode::kUnavailable;
    if (!time_here().wait_at(link_.get(), deadline_ns) && nothing()) return StatusCode::kTimeout;
  }
  std::vector<std::vector<std::byte>>& mine = frames->to[side_];
  *frame = std::move(mine.front());
  mine.erase(mine.begin());
  if (frames->empty()) link_->frames_.reset();
  return StatusCode::kOk;
}

void VirtualLink::End::close() {
  if (std::exchange(link_->closed_[side_], true)) return;
  // The last end may be closed when its simulation is over.
  if (VirtualTime* const time = VirtualTime::current()) time->wake_waiting_at(link_.get());
}

std::unique_ptr<VirtualPort> VirtualPort::listen(uint16_t port) {
  Network& here = network();
  if (port == 0) {
    while (here.next_port != 0 && here.ports.contains(here.next_port)) ++here.next_port;
    if (here.next_port == 0) return nullptr;
    port = here.next_port++;
  }
  if (here.ports.contains(port)) return nullptr;
  std::unique_ptr<VirtualPort> made(new VirtualPort(port, time_here().taken_for_dead()));
  here.ports[port] = made.get();
  time_here().wake_waiting_at(&here);
  return made;
}

VirtualPort::~VirtualPort() {
  if (VirtualTime::current() != nullptr) network().ports.erase(port_);
}

std::unique_ptr<VirtualLink::End> VirtualPort::accept(int64_t timeout_ns) {
  const uint64_t deadline_ns = deadline_after(timeout_ns);
  while (arrived_.empty()) {
    if (!time_here().wait_at(this, deadline_ns) && arrived_.empty()) return nullptr;
  }
  std::unique_ptr<VirtualLink::End> end = std::move(arrived_.front());
  arrived_.pop_front();
  return end;
}

std::unique_ptr<VirtualLink::End> VirtualPort::connect(uint16_t port, int64_t timeout_ns) {
  const uint64_t deadline_ns = deadline_after(timeout_ns);
  Network& here = network();
  auto found = here.ports.find(port);
  while (found == here.ports.end()) {
    if (!time_here().wait_at(&here, deadline_ns)) return nullptr;
    found = here.ports.find(port);
  }
  const auto link =
      std::make_shared<VirtualLink>(found->second->dead_, time_here().taken_for_dead());
  found->second->arrived_.push_back(std::make_unique<VirtualLink::End>(link, 0));
  time_here().wake_waiting_at(found->second);
  return std::make_unique<VirtualLink::End>(link, 1);
}

}  // namespace verbena
