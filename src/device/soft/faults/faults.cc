#include "src/device/soft/faults/faults.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "src/device/soft/faults/network_thread.h"
#include "src/device/soft/faults/send_faults.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/validity.h"

namespace verbena::soft::faults {
namespace {

std::string text_of_variable(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? text : "";
}

Status in_variable(const char* name, const Status& status) {
  return {status.code(), fmt::format("soft0: {}: {}", name, status.message())};
}

// Whole at any time, since a process may be forked meanwhile.
struct LatestNetwork {
  std::string text;
  uint32_t process = 0;  // which one in a row of forks: each counts its own requests
  std::shared_ptr<Network> network;
};

}  // namespace

uint64_t PortTimes::pass(std::atomic<uint64_t>& free_ns, uint64_t at_ns,
                         uint64_t size_bytes) const {
  if (rate_bits_per_s_ == 0) return at_ns;
  constexpr double kBitNsPerByteS = 8e9;
  const auto takes_ns = static_cast<uint64_t>(static_cast<double>(size_bytes) * kBitNsPerByteS /
                                              static_cast<double>(rate_bits_per_s_));
  uint64_t free = free_ns.load(std::memory_order_relaxed);
  uint64_t passed = 0;
  do {
    passed = std::max(free, at_ns) + takes_ns;
  } while (!free_ns.compare_exchange_weak(free, passed, std::memory_order_relaxed));
  return passed;
}

Result<std::shared_ptr<Network>> network_from_environment() {
  static std::mutex mutex;
  static LatestNetwork* latest = new LatestNetwork;  // used until the process ends
  // In the parent another thread may have held it.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { std::construct_at(&mutex); });
  static_cast<void>(registered);
  const std::string fault = text_of_variable(kFaultVariable);
  const std::string link = text_of_variable(kLinkVariable);
  const Result<FaultSettings> fault_settings = parse_fault_settings(fault);
  if (!fault_settings.ok()) return in_variable(kFaultVariable, fault_settings.status());
  const Result<LinkSettings> link_settings = parse_link_settings(link);
  if (!link_settings.ok()) return in_variable(kLinkVariable, link_settings.status());
  const std::lock_guard guard(mutex);
  const uint32_t process = forks.load(std::memory_order_relaxed);
  if (const std::string both = fault + ";" + link;
      latest->text != both || latest->process != process) {
    std::shared_ptr<Network> made;
    if (fault_settings->any() || link_settings->any()) {
      made = std::make_shared<Network>(*fault_settings, *link_settings);
    }
    const std::unique_ptr<LatestNetwork> former(
        std::exchange(latest, new LatestNetwork{both, process, made}));
  }
  return latest->network;
}

Status start() { return Progress::start(); }

void attach(Qp& qp, const std::shared_ptr<Network>& network) {
  if (network == nullptr) return;
  qp.faults = std::make_shared<SendFaults>(qp, network, Progress::get());
}

void detach(Qp& qp) {
  if (qp.faults != nullptr && qp.faults->progress().is_own()) {
    qp.faults->progress().remove(*qp.faults);
  }
}

bool flush(Qp& qp, ibv_wc_status first) { return qp.faults != nullptr && qp.faults->flush(first); }

void drop(Qp& qp) {
  if (qp.faults != nullptr) qp.faults->drop();
}

void post_carried_out(Qp& qp, const ibv_send_wr& wr, uint32_t position) {
  qp.faults->post_carried_out(wr, position);
}

void wait_for_running() {
  if (Progress* const progress = Progress::existing()) progress->wait_for_running();
}

void stop() {
  if (Progress* const progress = Progress::existing()) progress->stop();
}

}  // namespace verbena::soft::faults
