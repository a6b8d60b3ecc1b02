// A queue pair's requests in a network: what is drawn for each when it is posted, when it takes
// effect, when it completes.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "src/device/soft/faults/delayed_sends.h"
#include "src/device/soft/faults/fate.h"
#include "src/device/soft/faults/faults.h"
#include "src/device/soft/objects.h"

namespace verbena::soft::faults {

class Progress;

class SendFaults {
 public:
  SendFaults(Qp& qp, std::shared_ptr<Network> network, Progress& progress);

  // All under send_lock, but where it says otherwise.

  // What was checked. Behind it comes what else is in the network.
  void post(const ibv_send_wr& wr);
  void post_carried_out(const ibv_send_wr& wr, uint32_t position);
  bool flush(ibv_wc_status first);
  void drop();

  // Takes send_lock: carries out and completes what is due by `now`. The result wakes who sleeps on
  // completions, see poll_pause.h; it may be null.
  PollSleeper* run(uint64_t now);
  // Takes send_lock and leaves it again.
  void wait();
  // When there is something to do next. From any thread.
  uint64_t due_ns() const { return due_ns_.load(std::memory_order_relaxed); }
  // Whether Progress has it in its list, which is under its lock there.
  std::atomic<bool> listed{false};

  Progress& progress() { return progress_; }
  // Which queue pair of its device it is, from 0.
  uint32_t ordinal() const { return ordinal_; }

 private:
  void post_request(const ibv_send_wr& wr, uint32_t position);
  void defer(const ibv_send_wr& wr, uint32_t position, const Fate& fate);
  Fate draw(const ibv_send_wr& wr, uint64_t size_bytes);
  void log_fate(const Fate& fate);
  void carry_out_due(uint64_t now);
  bool complete_due(uint64_t now);
  bool execute_due(uint64_t now);
  bool execute_next(DeferredSend& send);
  bool execute_reliable(DeferredSend& send);
  void execute_unreliable(DeferredSend& send);
  void note_due();
  uint64_t find_due();

  Qp& qp_;
  const std::shared_ptr<Network> network_;
  Progress& progress_;
  const uint32_t ordinal_;
  FateDraws draws_;
  DeferredSends sends_;
  uint64_t last_due_ns_ = 0;  // of what was posted so far
  uint64_t requests_ = 0;     // that went through the network
  uint64_t faults_ = 0;
  std::atomic<uint64_t> due_ns_{kNever};
};

}  // namespace verbena::soft::faults
