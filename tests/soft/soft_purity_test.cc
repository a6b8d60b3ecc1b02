// After connecting and a warm-up, no verb of the data path enters the kernel or allocates memory.
//
// A child runs each verb in a loop under a seccomp filter that traps every system call of its
// thread, with an allocator that counts. That the net holds is tested too: a loop with one system
// call, or with one allocation, must be found out.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

#if VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER
#define VERBENA_COUNTS_ALLOCATIONS 0
#else
#define VERBENA_COUNTS_ALLOCATIONS 1
#endif

namespace {
thread_local bool counting = false;
thread_local uint64_t allocations = 0;
}  // namespace

#if VERBENA_COUNTS_ALLOCATIONS
// The C library's allocator, with a count; operator new comes here too.
extern "C" {
void* __libc_malloc(size_t);            // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(size_t, size_t);    // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void*, size_t);    // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(size_t, size_t);  // NOLINT(bugprone-reserved-identifier)

void* malloc(size_t size) {
  if (counting) ++allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  if (counting) ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* before, size_t size) {
  if (counting) ++allocations;
  return __libc_realloc(before, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  if (counting) ++allocations;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** result, size_t alignment, size_t size) {
  if (counting) ++allocations;
  *result = __libc_memalign(alignment, size);
  return *result == nullptr ? ENOMEM : 0;
}
}
#endif

namespace verbena::soft_test {
namespace {

// How the measured process ends.
enum Verdict { kPure = 0, kSystemCall = 10, kAllocation = 11, kVerbFailed = 12 };
constexpr int kReport = 777;  // a descriptor that may be written to
// Few, since with fewer cores than processes each answer may take a time slice.
constexpr uint64_t kRounds = 300;
constexpr uint64_t kWarmUpRounds = 50;
constexpr size_t kBufferBytes = 64 * 1024;

std::atomic<int> trapped{-1};

void on_trap(int, siginfo_t* info, void* context) {
  int none = -1;
  trapped.compare_exchange_strong(none, info->si_syscall);
#if defined(__x86_64__)
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = -ENOSYS;
#elif defined(__aarch64__)
  static_cast<ucontext_t*>(context)->uc_mcontext.regs[0] = static_cast<uint64_t>(-ENOSYS);
#endif
}

bool trap_system_calls() {
  struct sigaction action {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  const auto number = static_cast<uint32_t>(offsetof(seccomp_data, nr));
  const auto first = static_cast<uint32_t>(offsetof(seccomp_data, args));
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 5, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, first),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kReport, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = sizeof(program) / sizeof(program[0]), .filter = program};
  // For this thread only: the device's service thread may do what it likes.
  return dup2(STDERR_FILENO, kReport) == kReport && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

[[noreturn]] void end(Verdict verdict, const char* what) {
  counting = false;
  char line[160];
  const int length = snprintf(line, sizeof(line), "%s: system call %d, allocations %llu\n", what,
                              trapped.load(), static_cast<unsigned long long>(allocations));
  if (verdict != kPure && length > 0) {
    [[maybe_unused]] const ssize_t written = write(kReport, line, static_cast<size_t>(length));
  }
  _exit(verdict);
}

// A queue pair for each way in which arrivals are found and receives are kept.
struct Plan {
  bool shared_receives;
  bool with_ready_bit;  // so many other queue pairs on the queue that this one has a ready bit
  bool with_channel;
};

struct Peer {
  QueuePairAddress address;
  Responder::Memory memory;
};

// ibv_post_send and ibv_post_recv without the conveniences that allocate.
struct Poster {
  ibv_qp* qp;
  ibv_srq* srq;
  ibv_cq* cq;
  ibv_sge sge;
  ibv_send_wr wr{};
  ibv_recv_wr receive{};

  bool post(ibv_wr_opcode opcode, size_t size_bytes, unsigned flags) {
    sge.length = static_cast<uint32_t>(size_bytes);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad) == 0;
  }
  bool post_receive(ibv_sge* into) {
    receive.sg_list = into;
    receive.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return (srq != nullptr ? ibv_post_srq_recv(srq, &receive, &bad)
                           : ibv_post_recv(qp, &receive, &bad)) == 0;
  }
  // No waiting but by looking: every other way is a system call.
  bool take(ibv_wc_opcode wanted) {
    ibv_wc wc;
    int got = 0;
    while ((got = ibv_poll_cq(cq, 1, &wc)) == 0) cpu_relax();
    return got == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == wanted;
  }
};

// Two queue pairs of this process that are posted to by ibv_wr_start() and polled by
// ibv_start_poll().
class ExtendedPair {
 public:
  ExtendedPair(const Node& node, Buffer& buffer) : control_(node.control()), buffer_(buffer) {
    ibv_cq_init_attr_ex cq{};
    cq.cqe = 64;
    cq.wc_flags = unsigned{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    cq_ = ibv_create_cq_ex(node.device.get(), &cq);
    ibv_qp_init_attr_ex init{};
    init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq_);
    init.qp_type = IBV_QPT_RC;
    init.cap = {.max_send_wr = 16,
                .max_recv_wr = 16,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 128};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = node.domain.get();
    init.send_ops_flags = unsigned{IBV_QP_EX_WITH_RDMA_WRITE} | IBV_QP_EX_WITH_SEND;
    for (ibv_qp*& qp : qps_) qp = ibv_create_qp_ex(node.device.get(), &init);
    step(0, 1);
    step(1, 0);
    // Its first member is the queue pair.
    batches_ = reinterpret_cast<ibv_qp_ex*>(qps_[0]);
  }
  ~ExtendedPair() {
    for (ibv_qp* qp : qps_) control_.destroy_qp(qp);
    control_.destroy_cq(ibv_cq_ex_to_cq(cq_));
  }

  bool round(uint64_t number) {
    ibv_sge landing = buffer_.sge(2048, 1024);
    ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = &landing, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(qps_[1], &receive, &bad) != 0) return false;
    ibv_wr_start(batches_);
    batches_->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(batches_, buffer_.key(), buffer_.address(1024));
    ibv_wr_set_sge(batches_, buffer_.key(), buffer_.address(), 64);
    ibv_wr_send(batches_);
    if (number % 2 == 0) {
      ibv_wr_set_inline_data(batches_, buffer_.data(), 100);
    } else {
      ibv_wr_set_sge(batches_, buffer_.key(), buffer_.address(), 1000);
    }
    if (ibv_wr_complete(batches_) != 0) return false;
    ibv_poll_cq_attr attributes{};
    for (int left = 3; left > 0;) {
      int error = ibv_start_poll(cq_, &attributes);
      if (error == ENOENT) continue;
      for (; error == 0; error = ibv_next_poll(cq_)) {
        if (cq_->status != IBV_WC_SUCCESS || ibv_wc_read_completion_ts(cq_) == 0) return false;
        --left;
      }
      ibv_end_poll(cq_);
    }
    return true;
  }

 private:
  void step(size_t from, size_t to) {
    ibv_qp_attr attributes{};
    attributes.port_num = 1;
    attributes.qp_access_flags = kAllAccess;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.dest_qp_num = qps_[to]->qp_num;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.dlid = 1;
    attributes.ah_attr.port_num = 1;
    attributes.rnr_retry = 7;
    const std::pair<ibv_qp_state, int> steps[] = {
        {IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
        {IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
        {IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_MAX_QP_RD_ATOMIC}};
    for (const auto& [state, mask] : steps) {
      attributes.qp_state = state;
      EXPECT_EQ(control_.modify_qp(qps_[from], &attributes, mask | IBV_QP_STATE), 0);
    }
  }

  const VerbsControl& control_;
  Buffer& buffer_;
  ibv_cq_ex* cq_ = nullptr;
  ibv_qp* qps_[2] = {};
  ibv_qp_ex* batches_ = nullptr;
};

VERBENA_TEST_CHILD(measured) {
  const std::string& verb = arguments[0];
  const std::string& impurity = arguments[1];
  const auto plan = link.get<Plan>();
  Node node;
  CompletionChannel channel = must(CompletionChannel::create(node.device));
  CompletionQueue cq = must(CompletionQueue::create(
      node.device, {.depth_cqes = 256, .channel = plan.with_channel ? &channel : nullptr}));
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 64}));
  std::vector<std::unique_ptr<End>> others;
  for (int i = 0; plan.with_ready_bit && i < 20; ++i) {
    others.push_back(std::make_unique<End>(node, EndOptions{.send_cq = &cq, .recv_cq = &cq}));
  }
  End end(node, {.send_cq = &cq,
                 .recv_cq = &cq,
                 .shared_receive_queue = plan.shared_receives ? &srq : nullptr});
  Buffer buffer(node.domain, kBufferBytes);
  link.put(Peer{end.address(), {buffer.address(), buffer.key()}});
  const auto peer = link.get<Peer>();
  end.connect(peer.address);
  Poster poster{.qp = end.qp(),
                .srq = plan.shared_receives ? srq.get() : nullptr,
                .cq = cq.get(),
                .sge = buffer.sge(0, 8)};
  ibv_sge landing = buffer.sge(kBufferBytes / 2, kBufferBytes / 2);
  for (int i = 0; i < 16; ++i) {
    if (!poster.post_receive(&landing)) return kVerbFailed;
  }
  link.put(true);
  link.get<bool>();

  ExtendedPair extended(node, buffer);
  const bool atomic = verb == "fetch_and_add" || verb == "compare_and_swap";
  if (atomic) {
    poster.wr.wr.atomic = {
        .remote_addr = peer.memory.address, .compare_add = 1, .swap = 2, .rkey = peer.memory.key};
  } else {
    poster.wr.wr.rdma = {.remote_addr = peer.memory.address, .rkey = peer.memory.key};
  }
  const auto round = [&](uint64_t number) -> bool {
    const size_t sizes[] = {8, 100, 1000, 16 * 1024};
    const size_t size = atomic ? 8 : sizes[number % 4];
    const unsigned inlined = size <= 100 && number % 3 == 0 ? unsigned{IBV_SEND_INLINE} : 0u;
    if (impurity == "system_call" && number == kRounds / 2) syscall(SYS_getppid);
    if (impurity == "allocation" && number == kRounds / 2) {
      void* volatile wasted = malloc(1);
      free(wasted);
    }
    if (verb == "extended") return extended.round(number);
    if (verb == "write") {
      // Most of them silent.
      const bool signaled = number % 16 == 15;
      return poster.post(IBV_WR_RDMA_WRITE, size, inlined | signaled_if(signaled)) &&
             (!signaled || poster.take(IBV_WC_RDMA_WRITE));
    }
    if (verb == "read") {
      return poster.post(IBV_WR_RDMA_READ, size, IBV_SEND_SIGNALED) &&
             poster.take(IBV_WC_RDMA_READ);
    }
    if (verb == "fetch_and_add") {
      return poster.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_SEND_SIGNALED) &&
             poster.take(IBV_WC_FETCH_ADD);
    }
    if (verb == "compare_and_swap") {
      return poster.post(IBV_WR_ATOMIC_CMP_AND_SWP, 8, IBV_SEND_SIGNALED) &&
             poster.take(IBV_WC_COMP_SWAP);
    }
    // There and back again; the peer answers in kind.
    const bool with_write = verb == "write_with_immediate";
    const bool sent = poster.post(with_write ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND, size,
                                  inlined | IBV_SEND_SIGNALED);
    return sent && poster.take(with_write ? IBV_WC_RDMA_WRITE : IBV_WC_SEND) &&
           poster.take(with_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) &&
           poster.post_receive(&landing);
  };
  for (uint64_t number = 0; number < kWarmUpRounds; ++number) {
    if (!round(number)) return kVerbFailed;
  }
  if (!trap_system_calls()) return kVerbFailed;
  counting = true;
  for (uint64_t number = 0; number < kRounds; ++number) {
    if (!round(number)) soft_test::end(kVerbFailed, verb.c_str());
  }
  counting = false;
  soft_test::end(trapped >= 0 ? kSystemCall : allocations > 0 ? kAllocation : kPure, verb.c_str());
}

