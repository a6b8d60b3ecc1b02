// What observe_test.cc looks at from outside:
//
//   observe_process requests        one request of each kind over RC, UC and UD, in a fixed order
//   observe_process writes COUNT    so many WRITEs of 64 B, then waits to be killed
//   observe_process transports      a queue pair of each, then waits to be killed
//   observe_process threads COUNT   the same from each of four threads, then in a forked child
//   observe_process refused         requests that soft0 refuses
//   observe_process early           a request before RTS, which is refused, then a WRITE
//   observe_process networks        a context in a network that loses all, then one without any
//   observe_process gone            posts to objects that were destroyed with their context
#include <infiniband/verbs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "src/base/sanitizer.h"
#include "src/device/soft_library.h"
#include "src/device/verbs_for_test.h"

namespace {

using verbena::test::Buffer;
using verbena::test::must;
using verbena::test::Node;
using verbena::test::post;
using verbena::test::post_receive;
using verbena::test::SendRequest;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "process %d: %s (errno: %s)\n", getpid(), what, std::strerror(errno));
  std::exit(1);
}
#define REQUIRE(condition) require((condition), #condition)

constexpr uint32_t kQkey = 0x1234;
bool posts_early = false;  // also before queue pairs are in RTS

// Two queue pairs of one type, connected to each other.
struct Pair {
  Pair(const Node& used, ibv_qp_type type, uint64_t operations = 0) : node(used) {
    ibv_context* context = node.device.get();
    ibv_cq_init_attr_ex cq_init{};
    cq_init.cqe = 128;
    cq_init.wc_flags = IBV_WC_STANDARD_FLAGS;
    cq = ibv_create_cq_ex(context, &cq_init);
    REQUIRE(cq != nullptr);
    for (ibv_qp*& qp : qps) {
      ibv_qp_init_attr_ex init{};
      init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
      init.qp_type = type;
      init.cap = {.max_send_wr = 64,
                  .max_recv_wr = 64,
                  .max_send_sge = 2,
                  .max_recv_sge = 2,
                  .max_inline_data = 64};
      // With the domain alone verbs.h asks libibverbs, which does not know the device.
      init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
      if (operations != 0) init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      init.send_ops_flags = operations;
      init.pd = node.domain.get();
      qp = ibv_create_qp_ex(context, &init);
      REQUIRE(qp != nullptr);
    }
    connect(qps[0], qps[1]->qp_num, type);
    connect(qps[1], qps[0]->qp_num, type);
  }
  ~Pair() {
    for (ibv_qp* qp : qps) node.control().destroy_qp(qp);
    node.control().destroy_cq(ibv_cq_ex_to_cq(cq));
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  void connect(ibv_qp* qp, uint32_t to, ibv_qp_type type) const {
    const bool reliable = type == IBV_QPT_RC;
    const bool datagram = type == IBV_QPT_UD;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qkey = kQkey;
    attributes.qp_access_flags =
        reliable ? verbena::test::kAllAccess : unsigned{IBV_ACCESS_REMOTE_WRITE};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    mask |= datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    REQUIRE(node.control().modify_qp(qp, &attributes, mask) == 0);
    if (posts_early) REQUIRE(post(qp, {.id = 1}) == EINVAL);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = to;
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.dlid = 1;
    attributes.ah_attr.port_num = 1;
    mask = IBV_QP_STATE;
    if (!datagram) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (reliable) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    REQUIRE(node.control().modify_qp(qp, &attributes, mask) == 0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = 0xfffffe;
    attributes.max_rd_atomic = 4;
    attributes.rnr_retry = 7;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (reliable) {
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    REQUIRE(node.control().modify_qp(qp, &attributes, mask) == 0);
  }
  // So many completions.
  void take(int count) const {
    for (ibv_wc wc{}; count > 0;) count -= std::max(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc), 0);
  }

  const Node& node;
  ibv_cq_ex* cq = nullptr;
  ibv_qp* qps[2] = {};
};

constexpr size_t kTargetAt = 8192;
constexpr size_t kReceiveAt = 16384;

void reliable_requests(const Node& node, Buffer& buffer) {
  const Pair pair(node, IBV_QPT_RC, IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE);
  ibv_qp* qp = pair.qps[0];
  std::printf("rc %u %u %llu %u\n", qp->qp_num, pair.qps[1]->qp_num,
              static_cast<unsigned long long>(buffer.address(kTargetAt)), buffer.key());
  const auto remote = [&](SendRequest request) {
    request.remote_address = buffer.address(kTargetAt);
    request.rkey = request.rkey != 0 ? request.rkey : buffer.key();
    REQUIRE(post(qp, std::move(request)) == 0);
  };
  for (uint64_t id = 100; id < 105; ++id) {
    REQUIRE(post_receive(pair.qps[1], id, {buffer.sge(kReceiveAt, 4096)}) == 0);
  }
  remote({.id = 1, .opcode = IBV_WR_SEND, .sges = {buffer.sge(0, 10)}});
  pair.take(2);
  remote({.id = 2, .opcode = IBV_WR_RDMA_WRITE, .sges = {buffer.sge(0, 2500)}, .flags = 0});
  remote({.id = 3,
          .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
          .sges = {buffer.sge(0, 5), buffer.sge(5, 3)},
          .immediate = 0x04030201});
  pair.take(2);
  remote({.id = 4, .opcode = IBV_WR_RDMA_READ, .sges = {buffer.sge(4096, 2500)}});
  pair.take(1);
  buffer.at<uint64_t>(kTargetAt) = 0x0102030405060708;
  remote({.id = 5,
          .opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
          .sges = {buffer.sge(4096, 8)},
          .compare_add = 0x0102030405060708,
          .swap = 77});
  remote({.id = 6,
          .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
          .sges = {buffer.sge(4096, 8)},
          .compare_add = 3});
  pair.take(2);
  remote({.id = 7,
          .opcode = IBV_WR_SEND_WITH_IMM,
          .sges = {buffer.sge(0, 1025)},
          .flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
          .immediate = 0x04030201});
  pair.take(2);
  remote({.id = 8,
          .opcode = IBV_WR_SEND,
          .sges = {buffer.sge(0, 5)},
          .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE});
  pair.take(2);
  // By the extended verbs.
  auto rnic = must(verbena::load_soft_rnic());
  ibv_qp_ex* extended = rnic->extended->qp_to_qp_ex(qp);
  REQUIRE(extended != nullptr);
  ibv_wr_start(extended);
  extended->wr_flags = IBV_SEND_SIGNALED;
  extended->wr_id = 9;
  ibv_wr_send_imm(extended, 0x04030201);
  ibv_wr_set_sge(extended, buffer.key(), buffer.address(), 16);
  extended->wr_id = 10;
  ibv_wr_rdma_write(extended, buffer.key(), buffer.address(kTargetAt));
  ibv_wr_set_sge(extended, buffer.key(), buffer.address(), 0);
  REQUIRE(ibv_wr_complete(extended) == 0);
  ibv_poll_cq_attr attributes{};
  int polled = 0;
  REQUIRE(ibv_start_poll(pair.cq, &attributes) == 0);
  do ++polled;
  while (polled < 3 && ibv_next_poll(pair.cq) == 0);
  ibv_end_poll(pair.cq);
  REQUIRE(polled == 3);
  // Of a batch that is refused nothing is seen.
  ibv_wr_start(extended);
  ibv_wr_rdma_write(extended, buffer.key(), buffer.address(kTargetAt));
  ibv_wr_rdma_read(extended, buffer.key(), buffer.address(kTargetAt));
  REQUIRE(ibv_wr_complete(extended) != 0);
  // Nor of one that is refused behind others.
  std::vector<ibv_sge> sges = {buffer.sge(0, 4)};
  SendRequest good{.id = 11, .opcode = IBV_WR_RDMA_WRITE, .sges = sges};
  good.remote_address = buffer.address(kTargetAt);
  good.rkey = buffer.key();
  ibv_send_wr first = to_wr(good);
  ibv_send_wr second = to_wr(good);
  second.num_sge = 100;
  first.next = &second;
  ibv_send_wr* bad = nullptr;
  REQUIRE(ibv_post_send(qp, &first, &bad) == EINVAL && bad == &second);
  pair.take(1);
  remote({.id = 12, .opcode = IBV_WR_RDMA_WRITE, .sges = {buffer.sge(0, 4)}, .rkey = 0x7fffff00});
  remote({.id = 13, .opcode = IBV_WR_RDMA_WRITE, .sges = {buffer.sge(0, 4)}});
  pair.take(2);
}

void unreliable_requests(const Node& node, Buffer& buffer) {
  const Pair pair(node, IBV_QPT_UC);
  ibv_qp* qp = pair.qps[0];
  std::printf("uc %u %u\n", qp->qp_num, pair.qps[1]->qp_num);
  REQUIRE(post_receive(pair.qps[1], 100, {buffer.sge(kReceiveAt, 4096)}) == 0);
  SendRequest write{.id = 1, .opcode = IBV_WR_RDMA_WRITE, .sges = {buffer.sge(0, 1500)}};
  write.remote_address = buffer.address(kTargetAt);
  write.rkey = buffer.key();
  REQUIRE(post(qp, write) == 0);
  REQUIRE(post(qp, {.id = 2,
                    .opcode = IBV_WR_SEND_WITH_IMM,
                    .sges = {buffer.sge(0, 1)},
                    .immediate = 0x04030201}) == 0);
  pair.take(3);
  // Nobody polls this one.
  REQUIRE(post(qp, {.id = 3, .opcode = IBV_WR_SEND, .sges = {buffer.sge(0, 2)}, .flags = 0}) == 0);
}

void datagrams(const Node& node, Buffer& buffer) {
  const Pair pair(node, IBV_QPT_UD);
  ibv_qp* qp = pair.qps[0];
  std::printf("ud %u %u\n", qp->qp_num, pair.qps[1]->qp_num);
  auto rnic = must(verbena::load_soft_rnic());
  ibv_ah_attr address{};
  address.dlid = 1;
  address.port_num = 1;
  ibv_ah* handle = rnic->datagrams->create_ah(node.domain.get(), &address);
  REQUIRE(handle != nullptr);
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM}) {
    REQUIRE(post_receive(pair.qps[1], 100, {buffer.sge(kReceiveAt, 4096)}) == 0);
    ibv_sge sge = buffer.sge(0, 33);
    ibv_send_wr wr{};
    wr.wr_id = opcode;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = 0x04030201;
    wr.wr.ud = {.ah = handle, .remote_qpn = pair.qps[1]->qp_num, .remote_qkey = kQkey};
    ibv_send_wr* bad = nullptr;
    REQUIRE(ibv_post_send(qp, &wr, &bad) == 0);
    pair.take(2);
  }
  REQUIRE(rnic->datagrams->destroy_ah(handle) == 0);
}

