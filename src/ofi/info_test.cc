#include "src/ofi/info.h"

#include <gtest/gtest.h>
#include <rdma/fi_errno.h>

#include <memory>
#include <utility>

#include "verbena/message.h"

namespace verbena::ofi {
namespace {

// As libfabric frees it; its own function would work on memory of this program all the same.
struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

struct Hints {
  Info info{fi_allocinfo()};
  fi_info* operator->() const { return info.get(); }
  // The provider's answer; null where it has none.
  Info answer() const {
    fi_info* found = nullptr;
    const int result = get_info(FI_VERSION(1, 17), nullptr, nullptr, 0, info.get(), &found);
    EXPECT_EQ(result == 0, found != nullptr);
    if (result != 0) {
      EXPECT_EQ(result, -FI_ENODATA);
    }
    return Info(found);
  }
};

TEST(InfoTest, ALockIsLeftOutWhereOneThreadAtATimeUsesADomainAlone) {
  for (const fi_threading threading : {FI_THREAD_UNSPEC, FI_THREAD_SAFE, FI_THREAD_FID,
                                       FI_THREAD_ENDPOINT, FI_THREAD_COMPLETION}) {
    EXPECT_TRUE(needs_lock(threading)) << "model " << threading;
  }
  EXPECT_FALSE(needs_lock(FI_THREAD_DOMAIN));
}

TEST(InfoTest, WithoutHintsItTellsWhatThereIs) {
  fi_info* found = nullptr;
  ASSERT_EQ(get_info(FI_VERSION(2, 5), nullptr, nullptr, 0, nullptr, &found), 0);
  const Info info(found);
  EXPECT_EQ(info->next, nullptr);
  EXPECT_EQ(info->caps, kCapabilities);
  EXPECT_EQ(info->mode, 0u);
  EXPECT_EQ(info->ep_attr->type, FI_EP_RDM);
  EXPECT_STREQ(info->domain_attr->name, "soft0");
  // libfabric puts the provider's name there itself.
  EXPECT_EQ(info->fabric_attr->prov_name, nullptr);
}

TEST(InfoTest, WhatIsAskedForComesBack) {
  const Hints hints;
  hints->caps = FI_TAGGED;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->av_type = FI_AV_MAP;
  hints->ep_attr->mem_tag_format = 0x00c000007fffffff;
  hints->tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
  const Info info = hints.answer();
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->caps, FI_TAGGED | FI_SEND | FI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM);
  EXPECT_EQ(info->domain_attr->threading, FI_THREAD_DOMAIN);
  EXPECT_EQ(info->domain_attr->av_type, FI_AV_MAP);
  EXPECT_EQ(info->ep_attr->mem_tag_format, 0x00c000007fffffffu);
  EXPECT_EQ(info->tx_attr->op_flags, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

TEST(InfoTest, ProgramsBeforeModesOfMemoryAreToldOneByName) {
  const Hints hints;
  hints->domain_attr->mr_mode = FI_MR_UNSPEC;
  for (const auto& [version, mode] :
       {std::pair{FI_VERSION(1, 4), int{FI_MR_SCALABLE}}, std::pair{FI_VERSION(1, 5), 0}}) {
    fi_info* found = nullptr;
    ASSERT_EQ(get_info(version, nullptr, nullptr, 0, hints.info.get(), &found), 0);
    const Info info(found);
    EXPECT_EQ(info->domain_attr->mr_mode, mode) << "version " << version;
  }
}

TEST(InfoTest, WhatHasNoDirectionHasAllOfThem) {
  constexpr uint64_t kRemote = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  for (const auto& [asked, directions] :
       {std::pair{uint64_t{FI_MSG}, uint64_t{FI_SEND | FI_RECV}},
        std::pair{uint64_t{FI_RMA}, kRemote}, std::pair{uint64_t{FI_ATOMIC}, kRemote},
        std::pair{uint64_t{FI_MSG | FI_RECV}, uint64_t{FI_RECV}},
        std::pair{uint64_t{FI_RMA | FI_READ}, uint64_t{FI_READ}}}) {
    const Hints hints;
    hints->caps = asked;
    const Info info = hints.answer();
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->caps & (kRemote | FI_SEND | FI_RECV), directions) << "asked " << asked;
    EXPECT_EQ(info->tx_attr->caps & ~info->caps, 0u);
    EXPECT_EQ(info->rx_attr->caps & ~info->caps, 0u);
  }
}

TEST(InfoTest, EveryInfoHasASourceAndOneOfANodeADestination) {
  for (const auto& [flags, has_destination] :
       {std::pair{uint64_t{FI_SOURCE}, false}, std::pair{uint64_t{0}, true}}) {
    fi_info* found = nullptr;
    ASSERT_EQ(get_info(FI_VERSION(2, 0), "127.0.0.1", "47100", flags, nullptr, &found), 0);
    const Info info(found);
    EXPECT_EQ(info->src_addrlen, sizeof(MessengerAddress));
    EXPECT_EQ(info->dest_addr != nullptr, has_destination);
  }
}

// Programs give the answer as hints of a further call.
TEST(InfoTest, AnAnswerIsGivenAgainWhereItIsAskedFor) {
  Hints hints;
  const Info first = hints.answer();
  ASSERT_NE(first, nullptr);
  hints.info.reset(fi_dupinfo(first.get()));
  const Info second = hints.answer();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->caps, first->caps);
  EXPECT_EQ(second->domain_attr->cq_cnt, first->domain_attr->cq_cnt);
}

TEST(InfoTest, WhatThereIsNotIsRefused) {
  using Ask = void (*)(fi_info&);
  const Ask asks[] = {
      [](fi_info& info) { info.caps = FI_TAGGED | FI_HMEM; },
      [](fi_info& info) { info.caps = FI_COLLECTIVE; },
      [](fi_info& info) { info.ep_attr->type = FI_EP_MSG; },
      [](fi_info& info) { info.ep_attr->type = FI_EP_DGRAM; },
      [](fi_info& info) { info.ep_attr->max_msg_size = kMaxMessageBytes + 1; },
      [](fi_info& info) { info.addr_format = FI_SOCKADDR_IN; },
      [](fi_info& info) { info.domain_attr->data_progress = FI_PROGRESS_AUTO; },
      [](fi_info& info) { info.domain_attr->name = strdup("mlx5_0"); },
      [](fi_info& info) { info.fabric_attr->name = strdup("another"); },
      [](fi_info& info) { info.tx_attr->inject_size = kInjectBytes + 1; },
      [](fi_info& info) { info.tx_attr->msg_order = FI_ORDER_SAW; },
      [](fi_info& info) { info.tx_attr->comp_order = FI_ORDER_STRICT; },
      [](fi_info& info) { info.rx_attr->iov_limit = kPieces + 1; },
      [](fi_info& info) { info.rx_attr->total_buffered_recv = 1 << 20; },
      [](fi_info& info) { info.domain_attr->max_ep_tx_ctx = 4; },
      [](fi_info& info) { info.domain_attr->max_ep_rx_ctx = 4; },
      [](fi_info& info) { info.domain_attr->ep_cnt = 1 << 20; },
      [](fi_info& info) { info.domain_attr->cq_cnt = 1 << 20; },
      [](fi_info& info) { info.domain_attr->cntr_cnt = 1 << 20; },
      [](fi_info& info) { info.domain_attr->mr_cnt = 1 << 20; },
      [](fi_info& info) { info.domain_attr->tx_ctx_cnt = 1 << 20; },
      [](fi_info& info) { info.domain_attr->rx_ctx_cnt = 1 << 20; },
  };
  for (size_t i = 0; i < std::size(asks); ++i) {
    const Hints hints;
    asks[i](*hints.info);
    EXPECT_EQ(hints.answer(), nullptr) << "request " << i;
  }
}

}  // namespace
}  // namespace verbena::ofi
