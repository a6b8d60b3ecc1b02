// Completion queues with ibv_start_poll(): the completion that a poll took, field by field; and
// what completion queues of both kinds can do besides.
#include "src/device/soft/extended_poll.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>

#include "src/base/runtime.h"
#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/layers/layers.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {
namespace {

constexpr uint64_t kFields = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                             IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL |
                             IBV_WC_EX_WITH_DLID_PATH_BITS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                             IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
constexpr uint32_t kCqInitFields = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
constexpr uint32_t kCqFlags =
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;

ExtendedPoll& poll_of(ibv_cq_ex* cq) { return as_cq(ibv_cq_ex_to_cq(cq)).poll; }

uint64_t wallclock_now_ns() {
  using std::chrono::nanoseconds;
  using std::chrono::system_clock;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count());
}

// The next completion. soft0 makes it when it is polled, so this is its time.
int take_next(ibv_cq_ex* cq) {
  ExtendedPoll& poll = poll_of(cq);
  const int taken = poll_cq(ibv_cq_ex_to_cq(cq), 1, &poll.wc);
  if (taken == 0) return ENOENT;
  if (taken < 0) [[unlikely]]
    return EIO;
  cq->status = poll.wc.status;
  cq->wr_id = poll.wc.wr_id;
  if ((poll.fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0) poll.time_ns = machine_now_ns();
  if ((poll.fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0) {
    poll.wallclock_ns = wallclock_now_ns();
  }
  return 0;
}

void end_poll(ibv_cq_ex* cq) {
  ExtendedPoll& poll = poll_of(cq);
  if (!poll.single_threaded) poll.lock.unlock(poll.as_owner);
}

int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attributes) {
  if (attributes != nullptr && attributes->comp_mask != 0) [[unlikely]]
    return EINVAL;
  ExtendedPoll& poll = poll_of(cq);
  if (!poll.single_threaded) {
    const bool as_owner = poll.lock.lock();
    poll.as_owner = as_owner;
  }
  const int error = take_next(cq);
  if (error != 0) end_poll(cq);
  return error;
}

int next_poll(ibv_cq_ex* cq) { return take_next(cq); }

// Readers. Those of what InfiniBand does not have give zeros.
ibv_wc_opcode read_opcode(ibv_cq_ex* cq) { return poll_of(cq).wc.opcode; }
uint32_t read_vendor_err(ibv_cq_ex* cq) { return poll_of(cq).wc.vendor_err; }
uint32_t read_byte_len(ibv_cq_ex* cq) { return poll_of(cq).wc.byte_len; }
__be32 read_imm_data(ibv_cq_ex* cq) { return poll_of(cq).wc.imm_data; }
uint32_t read_qp_num(ibv_cq_ex* cq) { return poll_of(cq).wc.qp_num; }
uint32_t read_src_qp(ibv_cq_ex* cq) { return poll_of(cq).wc.src_qp; }
unsigned read_wc_flags(ibv_cq_ex* cq) { return poll_of(cq).wc.wc_flags; }
uint32_t read_slid(ibv_cq_ex* cq) { return poll_of(cq).wc.slid; }
uint8_t read_sl(ibv_cq_ex* cq) { return poll_of(cq).wc.sl; }
uint8_t read_dlid_path_bits(ibv_cq_ex* cq) { return poll_of(cq).wc.dlid_path_bits; }
uint64_t read_completion_ts(ibv_cq_ex* cq) { return poll_of(cq).time_ns; }
uint16_t read_cvlan(ibv_cq_ex*) { return 0; }
uint32_t read_flow_tag(ibv_cq_ex*) { return 0; }
void read_tm_info(ibv_cq_ex*, ibv_wc_tm_info* info) { *info = {}; }
uint64_t read_completion_wallclock_ns(ibv_cq_ex* cq) { return poll_of(cq).wallclock_ns; }

void set_readers(ibv_cq_ex& verbs) {
  verbs.read_opcode = read_opcode;
  verbs.read_vendor_err = read_vendor_err;
  verbs.read_byte_len = read_byte_len;
  verbs.read_imm_data = read_imm_data;
  verbs.read_qp_num = read_qp_num;
  verbs.read_src_qp = read_src_qp;
  verbs.read_wc_flags = read_wc_flags;
  verbs.read_slid = read_slid;
  verbs.read_sl = read_sl;
  verbs.read_dlid_path_bits = read_dlid_path_bits;
  verbs.read_completion_ts = read_completion_ts;
  verbs.read_cvlan = read_cvlan;
  verbs.read_flow_tag = read_flow_tag;
  verbs.read_tm_info = read_tm_info;
  verbs.read_completion_wallclock_ns = read_completion_wallclock_ns;
}

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* init) {
  const auto refuse = [](const std::string& message) {
    fail(EOPNOTSUPP, message);
    return static_cast<ibv_cq_ex*>(nullptr);
  };
  if ((init->wc_flags & ~kFields) != 0) {
    return refuse(fmt::format("soft0: has no completions with {:#x} (wc_flags); it has {:#x}",
                              init->wc_flags & ~kFields, kFields));
  }
  const uint32_t flags = (init->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? init->flags : 0;
  if ((init->comp_mask & ~kCqInitFields) != 0 || (flags & ~kCqFlags) != 0) {
    return refuse(
        fmt::format("soft0: a completion queue with the fields {:#x} (comp_mask) and "
                    "flags {:#x}; it has {:#x} and {:#x}",
                    init->comp_mask, flags, kCqInitFields, kCqFlags));
  }
  Domain* parent_domain = nullptr;
  if ((init->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0) {
    if (check_valid<Domain>(init->parent_domain) != 0) return nullptr;
    parent_domain = &as_domain(init->parent_domain);
    if (parent_domain->parent == nullptr || init->parent_domain->context != context) {
      fail(EINVAL, "soft0: a completion queue can be of a parent domain of its context only");
      return nullptr;
    }
  }
  if (init->cqe > kMaxCqes || init->comp_vector > 0) {
    fail(EINVAL, fmt::format("soft0: a completion queue of {} CQEs on vector {}: possible are 1 to "
                             "{} CQEs, vector 0",
                             init->cqe, init->comp_vector, kMaxCqes));
    return nullptr;
  }
  ibv_cq* verbs = create_cq(context, static_cast<int>(init->cqe), init->cq_context, init->channel,
                            static_cast<int>(init->comp_vector));
  if (verbs == nullptr) return nullptr;
  Cq& cq = as_cq(verbs);
  if (parent_domain != nullptr) {
    cq.parent_domain = parent_domain;
    parent_domain->users.fetch_add(1);
  }
  // A thread domain is the program's word, too.
  cq.poll.single_threaded = (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0;
  cq.poll.fields = init->wc_flags;
  cq.ignores_overrun = (flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0;
  cq.extended.start_poll = start_poll;
  cq.extended.next_poll = next_poll;
  cq.extended.end_poll = end_poll;
  set_readers(cq.extended);
  add_layers(cq.extended);
  return &cq.extended;
}

void refuse_polls(ibv_cq_ex& shell) {
  shell.start_poll = [](ibv_cq_ex*, ibv_poll_cq_attr*) { return EINVAL; };
  shell.next_poll = [](ibv_cq_ex*) { return EINVAL; };
  shell.end_poll = [](ibv_cq_ex*) {};
  set_readers(shell);
}

int resize_cq(ibv_cq* verbs, int cqe) {
  if (const int error = check_valid<Cq>(verbs); error != 0) return error;
  if (cqe < 1 || static_cast<uint32_t>(cqe) > kMaxCqes) {
    return fail(EINVAL, fmt::format("soft0: a completion queue of {} CQEs: possible are 1 to {}",
                                    cqe, kMaxCqes));
  }
  Cq& cq = as_cq(verbs);
  const OwnerLock::Guard guard(cq.lock);
  if (!cq.completions.resize(static_cast<uint32_t>(cqe))) {
    return fail(EINVAL, fmt::format("soft0: the completion queue holds more than {} completions; "
                                    "poll them first",
                                    cqe));
  }
  cq.verbs.cqe = cqe;
  return 0;
}

int query_rt_values(ibv_context* context, ibv_values_ex* values) {
  if (const int error = check_valid_context(context); error != 0) return error;
  const uint32_t asked = values->comp_mask;
  values->comp_mask = 0;
  if ((asked & IBV_VALUES_MASK_RAW_CLOCK) != 0) {
    // As other devices do: all of it counts the clock's units, which are nanoseconds here.
    values->raw_clock = {.tv_sec = 0, .tv_nsec = static_cast<long>(machine_now_ns())};
    values->comp_mask |= IBV_VALUES_MASK_RAW_CLOCK;
  }
  return asked & ~unsigned{IBV_VALUES_MASK_RAW_CLOCK} ? EINVAL : 0;
}

}  // namespace verbena::soft
