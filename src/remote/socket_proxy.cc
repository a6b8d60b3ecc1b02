// Control path: the thread's beginning and end, and lanes that come.
#include "src/remote/socket_proxy.h"

#include <utility>

#include "src/base/assert.h"
#include "src/base/log.h"
#include "verbena/data_path.h"
#include "verbena/sockets.h"

namespace verbena::remote {

SocketProxy::~SocketProxy() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    publish_word<uint32_t>(&changed_, 1);
  }
  thread_.join();
  VERBENA_ASSERT(lanes_.empty() && added_.empty());
  region_.reset();
}

Status SocketProxy::start(int socket) {
  thread_ = start_thread("proxy", [this, socket] { run(socket); });
  if (thread_.joinable()) return Status::ok_status();
  return Status(StatusCode::kLimitExceeded,
                "cannot start the thread of a proxy; raise the limit of processes (ulimit -u)");
}

void SocketProxy::add(std::shared_ptr<SocketLane> lane) {
  const std::lock_guard lock(mutex_);
  added_.push_back(std::move(lane));
  publish_word<uint32_t>(&changed_, 1);
}

uint32_t SocketProxy::take_changes() {
  if (consume_word(&changed_) == 0) return 0;
  const std::lock_guard lock(mutex_);
  // Under the lock: what is added from now on publishes it again.
  store_word<uint32_t>(&changed_, 0);
  for (std::shared_ptr<SocketLane>& lane : added_) lanes_.push_back(std::move(lane));
  added_.clear();
  leaving_.reserve(lanes_.size());
  stops_ = ends_;
  return 1;
}

void SocketProxy::run(int socket) {
  if (socket != kAnySocket) {
    const Status placed = run_on_socket(socket);
    if (!placed.ok()) log_warning("a proxy runs on another socket: {}", placed.message());
  }
  Waiter waiter;
  while (!stops_) {
    if (take_changes() + poll() > 0) {
      waiter.progress();
    } else {
      waiter.idle();
    }
  }
}

}  // namespace verbena::remote
