#include "src/device/soft/refusal.h"

#include <fmt/format.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <string_view>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/device/soft/of_process.h"
#include "src/device/soft/opcode_text.h"
#include "src/device/soft/queue_pair_attributes.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/uc.h"
#include "src/device/soft/ud.h"
#include "src/device/soft/windows.h"

namespace verbena::soft {
namespace {

struct RefusalLines : RareLines {};

// Keeps errno: a refused verb returns its error, and programs look at both.
template <typename Text>
void log_rarely(const char* verb, int error, Text&& text) {
  if (!log_enabled(LogLevel::kInfo)) return;
  const int before = errno;
  {
    auto& lines = of_process<RefusalLines>();
    const std::lock_guard guard(lines.mutex);
    uint64_t suppressed = 0;
    if (lines.rate_limit.allow(machine_now_ns(), &suppressed)) {
      const std::string more =
          suppressed == 0 ? "" : fmt::format(" ({} lines left out before)", suppressed);
      log_info("{} returned {}: soft0: {}{}", verb,
               error == EINVAL   ? "EINVAL"
               : error == ENOMEM ? "ENOMEM"
                                 : std::to_string(error),
               text(), more);
    }
  }
  errno = before;
}

// Of a datagram, or of a connection that is reliable or not.
std::string operation_text(const Qp& qp, const ibv_send_wr& wr) {
  if (qp.transport == Transport::kDatagram) {
    if (wr.opcode != IBV_WR_SEND && wr.opcode != IBV_WR_SEND_WITH_IMM) {
      return fmt::format("queue pairs of UD have no {}; they have SEND and SEND_WITH_IMM",
                         opcode_text(wr.opcode));
    }
    const auto* handle = reinterpret_cast<const Ah*>(wr.wr.ud.ah);
    if (handle == nullptr) return "a datagram needs an address handle (wr.ud.ah), and it is null";
    if (handle->self != handle) return "the address handle is destroyed, or is none";
    return "the address handle is of another protection domain than the queue pair";
  }
  if (qp.transport == Transport::kRawPacket) {
    return fmt::format("queue pairs of raw packets have no {}; they have SEND",
                       opcode_text(wr.opcode));
  }
  if (qp.transport == Transport::kUnreliable) {
    return fmt::format(
        "queue pairs of UC have no {}; they have SEND and RDMA_WRITE, with or "
        "without immediate data",
        opcode_text(wr.opcode));
  }
  if (qp.transport == Transport::kXrcReceive) {
    return "queue pairs of type XRC_RECV only receive; send through one of type XRC_SEND";
  }
  if (wr.opcode == IBV_WR_RDMA_READ || wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
      wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    return (wr.send_flags & IBV_SEND_INLINE) != 0
               ? fmt::format("{} with IBV_SEND_INLINE; only what is sent can be inline",
                             opcode_text(wr.opcode))
               : fmt::format(
                     "{} on a queue pair with max_rd_atomic 0; set it to 1 to {} in the "
                     "step to RTS",
                     opcode_text(wr.opcode), kMaxOutstandingReads);
  }
  return fmt::format("queue pairs have no operation {}", static_cast<int>(wr.opcode));
}

// In the order in which the data path looks.
std::string why_refused(const Qp& qp, const ibv_send_wr& wr, int error) {
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR && state != IBV_QPS_SQE) {
    return fmt::format("the queue pair is in state {}; sends can be posted from RTS on",
                       state_name(state));
  }
  if (error == ENOMEM) {
    return fmt::format(
        "the send queue is full: {} requests wait to be polled, which is its depth "
        "(max_send_wr); unsignaled ones leave it with the next signaled one",
        qp.send_depth);
  }
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.init.cap.max_send_sge) {
    return fmt::format("a request with {} SGEs; the queue pair has {} (max_send_sge)", wr.num_sge,
                       qp.init.cap.max_send_sge);
  }
  uint64_t size_bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) size_bytes += wr.sg_list[i].length;
  if (size_bytes > kMaxMessageBytes) {
    return fmt::format("a message of {} B; the limit is {} B", size_bytes, kMaxMessageBytes);
  }
  if ((wr.send_flags & IBV_SEND_INLINE) != 0 && size_bytes > qp.init.cap.max_inline_data) {
    return fmt::format("{} B inline; the queue pair has {} (max_inline_data)", size_bytes,
                       qp.init.cap.max_inline_data);
  }
  if (is_window_request(wr.opcode) && is_reliable(qp.transport)) {
    return fmt::format("{} names a window, region or key that cannot be of one",
                       opcode_text(wr.opcode));
  }
  return operation_text(qp, wr);
}

}  // namespace

void log_refused_send(const Qp& qp, const ibv_send_wr& wr, int error) noexcept {
  log_rarely("ibv_post_send", error, [&] {
    return fmt::format("queue pair {:#x}, wr_id {}: {}", qp.number, wr.wr_id,
                       why_refused(qp, wr, error));
  });
}

void log_refused_batch(const Qp& qp, int error) noexcept {
  log_rarely("ibv_wr_complete", error, [&] {
    return fmt::format(
        "queue pair {:#x}: of the requests since ibv_wr_start() one {}; none is "
        "posted",
        qp.number,
        error == ENOMEM ? "has no place in the send queue"
                        : "is of an operation that the queue pair was not made "
                          "with, is not complete, or has too many SGEs or too much "
                          "inline data");
  });
}

void log_refused_receive(const Qp& qp, const ibv_recv_wr* wr, int error) noexcept {
  log_rarely("ibv_post_recv", error, [&]() -> std::string {
    const std::string number = fmt::format("queue pair {:#x}: ", qp.number);
    if (qp.state.load(std::memory_order_relaxed) == IBV_QPS_RESET) {
      return number + "it is in state RESET; receives can be posted from INIT on";
    }
    if (qp.srq != nullptr) {
      return number + "it has a shared receive queue; post to that by ibv_post_srq_recv()";
    }
    if (is_xrc(qp.transport)) {
      return number + "what arrives by XRC takes the receives of shared receive queues of type XRC";
    }
    if (error == ENOMEM) {
      return number +
             fmt::format("its receive queue of {} is full (max_recv_wr)", qp.init.cap.max_recv_wr);
    }
    return number + fmt::format("a receive with {} SGEs; the queue pair has {} (max_recv_sge)",
                                wr != nullptr ? wr->num_sge : 0, qp.init.cap.max_recv_sge);
  });
}

void log_refused_receive(const Srq& srq, const ibv_recv_wr& wr, int error) noexcept {
  log_rarely("ibv_post_srq_recv", error, [&] {
    return error == ENOMEM
               ? fmt::format("the shared receive queue of {} is full (max_wr)", srq.depth)
               : fmt::format("a receive with {} SGEs; the shared receive queue has {} (max_sge)",
                             wr.num_sge, srq.max_sges);
  });
}

void log_refused_notification(const char* reason) noexcept {
  log_rarely("ibv_req_notify_cq", EINVAL, [reason] {
    // It begins as the line does.
    constexpr std::string_view kPrefix = "soft0: ";
    std::string_view text = reason;
    if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
    return std::string(text);
  });
}

void log_overrun(const Cq& cq) noexcept {
  log_rarely("ibv_poll_cq", -1, [&] {
    return fmt::format(
        "the completion queue of {} CQEs has overflowed; make it as large as all "
        "that can complete into it",
        cq.verbs.cqe);
  });
}

}  // namespace verbena::soft
