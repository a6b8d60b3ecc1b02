// Why the data path refused a request: nobody but the log can tell, since posting returns a number.
#pragma once

#include "src/device/soft/objects.h"

namespace verbena::soft {

// With VERBENA_LOG=info one line for each of the first few in a second; else nothing. `error` is
// what the verb returns. Called in the failing call alone.
[[gnu::noinline, gnu::cold]] void log_refused_send(const Qp& qp, const ibv_send_wr& wr,
                                                   int error) noexcept;
[[gnu::noinline, gnu::cold]] void log_refused_receive(const Qp& qp, const ibv_recv_wr* wr,
                                                      int error) noexcept;
[[gnu::noinline, gnu::cold]] void log_refused_receive(const Srq& srq, const ibv_recv_wr& wr,
                                                      int error) noexcept;
// Of ibv_wr_complete(): a mistake that was made since ibv_wr_start().
[[gnu::noinline, gnu::cold]] void log_refused_batch(const Qp& qp, int error) noexcept;
// Of ibv_req_notify_cq(): `reason` is what last_error() says.
[[gnu::noinline, gnu::cold]] void log_refused_notification(const char* reason) noexcept;
// Of a poll that returns less than zero.
[[gnu::noinline, gnu::cold]] void log_overrun(const Cq& cq) noexcept;

}  // namespace verbena::soft