// Answers what arrives until the child has ended; returns how it ended.
int measure(const std::string& verb, const Plan& plan, const std::string& impurity) {
  Node node;
  End end(node, {.recv_depth = 32});
  Buffer buffer(node.domain, kBufferBytes);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(post_receive(end.qp(), 0, {buffer.sge(kBufferBytes / 2, kBufferBytes / 2)}), 0);
  }
  Child child("measured", {verb, impurity});
  child.link().put(plan);
  const auto peer = child.link().get<Peer>();
  end.connect(peer.address);
  child.link().put(Peer{end.address(), {buffer.address(), buffer.key()}});
  child.link().get<bool>();
  child.link().put(true);
  const bool with_write = verb == "write_with_immediate";
  Deadline deadline;
  while (!child.link().readable()) {
    ibv_wc wc;
    const int got = ibv_poll_cq(end.cq(), 1, &wc);
    if (got == 0) {
      if (!deadline.wait()) break;
      continue;
    }
    if (wc.status != IBV_WC_SUCCESS) break;
    if (wc.opcode != IBV_WC_RECV && wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM) continue;
    EXPECT_EQ(post_receive(end.qp(), 0, {buffer.sge(kBufferBytes / 2, kBufferBytes / 2)}), 0);
    EXPECT_EQ(post(end.qp(), {.opcode = with_write ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND,
                              .sges = {buffer.sge(0, wc.byte_len)},
                              .remote_address = peer.memory.address,
                              .rkey = peer.memory.key}),
              0);
  }
  return child.wait();
}

