// Memory windows: what a peer reaches by their keys, and that it reaches nothing any more once they
// are invalid.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/soft/places.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr size_t kWindowBytes = 4096;
// Long enough to be copied in parts.
constexpr size_t kLongWindowBytes = 8 << 20;
constexpr unsigned kAllWindowAccess =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// The side that has the memory.
class WindowOwner {
 public:
  enum class What {
    kAddress,
    kConnect,
    kAllocate,
    kTellKey,
    kBind,        // by a posted request
    kBindType1,   // by ibv_bind_mw()
    kInvalidate,  // by a posted request
    kDeallocate,
    kDeregister,
    kPostReceive,
    kWait,
    kReset,
    kHas,
    kEnd,
  };
  struct Command {
    What what{};
    QueuePairAddress peer{};
    ibv_mw_type type = IBV_MW_TYPE_2;
    uint64_t offset = 0;
    uint64_t length = kWindowBytes;
    unsigned access = kAllWindowAccess;
    uint32_t key = 0;
    uint64_t seed = 0;
    bool elsewhere = false;  // in another domain than the queue pair's
  };
  struct Reply {
    QueuePairAddress address;
    uint64_t memory;
    uint32_t key;
    int result;
    ibv_wc completion;
    bool has;
  };

  ~WindowOwner() {
    if (window_ != nullptr) ibv_dealloc_mw(window_);
  }

  Reply run(const Command& command) {
    Reply reply{};
    reply.memory = buffer_.address();
    switch (command.what) {
      case What::kAddress:
        reply.address = end_.address();
        break;
      case What::kConnect:
        end_.connect(command.peer);
        break;
      case What::kAllocate:
        window_ =
            ibv_alloc_mw(command.elsewhere ? elsewhere_.get() : node_.domain.get(), command.type);
        reply.key = window_->rkey;
        break;
      case What::kTellKey:
        reply.key = window_->rkey;
        break;
      case What::kBind: {
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.bind_mw.mw = window_;
        wr.bind_mw.rkey = reply.key = ibv_inc_rkey(command.key);
        wr.bind_mw.bind_info = info(command);
        reply.result = post(wr);
        if (reply.result == 0) reply.completion = wait_for_one(end_.cq());
        break;
      }
      case What::kBindType1: {
        ibv_mw_bind bind{.wr_id = 5, .send_flags = IBV_SEND_SIGNALED, .bind_info = info(command)};
        reply.result = ibv_bind_mw(end_.qp(), window_, &bind);
        if (reply.result == 0) reply.completion = wait_for_one(end_.cq());
        reply.key = window_->rkey;
        break;
      }
      case What::kInvalidate: {
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_LOCAL_INV;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.invalidate_rkey = command.key;
        reply.result = post(wr);
        if (reply.result == 0) reply.completion = wait_for_one(end_.cq());
        // Whatever was under way has ended: the bytes are the owner's from here on.
        buffer_.fill(command.seed, 0, buffer_.size());
        break;
      }
      case What::kDeallocate:
        reply.result = ibv_dealloc_mw(window_);
        window_ = nullptr;
        break;
      case What::kDeregister:
        reply.result = node_.control().dereg_mr(region());
        break;
      case What::kPostReceive:
        reply.result = post_receive(end_.qp(), 9, {buffer_.sge(0, 64)});
        break;
      case What::kWait:
        reply.completion = wait_for_one(end_.cq());
        break;
      case What::kReset: {
        ibv_qp_attr attributes{};
        attributes.qp_state = IBV_QPS_RESET;
        reply.result = node_.control().modify_qp(end_.qp(), &attributes, IBV_QP_STATE);
        must(end_.queue_pair().init(kAllAccess));
        break;
      }
      case What::kHas:
        reply.has = buffer_.has(command.seed, 0, buffer_.size());
        break;
      case What::kEnd:
        break;
    }
    return reply;
  }

 private:
  ibv_mr* region() const { return region_->get(); }
  ibv_mw_bind_info info(const Command& command) const {
    return {.mr = region(),
            .addr = buffer_.address(command.offset),
            .length = command.length,
            .mw_access_flags = command.access};
  }
  int post(ibv_send_wr& wr) {
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(end_.qp(), &wr, &bad);
  }

