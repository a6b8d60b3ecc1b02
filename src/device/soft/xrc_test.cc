// Extended reliable connections within one process, and what soft0 does when another one dies.
#include "src/device/soft/xrc.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "src/base/runtime.h"
#include "src/device/soft/control.h"
#include "src/device/soft/datagram_end_for_test.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/no_descriptors_for_test.h"
#include "src/device/soft/peer_receives.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

using verbena::test::Buffer;
using verbena::test::Node;
using verbena::test::SendRequest;

constexpr size_t kXrcReceiveAt = 512 * 1024;
constexpr size_t kXrcReceiveBytes = 128 * 1024;
// No process has it.
constexpr uint32_t kDeadSlot = kMaxProcesses - 1;

ibv_xrcd* open_domain(ibv_context* context, int fd, int flags) {
  ibv_xrcd_init_attr init{};
  init.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  init.fd = fd;
  init.oflags = flags;
  errno = 0;
  return ibv_open_xrcd(context, &init);
}

// A file of this test's own that is gone at its end.
class DomainFile {
 public:
  DomainFile() {
    char name[] = "/tmp/verbena-xrc-XXXXXX";
    fd_ = mkstemp(name);
    if (fd_ < 0) std::abort();
    unlink(name);
  }
  DomainFile(const DomainFile&) = delete;
  DomainFile& operator=(const DomainFile&) = delete;
  ~DomainFile() { close(fd_); }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// A shared receive queue with a completion queue of its own.
class XrcQueueEnd {
 public:
  XrcQueueEnd(const Node& node, ibv_xrcd* domain, uint32_t depth = 8,
              ibv_comp_channel* channel = nullptr)
      : context_(node.domain.get()->context) {
    cq_ = create_cq(context_, 64, nullptr, channel, 0);
    ibv_srq_init_attr_ex init{};
    init.attr = {.max_wr = depth, .max_sge = 2, .srq_limit = 0};
    init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
                     IBV_SRQ_INIT_ATTR_XRCD;
    init.srq_type = IBV_SRQT_XRC;
    init.pd = node.domain.get();
    init.xrcd = domain;
    init.cq = cq_;
    srq_ = ibv_create_srq_ex(context_, &init);
    if (srq_ == nullptr || ibv_get_srq_num(srq_, &number_) != 0) std::abort();
  }
  XrcQueueEnd(const XrcQueueEnd&) = delete;
  XrcQueueEnd& operator=(const XrcQueueEnd&) = delete;
  ~XrcQueueEnd() {
    EXPECT_TRUE(srq_ == nullptr || destroy_srq(srq_) == 0);
    EXPECT_EQ(destroy_cq(cq_), 0);
  }
  uint32_t number() const { return number_; }
  ibv_srq* srq() const { return srq_; }
  ibv_cq* cq() const { return cq_; }
  int destroy() {
    const int error = destroy_srq(srq_);
    if (error == 0) srq_ = nullptr;
    return error;
  }
  int post(uint64_t id, ibv_sge sge) {
    ibv_recv_wr wr{};
    ibv_recv_wr* bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    return ibv_post_srq_recv(srq_, &wr, &bad);
  }
  // Within one process everything is there when the post returns.
  ibv_wc take() {
    ibv_wc wc{};
    wc.status = IBV_WC_GENERAL_ERR;
    EXPECT_EQ(ibv_poll_cq(cq_, 1, &wc), 1);
    return wc;
  }
  bool is_empty() {
    ibv_wc wc;
    return ibv_poll_cq(cq_, 1, &wc) == 0;
  }

 private:
  ibv_context* context_;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  uint32_t number_ = 0;
};

// An initiator and the target that it is connected to.
class XrcConnection {
 public:
  XrcConnection(const Node& node, ibv_xrcd* domain, uint8_t rnr_retry = 7) {
    ibv_context* context = node.domain.get()->context;
    cq_ = create_cq(context, 64, nullptr, nullptr, 0);
    ibv_qp_init_attr_ex init{};
    init.qp_type = IBV_QPT_XRC_RECV;
    init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    init.xrcd = domain;
    target_ = ibv_create_qp_ex(context, &init);
    init = {};
    init.qp_type = IBV_QPT_XRC_SEND;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    init.pd = node.domain.get();
    init.send_cq = cq_;
    init.cap = {.max_send_wr = 32,
                .max_recv_wr = 0,
                .max_send_sge = 2,
                .max_recv_sge = 0,
                .max_inline_data = 64};
    initiator_ = ibv_create_qp_ex(context, &init);
    if (target_ == nullptr || initiator_ == nullptr) std::abort();
    connect(rnr_retry);
  }
  XrcConnection(const XrcConnection&) = delete;
  XrcConnection& operator=(const XrcConnection&) = delete;
  ~XrcConnection() {
    EXPECT_EQ(destroy_qp(initiator_), 0);
    EXPECT_EQ(destroy_qp(target_), 0);
    EXPECT_EQ(destroy_cq(cq_), 0);
  }
  ibv_qp* target() const { return target_; }
  ibv_qp* initiator() const { return initiator_; }
  ibv_qp_state target_state() const { return as_qp(target_).state.load(); }

