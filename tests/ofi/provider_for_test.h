// Two endpoints of the provider in one process, by libfabric's own functions.
#pragma once

#include <gtest/gtest.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "verbena/clock.h"

namespace verbena::ofi_test {

inline constexpr uint64_t kLongestWaitNs = 60'000'000'000;

struct CloseFid {
  template <typename Handle>
  void operator()(Handle* handle) const {
    EXPECT_EQ(fi_close(&handle->fid), 0);
  }
};
template <typename Handle>
using Owned = std::unique_ptr<Handle, CloseFid>;

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

// What a completion queue tells.
struct Done {
  fi_cq_tagged_entry entry{};
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  fi_cq_err_entry error{};  // `err` is 0 for a good one
};

struct End {
  Owned<fid_av> vector;
  Owned<fid_cq> queue;
  Owned<fid_cntr> sends;
  Owned<fid_cntr> reads;
  Owned<fid_cntr> writes;
  Owned<fid_cntr> remote;  // reads and writes of the other one
  Owned<fid_ep> endpoint;
  fi_addr_t self = 0;
  fi_addr_t other = 0;
};

class ProviderTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("FI_PROVIDER_PATH", VERBENA_PROVIDER_PATH, 1);
    setenv("FI_PROVIDER", "verbena", 1);
    setenv("VERBENA_JOB_SECRET", "a secret of these tests alone", 1);
  }

  void SetUp() override { set_up(); }

  void set_up(int memory_mode = 0) {
    const Info hints(fi_allocinfo());
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV |
                  FI_MULTI_RECV | FI_RMA_EVENT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = memory_mode;
    fi_info* found = nullptr;
    ASSERT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found), 0);
    info_.reset(found);
    ASSERT_STREQ(info_->fabric_attr->prov_name, "verbena");
    fid_fabric* fabric = nullptr;
    ASSERT_EQ(fi_fabric(info_->fabric_attr, &fabric, nullptr), 0);
    fabric_.reset(fabric);
    fid_domain* domain = nullptr;
    ASSERT_EQ(fi_domain(fabric, info_.get(), &domain, nullptr), 0);
    domain_.reset(domain);
    for (End* end : {&a_, &b_}) open(*end);
    ASSERT_FALSE(HasFatalFailure());
    meet(a_, b_);
    meet(b_, a_);
  }

  void open(End& end) {
    fi_av_attr vector_attributes{};
    fid_av* vector = nullptr;
    ASSERT_EQ(fi_av_open(domain_.get(), &vector_attributes, &vector, nullptr), 0);
    end.vector.reset(vector);
    fi_cq_attr queue_attributes{};
    queue_attributes.format = FI_CQ_FORMAT_TAGGED;
    fid_cq* queue = nullptr;
    ASSERT_EQ(fi_cq_open(domain_.get(), &queue_attributes, &queue, nullptr), 0);
    end.queue.reset(queue);
    for (Owned<fid_cntr>* counter : {&end.sends, &end.reads, &end.writes, &end.remote}) {
      fi_cntr_attr counter_attributes{};
      fid_cntr* opened = nullptr;
      ASSERT_EQ(fi_cntr_open(domain_.get(), &counter_attributes, &opened, nullptr), 0);
      counter->reset(opened);
    }
    fid_ep* endpoint = nullptr;
    ASSERT_EQ(fi_endpoint(domain_.get(), info_.get(), &endpoint, &end), 0);
    end.endpoint.reset(endpoint);
    ASSERT_EQ(fi_ep_bind(endpoint, &vector->fid, 0), 0);
    ASSERT_EQ(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION),
              0);
    ASSERT_EQ(fi_ep_bind(endpoint, &end.sends->fid, FI_SEND), 0);
    ASSERT_EQ(fi_ep_bind(endpoint, &end.reads->fid, FI_READ), 0);
    ASSERT_EQ(fi_ep_bind(endpoint, &end.writes->fid, FI_WRITE), 0);
    ASSERT_EQ(fi_ep_bind(endpoint, &end.remote->fid, FI_REMOTE_READ | FI_REMOTE_WRITE), 0);
    ASSERT_EQ(fi_enable(endpoint), 0);
  }

  static void meet(End& end, End& other) {
    for (const auto& [whose, number] : {std::pair{&end, &end.self}, {&other, &end.other}}) {
      char name[64];
      size_t size_bytes = sizeof(name);
      ASSERT_EQ(fi_getname(&whose->endpoint->fid, name, &size_bytes), 0);
      ASSERT_EQ(fi_av_insert(end.vector.get(), name, 1, number, 0, nullptr), 1);
    }
  }

  // Repeats a post that would block, while both ends make progress.
  template <typename Post>
  void must_post(Post&& post) {
    const uint64_t start_ns = now_ns();
    ssize_t result = 0;
    while ((result = post()) == -FI_EAGAIN && now_ns() - start_ns < kLongestWaitNs) {
      for (End* end : {&a_, &b_}) take(*end);
    }
    ASSERT_EQ(result, 0) << fi_strerror(static_cast<int>(-result));
  }

  // Keeps what has come.
  void take(End& end) {
    Done done;
    const ssize_t got = fi_cq_readfrom(end.queue.get(), &done.entry, 1, &done.source);
    if (got == -FI_EAVAIL) {
      ASSERT_EQ(fi_cq_readerr(end.queue.get(), &done.error, 0), 1);
    } else if (got == -FI_EAGAIN) {
      return;
    } else {
      ASSERT_EQ(got, 1);
    }
    kept_[&end == &a_ ? 0 : 1].push_back(done);
  }

  Done next(End& end) {
    std::vector<Done>& kept = kept_[&end == &a_ ? 0 : 1];
    const uint64_t start_ns = now_ns();
    while (kept.empty() && now_ns() - start_ns < kLongestWaitNs && !HasFatalFailure()) {
      for (End* one : {&a_, &b_}) take(*one);
    }
    if (kept.empty()) {
      ADD_FAILURE() << "no completion came";
      return {};
    }
    const Done first = kept.front();
    kept.erase(kept.begin());
    return first;
  }

  // Whatever still comes.
  bool nothing_more() {
    for (int i = 0; i < 1000; ++i) {
      for (End* end : {&a_, &b_}) take(*end);
    }
    return kept_[0].empty() && kept_[1].empty();
  }

  void send(End& from, const std::string& text, uint64_t tag, uint64_t flags = 0,
            void* context = nullptr, uint64_t data = 0) {
    // It stays as it is until the send completes.
    std::string& kept = texts_.emplace_back(text);
    const iovec piece{kept.data(), kept.size()};
    const fi_msg_tagged message{.msg_iov = &piece,
                                .desc = nullptr,
                                .iov_count = 1,
                                .addr = from.other,
                                .tag = tag,
                                .ignore = 0,
                                .context = context,
                                .data = data};
    must_post([&] { return fi_tsendmsg(from.endpoint.get(), &message, flags); });
  }

  // Of a receive that leaves an entry.
  void receive(End& at, void* buffer, size_t size_bytes, uint64_t tag, void* context = nullptr,
               uint64_t flags = FI_COMPLETION) {
    const iovec piece{buffer, size_bytes};
    const fi_msg_tagged message{.msg_iov = &piece,
                                .desc = nullptr,
                                .iov_count = 1,
                                .addr = FI_ADDR_UNSPEC,
                                .tag = tag,
                                .ignore = 0,
                                .context = context,
                                .data = 0};
    must_post([&] { return fi_trecvmsg(at.endpoint.get(), &message, flags); });
  }

  Info info_;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  End a_;
  End b_;
  std::vector<Done> kept_[2];
  std::deque<std::string> texts_;
};

inline std::string text_of(size_t size_bytes, uint64_t seed) {
  Random random(seed);
  std::string text(size_bytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random.next());
  return text;
}

}  // namespace verbena::ofi_test
