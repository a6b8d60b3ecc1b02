#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "src/base/runtime.h"
#include "src/device/verbs_for_test.h"
#include "verbena/device.h"

namespace verbena {
namespace {

using test::kAllAccess;

constexpr uint64_t kPatienceNs = 120'000'000'000;

// As in tests/rpc_support.h: these tests also run on real devices.
const char* device_under_test() {
  const char* name = std::getenv("VERBENA_TEST_DEVICE");
  return name != nullptr && *name != '\0' ? name : "soft0";
}

// One end of a connection with a buffer of its own.
struct End {
  Result<CompletionChannel> channel;
  Result<CompletionQueue> cq;
  Result<QueuePair> queue_pair;
  alignas(64) std::array<char, 256> buffer{};
  Result<MemoryRegion> region;

  End(const Device& device, const ProtectionDomain& domain, Transport transport = Transport::kRc)
      : channel(CompletionChannel::create(device)),
        cq(CompletionQueue::create(device, {.depth_cqes = 16, .channel = &*channel})),
        queue_pair(
            QueuePair::create(domain, {.transport = transport, .send_cq = &*cq, .recv_cq = &*cq})),
        region(MemoryRegion::create(domain, buffer.data(), buffer.size(), kAllAccess)) {}

  ibv_sge sge(uint32_t length_bytes) const {
    return {reinterpret_cast<uint64_t>(buffer.data()), length_bytes, region->lkey()};
  }

  int receive(uint64_t id) {
    return test::post_receive(queue_pair->get(), id, {sge(sizeof(buffer))});
  }

  int send(uint64_t id, uint32_t length_bytes, ibv_wr_opcode opcode = IBV_WR_SEND,
           const End* target = nullptr) {
    test::SendRequest request{.id = id, .opcode = opcode, .sges = {sge(length_bytes)}};
    if (target != nullptr) {
      request.remote_address = reinterpret_cast<uint64_t>(target->buffer.data());
      request.rkey = target->region->rkey();
    }
    return test::post(queue_pair->get(), request);
  }

  // The next completion; status IBV_WC_GENERAL_ERR with wr_id ~0 if there is none in time.
  ibv_wc completion() {
    ibv_wc found{};
    const uint64_t start_ns = now_ns();
    Waiter waiter;
    while (ibv_poll_cq(cq->get(), 1, &found) == 0) {
      if (now_ns() - start_ns > kPatienceNs) {
        found.status = IBV_WC_GENERAL_ERR;
        found.wr_id = ~uint64_t{0};
        break;
      }
      waiter.idle();
    }
    return found;
  }
};

class QueuePairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(device_.ok()) << device_.status().message();
    domain_ = std::make_unique<Result<ProtectionDomain>>(ProtectionDomain::create(*device_));
    ASSERT_TRUE(domain_->ok()) << domain_->status().message();
    make_ends(Transport::kRc);
  }
  void make_ends(Transport transport) {
    for (auto& end : ends_) {
      end = std::make_unique<End>(*device_, **domain_, transport);
      ASSERT_TRUE(end->queue_pair.ok()) << end->queue_pair.status().message();
      ASSERT_TRUE(end->region.ok()) << end->region.status().message();
    }
  }
  void connect(const ReliabilityOptions& options = {}) {
    std::array<QueuePairAddress, 2> addresses;
    for (size_t i = 0; i < 2; ++i) {
      const Result<QueuePairAddress> address = ends_[i]->queue_pair->address();
      ASSERT_TRUE(address.ok()) << address.status().message();
      addresses[i] = *address;
      const Status status = ends_[i]->queue_pair->init(kAllAccess);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (size_t i = 0; i < 2; ++i) {
      const Status status = ends_[i]->queue_pair->connect(addresses[1 - i], options);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }

  Result<Device> device_ = Device::open(device_under_test());
  std::unique_ptr<Result<ProtectionDomain>> domain_;
  std::array<std::unique_ptr<End>, 2> ends_;
};

TEST_F(QueuePairTest, CarriesAMessage) {
  connect();
  End& sender = *ends_[0];
  End& receiver = *ends_[1];
  ASSERT_EQ(receiver.receive(7), 0);
  std::strcpy(sender.buffer.data(), "over the software RNIC");
  ASSERT_EQ(sender.send(8, 64), 0);
  const ibv_wc sent = sender.completion();
  EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent.wr_id, 8u);
  const ibv_wc received = receiver.completion();
  EXPECT_EQ(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.wr_id, 7u);
  EXPECT_EQ(received.byte_len, 64u);
  EXPECT_STREQ(receiver.buffer.data(), "over the software RNIC");
}

TEST_F(QueuePairTest, CarriesAMessageWithoutReliability) {
  for (const Transport transport : {Transport::kUc, Transport::kUd}) {
    make_ends(transport);
    connect();
    End& sender = *ends_[0];
    End& receiver = *ends_[1];
    ASSERT_EQ(receiver.receive(7), 0);
    std::strcpy(sender.buffer.data(), "without reliability");
    ibv_sge bytes = sender.sge(64);
    ibv_send_wr request{};
    request.wr_id = 8;
    request.sg_list = &bytes;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND_WITH_IMM;
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = 9;
    if (transport == Transport::kUd) sender.queue_pair->set_destination(request);
    ibv_send_wr* rejected = nullptr;
    ASSERT_EQ(ibv_post_send(sender.queue_pair->get(), &request, &rejected), 0);
    EXPECT_EQ(sender.completion().status, IBV_WC_SUCCESS);
    const ibv_wc received = receiver.completion();
    EXPECT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.imm_data, 9u);
    const uint32_t header_bytes = transport == Transport::kUd ? sizeof(ibv_grh) : 0;
    EXPECT_EQ(received.byte_len, 64 + header_bytes);
    EXPECT_STREQ(receiver.buffer.data() + header_bytes, "without reliability");
    if (transport == Transport::kUd) {
      EXPECT_EQ(received.src_qp, sender.queue_pair->number());
    }
  }
}

