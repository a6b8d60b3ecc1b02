#include "src/device/sim/unreliable_transitions.h"

#include <fmt/format.h>

#include <cerrno>

#include "src/device/sim/control.h"

namespace verbena::sim {

namespace {

struct Transition {
  ibv_qp_type type;
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

constexpr int kPath = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kMigration = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr int kConnected = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kDatagram = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

constexpr Transition kTransitions[] = {
    {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, kConnected, 0},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_INIT, 0, kConnected},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, kPath,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, kMigration | IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_RTS, 0, kMigration | IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_UC, IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, kDatagram, 0},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_INIT, 0, kDatagram},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_QKEY},
};

}  // namespace

int check_transition(const QueuePair& qp, const ibv_qp_attr& attributes, int mask) {
  const ibv_qp_type type = qp.verbs.qp_type;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes.qp_state : qp.state();
  const char* const name = type == IBV_QPT_UD ? "UD" : "UC";
  const int given = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
    return given == 0 ? 0 : refuse(EINVAL, "the transition to RESET or ERR takes no attributes");
  }
  for (const Transition& step : kTransitions) {
    if (step.type != type || step.from != qp.state() || step.to != to) continue;
    if ((given & step.required) == step.required &&
        (given & ~(step.required | step.optional)) == 0) {
      return 0;
    }
    return refuse(EINVAL,
                  fmt::format("this transition of a {} queue pair needs the attributes {:#x} and "
                              "may have {:#x}; given were {:#x} (ibv_qp_attr_mask)",
                              name, step.required, step.optional, given));
  }
  return refuse(EINVAL, fmt::format("a {} queue pair does not go from state {} to state {}", name,
                                    static_cast<int>(qp.state()), static_cast<int>(to)));
}

}  // namespace verbena::sim
