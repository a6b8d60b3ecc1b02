// The network that `verbena run --fault --link` asks for: what the rest of soft0 calls of it, all
// off the data path. Nothing of it is there in a context that was opened without.
//
//   faults.h            this
//   fate.h              what is drawn for an operation, and what it comes to
//   delayed_sends.h     the requests of a queue pair that are on their way
//   send_faults.h       a queue pair's requests: posted, on their way, completed
//   network_thread.h    who carries them out when their time has come
//   faults_layer.h      the operations that are replaced
//
// A request that is on its way stands in its queue pair's ring until it is due. Then the polls of
// its process, or else a thread of its own, carry it out as a post would have, and complete it when
// the answer has come back. Its buffers are the device's until then, so nothing has to be copied
// but what is inline.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "src/base/network_settings.h"
#include "verbena/status.h"

namespace verbena::soft {

struct Qp;

namespace faults {

// When the port is free again for what is sent and for what is received, by now_ns().
class PortTimes {
 public:
  explicit PortTimes(uint64_t rate_bits_per_s) : rate_bits_per_s_(rate_bits_per_s) {}
  // When `size_bytes` have passed, from `at_ns` on.
  uint64_t send(uint64_t at_ns, uint64_t size_bytes) {
    return pass(sending_ns_, at_ns, size_bytes);
  }
  uint64_t receive(uint64_t at_ns, uint64_t size_bytes) {
    return pass(receiving_ns_, at_ns, size_bytes);
  }

 private:
  uint64_t pass(std::atomic<uint64_t>& free_ns, uint64_t at_ns, uint64_t size_bytes) const;
  uint64_t rate_bits_per_s_;
  std::atomic<uint64_t> sending_ns_{0};
  std::atomic<uint64_t> receiving_ns_{0};
};

// Of all contexts of a process that were opened with the same settings one after the other. A child
// of fork() has its own.
struct Network {
  Network(const FaultSettings& fault, const LinkSettings& link_settings)
      : settings(fault), link(link_settings), port(link_settings.rate_bits_per_s) {}
  const FaultSettings settings;
  const LinkSettings link;
  PortTimes port;
  std::atomic<uint32_t> queue_pairs{0};  // made so far
  std::atomic<uint64_t> requests{0};     // posted so far
};

// What VERBENA_FAULT and VERBENA_LINK ask for now; null where that is nothing.
Result<std::shared_ptr<Network>> network_from_environment();

// Before the first context with a network. kLimitExceeded without its thread.
Status start();

// A queue pair is made, of a context with a network or without.
void attach(Qp& qp, const std::shared_ptr<Network>& network);
// It is destroyed; nothing is on its way any more. Holds none of its locks.
void detach(Qp& qp);

// Of a queue pair that fails: what has taken effect completes so, the first of the others with
// `first`, unless one of these had failed, the rest as flushed. Holds send_lock. False if no
// request has told why.
bool flush(Qp& qp, ibv_wc_status first);
// Of a reset: nothing completes. Holds send_lock.
void drop(Qp& qp);
// A request on memory windows that has been carried out: behind those that are on their way. Holds
// send_lock.
void post_carried_out(Qp& qp, const ibv_send_wr& wr, uint32_t position);
// Memory was taken from the process's own requests: returns when none of those that began before
// still reads or writes it. The caller holds no lock of a queue pair.
void wait_for_running();
// The process ends: its memory may go any time, but for what those need who still poll.
void stop();

}  // namespace faults
}  // namespace verbena::soft
