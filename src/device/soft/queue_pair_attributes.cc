#include "src/device/soft/queue_pair_attributes.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>

#include "src/device/soft/layout.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {
namespace {

struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

// InfiniBand specification, table 91. RESET and ERR are reached from anywhere, without attributes.
constexpr Transition kReliableTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH |
         IBV_QP_PATH_MIG_STATE},
};
constexpr Transition kUnreliableTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS},
};
// The initiator has what a requester has, the target what a responder has.
constexpr Transition kXrcSendTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
};
constexpr Transition kXrcReceiveTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH |
         IBV_QP_PATH_MIG_STATE},
};
constexpr Transition kDatagramTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
};

constexpr Transition kRawPacketTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PORT},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0, 0},
    {IBV_QPS_RTR, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE},
};

std::span<const Transition> transitions_of(Transport transport) {
  switch (transport) {
    case Transport::kUnreliable:
      return kUnreliableTransitions;
    case Transport::kDatagram:
      return kDatagramTransitions;
    case Transport::kRawPacket:
      return kRawPacketTransitions;
    case Transport::kXrcSend:
      return kXrcSendTransitions;
    case Transport::kXrcReceive:
      return kXrcReceiveTransitions;
    default:
      return kReliableTransitions;
  }
}

}  // namespace

const char* state_name(ibv_qp_state state) {
  constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return static_cast<size_t>(state) < std::size(kNames) ? kNames[state] : "unknown";
}

const char* transport_name(Transport transport) {
  switch (transport) {
    case Transport::kUnreliable:
      return "UC";
    case Transport::kDatagram:
      return "UD";
    case Transport::kRawPacket:
      return "raw packet";
    case Transport::kXrcSend:
      return "XRC_SEND";
    case Transport::kXrcReceive:
      return "XRC_RECV";
    default:
      return "RC";
  }
}

int concerning(Transport transport, int mask) {
  switch (transport) {
    case Transport::kXrcSend:
      return mask & ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    case Transport::kXrcReceive:
      return mask & ~(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
    default:
      return mask;
  }
}

int check_transition(Transport transport, ibv_qp_state from, ibv_qp_state to, int mask) {
  // As drivers do. IBV_QP_RATE_LIMIT is beyond these.
  constexpr int kStandardBits = 2 * IBV_QP_DEST_QPN - 1;
  if ((mask & ~kStandardBits) != 0) {
    return fail(EOPNOTSUPP, fmt::format("soft0: has no attributes {:#x} (ibv_qp_attr_mask)",
                                        mask & ~kStandardBits));
  }
  mask &= ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
    return mask == 0 ? 0
                     : fail(EINVAL, fmt::format("soft0: the transition to {} takes no attributes",
                                                state_name(to)));
  }
  for (const Transition& step : transitions_of(transport)) {
    if (step.from != from || step.to != to) continue;
    if ((mask & step.required) != step.required || (mask & ~(step.required | step.optional)) != 0) {
      return fail(
          EINVAL,
          fmt::format("soft0: the transition of a {} queue pair from {} to {} needs the attributes "
                      "{:#x} and may have {:#x}; given were {:#x} (ibv_qp_attr_mask)",
                      transport_name(transport), state_name(from), state_name(to), step.required,
                      step.optional, mask));
    }
    return 0;
  }
  return fail(EINVAL, fmt::format("soft0: a {} queue pair does not go from {} to {}",
                                  transport_name(transport), state_name(from), state_name(to)));
}

int check_values(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_PORT) != 0 && attributes.port_num != 1) {
    return fail(EINVAL,
                fmt::format("soft0: has port 1 only, asked for port {}", attributes.port_num));
  }
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attributes.pkey_index != 0) {
    return fail(EINVAL, "soft0: has one partition key, index 0");
  }
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (attributes.path_mtu < IBV_MTU_256 || attributes.path_mtu > IBV_MTU_4096)) {
    return fail(EINVAL, "soft0: the path MTU must be between 256 and 4096 bytes");
  }
  if ((mask & IBV_QP_DEST_QPN) != 0 && attributes.dest_qp_num > 0xffffff) {
    return fail(EINVAL, fmt::format("soft0: there is no queue pair {:#x}; numbers have 24 bits",
                                    attributes.dest_qp_num));
  }
  if ((mask & IBV_QP_TIMEOUT) != 0 && attributes.timeout > 31)
    return fail(EINVAL, "soft0: timeout must be 0 to 31");
  if ((mask & IBV_QP_RETRY_CNT) != 0 && attributes.retry_cnt > 7)
    return fail(EINVAL, "soft0: retry_cnt must be 0 to 7");
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attributes.rnr_retry > 7)
    return fail(EINVAL, "soft0: rnr_retry must be 0 to 7");
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attributes.min_rnr_timer > 31) {
    return fail(EINVAL, "soft0: min_rnr_timer must be 0 to 31");
  }
  for (const auto& [named, depth] : {std::pair(IBV_QP_MAX_QP_RD_ATOMIC, attributes.max_rd_atomic),
                                     {IBV_QP_MAX_DEST_RD_ATOMIC, attributes.max_dest_rd_atomic}}) {
    if ((mask & named) == 0 || depth <= kMaxOutstandingReads) continue;
    return fail(EINVAL, fmt::format("soft0: {} outstanding READs and atomics of a queue pair; the "
                                    "limit is {}",
                                    depth, kMaxOutstandingReads));
  }
  return 0;
}

void copy_attributes(ibv_qp_attr& kept, const ibv_qp_attr& given, int mask) {
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) kept.qp_access_flags = given.qp_access_flags;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) kept.pkey_index = given.pkey_index;
  if ((mask & IBV_QP_QKEY) != 0) kept.qkey = given.qkey;
  if ((mask & IBV_QP_PORT) != 0) kept.port_num = given.port_num;
  if ((mask & IBV_QP_AV) != 0) kept.ah_attr = given.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) kept.path_mtu = given.path_mtu;
  if ((mask & IBV_QP_TIMEOUT) != 0) kept.timeout = given.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) kept.retry_cnt = given.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) kept.rnr_retry = given.rnr_retry;
  if ((mask & IBV_QP_RQ_PSN) != 0) kept.rq_psn = given.rq_psn & 0xffffff;
  if ((mask & IBV_QP_SQ_PSN) != 0) kept.sq_psn = given.sq_psn & 0xffffff;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) kept.max_rd_atomic = given.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) kept.max_dest_rd_atomic = given.max_dest_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) kept.min_rnr_timer = given.min_rnr_timer;
  if ((mask & IBV_QP_DEST_QPN) != 0) kept.dest_qp_num = given.dest_qp_num;
}

}  // namespace verbena::soft