  int send(SendRequest request, uint32_t number) {
    ibv_send_wr wr{};
    ibv_send_wr* bad = nullptr;
    wr.wr_id = ++last_id_;
    wr.sg_list = request.sges.data();
    wr.num_sge = static_cast<int>(request.sges.size());
    wr.opcode = request.opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = request.immediate;
    if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic = {request.remote_address, 5, 0, request.rkey};
    } else {
      wr.wr.rdma = {request.remote_address, request.rkey};
    }
    wr.qp_type.xrc.remote_srqn = number;
    return ibv_post_send(initiator_, &wr, &bad);
  }
  ibv_wc take() {
    ibv_wc wc{};
    wc.status = IBV_WC_GENERAL_ERR;
    EXPECT_EQ(ibv_poll_cq(cq_, 1, &wc), 1);
    return wc;
  }
  ibv_wc wait() {
    constexpr uint64_t kPatienceNs = 120'000'000'000;
    const uint64_t start_ns = now_ns();
    ibv_wc wc{};
    wc.status = IBV_WC_GENERAL_ERR;
    for (Waiter waiter; ibv_poll_cq(cq_, 1, &wc) == 0; waiter.idle()) {
      if (now_ns() - start_ns > kPatienceNs) break;
    }
    return wc;
  }