TEST_F(QueuePairTest, DatagramsOfAnotherConnectionVanish) {
  make_ends(Transport::kUd);
  connect();
  ASSERT_EQ(ends_[1]->receive(7), 0);
  // The queue pair's number is right; the sequence number, from which its key follows, is not.
  End stranger(*device_, **domain_, Transport::kUd);
  QueuePairAddress address = *ends_[1]->queue_pair->address();
  address.packet_sequence_number ^= 1;
  ASSERT_TRUE(stranger.queue_pair->init(0).ok());
  ASSERT_TRUE(stranger.queue_pair->connect(address).ok());
  for (End* sender : {&stranger, ends_[0].get()}) {
    ibv_sge bytes = sender->sge(sender == &stranger ? 8 : 16);
    ibv_send_wr request{};
    request.sg_list = &bytes;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    sender->queue_pair->set_destination(request);
    ibv_send_wr* rejected = nullptr;
    ASSERT_EQ(ibv_post_send(sender->queue_pair->get(), &request, &rejected), 0);
    EXPECT_EQ(sender->completion().status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(ends_[1]->completion().byte_len, 16 + sizeof(ibv_grh));
}

TEST_F(QueuePairTest, WritesRemotely) {
  connect();
  std::strcpy(ends_[0]->buffer.data(), "one-sided");
  ASSERT_EQ(ends_[0]->send(1, 32, IBV_WR_RDMA_WRITE, ends_[1].get()), 0);
  EXPECT_EQ(ends_[0]->completion().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(ends_[1]->buffer.data(), "one-sided");
}

TEST_F(QueuePairTest, WithoutRemoteAccessTheErrorIsExplained) {
  std::array<QueuePairAddress, 2> addresses = {*ends_[0]->queue_pair->address(),
                                               *ends_[1]->queue_pair->address()};
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(ends_[i]->queue_pair->init(IBV_ACCESS_LOCAL_WRITE).ok());
  }
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(ends_[i]->queue_pair->connect(addresses[1 - i]).ok());
  }
  ASSERT_EQ(ends_[0]->send(1, 32, IBV_WR_RDMA_WRITE, ends_[1].get()), 0);
  const ibv_wc refused = ends_[0]->completion();
  // What a queue pair without the access answers, the devices decide differently.
  if (refused.status == IBV_WC_REM_ACCESS_ERR) {
    EXPECT_NE(explain_completion_error(refused.status).find("rkey"), std::string::npos);
  } else {
    EXPECT_EQ(refused.status, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_NE(explain_completion_error(refused.status).find("not enabled"), std::string::npos);
  }
}

TEST_F(QueuePairTest, ACompletionChannelWakesTheWaiter) {
  connect();
  EXPECT_EQ(ends_[1]->channel->wait(1'000'000).status().code(), StatusCode::kTimeout);
  ASSERT_EQ(ends_[1]->receive(1), 0);
  ASSERT_EQ(ibv_req_notify_cq(ends_[1]->cq->get(), 0), 0);
  ASSERT_EQ(ends_[0]->send(2, 8), 0);
  const Result<ibv_cq*> event = ends_[1]->channel->wait(kPatienceNs);
  ASSERT_TRUE(event.ok()) << event.status().message();
  EXPECT_EQ(*event, ends_[1]->cq->get());
  EXPECT_EQ(ends_[1]->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ends_[1]->channel->wait(0).status().code(), StatusCode::kTimeout);
}

TEST_F(QueuePairTest, TheErrorStateFlushesReceives) {
  connect();
  ASSERT_EQ(ends_[1]->receive(5), 0);
  const Status status = ends_[1]->queue_pair->to_error();
  ASSERT_TRUE(status.ok()) << status.message();
  const ibv_wc flushed = ends_[1]->completion();
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed.wr_id, 5u);
}

TEST_F(QueuePairTest, ASharedReceiveQueueFeedsIt) {
  Result<SharedReceiveQueue> shared =
      SharedReceiveQueue::create(**domain_, {.depth_wrs = 4, .max_sges = 1});
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  {
    End& receiver = *ends_[1];
    receiver.queue_pair = QueuePair::create(
        **domain_,
        {.send_cq = &*receiver.cq, .recv_cq = &*receiver.cq, .shared_receive_queue = &*shared});
    ASSERT_TRUE(receiver.queue_pair.ok()) << receiver.queue_pair.status().message();
    connect();
    ASSERT_EQ(test::post_receive(shared->get(), 77, {receiver.sge(sizeof(receiver.buffer))}), 0);
    ASSERT_EQ(ends_[0]->send(1, 16), 0);
    const ibv_wc received = receiver.completion();
    EXPECT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.wr_id, 77u);
    ends_[1].reset();  // before its shared receive queue
  }
}

