// Which of the extended verbs a context has.
#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/raw.h"
#include "src/device/soft/xrc.h"

namespace verbena::soft {
namespace {

template <size_t kBytes>
struct VerbName {
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is one
  constexpr VerbName(const char (&name)[kBytes]) { std::copy_n(name, kBytes, text); }
  char text[kBytes];
};

bool refused(const void* object) { return object == nullptr; }
bool refused(int error) { return error != 0; }

// Programs call these directly: nobody is in between who tells why a call was refused.
template <VerbName kName, auto kCall>
constexpr auto kReported = [](auto... arguments) {
  const int before = errno;
  fail(before, "");  // no older call's line
  auto result = kCall(arguments...);
  if (refused(result)) report_refusal(kName.text);
  return result;
};

}  // namespace

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init) {
  const bool xrc =
      (init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 && init->srq_type == IBV_SRQT_XRC;
  const uint32_t fields = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
                          (xrc ? IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ : 0);
  if ((init->comp_mask & ~fields) != 0 || ((init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 &&
                                           init->srq_type != IBV_SRQT_BASIC && !xrc)) {
    fail(EOPNOTSUPP, "soft0: has shared receive queues of the types BASIC and XRC only");
    return nullptr;
  }
  if ((init->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || init->pd == nullptr ||
      init->pd->context != context) {
    fail(EINVAL, "soft0: a shared receive queue needs a protection domain of its context");
    return nullptr;
  }
  if (xrc) return create_xrc_srq(init);
  // The fields that both structures begin with.
  return create_srq(init->pd, reinterpret_cast<ibv_srq_init_attr*>(init));
}

void extend(verbs_context& verbs) {
  verbs.sz = sizeof(verbs);
  verbs.query_device_ex = query_device_ex;
  verbs.query_rt_values = kReported<"ibv_query_rt_values_ex", query_rt_values>;
  verbs.create_qp_ex = kReported<"ibv_create_qp_ex", create_qp_ex>;
  verbs.create_cq_ex = kReported<"ibv_create_cq_ex", create_cq_ex>;
  verbs.create_srq_ex = kReported<"ibv_create_srq_ex", create_srq_ex>;
  verbs.get_srq_num = kReported<"ibv_get_srq_num", get_srq_num>;
  verbs.open_xrcd = kReported<"ibv_open_xrcd", open_xrcd>;
  verbs.close_xrcd = kReported<"ibv_close_xrcd", close_xrcd>;
  verbs.ibv_create_flow = kReported<"ibv_create_flow", create_flow>;
  verbs.ibv_destroy_flow = kReported<"ibv_destroy_flow", destroy_flow>;
  verbs.open_qp = kReported<"ibv_open_qp", open_qp>;
  verbs.advise_mr = kReported<"ibv_advise_mr", advise_mr>;
  verbs.alloc_dm = kReported<"ibv_alloc_dm", alloc_dm>;
  verbs.free_dm = kReported<"ibv_free_dm", free_dm>;
  verbs.reg_dm_mr = kReported<"ibv_reg_dm_mr", reg_dm_mr>;
  verbs.alloc_null_mr = kReported<"ibv_alloc_null_mr", alloc_null_mr>;
  verbs.alloc_td = kReported<"ibv_alloc_td", alloc_td>;
  verbs.dealloc_td = kReported<"ibv_dealloc_td", dealloc_td>;
  verbs.alloc_parent_domain = kReported<"ibv_alloc_parent_domain", alloc_parent_domain>;
  ibv_context_ops& ops = verbs.context.ops;
  ops.alloc_mw = kReported<"ibv_alloc_mw", alloc_mw>;
  ops.bind_mw = kReported<"ibv_bind_mw", bind_mw>;
  ops.dealloc_mw = kReported<"ibv_dealloc_mw", dealloc_mw>;
}

const ExtendedControl& extended_control() {
  static const ExtendedControl table = {
      .rereg_mr = rereg_mr, .resize_cq = resize_cq, .qp_to_qp_ex = qp_to_qp_ex};
  return table;
}

}  // namespace verbena::soft
