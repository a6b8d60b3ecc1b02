// Verbs objects: the limits that the device tells, and calls with objects that are gone, damaged,
// still in use or of another context.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/device/soft/soft.h"
#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

ibv_qp_init_attr queue_pair_of(ibv_cq* cq, ibv_srq* srq = nullptr) {
  ibv_qp_init_attr init{};
  init.send_cq = cq;
  init.recv_cq = cq;
  init.srq = srq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {.max_send_wr = 4,
              .max_recv_wr = 4,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  return init;
}

ibv_srq_init_attr shared_receive_queue() {
  ibv_srq_init_attr init{};
  init.attr = {.max_wr = 1, .max_sge = 1, .srq_limit = 0};
  return init;
}

class ObjectTest : public testing::Test {
 protected:
  ObjectTest() {
    context_ = soft::open_device(soft::device());
    if (context_ == nullptr) must(Status(StatusCode::kUnavailable, control_.last_error()));
    domain_ = control_.alloc_pd(context_);
    channel_ = control_.create_comp_channel(context_);
    cq_ = control_.create_cq(context_, 8, nullptr, channel_, 0);
    ibv_srq_init_attr srq = shared_receive_queue();
    srq_ = control_.create_srq(domain_, &srq);
    ibv_qp_init_attr init = queue_pair_of(cq_, srq_);
    qp_ = control_.create_qp(domain_, &init);
  }
  // All that are left, in order.
  ~ObjectTest() override {
    if (qp_ != nullptr) {
      EXPECT_EQ(control_.destroy_qp(qp_), 0) << line();
    }
    if (srq_ != nullptr) {
      EXPECT_EQ(control_.destroy_srq(srq_), 0) << line();
    }
    if (cq_ != nullptr) {
      EXPECT_EQ(control_.destroy_cq(cq_), 0) << line();
    }
    if (channel_ != nullptr) {
      EXPECT_EQ(control_.destroy_comp_channel(channel_), 0) << line();
    }
    if (domain_ != nullptr) {
      EXPECT_EQ(control_.dealloc_pd(domain_), 0) << line();
    }
    if (context_ != nullptr) {
      EXPECT_EQ(soft::close_device(context_), 0) << line();
    }
  }
  std::string line() const { return control_.last_error(); }

  void expect_refused(int result, int error = EINVAL) {
    EXPECT_EQ(result, error);
    EXPECT_NE(line().find("soft0: "), std::string::npos);
  }

  const VerbsControl& control_ = soft::control();
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  ibv_qp* qp_ = nullptr;
};

// ---- gone ----

TEST_F(ObjectTest, ADestroyedQueuePairIsRefused) {
  ibv_qp* gone = std::exchange(qp_, nullptr);
  ASSERT_EQ(control_.destroy_qp(gone), 0);
  expect_refused(control_.destroy_qp(gone));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  ibv_qp_init_attr init{};
  expect_refused(control_.modify_qp(gone, &attributes, IBV_QP_STATE));
  expect_refused(control_.query_qp(gone, &attributes, IBV_QP_STATE, &init));
  EXPECT_EQ(post(gone, {}), EINVAL);
  EXPECT_EQ(post_receive(gone, 1, {}), EINVAL);
}

TEST_F(ObjectTest, ADestroyedCompletionQueueIsRefused) {
  ASSERT_EQ(control_.destroy_qp(std::exchange(qp_, nullptr)), 0);
  ibv_cq* gone = std::exchange(cq_, nullptr);
  ASSERT_EQ(control_.destroy_cq(gone), 0);
  expect_refused(control_.destroy_cq(gone));
  ibv_qp_init_attr init = queue_pair_of(gone);
  EXPECT_EQ(control_.create_qp(domain_, &init), nullptr);
  expect_refused(errno);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(gone, 1, &wc), -1);
  EXPECT_EQ(ibv_req_notify_cq(gone, 0), EINVAL);
  control_.ack_cq_events(gone, 1);
}

TEST_F(ObjectTest, ADestroyedSharedReceiveQueueIsRefused) {
  ASSERT_EQ(control_.destroy_qp(std::exchange(qp_, nullptr)), 0);
  ibv_srq* gone = std::exchange(srq_, nullptr);
  ASSERT_EQ(control_.destroy_srq(gone), 0);
  expect_refused(control_.destroy_srq(gone));
  ibv_srq_attr attributes{};
  expect_refused(control_.query_srq(gone, &attributes));
  expect_refused(control_.modify_srq(gone, &attributes, IBV_SRQ_LIMIT));
  ibv_qp_init_attr init = queue_pair_of(cq_, gone);
  EXPECT_EQ(control_.create_qp(domain_, &init), nullptr);
  expect_refused(errno);
  EXPECT_NE(post_receive(gone, 1, {}), 0);
}