 private:
  void connect(uint8_t rnr_retry) {
    ibv_qp_attr attributes{};
    const auto move = [&](ibv_qp* qp, ibv_qp_state state, int mask) {
      attributes.qp_state = state;
      if (modify_qp(qp, &attributes, IBV_QP_STATE | mask) != 0) std::abort();
    };
    constexpr int kToInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    constexpr int kToReady = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    attributes.port_num = 1;
    attributes.qp_access_flags = verbena::test::kAllAccess;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.min_rnr_timer = 1;
    attributes.max_rd_atomic = 1;
    attributes.timeout = 10;
    attributes.rnr_retry = rnr_retry;
    move(target_, IBV_QPS_INIT, kToInit);
    move(initiator_, IBV_QPS_INIT, kToInit);
    attributes.dest_qp_num = initiator_->qp_num;
    move(target_, IBV_QPS_RTR, kToReady | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attributes.dest_qp_num = target_->qp_num;
    move(initiator_, IBV_QPS_RTR, kToReady);
    move(initiator_, IBV_QPS_RTS,
         IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
             IBV_QP_MAX_QP_RD_ATOMIC);
  }
  ibv_cq* cq_ = nullptr;
  ibv_qp* target_ = nullptr;
  ibv_qp* initiator_ = nullptr;
  uint64_t last_id_ = 0;
};

class XrcTest : public testing::Test {
 protected:
  void SetUp() override {
    domain_ = open_domain(context(), -1, 0);
    ASSERT_NE(domain_, nullptr) << last_error();
    buffer_.fill(3, 0, 128 * 1024);
  }
  void TearDown() override {
    if (domain_ == nullptr) return;
    EXPECT_EQ(ibv_close_xrcd(domain_), 0) << last_error();
  }
  ibv_context* context() const { return node_.domain.get()->context; }
  SendRequest message(size_t size_bytes, ibv_wr_opcode opcode = IBV_WR_SEND) {
    return {.opcode = opcode,
            .sges = {buffer_.sge(0, size_bytes)},
            .remote_address = buffer_.address(kXrcReceiveAt),
            .rkey = buffer_.key(),
            .immediate = 77};
  }
  ibv_sge room() { return buffer_.sge(kXrcReceiveAt, kXrcReceiveBytes); }
  // A connection's target fails by the service thread, which was woken.
  static void await_failed(const XrcConnection& connection) {
    constexpr uint64_t kPatienceNs = 120'000'000'000;
    const uint64_t start_ns = now_ns();
    for (Waiter waiter; connection.target_state() != IBV_QPS_ERR; waiter.idle()) {
      ASSERT_LT(now_ns() - start_ns, kPatienceNs);
    }
  }
  Node node_;
  Buffer buffer_{node_, 1024 * 1024};
  ibv_xrcd* domain_ = nullptr;
};

TEST_F(XrcTest, TheDeviceSaysThatItHasIt) {
  ibv_device_attr attributes{};
  ASSERT_EQ(query_device(context(), &attributes), 0);
  EXPECT_NE(attributes.device_cap_flags & IBV_DEVICE_XRC, 0u);
}

TEST_F(XrcTest, DomainsAreThoseOfTheirFile) {
  const DomainFile file;
  EXPECT_EQ(open_domain(context(), file.fd(), 0), nullptr);
  EXPECT_EQ(errno, EAGAIN);
  ibv_xrcd* first = open_domain(context(), file.fd(), O_CREAT | O_EXCL);
  ASSERT_NE(first, nullptr) << last_error();
  EXPECT_EQ(open_domain(context(), file.fd(), O_CREAT | O_EXCL), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_xrcd* second = open_domain(context(), file.fd(), 0);
  ASSERT_NE(second, nullptr) << last_error();
  EXPECT_EQ(as_xrc_domain(first).id, as_xrc_domain(second).id);
  EXPECT_NE(as_xrc_domain(first).id, as_xrc_domain(domain_).id);
  EXPECT_EQ(ibv_close_xrcd(first), 0);
  EXPECT_EQ(ibv_close_xrcd(first), EINVAL);
  first = open_domain(context(), file.fd(), 0);
  EXPECT_NE(first, nullptr);  // the other one has it open still
  EXPECT_EQ(ibv_close_xrcd(first), 0);
  EXPECT_EQ(ibv_close_xrcd(second), 0);
  EXPECT_EQ(open_domain(context(), file.fd(), 0), nullptr);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(open_domain(context(), 1 << 20, O_CREAT), nullptr);
  EXPECT_EQ(errno, EBADF);
  ibv_xrcd_init_attr without_fields{};
  EXPECT_EQ(ibv_open_xrcd(context(), &without_fields), nullptr);
}

TEST_F(XrcTest, AForkedChildKeepsNoDomainOpen) {
  const DomainFile file;
  ibv_xrcd* opened = open_domain(context(), file.fd(), O_CREAT | O_EXCL);
  ASSERT_NE(opened, nullptr) << last_error();
  const int lock_fd = as_xrc_domain(opened).lock_fd;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const bool keeps = fcntl(lock_fd, F_GETFD) != -1;
    // Until the parent has closed its end.
    char byte;
    ::close(ends[1]);
    _exit(!keeps && read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  // The child may not have run yet.
  EXPECT_EQ(ibv_close_xrcd(opened), 0);
  opened = open_domain(context(), file.fd(), O_CREAT | O_EXCL);
  const std::string refused = opened == nullptr ? last_error() : "";
  ::close(ends[1]);
  ::close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_NE(opened, nullptr) << refused;
  EXPECT_EQ(ibv_close_xrcd(opened), 0);
}

TEST_F(XrcTest, ObjectsAreDestroyedInOrder) {
  XrcQueueEnd queue(node_, domain_);
  EXPECT_EQ(ibv_close_xrcd(domain_), EBUSY);
  EXPECT_EQ(destroy_cq(queue.cq()), EBUSY);
  ASSERT_EQ(queue.destroy(), 0);
  {
    const XrcConnection connection(node_, domain_);
    EXPECT_EQ(ibv_close_xrcd(domain_), EBUSY);
    EXPECT_EQ(connection.target()->pd, nullptr);
    EXPECT_EQ(connection.target()->recv_cq, nullptr);
  }
  ibv_qp_open_attr opened{};
  EXPECT_EQ(ibv_open_qp(context(), &opened), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

// As a kernel's devices do: perftest and librdmacm give both ends what RC has.
TEST_F(XrcTest, IgnoresAttributesOfTheOtherHalfOfAConnection) {
  ibv_context* context = node_.domain.get()->context;
  ibv_cq* cq = create_cq(context, 8, nullptr, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  for (const ibv_qp_type type : {IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV}) {
    ibv_qp_init_attr_ex init{};
    init.qp_type = type;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
    init.pd = node_.domain.get();
    init.xrcd = domain_;
    init.send_cq = cq;
    init.cap.max_send_wr = 1;
    init.cap.max_send_sge = 1;
    ibv_qp* qp = ibv_create_qp_ex(context, &init);
    ASSERT_NE(qp, nullptr) << last_error();
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    EXPECT_EQ(modify_qp(qp, &attributes,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0)
        << last_error();
    // What is ignored need not be possible either.
    const bool sends = type == IBV_QPT_XRC_SEND;
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = qp->qp_num;
    attributes.min_rnr_timer = sends ? 99 : 3;
    attributes.max_dest_rd_atomic = sends ? 255 : 5;
    EXPECT_EQ(modify_qp(qp, &attributes,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0)
        << last_error();
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = sends ? 6 : 99;
    attributes.rnr_retry = sends ? 4 : 99;
    attributes.max_rd_atomic = sends ? 2 : 255;
    EXPECT_EQ(modify_qp(qp, &attributes,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
              0)
        << last_error();
    ibv_qp_init_attr kept_init;
    ibv_qp_attr kept{};
    ASSERT_EQ(query_qp(qp, &kept, 0, &kept_init), 0);
    EXPECT_EQ(kept.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(kept.min_rnr_timer, sends ? 0 : 3);
    EXPECT_EQ(kept.max_dest_rd_atomic, sends ? 0 : 5);
    EXPECT_EQ(kept.retry_cnt, sends ? 6 : 0);
    EXPECT_EQ(kept.rnr_retry, sends ? 4 : 0);
    EXPECT_EQ(kept.max_rd_atomic, sends ? 2 : 0);
    EXPECT_EQ(destroy_qp(qp), 0);
  }
  EXPECT_EQ(destroy_cq(cq), 0);
}

// librdmacm takes it from there.
TEST_F(XrcTest, ATargetShowsTheDomainThatItWasMadeWith) {
  ibv_context* context = node_.domain.get()->context;
  ibv_pd* shown = alloc_pd(context);
  ASSERT_NE(shown, nullptr);
  ibv_qp_init_attr_ex init{};
  init.qp_type = IBV_QPT_XRC_RECV;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
  init.pd = shown;
  init.xrcd = domain_;
  ibv_qp* target = ibv_create_qp_ex(context, &init);
  ASSERT_NE(target, nullptr) << last_error();
  EXPECT_EQ(target->pd, shown);
  // It does not use it.
  EXPECT_EQ(dealloc_pd(shown), 0) << last_error();
  ibv_qp_attr attributes{};
  ibv_qp_init_attr made{};
  EXPECT_EQ(query_qp(target, &attributes, IBV_QP_STATE, &made), 0) << last_error();
  EXPECT_EQ(destroy_qp(target), 0) << last_error();
}

TEST_F(XrcTest, CarriesSendsIntoTheQueueThatTheyName) {
  XrcQueueEnd one(node_, domain_);
  XrcQueueEnd other(node_, domain_);
  XrcConnection connection(node_, domain_);
  for (const size_t size_bytes :
       {size_t{0}, size_t{1}, size_t{112}, size_t{113}, kXrcReceiveBytes}) {
    for (XrcQueueEnd* queue : {&one, &other}) {
      memset(buffer_.data() + kXrcReceiveAt, 0, kXrcReceiveBytes);
      ASSERT_EQ(queue->post(5, room()), 0);
      ASSERT_EQ(connection.send(message(size_bytes, IBV_WR_SEND_WITH_IMM), queue->number()), 0);
      EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
      const ibv_wc wc = queue->take();
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.wr_id, 5u);
      EXPECT_EQ(wc.byte_len, size_bytes);
      EXPECT_EQ(wc.imm_data, 77u);
      EXPECT_EQ(wc.qp_num, connection.target()->qp_num);
      EXPECT_EQ(wc.src_qp, connection.initiator()->qp_num);
      EXPECT_EQ(memcmp(buffer_.data() + kXrcReceiveAt, buffer_.data(), size_bytes), 0);
    }
  }
  EXPECT_TRUE(one.is_empty());
}

// Many laps of a ring whose depth is no power of two, by two connections.
TEST_F(XrcTest, SeveralConnectionsShareAQueueInOrder) {
  XrcQueueEnd queue(node_, domain_, 3);
  XrcConnection connections[] = {{node_, domain_}, {node_, domain_}};
  for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(queue.post(i, room()), 0);
  for (uint32_t i = 0; i < 100; ++i) {
    for (uint32_t sent = 0; sent < 3; ++sent) {
      XrcConnection& connection = connections[(i + sent) % 2];
      SendRequest request = message(8, IBV_WR_SEND_WITH_IMM);
      request.immediate = 3 * i + sent;
      ASSERT_EQ(connection.send(request, queue.number()), 0);
      ASSERT_EQ(connection.take().status, IBV_WC_SUCCESS);
    }
    for (uint32_t got = 0; got < 3; ++got) {
      const ibv_wc wc = queue.take();
      ASSERT_EQ(wc.imm_data, 3 * i + got);
      ASSERT_EQ(wc.qp_num, connections[(i + got) % 2].target()->qp_num);
      ASSERT_EQ(queue.post(wc.wr_id, room()), 0);
    }
  }
}

TEST_F(XrcTest, WritesReadsAndAtomicsReachTheQueuesRegions) {
  XrcQueueEnd queue(node_, domain_);
  XrcConnection connection(node_, domain_);
  ASSERT_EQ(connection.send(message(4096, IBV_WR_RDMA_WRITE), queue.number()), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(buffer_.has(3, kXrcReceiveAt, 4096));
  ASSERT_EQ(queue.post(6, room()), 0);
  ASSERT_EQ(connection.send(message(64, IBV_WR_RDMA_WRITE_WITH_IMM), queue.number()), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(queue.take().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  buffer_.at<uint64_t>(kXrcReceiveAt) = 10;
  ASSERT_EQ(connection.send(message(8, IBV_WR_ATOMIC_FETCH_AND_ADD), queue.number()), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(buffer_.at<uint64_t>(kXrcReceiveAt), 15u);
  ASSERT_EQ(connection.send(message(8, IBV_WR_RDMA_READ), queue.number()), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(buffer_.at<uint64_t>(0), 15u);
}

TEST_F(XrcTest, BatchesNameTheirQueue) {
  XrcQueueEnd queue(node_, domain_);
  XrcConnection connection(node_, domain_);
  ASSERT_EQ(queue.post(1, room()), 0);
  ibv_qp_ex* qp = qp_to_qp_ex(connection.initiator());
  ASSERT_NE(qp, nullptr);
  ibv_wr_start(qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_imm(qp, 9);
  ibv_wr_set_xrc_srqn(qp, queue.number());
  ibv_wr_set_sge(qp, buffer_.key(), buffer_.address(), 8);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(queue.take().imm_data, 9u);
  // Without a name, it does not go where the one before it went.
  ASSERT_EQ(queue.post(1, room()), 0);
  ibv_wr_start(qp);
  ibv_wr_send(qp);
  ibv_wr_set_sge(qp, buffer_.key(), buffer_.address(), 8);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_TRUE(queue.is_empty());
}

TEST_F(XrcTest, ANumberOfNoQueueIsAnInvalidRequest) {
  XrcConnection connection(node_, domain_);
  ASSERT_EQ(connection.send(message(8), 0x123456), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_REM_INV_REQ_ERR);
  await_failed(connection);
  ibv_async_event event{};
  ASSERT_EQ(get_async_event(context(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_REQ_ERR);
  EXPECT_EQ(event.element.qp, connection.target());
  ack_async_event(&event);
}

TEST_F(XrcTest, AQueueOfAnotherDomainIsNotReached) {
  ibv_xrcd* other = open_domain(context(), -1, 0);
  ASSERT_NE(other, nullptr);
  {
    XrcQueueEnd queue(node_, other);
    XrcConnection connection(node_, domain_);
    ASSERT_EQ(queue.post(1, room()), 0);
    ASSERT_EQ(connection.send(message(8), queue.number()), 0);
    EXPECT_EQ(connection.take().status, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_TRUE(queue.is_empty());
  }
  EXPECT_EQ(ibv_close_xrcd(other), 0);
}

TEST_F(XrcTest, ADestroyedQueueIsNotReachedAnyMore) {
  XrcConnection connection(node_, domain_);
  XrcQueueEnd queue(node_, domain_);
  ASSERT_EQ(queue.post(1, room()), 0);
  ASSERT_EQ(connection.send(message(8), queue.number()), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
  ASSERT_EQ(queue.destroy(), 0);
  ASSERT_EQ(connection.send(message(8), queue.number()), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(XrcTest, AnEmptyQueueIsNotReady) {
  XrcQueueEnd queue(node_, domain_);
  {
    XrcConnection impatient(node_, domain_, 0);
    ASSERT_EQ(impatient.send(message(8), queue.number()), 0);
    EXPECT_EQ(impatient.wait().status, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  XrcConnection patient(node_, domain_);
  ASSERT_EQ(patient.send(message(8), queue.number()), 0);
  EXPECT_TRUE(queue.is_empty());
  ASSERT_EQ(queue.post(4, room()), 0);
  EXPECT_EQ(patient.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(queue.take().wr_id, 4u);
}

TEST_F(XrcTest, AMessageThatIsTooLongFailsAtBothEnds) {
  XrcQueueEnd queue(node_, domain_);
  XrcConnection connection(node_, domain_);
  ASSERT_EQ(queue.post(2, buffer_.sge(kXrcReceiveAt, 16)), 0);
  ASSERT_EQ(connection.send(message(4096), queue.number()), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(queue.take().status, IBV_WC_LOC_LEN_ERR);
  await_failed(connection);
  // The queue serves others.
  XrcConnection other(node_, domain_);
  ASSERT_EQ(queue.post(3, room()), 0);
  ASSERT_EQ(other.send(message(4096), queue.number()), 0);
  EXPECT_EQ(other.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(queue.take().wr_id, 3u);
}

TEST_F(XrcTest, WhatOneKindDoesNotHaveIsRefused) {
  const XrcConnection connection(node_, domain_);
  ibv_send_wr send{};
  ibv_send_wr* bad_send = nullptr;
  EXPECT_EQ(ibv_post_send(connection.target(), &send, &bad_send), EINVAL);
  ibv_recv_wr receive{};
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(ibv_post_recv(connection.target(), &receive, &bad_receive), EINVAL);
  EXPECT_EQ(ibv_post_recv(connection.initiator(), &receive, &bad_receive), EINVAL);
  XrcQueueEnd queue(node_, domain_);
  ibv_cq* cq = queue.cq();
  ibv_qp_init_attr init{};
  init.send_cq = cq;
  init.recv_cq = cq;
  init.srq = queue.srq();
  init.qp_type = IBV_QPT_RC;
  EXPECT_EQ(create_qp(node_.domain.get(), &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
  init.qp_type = IBV_QPT_XRC_RECV;
  EXPECT_EQ(create_qp(node_.domain.get(), &init), nullptr);
  uint32_t number = 0;
  ibv_srq_init_attr basic{.srq_context = nullptr,
                          .attr = {.max_wr = 1, .max_sge = 1, .srq_limit = 0}};
  ibv_srq* srq = create_srq(node_.domain.get(), &basic);
  EXPECT_EQ(ibv_get_srq_num(srq, &number), EOPNOTSUPP);
  EXPECT_EQ(destroy_srq(srq), 0);
}

TEST_F(XrcTest, ArrivalsWakeTheQueuesChannel) {
  ibv_comp_channel* channel = create_comp_channel(context());
  ASSERT_NE(channel, nullptr);
  {
    XrcQueueEnd queue(node_, domain_, 8, channel);
    XrcConnection connection(node_, domain_);
    ASSERT_EQ(queue.post(2, room()), 0);
    ASSERT_EQ(ibv_req_notify_cq(queue.cq(), 0), 0);
    ASSERT_EQ(connection.send(message(8), queue.number()), 0);
    ibv_cq* rung = nullptr;
    void* ignored = nullptr;
    ASSERT_EQ(get_cq_event(channel, &rung, &ignored), 0);
    EXPECT_EQ(rung, queue.cq());
    ack_cq_events(rung, 1);
    EXPECT_EQ(queue.take().wr_id, 2u);
    EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(destroy_comp_channel(channel), 0);
}

// A sender that took receives and died: before and after it moved the head on, and when one was
// delivered. What it does is done by hand.
TEST_F(XrcTest, ReceivesOfADeadSenderAreTakenBack) {
  XrcQueueEnd queue(node_, domain_, 3);
  XrcConnection connection(node_, domain_);
  Srq& srq = as_srq(queue.srq());
  for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(queue.post(i, room()), 0);
  const auto claim = [&srq](uint64_t position) {
    const auto index = static_cast<uint16_t>(srq.ring[position & srq.ring_mask].load());
    srq.shared_receive(index).claim.store(make_claim(position, make_qp_number(kDeadSlot, 4)));
    return index;
  };
  const uint16_t delivered = claim(0);
  srq.xrc->packets[delivered].kind = kPacketSend;
  srq.xrc->packets[delivered].byte_count = 0;
  srq.xrc->packets[delivered].inline_bytes = 0;
  // And it did not come to move the place on.
  srq.xrc->arrivals[0].store(make_arrival(0, delivered));
  claim(1);
  srq.shared->head.store(2);
  claim(2);
  srq.rnic->xrc_queues().sender_ended(kDeadSlot);
  EXPECT_EQ(queue.take().status, IBV_WC_SUCCESS);
  ASSERT_EQ(queue.post(0, room()), 0);
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(connection.send(message(8), queue.number()), 0);
    EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
  }
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(queue.take().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(queue.is_empty());
}

// It published an arrival, and died before it told of it.
TEST_F(XrcTest, ArrivalsOfADeadSenderWakeTheChannel) {
  ibv_comp_channel* channel = create_comp_channel(context());
  ASSERT_NE(channel, nullptr);
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
  {
    XrcQueueEnd queue(node_, domain_, 3, channel);
    Srq& srq = as_srq(queue.srq());
    ASSERT_EQ(queue.post(7, room()), 0);
    ASSERT_EQ(ibv_req_notify_cq(queue.cq(), 0), 0);
    const auto index = static_cast<uint16_t>(srq.ring[0].load());
    srq.shared_receive(index).claim.store(make_claim(0, make_qp_number(kDeadSlot, 4)));
    srq.shared->head.store(1);
    srq.xrc->packets[index].kind = kPacketSend;
    srq.xrc->packets[index].byte_count = 0;
    srq.xrc->packets[index].inline_bytes = 0;
    srq.xrc->arrivals[0].store(make_arrival(0, index));
    srq.rnic->xrc_queues().sender_ended(kDeadSlot);
    ibv_cq* rung = nullptr;
    void* ignored = nullptr;
    ASSERT_EQ(get_cq_event(channel, &rung, &ignored), 0);
    EXPECT_EQ(rung, queue.cq());
    ack_cq_events(rung, 1);
    EXPECT_EQ(queue.take().wr_id, 7u);
  }
  EXPECT_EQ(destroy_comp_channel(channel), 0);
}

// What stands in the slot of a living process may be its own.
TEST_F(XrcTest, ReceivesThatALivingSenderMayHoldAreNotTakenBack) {
  XrcQueueEnd queue(node_, domain_, 3);
  XrcConnection connection(node_, domain_, 0);
  Srq& srq = as_srq(queue.srq());
  ASSERT_EQ(queue.post(7, room()), 0);
  const auto index = static_cast<uint16_t>(srq.ring[0].load());
  const uint64_t claim = make_claim(0, connection.initiator()->qp_num);
  srq.shared_receive(index).claim.store(claim);
  srq.shared->head.store(1);
  srq.rnic->xrc_queues().sender_ended(srq.rnic->slot());
  EXPECT_EQ(srq.shared_receive(index).claim.load(), claim);
  // That of a queue pair that it does not have is a former process's.
  const uint32_t unused = make_qp_number(srq.rnic->slot(), kMaxQueuePairs - 1);
  srq.shared_receive(index).claim.store(make_claim(0, unused));
  srq.rnic->xrc_queues().sender_ended(srq.rnic->slot());
  EXPECT_EQ(marked_number(srq.shared_receive(index).claim.load()), 0u);
}

TEST_F(XrcTest, SendersThatEndedAreForgotten) {
  Rnic& rnic = *as_context(context()).rnic;
  std::atomic<uint64_t>& bits = rnic.header().xrc_senders[kDeadSlot / 64];
  bits.fetch_or(1ull << (kDeadSlot % 64));
  rnic.xrc_queues().sender_ended(kDeadSlot);
  EXPECT_EQ(bits.load() >> (kDeadSlot % 64) & 1, 0u);
}

// Whether somebody lives in the slot cannot be told.
TEST_F(XrcTest, SendersThatCannotBeLookedAtCountAsLiving) {
  XrcQueueEnd queue(node_, domain_, 3);
  Srq& srq = as_srq(queue.srq());
  std::atomic<uint64_t>& bits = srq.rnic->header().xrc_senders[kDeadSlot / 64];
  ASSERT_EQ(queue.post(7, room()), 0);
  const auto index = static_cast<uint16_t>(srq.ring[0].load());
  const uint64_t claim = make_claim(0, make_qp_number(kDeadSlot, 4));
  srq.shared_receive(index).claim.store(claim);
  srq.shared->head.store(1);
  int refused = 0;
  {
    const verbena::soft::test::NoDescriptors none;
    bits.fetch_or(1ull << (kDeadSlot % 64));
    srq.rnic->xrc_queues().sender_ended(kDeadSlot);
    refused = queue.destroy();
  }
  EXPECT_EQ(refused, EBUSY);
  EXPECT_EQ(srq.shared_receive(index).claim.load(), claim);
  EXPECT_EQ(queue.destroy(), 0) << last_error();
}

// The service thread asks again, without a further notice.
TEST_F(XrcTest, SendersThatCouldNotBeLookedAtAreLookedAtLater) {
  // While there are datagrams, the service thread does not sleep for ever.
  const verbena::soft::test::DatagramEnd datagrams(node_);
  Rnic& rnic = *as_context(context()).rnic;
  std::atomic<uint64_t>& bits = rnic.header().xrc_senders[kDeadSlot / 64];
  bits.fetch_or(1ull << (kDeadSlot % 64));
  {
    const verbena::soft::test::NoDescriptors none;
    rnic.xrc_queues().sender_ended(kDeadSlot);
    EXPECT_EQ(bits.load() >> (kDeadSlot % 64) & 1, 1u);
  }
  constexpr uint64_t kLimitNs = 30'000'000'000;
  const uint64_t start_ns = now_ns();
  for (Waiter waiter; now_ns() - start_ns < kLimitNs; waiter.idle()) {
    if ((bits.load() >> (kDeadSlot % 64) & 1) == 0) break;
  }
  EXPECT_EQ(bits.load() >> (kDeadSlot % 64) & 1, 0u);
}

TEST_F(XrcTest, AProcessThatCannotBeAttachedIsALocalError) {
  XrcConnection connection(node_, domain_);
  const uint32_t number = make_qp_number(kDeadSlot, 4);
  {
    const verbena::soft::test::NoDescriptors none;
    ASSERT_EQ(connection.send(message(8), number), 0);
  }
  EXPECT_EQ(connection.take().status, IBV_WC_LOC_QP_OP_ERR);
  EXPECT_EQ(as_qp(connection.target()).shared->reliable.fault.load(), 0u);
  EXPECT_EQ(connection.target_state(), IBV_QPS_RTR);
}

// Its owner says that the next place is one that it has not freed.
TEST_F(XrcTest, AQueueWithoutAPlaceForAnArrivalFailsTheRequest) {
  XrcQueueEnd queue(node_, domain_);
  XrcConnection connection(node_, domain_);
  ASSERT_EQ(queue.post(2, room()), 0);
  const Srq& srq = as_srq(queue.srq());
  srq.xrc->shared->next.store(srq.ring_mask + 1);
  ASSERT_EQ(connection.send(message(8), queue.number()), 0);
  EXPECT_EQ(connection.take().status, IBV_WC_REM_OP_ERR);
  EXPECT_TRUE(queue.is_empty());
}

TEST_F(XrcTest, WhatAnInitiatorDoesNotUseStaysTheCallers) {
  XrcQueueEnd queue(node_, domain_);
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_XRC_SEND;
  init.send_cq = queue.cq();
  init.recv_cq = queue.cq();
  init.srq = queue.srq();
  init.cap = {.max_send_wr = 4,
              .max_recv_wr = 4,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  ibv_qp* qp = create_qp(node_.domain.get(), &init);
  ASSERT_NE(qp, nullptr) << last_error();
  EXPECT_EQ(init.send_cq, queue.cq());
  EXPECT_EQ(init.recv_cq, queue.cq());
  EXPECT_EQ(init.srq, queue.srq());
  EXPECT_EQ(qp->recv_cq, nullptr);
  EXPECT_EQ(qp->srq, nullptr);
  // What it has is said.
  EXPECT_EQ(init.cap.max_send_wr, 4u);
  EXPECT_EQ(init.cap.max_recv_wr, 0u);
  EXPECT_EQ(destroy_qp(qp), 0);
}

// The target is reset in the middle of a message, as its sender sees it between two parts.
TEST_F(XrcTest, AnAbandonedReceiveIsFlushed) {
  XrcQueueEnd queue(node_, domain_);
  XrcConnection connection(node_, domain_);
  ASSERT_EQ(queue.post(8, room()), 0);
  ASSERT_EQ(queue.post(9, room()), 0);
  ASSERT_EQ(connection.send(message(8), queue.number()), 0);
  EXPECT_EQ(queue.take().status, IBV_WC_SUCCESS);
  Qp& qp = as_qp(connection.initiator());
  {
    const OwnerLock::Guard guard(qp.send_lock);
    Taken taken;
    ASSERT_TRUE(take_receive(qp, taken));
    abandon_receive(qp, taken);
  }
  const ibv_wc wc = queue.take();
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(connection.take().status, IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace verbena::soft