  Node node_;
  Buffer buffer_{node_, kLongWindowBytes};
  // The memory once more, for windows.
  std::optional<MemoryRegion> region_ = must(MemoryRegion::create(
      node_.domain, buffer_.data(), buffer_.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
  End end_{node_};
  ProtectionDomain elsewhere_ = must(ProtectionDomain::create(node_.device));
  ibv_mw* window_ = nullptr;
};

VERBENA_TEST_CHILD(window_owner) {
  WindowOwner owner;
  for (;;) {
    const auto command = link.get<WindowOwner::Command>();
    link.put(owner.run(command));
    if (command.what == WindowOwner::What::kEnd) return 0;
  }
}

class WindowTest : public testing::TestWithParam<Place> {
 protected:
  using What = WindowOwner::What;

  void SetUp() override {
    if (GetParam() == Place::kThisProcess) {
      owner_ = std::make_unique<WindowOwner>();
    } else {
      child_.emplace("window_owner");
    }
    connect();
  }
  void TearDown() override {
    if (!child_) return;
    run({.what = What::kEnd});
    EXPECT_EQ(child_->wait(), 0);
  }
  void connect() {
    const WindowOwner::Reply reply = run({.what = What::kAddress});
    memory_ = reply.memory;
    run({.what = What::kConnect, .peer = end_.address()});
    end_.connect(reply.address);
  }

  WindowOwner::Reply run(const WindowOwner::Command& command) {
    if (owner_ != nullptr) return owner_->run(command);
    child_->link().put(command);
    return child_->link().get<WindowOwner::Reply>();
  }
  uint32_t allocate(ibv_mw_type type, bool elsewhere = false) {
    return run({.what = What::kAllocate, .type = type, .elsewhere = elsewhere}).key;
  }
  // Allocates a window of type 2 and binds it; the key.
  uint32_t bind(WindowOwner::Command command = {}) {
    command.what = What::kBind;
    command.key = allocate(IBV_MW_TYPE_2);
    const WindowOwner::Reply reply = run(command);
    EXPECT_EQ(reply.result, 0);
    EXPECT_EQ(reply.completion.status, IBV_WC_SUCCESS);
    EXPECT_EQ(reply.completion.opcode, IBV_WC_BIND_MW);
    return reply.key;
  }
  ibv_wc_status access(ibv_wr_opcode opcode, uint64_t address, uint32_t key, size_t size = 8) {
    EXPECT_EQ(post(end_.qp(), {.opcode = opcode,
                               .sges = {buffer_.sge(0, size)},
                               .remote_address = address,
                               .rkey = key}),
              0);
    return wait_for_one(end_.cq()).status;
  }
  ibv_wc_status write(uint64_t address, uint32_t key, size_t size = 8) {
    return access(IBV_WR_RDMA_WRITE, address, key, size);
  }
  // After an error both ends start anew.
  void renew() {
    run({.what = What::kReset});
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    EXPECT_EQ(node_.control().modify_qp(end_.qp(), &attributes, IBV_QP_STATE), 0);
    must(end_.queue_pair().init(kAllAccess));
    connect();
  }

  Node node_;
  Buffer buffer_{node_, kLongWindowBytes};
  End end_{node_};
  uint64_t memory_ = 0;
  std::unique_ptr<WindowOwner> owner_;
  std::optional<Child> child_;
};

// Both sides are at work at the same time.
class RacingWindowTest : public WindowTest {};

TEST_P(WindowTest, OpensItsBytesAndNoOthers) {
  const uint32_t key = bind({.offset = 64, .length = 128});
  EXPECT_EQ(write(memory_ + 64, key), IBV_WC_SUCCESS);
  EXPECT_EQ(write(memory_ + 184, key), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, memory_ + 64, key, 128), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_ATOMIC_FETCH_AND_ADD, memory_ + 128, key), IBV_WC_SUCCESS);
  EXPECT_EQ(write(memory_ + 185, key), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(WindowTest, BeginsWhereItBegins) {
  const uint32_t key = bind({.offset = 64, .length = 128});
  EXPECT_EQ(write(memory_ + 63, key), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(WindowTest, GivesTheRightsThatItHas) {
  const uint32_t key = bind({.access = IBV_ACCESS_REMOTE_READ});
  EXPECT_EQ(access(IBV_WR_RDMA_READ, memory_, key), IBV_WC_SUCCESS);
  EXPECT_EQ(write(memory_, key), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(WindowTest, MayCountFromZero) {
  const uint32_t key =
      bind({.offset = 64, .length = 64, .access = kAllWindowAccess | IBV_ACCESS_ZERO_BASED});
  buffer_.fill(3, 0, 64);
  EXPECT_EQ(write(0, key, 64), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, 0, key, 64), IBV_WC_SUCCESS);
  EXPECT_TRUE(buffer_.has(3, 0, 64));
  EXPECT_EQ(write(memory_ + 64, key), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(WindowTest, AnInvalidatedOneIsOutOfReach) {
  const uint32_t key = bind();
  EXPECT_EQ(write(memory_, key), IBV_WC_SUCCESS);
  const WindowOwner::Reply reply = run({.what = What::kInvalidate, .key = key});
  EXPECT_EQ(reply.completion.status, IBV_WC_SUCCESS);
  EXPECT_EQ(reply.completion.opcode, IBV_WC_LOCAL_INV);
  EXPECT_EQ(write(memory_, key), IBV_WC_REM_ACCESS_ERR);
}

// A long WRITE that is under way when the window is invalidated ends, or it is over.
TEST_P(RacingWindowTest, NothingIsWrittenAfterTheInvalidation) {
  for (uint64_t round = 0; round < iterations(10); ++round) {
    const uint32_t key = bind({.length = kLongWindowBytes});
    child_->link().put(WindowOwner::Command{.what = What::kInvalidate, .key = key, .seed = round});
    ibv_wc_status status = IBV_WC_SUCCESS;
    while (status == IBV_WC_SUCCESS) status = write(memory_, key, kLongWindowBytes);
    EXPECT_EQ(status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(child_->link().get<WindowOwner::Reply>().completion.status, IBV_WC_SUCCESS);
    EXPECT_TRUE(run({.what = What::kHas, .seed = round}).has);
    run({.what = What::kDeallocate});
    renew();
  }
}

TEST_P(WindowTest, ADeallocatedOneIsOutOfReach) {
  const uint32_t key = bind();
  EXPECT_EQ(write(memory_, key), IBV_WC_SUCCESS);
  EXPECT_EQ(run({.what = What::kDeallocate}).result, 0);
  EXPECT_EQ(write(memory_, key), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(WindowTest, ItsPeerMayInvalidateIt) {
  const uint32_t key = bind();
  EXPECT_EQ(write(memory_, key), IBV_WC_SUCCESS);
  run({.what = What::kPostReceive});
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = key;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(end_.qp(), &wr, &bad), 0);
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_SUCCESS);
  // Before the owner has polled, too.
  EXPECT_EQ(write(memory_, key), IBV_WC_REM_ACCESS_ERR);
  const ibv_wc arrival = run({.what = What::kWait}).completion;
  EXPECT_EQ(arrival.status, IBV_WC_SUCCESS);
  EXPECT_EQ(arrival.wc_flags, unsigned{IBV_WC_WITH_INV});
  EXPECT_EQ(arrival.invalidated_rkey, key);
}

TEST_P(WindowTest, ItsPeerInvalidatesNothingElse) {
  const uint32_t key = bind();
  run({.what = What::kPostReceive});
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = ibv_inc_rkey(key);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(end_.qp(), &wr, &bad), 0);
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(run({.what = What::kWait}).completion.status, IBV_WC_LOC_PROT_ERR);
}

TEST_P(WindowTest, WhatIsNotBoundIsNotInvalidated) {
  const uint32_t key = bind();
  EXPECT_EQ(write(memory_, key), IBV_WC_SUCCESS);
  EXPECT_EQ(run({.what = What::kInvalidate, .key = key + 1}).completion.status, IBV_WC_MW_BIND_ERR);
}

// One of type 2 is open to the queue pair that bound it, as long as that stays connected.
TEST_P(WindowTest, EndsWithItsConnection) {
  const uint32_t key = bind();
  EXPECT_EQ(write(memory_, key), IBV_WC_SUCCESS);
  renew();
  EXPECT_EQ(write(memory_, key), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(WindowTest, OneOfType1IsBoundAnew) {
  const uint32_t first = allocate(IBV_MW_TYPE_1);
  EXPECT_EQ(write(memory_, first), IBV_WC_REM_ACCESS_ERR) << "nothing is bound";
  renew();
  const WindowOwner::Reply bound =
      run({.what = What::kBindType1, .type = IBV_MW_TYPE_1, .length = 64});
  EXPECT_EQ(bound.result, 0);
  EXPECT_EQ(bound.completion.wr_id, 5u);
  EXPECT_EQ(bound.completion.opcode, IBV_WC_BIND_MW);
  EXPECT_NE(bound.key, first);
  EXPECT_EQ(write(memory_, bound.key), IBV_WC_SUCCESS);
  const WindowOwner::Reply again = run({.what = What::kBindType1, .offset = 64, .length = 64});
  EXPECT_EQ(write(memory_ + 64, again.key), IBV_WC_SUCCESS);
  EXPECT_EQ(write(memory_, bound.key), IBV_WC_REM_ACCESS_ERR);
  renew();
  // Bound to nothing, it is invalid.
  const WindowOwner::Reply nothing = run({.what = What::kBindType1, .length = 0});
  EXPECT_EQ(nothing.result, 0);
  EXPECT_EQ(write(memory_ + 64, again.key), IBV_WC_REM_ACCESS_ERR);
  renew();
  EXPECT_EQ(write(memory_ + 64, nothing.key), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(WindowTest, WhatDoesNotFitIsNotBound) {
  const uint32_t key = allocate(IBV_MW_TYPE_2);
  const WindowOwner::Reply reply =
      run({.what = What::kBind, .length = kLongWindowBytes + 1, .key = key});
  EXPECT_EQ(reply.result, 0);
  EXPECT_EQ(reply.completion.status, IBV_WC_MW_BIND_ERR);
  renew();
  EXPECT_EQ(run({.what = What::kBindType1}).result, EINVAL) << "of type 2";
  EXPECT_EQ(run({.what = What::kBind, .length = 0, .key = key}).completion.status,
            IBV_WC_MW_BIND_ERR)
      << "LOCAL_INV unbinds one of type 2";
}

TEST_P(WindowTest, WhatDoesNotFitOneOfType1IsNotBoundAnew) {
  allocate(IBV_MW_TYPE_1);
  const uint32_t key = run({.what = What::kBindType1, .length = 64}).key;
  EXPECT_EQ(write(memory_, key), IBV_WC_SUCCESS);
  const WindowOwner::Reply reply = run({.what = What::kBindType1, .length = kLongWindowBytes + 1});
  EXPECT_EQ(reply.result, 0);
  EXPECT_EQ(reply.completion.status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(reply.key, key);
  renew();
  EXPECT_EQ(run({.what = What::kBindType1, .length = 64}).completion.status, IBV_WC_SUCCESS);
  EXPECT_EQ(write(memory_, run({.what = What::kTellKey}).key), IBV_WC_SUCCESS);
}

// Programs may give the low byte alone, or the key of any other window.
TEST_P(WindowTest, OnlyTheLowByteOfAKeyIsTheProgramsToChoose) {
  const uint32_t first = allocate(IBV_MW_TYPE_2);
  const WindowOwner::Reply bound = run({.what = What::kBind, .key = (first ^ 0x5500) + 20});
  EXPECT_EQ(bound.result, 0);
  EXPECT_EQ(bound.completion.status, IBV_WC_SUCCESS);
  const uint32_t key = run({.what = What::kTellKey}).key;
  EXPECT_EQ(key & 0xff, bound.key & 0xff);
  EXPECT_EQ(key >> 8, first >> 8);
  EXPECT_EQ(write(memory_, key), IBV_WC_SUCCESS);
  EXPECT_EQ(write(memory_, bound.key), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(WindowTest, OneOfAnotherDomainIsNotBound) {
  const uint32_t key = allocate(IBV_MW_TYPE_2, /*elsewhere=*/true);
  const WindowOwner::Reply reply = run({.what = What::kBind, .key = key});
  EXPECT_EQ(reply.result, 0);
  EXPECT_EQ(reply.completion.status, IBV_WC_MW_BIND_ERR);
}

TEST_P(WindowTest, ARegionWithWindowsStays) {
  bind();
  EXPECT_EQ(run({.what = What::kDeregister}).result, EBUSY);
  EXPECT_EQ(run({.what = What::kDeallocate}).result, 0);
}

INSTANTIATE_TEST_SUITE_P(Places, WindowTest, all_places(), name_by_place);
INSTANTIATE_TEST_SUITE_P(Places, RacingWindowTest, testing::Values(Place::kOtherProcess),
                         name_by_place);

}  // namespace
}  // namespace verbena::soft_test