TEST_F(ObjectTest, ADestroyedDomainOrChannelOrContextIsRefused) {
  ASSERT_EQ(control_.destroy_qp(std::exchange(qp_, nullptr)), 0);
  ASSERT_EQ(control_.destroy_srq(std::exchange(srq_, nullptr)), 0);
  ASSERT_EQ(control_.destroy_cq(std::exchange(cq_, nullptr)), 0);

  ibv_pd* domain = std::exchange(domain_, nullptr);
  ASSERT_EQ(control_.dealloc_pd(domain), 0);
  expect_refused(control_.dealloc_pd(domain));
  ibv_srq_init_attr srq = shared_receive_queue();
  EXPECT_EQ(control_.create_srq(domain, &srq), nullptr);
  expect_refused(errno);

  ibv_comp_channel* channel = std::exchange(channel_, nullptr);
  ASSERT_EQ(control_.destroy_comp_channel(channel), 0);
  expect_refused(control_.destroy_comp_channel(channel));
  EXPECT_EQ(control_.create_cq(context_, 8, nullptr, channel, 0), nullptr);
  expect_refused(errno);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  EXPECT_EQ(control_.get_cq_event(channel, &cq, &cq_context), -1);
  EXPECT_EQ(errno, EINVAL);

  ibv_context* context = std::exchange(context_, nullptr);
  ASSERT_EQ(soft::close_device(context), 0);
  expect_refused(soft::close_device(context));
  EXPECT_EQ(control_.alloc_pd(context), nullptr);
  expect_refused(errno);
  EXPECT_EQ(control_.create_comp_channel(context), nullptr);
  expect_refused(errno);
  EXPECT_EQ(control_.create_cq(context, 8, nullptr, nullptr, 0), nullptr);
  expect_refused(errno);
  ibv_async_event event;
  EXPECT_EQ(control_.get_async_event(context, &event), -1);
  EXPECT_EQ(errno, EINVAL);
}

// ---- damaged ----

// Overwrites an object's head while `call` uses it.
template <typename Public>
int with_damage(Public* verbs, const std::function<int(Public*)>& call) {
  std::byte saved[sizeof(Public) + sizeof(uint64_t)];
  memcpy(saved, static_cast<void*>(verbs), sizeof(saved));
  memset(static_cast<void*>(verbs), 0x5a, sizeof(saved));
  const int result = call(verbs);
  memcpy(static_cast<void*>(verbs), saved, sizeof(saved));
  return result;
}

TEST_F(ObjectTest, ADamagedObjectIsRefused) {
  expect_refused(with_damage<ibv_qp>(qp_, control_.destroy_qp));
  expect_refused(with_damage<ibv_srq>(srq_, control_.destroy_srq));
  expect_refused(with_damage<ibv_cq>(cq_, control_.destroy_cq));
  expect_refused(with_damage<ibv_comp_channel>(channel_, control_.destroy_comp_channel));
  expect_refused(with_damage<ibv_pd>(domain_, control_.dealloc_pd));
  expect_refused(control_.destroy_qp(nullptr));
  expect_refused(control_.destroy_cq(nullptr));
  expect_refused(control_.dealloc_pd(nullptr));
  expect_refused(soft::close_device(nullptr));
}

// Calls `call` while `field` of an object leads nowhere.
template <typename Field>
int with_stray_pointer(Field*& field, const std::function<int()>& call) {
  Field* const saved = std::exchange(field, reinterpret_cast<Field*>(8));
  const int result = call();
  field = saved;
  return result;
}

