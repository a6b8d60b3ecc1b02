// Faults on soft0: what is deferred, delayed and broken, and that nothing is lost or reordered by
// it.
#include "src/device/fault/injector.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/device/verbs_control.h"
#include "src/device/verbs_for_test.h"
#include "verbena/device.h"
#include "verbena/fault.h"

namespace verbena {
namespace {

constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr uint64_t kPatienceNs = 120'000'000'000;
constexpr uint64_t kLongNs = 3'600'000'000'000;  // never over in a test
constexpr uint32_t kDepth = 16;

// One end of a connection, on a device of its own.
struct End {
  Device device;
  ProtectionDomain domain;
  CompletionChannel channel;
  CompletionQueue send_cq;
  CompletionQueue receive_cq;
  SharedReceiveQueue shared_receives;
  QueuePair queue_pair;
  std::unique_ptr<std::array<uint64_t, 64>> words;
  MemoryRegion region;

  static Result<std::unique_ptr<End>> make(const FaultPlan* faults, bool shared) {
    VERBENA_ASSIGN_OR_RETURN(
        Device device, faults != nullptr ? Device::open("soft0", *faults) : Device::open("soft0"));
    VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
    VERBENA_ASSIGN_OR_RETURN(CompletionChannel channel, CompletionChannel::create(device));
    VERBENA_ASSIGN_OR_RETURN(
        CompletionQueue send_cq,
        CompletionQueue::create(device, {.depth_cqes = 2 * kDepth, .channel = &channel}));
    VERBENA_ASSIGN_OR_RETURN(
        CompletionQueue receive_cq,
        CompletionQueue::create(device, {.depth_cqes = 2 * kDepth, .channel = &channel}));
    VERBENA_ASSIGN_OR_RETURN(SharedReceiveQueue receives,
                             SharedReceiveQueue::create(domain, {.depth_wrs = kDepth}));
    QueuePairOptions options{.send_cq = &send_cq, .recv_cq = &receive_cq};
    options.shared_receive_queue = shared ? &receives : nullptr;
    options.send_depth_wrs = options.recv_depth_wrs = kDepth;
    options.max_inline_bytes = 64;
    VERBENA_ASSIGN_OR_RETURN(QueuePair queue_pair, QueuePair::create(domain, options));
    auto words = std::make_unique<std::array<uint64_t, 64>>();
    words->fill(0);
    VERBENA_ASSIGN_OR_RETURN(MemoryRegion region,
                             MemoryRegion::create(domain, words->data(), sizeof(*words), kAccess));
    VERBENA_RETURN_IF_ERROR(queue_pair.init(IBV_ACCESS_REMOTE_WRITE));
    // Clang 14 has no std::make_unique of an aggregate. NOLINTNEXTLINE(modernize-make-unique)
    return std::unique_ptr<End>(new End{std::move(device), std::move(domain), std::move(channel),
                                        std::move(send_cq), std::move(receive_cq),
                                        std::move(receives), std::move(queue_pair),
                                        std::move(words), std::move(region)});
  }