TEST_F(QueuePairTest, RefusesEncodingsThatDoNotExist) {
  ASSERT_TRUE(ends_[0]->queue_pair->init(kAllAccess).ok());
  const QueuePairAddress peer = *ends_[1]->queue_pair->address();
  ReliabilityOptions options;
  options.rnr_retry_count = 8;
  const Status status = ends_[0]->queue_pair->connect(peer, options);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("rnr_retry_count is 8"), std::string::npos) << status.message();
}

TEST_F(QueuePairTest, RefusesAPeerOfAnotherNetwork) {
  ASSERT_TRUE(ends_[0]->queue_pair->init(kAllAccess).ok());
  QueuePairAddress peer = *ends_[1]->queue_pair->address();
  peer.lid = 0;
  peer.has_gid = 0;
  EXPECT_EQ(ends_[0]->queue_pair->connect(peer).code(), StatusCode::kInvalidArgument);
  peer = *ends_[1]->queue_pair->address();
  peer.mtu = 9;
  EXPECT_EQ(ends_[0]->queue_pair->connect(peer).code(), StatusCode::kProtocolViolation);
}

TEST_F(QueuePairTest, ConnectingBeforeInitNamesTheStep) {
  const Status status = ends_[0]->queue_pair->connect(*ends_[1]->queue_pair->address());
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("INIT to RTR"), std::string::npos) << status.message();
}

TEST_F(QueuePairTest, TooDeepNamesTheLimit) {
  const uint32_t asked = device_->info().max_queue_pair_wrs + 1;
  const Result<QueuePair> queue_pair = QueuePair::create(
      **domain_, {.send_cq = &*ends_[0]->cq, .recv_cq = &*ends_[0]->cq, .send_depth_wrs = asked});
  ASSERT_FALSE(queue_pair.ok());
  EXPECT_NE(queue_pair.status().message().find(std::to_string(asked)), std::string::npos)
      << queue_pair.status().message();
  EXPECT_NE(queue_pair.status().message().find(std::to_string(asked - 1)), std::string::npos)
      << queue_pair.status().message();
}

TEST_F(QueuePairTest, CompletionQueueLimits) {
  EXPECT_EQ(CompletionQueue::create(*device_, {.depth_cqes = 0}).status().code(),
            StatusCode::kInvalidArgument);
  const uint32_t asked = device_->info().max_cqes + 1;
  const Result<CompletionQueue> queue = CompletionQueue::create(*device_, {.depth_cqes = asked});
  ASSERT_FALSE(queue.ok());
  EXPECT_NE(queue.status().message().find(std::to_string(asked - 1)), std::string::npos)
      << queue.status().message();
}

TEST_F(QueuePairTest, NeedsCompletionQueues) {
  EXPECT_EQ(QueuePair::create(**domain_, {}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace verbena
