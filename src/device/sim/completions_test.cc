// What a poll of a completion queue costs the thread.
#include <gtest/gtest.h>

#include <cstdint>

#include "src/device/sim/cluster_for_test.h"
#include "verbena/data_path.h"

namespace verbena::sim {
namespace {

class CompletionsTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 4096;

  static Profile steady_profile() {
    Profile profile = test_profile();
    profile.jitter_percent = 0;
    return profile;
  }
  // A thread's time for a poll of `end` that finds so many completions; `reads`: their messages,
  // too.
  Time poll_time(const End& end, size_t node, bool reads = false, int found = 1) {
    uint64_t before_ns = 0;
    uint64_t after_ns = 0;
    Thread thread = cluster_.start(node, [&] {
      ibv_wc completions[4];
      before_ns = now_ns();
      ASSERT_EQ((reads ? poll_messages : poll_completions)(end.cq(), 4, completions), found);
      after_ns = now_ns();
    });
    thread.join();
    return (after_ns - before_ns) * kPsPerNs;
  }
  void send(size_t bytes) {
    ASSERT_EQ(post_receive(b_, 1, {there_.sge(0, kBytes)}), 0);
    ASSERT_EQ(post(a_, {.id = 1, .sges = {here_.sge(0, bytes)}}), 0);
    cluster_.settle();
  }

  const Profile profile_ = steady_profile();
  Cluster cluster_{2, /*seed=*/1, profile_};
  Buffer here_{cluster_[0], kBytes};
  Buffer there_{cluster_[1], kBytes};
  End a_{cluster_[0]};
  End b_{cluster_[1]};
};

// The RNIC has written a receive's completion and, elsewhere, its message, which costs only who
// reads it; of a send nothing but the completion.
TEST_F(CompletionsTest, ACompletionAndItsMessageAreTwoLines) {
  connect(a_, b_);
  const Time found = profile_.poll_empty + profile_.poll_completion + profile_.cpu_device_line;
  const Time read = found + profile_.cpu_message;
  send(64);
  EXPECT_NEAR(poll_time(b_, 1, /*reads=*/true), read + profile_.cpu_device_line, kPsPerNs);
  EXPECT_NEAR(poll_time(a_, 0), found, kPsPerNs);
  send(0);
  EXPECT_NEAR(poll_time(b_, 1, /*reads=*/true), read, kPsPerNs);
  EXPECT_NEAR(poll_time(a_, 0), found, kPsPerNs);
  send(64);
  EXPECT_NEAR(poll_time(b_, 1), found, kPsPerNs) << "a message that nobody reads";
  send(0);
  EXPECT_NEAR(poll_time(b_, 1, /*reads=*/true), read, kPsPerNs) << "nor is it charged later";
}

TEST_F(CompletionsTest, EachMessageIsChargedThatAPollFinds) {
  connect(a_, b_);
  send(64);
  send(0);
  send(8);
  const Time each = profile_.poll_completion + profile_.cpu_device_line + profile_.cpu_message;
  EXPECT_NEAR(poll_time(b_, 1, /*reads=*/true, 3),
              profile_.poll_empty + 3 * each + 2 * profile_.cpu_device_line, 3 * kPsPerNs);
}

}  // namespace
}  // namespace verbena::sim
