#include "src/device/soft/flight.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/uc.h"

namespace verbena::soft {
namespace {

uint32_t size_of(const ibv_send_wr& wr) {
  uint32_t size_bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) size_bytes += wr.sg_list[i].length;
  return size_bytes;
}

// What the sender itself is to blame for.
bool is_local(ibv_wc_status status) {
  return status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_LEN_ERR;
}

}  // namespace

void uc_post(Qp& qp, const ibv_send_wr& wr, uint32_t position) {
  ibv_wc_status status = IBV_WC_SUCCESS;
  {
    const Flight flight(qp);
    const Execution execution = execute_unblamed(qp, wr);
    if (execution.outcome() == Outcome::kError && is_local(execution.status())) {
      status = execution.status();
    } else if (execution.outcome() != Outcome::kDone) {
      ++qp.counters->dropped;
    }
  }
  if (status != IBV_WC_SUCCESS) [[unlikely]] {
    fail_send_queue_locked(qp);
    ++qp.counters->errors;
    return complete_send(qp, wr, position, status, 0);
  }
  const uint32_t size_bytes = size_of(wr);
  qp.counters->bytes += size_bytes;
  complete_send(qp, wr, position, IBV_WC_SUCCESS, size_bytes);
}

}  // namespace verbena::soft