  ibv_sge word(uint32_t index) const {
    return {reinterpret_cast<uint64_t>(&(*words)[index]), 8, region.lkey()};
  }
  int send(uint64_t id, unsigned flags = IBV_SEND_SIGNALED) {
    return test::post(queue_pair.get(), {.id = id,
                                         .sges = {{reinterpret_cast<uint64_t>(&id), 8, 0}},
                                         .flags = flags | IBV_SEND_INLINE});
  }
  // Writes one byte to the start of a word.
  int write(const End& to, uint32_t index, uint8_t value, unsigned flags) {
    return test::post(queue_pair.get(), {.id = value,
                                         .opcode = IBV_WR_RDMA_WRITE,
                                         .sges = {{reinterpret_cast<uint64_t>(&value), 1, 0}},
                                         .flags = flags | IBV_SEND_INLINE,
                                         .remote_address = to.word(index).addr,
                                         .rkey = to.region.rkey()});
  }
  int receive(uint64_t id) {
    const ibv_sge entry = word(static_cast<uint32_t>(id % words->size()));
    return queue_pair.get()->srq != nullptr ? test::post_receive(shared_receives.get(), id, {entry})
                                            : test::post_receive(queue_pair.get(), id, {entry});
  }
};

std::vector<ibv_wc> poll(ibv_cq* cq, size_t count) {
  std::vector<ibv_wc> all;
  const uint64_t start_ns = now_ns();
  while (all.size() < count && now_ns() - start_ns < kPatienceNs) {
    ibv_wc some[4];
    const int got = ibv_poll_cq(cq, 4, some);
    if (got < 0) break;
    all.insert(all.end(), some, some + got);
    if (got == 0) sleep_ns(1000);
  }
  return all;
}

class InjectorTest : public testing::Test {
 protected:
  // The first end has the faults.
  void connect(const FaultPlan& plan, bool shared = false) {
    auto faulty = End::make(&plan, shared);
    ASSERT_TRUE(faulty.ok()) << faulty.status().message();
    auto plain = End::make(nullptr, false);
    ASSERT_TRUE(plain.ok()) << plain.status().message();
    faulty_ = std::move(*faulty);
    plain_ = std::move(*plain);
    ASSERT_TRUE(faulty_->queue_pair.connect(*plain_->queue_pair.address()).ok());
    ASSERT_TRUE(plain_->queue_pair.connect(*faulty_->queue_pair.address()).ok());
  }
  FaultCounts counts() const { return injected_faults(faulty_->device); }

