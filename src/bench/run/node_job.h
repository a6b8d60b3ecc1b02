// What the threads of a node know of the point that they carry out together.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/thread_team.h"
#include "verbena/connection.h"
#include "verbena/device.h"

namespace verbena::bench {

// Who talks to whom: the same for all nodes of a point, and large where there are many.
struct JobWiring {
  explicit JobWiring(Wiring wiring, ConnectionModel model)
      : requests(std::move(wiring)),
        connections(model == ConnectionModel::kDispatcher ? with_dispatchers(requests) : requests) {
  }

  Wiring requests;     // who requests from whom
  Wiring connections;  // who connects to whom; the same without dispatchers
};

// Of a requesting thread, as the node's main thread sees it: another number at every look while it
// runs, 0 while it waits for a step.
struct alignas(64) ThreadActivity {
  std::atomic<uint64_t> count{0};
};

// Carried out by the thread that comes first, while the others that come wait for its end.
class Once {
 public:
  Status run(const std::function<Status()>& make) {
    std::unique_lock lock(mutex_);
    if (std::exchange(begun_, true)) {
      ended_.wait(lock, [this] { return result_.has_value(); });
      return *result_;
    }
    lock.unlock();
    const Status made = make();
    lock.lock();
    result_ = made;
    lock.unlock();
    ended_.notify_all();
    return made;
  }

 private:
  std::mutex mutex_;
  Condition ended_;
  bool begun_ = false;
  std::optional<Status> result_;
};

struct NodeJob {
  const Device& device;
  const ProtectionDomain& domain;
  const JobSecret& secret;
  Setup setup;
  std::shared_ptr<const JobWiring> shared_wiring;
  std::string address;  // where this node's threads listen
  ThreadTeam team{};
  std::unique_ptr<ThreadActivity[]> activity{};  // of this node's requesting threads
  // From StepKind::kConnect on: of all responding threads of the job.
  std::vector<ThreadAddress> addresses{};
  // From the end of that step on: what the node's threads share, which one of them makes in it.
  std::shared_ptr<void> shared{};
  Once making_shared{};

  const Wiring& wiring() const { return shared_wiring->requests; }
  const Wiring& connections() const { return shared_wiring->connections; }
  const WiredNode& node() const { return wiring().nodes[setup.node]; }
  bool has_dispatcher() const {
    return setup.point.model == ConnectionModel::kDispatcher && node().requesting > 0;
  }
};

// What one thread has to report when its step is over; read by the main thread then.
struct ThreadReport {
  Report report;
  ThreadAddress address;  // kListen
};

}  // namespace verbena::bench