void write_often(const Node& node, Buffer& buffer, uint64_t count) {
  const Pair pair(node, IBV_QPT_RC);
  SendRequest request{.opcode = IBV_WR_RDMA_WRITE, .sges = {buffer.sge(0, 64)}};
  request.remote_address = buffer.address(kTargetAt);
  request.rkey = buffer.key();
  for (uint64_t i = 0; i < count; ++i) {
    request.id = i;
    REQUIRE(post(pair.qps[0], request) == 0);
    pair.take(1);
  }
}

void write_from_threads(uint64_t count) {
  const Node node;
  Buffer buffer(node, 65536);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { write_often(node, buffer, count); });
  }
  for (std::thread& thread : threads) thread.join();
}

void refused(const Node& node, Buffer& buffer) {
  const Pair pair(node, IBV_QPT_RC);
  REQUIRE(post(pair.qps[0], {.id = 21, .sges = {buffer.sge(0, 65)}, .flags = IBV_SEND_INLINE}) ==
          EINVAL);
  REQUIRE(post(pair.qps[0],
               {.id = 22, .sges = {buffer.sge(0, 1), buffer.sge(0, 1), buffer.sge(0, 1)}}) ==
          EINVAL);
  REQUIRE(post_receive(pair.qps[0], 23, {buffer.sge(0, 1), buffer.sge(0, 1), buffer.sge(0, 1)}) ==
          EINVAL);
  // More than are said in a second.
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(post(pair.qps[0], {.id = 24,
                               .opcode = IBV_WR_RDMA_READ,
                               .sges = {buffer.sge(0, 1)},
                               .flags = IBV_SEND_INLINE}) == EINVAL);
  }
}