  std::unique_ptr<End> faulty_;
  std::unique_ptr<End> plain_;
};

TEST_F(InjectorTest, ADeviceWithoutAPlanIsUntouched) {
  const auto one = Device::open("soft0");
  const auto other = Device::open("soft0", FaultPlan());
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NE(one->get()->ops.post_send, other->get()->ops.post_send);
  EXPECT_NE(one->get()->ops.poll_cq, other->get()->ops.poll_cq);
  const FaultCounts none = injected_faults(*one);
  EXPECT_EQ(
      none.delays + none.deferred_receives + none.delayed_completions + none.queue_pair_errors, 0u);
}

// Nobody polls the sender's completions: the delayed work is posted all the same.
TEST_F(InjectorTest, DelayedWritesArriveInOrder) {
  FaultPlan plan;
  plan.delay = {.probability = 0.5, .duration_ns = 200'000};
  connect(plan);
  for (uint8_t value = 1; value <= kDepth; ++value) {
    ASSERT_EQ(faulty_->write(*plain_, value % 2, value, value == kDepth ? IBV_SEND_SIGNALED : 0),
              0);
  }
  uint64_t seen = 0;
  const uint64_t start_ns = now_ns();
  while (seen < kDepth && now_ns() - start_ns < kPatienceNs) {
    const auto byte_of = [this](uint32_t word) {
      return load_acquire(reinterpret_cast<const uint8_t*>(plain_->word(word).addr));
    };
    const uint64_t odd = byte_of(1);
    const uint64_t even = byte_of(0);
    ASSERT_GE(even + 1, odd) << "an odd value comes behind the even one before it";
    ASSERT_GE(std::max(odd, even), seen);
    seen = std::max(odd, even);
  }
  EXPECT_EQ(seen, kDepth);
  const auto done = poll(faulty_->send_cq.get(), 1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, kDepth);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
  EXPECT_GT(counts().delays, 0u);
}

TEST_F(InjectorTest, DelayedWorkFillsTheQueue) {
  FaultPlan plan;
  plan.delay = {.probability = 1, .duration_ns = kLongNs};
  connect(plan);
  uint32_t taken = 0;
  int error = 0;
  while (taken < 10'000 && (error = faulty_->write(*plain_, 0, 1, 0)) == 0) ++taken;
  EXPECT_EQ(error, ENOMEM);
  EXPECT_GE(taken, kDepth);
  EXPECT_EQ(counts().delays, taken + 1u) << "one draw for each, also for the one refused";
}

TEST_F(InjectorTest, HeldReceivesMakeSendersWait) {
  for (bool shared : {false, true}) {
    FaultPlan plan;
    plan.rnr = {.probability = 1, .duration_ns = 1'000'000};
    connect(plan, shared);
    const uint64_t start_ns = now_ns();
    for (uint64_t id = 0; id < 8; ++id) ASSERT_EQ(faulty_->receive(id), 0);
    for (uint64_t id = 0; id < 8; ++id) ASSERT_EQ(plain_->send(id), 0);
    const auto arrived = poll(faulty_->receive_cq.get(), 8);
    EXPECT_GE(now_ns() - start_ns, 1'000'000u);
    ASSERT_EQ(arrived.size(), 8u);
    for (uint64_t id = 0; id < 8; ++id) {
      EXPECT_EQ(arrived[id].status, IBV_WC_SUCCESS);
      if (!shared) {
        EXPECT_EQ(arrived[id].wr_id, id);
      }
      EXPECT_EQ((*faulty_->words)[arrived[id].wr_id], id) << "in order";
    }
    EXPECT_EQ(counts().deferred_receives, 8u);
  }
}

TEST_F(InjectorTest, CompletionsComeLateAndInOrder) {
  FaultPlan plan;
  plan.completion_delay = {.probability = 0.3, .duration_ns = 50'000};
  connect(plan);
  for (int round = 0; round < 20; ++round) {
    for (uint64_t id = 0; id < kDepth; ++id) ASSERT_EQ(plain_->receive(id), 0);
    for (uint64_t id = 0; id < kDepth; ++id) ASSERT_EQ(faulty_->send(id), 0);
    const auto done = poll(faulty_->send_cq.get(), kDepth);
    ASSERT_EQ(done.size(), kDepth);
    for (uint64_t id = 0; id < kDepth; ++id) {
      EXPECT_EQ(done[id].wr_id, id);
      EXPECT_EQ(done[id].status, IBV_WC_SUCCESS);
    }
    ASSERT_EQ(poll(plain_->receive_cq.get(), kDepth).size(), kDepth);
  }
  EXPECT_GT(counts().delayed_completions, 0u);
}

// A delayed completion has had its event: whoever arms, polls and then sleeps must not miss it.
TEST_F(InjectorTest, NobodySleepsOnADelayedCompletion) {
  FaultPlan plan;
  plan.completion_delay = {.probability = 1, .duration_ns = kLongNs};
  connect(plan);
  uint64_t events = 0;
  for (uint64_t id = 0; id < 100; ++id) {
    ASSERT_EQ(faulty_->receive(id), 0);
    ASSERT_EQ(plain_->send(id), 0);
    ibv_wc completion;
    // Without an event in sight it is delayed; arming lifts that.
    int got = ibv_poll_cq(faulty_->receive_cq.get(), 1, &completion);
    while (got == 0) {
      ASSERT_EQ(ibv_req_notify_cq(faulty_->receive_cq.get(), 0), 0);
      got = ibv_poll_cq(faulty_->receive_cq.get(), 1, &completion);
      if (got != 0) break;
      const auto woken = faulty_->channel.wait(static_cast<int64_t>(kPatienceNs));
      ASSERT_TRUE(woken.ok()) << woken.status().message();
      ++events;
      got = ibv_poll_cq(faulty_->receive_cq.get(), 1, &completion);
    }
    ASSERT_EQ(got, 1);
    EXPECT_EQ(completion.wr_id, id);
    ASSERT_EQ(poll(plain_->send_cq.get(), 1).size(), 1u);
  }
  EXPECT_GT(counts().delayed_completions, 0u);
  EXPECT_LE(events, 100u);
}

TEST_F(InjectorTest, ABrokenQueuePairCompletesAllItsWork) {
  FaultPlan plan;
  plan.delay = {.probability = 0.5, .duration_ns = kLongNs};
  plan.rnr = {.probability = 0.5, .duration_ns = kLongNs};
  plan.queue_pair_error = 0.2;
  connect(plan);
  for (uint64_t id = 0; id < kDepth; ++id) {
    ASSERT_EQ(plain_->receive(id), 0);
    ASSERT_EQ(faulty_->receive(id), 0);
  }
  for (uint64_t id = 0; id < kDepth; ++id) ASSERT_EQ(faulty_->send(id), 0);
  const auto sent = poll(faulty_->send_cq.get(), kDepth);
  ASSERT_EQ(sent.size(), kDepth);
  for (uint64_t id = 0; id < kDepth; ++id) EXPECT_EQ(sent[id].wr_id, id);
  EXPECT_EQ(sent.back().status, IBV_WC_WR_FLUSH_ERR);
  const auto received = poll(faulty_->receive_cq.get(), kDepth);
  ASSERT_EQ(received.size(), kDepth);
  for (uint64_t id = 0; id < kDepth; ++id) {
    EXPECT_EQ(received[id].wr_id, id);
    EXPECT_EQ(received[id].status, IBV_WC_WR_FLUSH_ERR);
  }
  EXPECT_EQ(counts().queue_pair_errors, 1u);
}

TEST_F(InjectorTest, WhatIsRefusedLateWakesWhoSleepsOnItsCompletion) {
  FaultPlan plan;
  plan.delay = {.probability = 1, .duration_ns = 1'000'000};
  connect(plan);
  ASSERT_EQ(ibv_req_notify_cq(faulty_->send_cq.get(), 0), 0);
  // Nothing that a connection has.
  ASSERT_EQ(test::post(faulty_->queue_pair.get(), {.id = 7, .opcode = IBV_WR_TSO}), 0);
  const auto woken = faulty_->channel.wait(static_cast<int64_t>(kPatienceNs));
  ASSERT_TRUE(woken.ok()) << woken.status().message();
  const auto lost = poll(faulty_->send_cq.get(), 1);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].wr_id, 7u);
  EXPECT_EQ(lost[0].status, IBV_WC_LOC_QP_OP_ERR);
  EXPECT_EQ(lost[0].qp_num, faulty_->queue_pair.get()->qp_num);
  ibv_wc completion;
  EXPECT_EQ(ibv_poll_cq(faulty_->send_cq.get(), 1, &completion), 0);
}

TEST_F(InjectorTest, AResetQueuePairForgetsWhatWasHeld) {
  FaultPlan plan;
  plan.delay = {.probability = 1, .duration_ns = kLongNs};
  connect(plan);
  for (uint64_t id = 0; id < kDepth; ++id) ASSERT_EQ(faulty_->send(id), 0);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(
      faulty_->device.control().modify_qp(faulty_->queue_pair.get(), &attributes, IBV_QP_STATE), 0);
  ASSERT_TRUE(faulty_->queue_pair.init(IBV_ACCESS_REMOTE_WRITE).ok());
  ASSERT_TRUE(faulty_->queue_pair.connect(*plain_->queue_pair.address()).ok());
  for (uint64_t id = 0; id < kDepth; ++id) EXPECT_EQ(faulty_->send(id), 0) << "room again";
  ibv_wc completion;
  EXPECT_EQ(ibv_poll_cq(faulty_->send_cq.get(), 1, &completion), 0);
}

// A device that refuses to destroy what it has once, as one that is in use.
class RefusingDevice {
 public:
  RefusingDevice() {
    current = this;
    control_.create_srq = [](ibv_pd* /*pd*/, ibv_srq_init_attr* /*attributes*/) {
      return &current->srq;
    };
    control_.destroy_srq = [](ibv_srq* /*srq*/) { return current->answer(); };
    control_.create_qp = [](ibv_pd* /*pd*/, ibv_qp_init_attr* /*attributes*/) {
      return &current->qp;
    };
    control_.modify_qp = [](ibv_qp* /*qp*/, ibv_qp_attr* /*attributes*/, int /*mask*/) {
      return 0;
    };
    control_.destroy_qp = [](ibv_qp* /*qp*/) { return current->answer(); };
    context_.ops.post_send = [](ibv_qp* /*qp*/, ibv_send_wr* /*list*/, ibv_send_wr** /*bad*/) {
      ++current->posted;
      return 0;
    };
    context_.ops.post_srq_recv = [](ibv_srq* /*srq*/, ibv_recv_wr* /*list*/,
                                    ibv_recv_wr** /*bad*/) {
      ++current->posted;
      return 0;
    };
    pd.context = srq.context = qp.context = &context_;
  }
  RefusingDevice(const RefusingDevice&) = delete;
  RefusingDevice& operator=(const RefusingDevice&) = delete;
  ~RefusingDevice() { fault::Injector::uninstall(&context_); }

  const VerbsControl& install(const FaultPlan& plan) {
    return (*fault::Injector::install(&context_, control_, plan))->control();
  }

  ibv_pd pd{};
  ibv_srq srq{};
  ibv_qp qp{};
  std::atomic<uint32_t> posted{0};

 private:
  int answer() { return std::exchange(refuses_, false) ? EBUSY : 0; }

  static inline RefusingDevice* current = nullptr;
  bool refuses_ = true;
  ibv_context context_{};
  VerbsControl control_{};
};

TEST(InjectorOnRefusalTest, ASharedReceiveQueueKeepsWhatIsHeld) {
  RefusingDevice device;
  FaultPlan plan;
  plan.rnr = {.probability = 1, .duration_ns = 100'000'000};
  const VerbsControl& control = device.install(plan);
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = kDepth;
  ibv_srq* srq = control.create_srq(&device.pd, &attributes);
  ASSERT_NE(srq, nullptr);
  ASSERT_EQ(test::post_receive(srq, 1, {}), 0);
  EXPECT_EQ(control.destroy_srq(srq), EBUSY);
  const uint64_t start_ns = now_ns();
  while (device.posted == 0 && now_ns() - start_ns < kPatienceNs) sleep_ns(1'000'000);
  EXPECT_EQ(device.posted, 1u);
  EXPECT_EQ(control.destroy_srq(srq), 0);
}

TEST(InjectorOnRefusalTest, AQueuePairKeepsItsFaultsAndWhatIsHeld) {
  RefusingDevice device;
  FaultPlan plan;
  plan.delay = {.probability = 1, .duration_ns = kLongNs};
  const VerbsControl& control = device.install(plan);
  ibv_qp_init_attr init{};
  init.cap.max_send_wr = 2;
  ibv_qp* qp = control.create_qp(&device.pd, &init);
  ASSERT_NE(qp, nullptr);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(control.modify_qp(qp, &attributes, IBV_QP_STATE), 0);
  ASSERT_EQ(test::post(qp, {.id = 1}), 0);
  EXPECT_EQ(control.destroy_qp(qp), EBUSY);
  EXPECT_EQ(test::post(qp, {.id = 2}), 0);
  EXPECT_EQ(test::post(qp, {.id = 3}), ENOMEM) << "the first one is still held";
  EXPECT_EQ(device.posted, 0u);
  EXPECT_EQ(control.destroy_qp(qp), 0);
}

// Destroyed while the injector's thread is at work on them (run with the sanitizers).
TEST_F(InjectorTest, ObjectsMayGoWhileTheirWorkIsHeld) {
  for (int round = 0; round < 30; ++round) {
    FaultPlan plan;
    plan.seed = run_seed() + static_cast<uint64_t>(round);
    SCOPED_TRACE("VERBENA_SEED=" + std::to_string(plan.seed));
    plan.delay = plan.rnr = {.probability = 0.7, .duration_ns = 20'000};
    plan.completion_delay = {.probability = 0.5, .duration_ns = 20'000};
    plan.queue_pair_error = 0.05;
    connect(plan, round % 2 == 0);
    for (uint64_t id = 0; id < kDepth; ++id) {
      faulty_->receive(id);
      plain_->receive(id);
    }
    for (uint64_t id = 0; id < kDepth / 2; ++id) {
      faulty_->send(id);
      plain_->send(id);
    }
    ibv_wc completions[4];
    ibv_poll_cq(faulty_->send_cq.get(), 4, completions);
    ibv_poll_cq(faulty_->receive_cq.get(), 4, completions);
    if (round % 3 == 0) sleep_ns(20'000);
    faulty_.reset();
    plain_.reset();
  }
}

}  // namespace
}  // namespace verbena