struct Case {
  const char* verb;
  Plan plan;
};

std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.verb << (one.plan.shared_receives ? "_shared" : "")
             << (one.plan.with_ready_bit ? "_with_ready_bit" : "")
             << (one.plan.with_channel ? "_with_channel" : "");
}

class PurityTest : public testing::TestWithParam<Case> {};

constexpr Case kCases[] = {
    {"write", {false, false, false}},
    {"read", {false, false, false}},
    {"fetch_and_add", {false, false, false}},
    {"compare_and_swap", {false, false, false}},
    {"send", {false, false, false}},
    {"send", {true, false, false}},
    {"send", {false, true, false}},
    {"send", {true, true, true}},
    {"write_with_immediate", {false, false, false}},
    {"write_with_immediate", {true, false, true}},
    {"extended", {false, false, false}},
};

INSTANTIATE_TEST_SUITE_P(Verbs, PurityTest, testing::ValuesIn(kCases),
                         testing::PrintToStringParamName());

// A sanitizer has the allocator, and its runtime enters the kernel at every call of _exit().
#define SKIP_WITH_SANITIZER() \
  if (!VERBENA_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer makes system calls of its own"

TEST_P(PurityTest, NeitherSystemCallsNorAllocations) {
  SKIP_WITH_SANITIZER();
  EXPECT_EQ(measure(GetParam().verb, GetParam().plan, "none"), kPure);
}

TEST(PurityNetTest, OneSystemCallIsFound) {
  SKIP_WITH_SANITIZER();
  EXPECT_EQ(measure("write", {}, "system_call"), kSystemCall);
}

TEST(PurityNetTest, OneAllocationIsFound) {
  SKIP_WITH_SANITIZER();
  EXPECT_EQ(measure("send", {}, "allocation"), kAllocation);
}

}  // namespace
}  // namespace verbena::soft_test