void write_after_early_post(const Node& node, Buffer& buffer) {
  posts_early = true;
  const Pair pair(node, IBV_QPT_RC);
  SendRequest request{.id = 2, .opcode = IBV_WR_RDMA_WRITE, .sges = {buffer.sge(0, 8)}};
  request.remote_address = buffer.address(kTargetAt);
  request.rkey = buffer.key();
  REQUIRE(post(pair.qps[0], std::move(request)) == 0);
  pair.take(1);
}

void make_each_transport(const Node& node) {
  ibv_cq* const cq = node.control().create_cq(node.device.get(), 1, nullptr, nullptr, 0);
  REQUIRE(cq != nullptr);
  for (const ibv_qp_type type :
       {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QPT_RAW_PACKET}) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = type;
    init.cap = {.max_send_wr = 1,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    REQUIRE(node.control().create_qp(node.domain.get(), &init) != nullptr);
  }
}

// Opened one after the other, each has what it was opened with.
void networks() {
  setenv("VERBENA_FAULT", "drop=1", 1);
  const Node lossy;
  unsetenv("VERBENA_FAULT");
  const Node plain;
  for (const Node* node : {&lossy, &plain}) {
    Buffer buffer(*node, 65536);
    buffer.at<uint64_t>(0) = 1;
    const Pair pair(*node, IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE);
    SendRequest request{.opcode = IBV_WR_RDMA_WRITE, .sges = {buffer.sge(0, 8)}};
    request.remote_address = buffer.address(kTargetAt);
    request.rkey = buffer.key();
    REQUIRE(post(pair.qps[0], request) == 0);
    REQUIRE(buffer.at<uint64_t>(kTargetAt) == (node == &plain ? 1 : 0));
  }
}

