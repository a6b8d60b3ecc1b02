// The provider with FI_VERBENA_REUSED_BUFFERS: what leaves from the program's buffers, and what is
// copied whatever is asked for, since it may change at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rdma/fi_rma.h>

#include <string>

#include "tests/ofi/provider_for_test.h"

namespace verbena::ofi_test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kVariable = "FI_VERBENA_REUSED_BUFFERS";
constexpr size_t kInjectedBytes = 1024;
// What the log has of a peer once the first message is not copied to a slot.
constexpr const char* kGathered = "go without a copy";
// The paper's 200 for 1 KiB, of which a quarter, and as many again.
constexpr int kOften = 100;

class ReuseProviderTest : public ProviderTest {
 protected:
  void SetUp() override {
    setenv("VERBENA_LOG", "info", 1);
    setenv(kVariable, "paper", 1);
    testing::internal::CaptureStderr();
    set_up();
    // Connected, and with rings.
    for (int i = 0; i < 10 && !HasFatalFailure(); ++i)
      exchange([&] { return fi_tinject(a_.endpoint.get(), "hello", 6, a_.other, kTag); });
  }
  void TearDown() override { unsetenv(kVariable); }

  template <typename Post>
  void exchange(Post&& post) {
    receive(b_, into_.data(), into_.size(), kTag);
    must_post(post);
    ASSERT_EQ(next(b_).error.err, 0);
  }
  std::string log() {
    const std::string text = testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
    return text;
  }

  static constexpr uint64_t kTag = 5;
  std::string buffer_ = std::string(8192, 'b');
  std::string into_ = std::string(8192, '-');
};

TEST_F(ReuseProviderTest, WhatIsInjectedIsCopied) {
  const iovec piece{buffer_.data(), kInjectedBytes};
  const fi_msg_tagged message{.msg_iov = &piece,
                              .desc = nullptr,
                              .iov_count = 1,
                              .addr = a_.other,
                              .tag = kTag,
                              .ignore = 0,
                              .context = nullptr,
                              .data = 0};
  for (int i = 0; i < kOften && !HasFatalFailure(); ++i) {
    const char byte = static_cast<char>('a' + i % 26);
    buffer_.assign(buffer_.size(), byte);
    exchange([&] {
      const ssize_t posted =
          i % 2 == 0 ? fi_tinject(a_.endpoint.get(), buffer_.data(), kInjectedBytes, a_.other, kTag)
                     : fi_tsendmsg(a_.endpoint.get(), &message, FI_INJECT);
      if (posted == 0) buffer_.assign(buffer_.size(), '!');
      return posted;
    });
    EXPECT_EQ(into_.substr(0, kInjectedBytes), std::string(kInjectedBytes, byte));
  }
  EXPECT_THAT(log(), Not(HasSubstr(kGathered)));
  testing::internal::GetCapturedStderr();
}

TEST_F(ReuseProviderTest, InjectedPutsAreCopied) {
  std::string memory(kInjectedBytes, 'm');
  fid_mr* made = nullptr;
  ASSERT_EQ(fi_mr_reg(domain_.get(), memory.data(), memory.size(), FI_REMOTE_WRITE, 0, 7, 0, &made,
                      nullptr),
            0);
  const Owned<fid_mr> region(made);
  uint64_t done = 0;
  for (int i = 0; i < kOften && !HasFatalFailure(); ++i) {
    buffer_.assign(buffer_.size(), static_cast<char>('a' + i % 26));
    const std::string expected = buffer_.substr(0, kInjectedBytes);
    must_post([&] {
      return fi_inject_write(a_.endpoint.get(), buffer_.data(), kInjectedBytes, a_.other, 0, 7);
    });
    buffer_.assign(buffer_.size(), '!');
    const uint64_t begun_ns = now_ns();
    ++done;
    while (fi_cntr_read(a_.writes.get()) < done && now_ns() - begun_ns < kLongestWaitNs) {
      for (End* end : {&a_, &b_}) take(*end);
    }
    ASSERT_EQ(memory, expected);
  }
  EXPECT_THAT(log(), Not(HasSubstr(kGathered)));
  testing::internal::GetCapturedStderr();
}

// Injected ones for which there is no room keep their bytes, and are copied once more when there
// is.
TEST_F(ReuseProviderTest, InjectedSendsThatWaitAreCopied) {
  int posted = 0;
  for (; posted < 4 * kOften; ++posted) {
    buffer_.assign(buffer_.size(), static_cast<char>('a' + posted % 26));
    if (fi_tinject(a_.endpoint.get(), buffer_.data(), kInjectedBytes, a_.other, kTag) != 0) break;
  }
  buffer_.assign(buffer_.size(), '!');
  ASSERT_GT(posted, kOften);
  for (int i = 0; i < posted && !HasFatalFailure(); ++i) {
    receive(b_, into_.data(), into_.size(), kTag);
    ASSERT_EQ(next(b_).error.err, 0);
    EXPECT_EQ(into_.substr(0, kInjectedBytes),
              std::string(kInjectedBytes, static_cast<char>('a' + i % 26)));
  }
  EXPECT_THAT(log(), Not(HasSubstr(kGathered)));
  testing::internal::GetCapturedStderr();
}

TEST_F(ReuseProviderTest, WhatHasACompletionLeavesFromItsBuffer) {
  for (int i = 0; i < kOften && !HasFatalFailure(); ++i) {
    const char byte = static_cast<char>('a' + i % 26);
    buffer_.assign(buffer_.size(), byte);
    const uint64_t before = fi_cntr_read(a_.sends.get());
    exchange([&] {
      return fi_tsend(a_.endpoint.get(), buffer_.data(), buffer_.size(), nullptr, a_.other, kTag,
                      nullptr);
    });
    EXPECT_EQ(into_, std::string(into_.size(), byte));
    // It may change from here on.
    const uint64_t begun_ns = now_ns();
    while (fi_cntr_read(a_.sends.get()) == before && now_ns() - begun_ns < kLongestWaitNs) {
      take(a_);
    }
    ASSERT_GT(fi_cntr_read(a_.sends.get()), before);
  }
  EXPECT_THAT(log(), HasSubstr(kGathered));
  testing::internal::GetCapturedStderr();
}

TEST_F(ReuseProviderTest, AValueThatIsNoneIsRefused) {
  setenv(kVariable, "sometimes", 1);
  fid_ep* endpoint = nullptr;
  EXPECT_EQ(fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr), -FI_EINVAL);
  EXPECT_THAT(log(), testing::AllOf(HasSubstr(kVariable), HasSubstr("'sometimes'"),
                                    HasSubstr("copied, measured or paper")));
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace verbena::ofi_test