// The context is intact, so the call gets as far as soft0.
TEST_F(ObjectTest, AnObjectThatNamesOthersThanItsOwnIsRefused) {
  const auto destroy_qp = [this] { return control_.destroy_qp(qp_); };
  expect_refused(with_stray_pointer(qp_->pd, destroy_qp));
  expect_refused(with_stray_pointer(qp_->send_cq, destroy_qp));
  expect_refused(with_stray_pointer(qp_->recv_cq, destroy_qp));
  expect_refused(with_stray_pointer(qp_->srq, destroy_qp));
  ASSERT_EQ(control_.destroy_qp(std::exchange(qp_, nullptr)), 0);
  expect_refused(with_stray_pointer(srq_->pd, [this] { return control_.destroy_srq(srq_); }));
  ASSERT_EQ(control_.destroy_srq(std::exchange(srq_, nullptr)), 0);
  expect_refused(with_stray_pointer(cq_->channel, [this] { return control_.destroy_cq(cq_); }));
  int value = 0;
  ibv_mr* region = control_.reg_mr(domain_, &value, sizeof(value),
                                   reinterpret_cast<uint64_t>(&value), IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(region, nullptr) << line();
  expect_refused(with_stray_pointer(region->pd, [&] { return control_.dereg_mr(region); }));
  EXPECT_EQ(control_.dereg_mr(region), 0);
}

// Its mutex is for events that were delivered, of which there are none.
TEST_F(ObjectTest, AnOverwrittenMutexHoldsNobodyUp) {
  memset(&qp_->mutex, 0xff, sizeof(qp_->mutex));
  ASSERT_EQ(control_.destroy_qp(std::exchange(qp_, nullptr)), 0);
  memset(&srq_->mutex, 0xff, sizeof(srq_->mutex));
  ASSERT_EQ(control_.destroy_srq(std::exchange(srq_, nullptr)), 0);
  memset(&cq_->mutex, 0xff, sizeof(cq_->mutex));
  ASSERT_EQ(control_.destroy_cq(std::exchange(cq_, nullptr)), 0);
}

// ---- in use, of another context ----

TEST_F(ObjectTest, WhatIsInUseStays) {
  expect_refused(control_.destroy_srq(srq_), EBUSY);
  expect_refused(control_.destroy_cq(cq_), EBUSY);
  expect_refused(control_.destroy_comp_channel(channel_), EBUSY);
  expect_refused(control_.dealloc_pd(domain_), EBUSY);
  ASSERT_EQ(control_.destroy_qp(std::exchange(qp_, nullptr)), 0);
  expect_refused(control_.dealloc_pd(domain_), EBUSY);  // the shared receive queue
  ASSERT_EQ(control_.destroy_srq(std::exchange(srq_, nullptr)), 0);
  ASSERT_EQ(control_.dealloc_pd(std::exchange(domain_, nullptr)), 0);
  ASSERT_EQ(control_.destroy_cq(std::exchange(cq_, nullptr)), 0);
}

// libibverbs does not refuse it, and programs rely on that.
TEST_F(ObjectTest, AContextIsClosedWithObjectsThatStayUsable) {
  ibv_context* other = soft::open_device(soft::device());
  ASSERT_NE(other, nullptr);
  ibv_pd* domain = control_.alloc_pd(other);
  ASSERT_NE(domain, nullptr);
  EXPECT_EQ(soft::close_device(other), 0);
  expect_refused(soft::close_device(other));
  EXPECT_EQ(control_.dealloc_pd(domain), 0);
}

TEST_F(ObjectTest, ObjectsOfTwoContextsDoNotMix) {
  ibv_context* other = soft::open_device(soft::device());
  ASSERT_NE(other, nullptr);
  ibv_pd* domain = control_.alloc_pd(other);
  ASSERT_NE(domain, nullptr);
  ibv_qp_init_attr init = queue_pair_of(cq_);
  EXPECT_EQ(control_.create_qp(domain, &init), nullptr);
  expect_refused(errno);
  EXPECT_EQ(control_.create_cq(other, 8, nullptr, channel_, 0), nullptr);
  expect_refused(errno);
  ASSERT_EQ(control_.dealloc_pd(domain), 0);
  ASSERT_EQ(soft::close_device(other), 0);
}

// ---- what the device tells ----

TEST_F(ObjectTest, LimitsAreWhatIsEnforced) {
  ibv_device_attr device{};
  ASSERT_EQ(control_.query_device(context_, &device), 0);
  EXPECT_NE(device.vendor_id, 0u);
  // UCX 1.13 asks for no other.
  EXPECT_EQ(device.atomic_cap, IBV_ATOMIC_HCA);

  EXPECT_EQ(control_.create_cq(context_, device.max_cqe + 1, nullptr, nullptr, 0), nullptr);
  expect_refused(errno);
  ibv_srq_init_attr srq = shared_receive_queue();
  srq.attr.max_wr = static_cast<uint32_t>(device.max_srq_wr) + 1;
  EXPECT_EQ(control_.create_srq(domain_, &srq), nullptr);
  expect_refused(errno);
  srq = shared_receive_queue();
  srq.attr.max_sge = static_cast<uint32_t>(device.max_srq_sge) + 1;
  EXPECT_EQ(control_.create_srq(domain_, &srq), nullptr);
  expect_refused(errno);
  for (const auto& exceed : std::vector<std::function<void(ibv_qp_cap&)>>{
           [&](ibv_qp_cap& cap) { cap.max_send_wr = static_cast<uint32_t>(device.max_qp_wr) + 1; },
           [&](ibv_qp_cap& cap) { cap.max_recv_wr = static_cast<uint32_t>(device.max_qp_wr) + 1; },
           [&](ibv_qp_cap& cap) { cap.max_send_sge = static_cast<uint32_t>(device.max_sge) + 1; },
           [&](ibv_qp_cap& cap) { cap.max_recv_sge = static_cast<uint32_t>(device.max_sge) + 1; },
       }) {
    ibv_qp_init_attr init = queue_pair_of(cq_);
    exceed(init.cap);
    EXPECT_EQ(control_.create_qp(domain_, &init), nullptr);
    expect_refused(errno);
  }
  EXPECT_EQ(control_.reg_mr(domain_, this, device.max_mr_size + 1, 0, IBV_ACCESS_LOCAL_WRITE),
            nullptr);
  expect_refused(errno);
  EXPECT_NE(line().find(std::to_string(device.max_mr_size)), std::string::npos);
  // Depths of READs and atomics, in both directions.
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  ASSERT_EQ(
      control_.modify_qp(qp_, &attributes,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
      0);
  constexpr int kToReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_4096;
  attributes.dest_qp_num = qp_->qp_num;
  attributes.max_dest_rd_atomic = static_cast<uint8_t>(device.max_qp_rd_atom + 1);
  expect_refused(control_.modify_qp(qp_, &attributes, kToReceive));
  attributes.max_dest_rd_atomic = static_cast<uint8_t>(device.max_qp_rd_atom);
  EXPECT_EQ(control_.modify_qp(qp_, &attributes, kToReceive), 0);
  attributes.qp_state = IBV_QPS_RTS;
  attributes.max_rd_atomic = static_cast<uint8_t>(device.max_qp_init_rd_atom + 1);
  constexpr int kToSend = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                          IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  expect_refused(control_.modify_qp(qp_, &attributes, kToSend));
}

// Makes objects until there are no more, which is one line and the number told.
template <typename Object>
void expect_limit(int limit, size_t there, const std::function<Object*()>& make,
                  const std::function<int(Object*)>& destroy) {
  std::vector<Object*> made;
  while (Object* object = make()) {
    made.push_back(object);
    ASSERT_LE(made.size() + there, static_cast<size_t>(limit));
  }
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_NE(std::string(soft::control().last_error()).find(std::to_string(limit)),
            std::string::npos)
      << soft::control().last_error();
  EXPECT_EQ(made.size() + there, static_cast<size_t>(limit));
  // Each that goes makes room for one.
  ASSERT_EQ(destroy(made.back()), 0);
  made.back() = make();
  ASSERT_NE(made.back(), nullptr);
  for (Object* object : made) ASSERT_EQ(destroy(object), 0);
}

TEST_F(ObjectTest, ThereAreAsManyDomainsAsTold) {
  ibv_device_attr device{};
  ASSERT_EQ(control_.query_device(context_, &device), 0);
  expect_limit<ibv_pd>(
      device.max_pd, 1, [&] { return control_.alloc_pd(context_); }, control_.dealloc_pd);
}

TEST_F(ObjectTest, ThereAreAsManyCompletionQueuesAsTold) {
  ibv_device_attr device{};
  ASSERT_EQ(control_.query_device(context_, &device), 0);
  expect_limit<ibv_cq>(
      device.max_cq, 1, [&] { return control_.create_cq(context_, 1, nullptr, nullptr, 0); },
      control_.destroy_cq);
}

TEST_F(ObjectTest, ThereAreAsManySharedReceiveQueuesAsTold) {
  ibv_device_attr device{};
  ASSERT_EQ(control_.query_device(context_, &device), 0);
  ibv_srq_init_attr init = shared_receive_queue();
  expect_limit<ibv_srq>(
      device.max_srq, 1, [&] { return control_.create_srq(domain_, &init); }, control_.destroy_srq);
}

TEST_F(ObjectTest, TheExtendedQueryTellsThePort) {
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(context_, nullptr, &device), 0);
  EXPECT_EQ(device.phys_port_cnt_ex, 1u);
  EXPECT_EQ(device.orig_attr.phys_port_cnt, 1);
  // Atomics are those of the CPU.
  EXPECT_EQ(device.pci_atomic_caps.fetch_add, IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP);
  EXPECT_EQ(device.pci_atomic_caps.compare_swap, IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP);
}

TEST_F(ObjectTest, AQueueWithoutAChannelCannotBeArmed) {
  ibv_cq* cq = control_.create_cq(context_, 1, nullptr, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ibv_req_notify_cq(cq, 0), EINVAL);
  EXPECT_EQ(ibv_req_notify_cq(cq_, 0), 0);
  ASSERT_EQ(control_.destroy_cq(cq), 0);
}

}  // namespace
}  // namespace verbena::soft_test