// All fail, whatever stands in front of soft0.
void gone() {
  ibv_cq_ex* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_qp_ex* extended = nullptr;
  {
    const Node node;
    const Pair pair(node, IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE);
    cq = pair.cq;
    qp = pair.qps[0];
    extended = reinterpret_cast<ibv_qp_ex*>(qp);  // libibverbs does not know soft0's
  }
  ibv_send_wr send{};
  ibv_send_wr* bad_send = nullptr;
  REQUIRE(ibv_post_send(qp, &send, &bad_send) != 0);
  ibv_recv_wr receive{};
  ibv_recv_wr* bad_receive = nullptr;
  REQUIRE(ibv_post_recv(qp, &receive, &bad_receive) != 0);
  ibv_wr_start(extended);
  REQUIRE(ibv_wr_complete(extended) != 0);
  ibv_wc completion{};
  REQUIRE(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &completion) < 0);
  ibv_poll_cq_attr attributes{};
  REQUIRE(ibv_start_poll(cq, &attributes) != 0);
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE(argc >= 2);
  const std::string what = argv[1];
  const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (what == "threads") {
    write_from_threads(count);
    const pid_t child = fork();
    if (child == 0) {
      write_from_threads(count);
      std::exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status));
    // What the child has of its parent's memory, a leak check of the child cannot find.
    REQUIRE(WEXITSTATUS(status) == 0 || VERBENA_ADDRESS_SANITIZER);
    return 0;
  }
  if (what == "networks") {
    networks();
    return 0;
  }
  if (what == "gone") {
    gone();
    return 0;
  }
  const Node node;
  Buffer buffer(node, 65536);
  buffer.fill(1, 0, 8192);
  if (what == "requests") {
    reliable_requests(node, buffer);
    unreliable_requests(node, buffer);
    datagrams(node, buffer);
  } else if (what == "writes") {
    const Pair kept(node, IBV_QPT_RC);
    write_often(node, buffer, count);
    std::printf("done\n");
    std::fflush(stdout);
    pause();
  } else if (what == "transports") {
    make_each_transport(node);
    std::printf("done\n");
    std::fflush(stdout);
    pause();
  } else if (what == "early") {
    write_after_early_post(node, buffer);
  } else if (what == "refused") {
    refused(node, buffer);
  }
  return 0;
}
