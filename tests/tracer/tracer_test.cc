// What the tracer makes of what an MPI does that is seldom seen, such as calls of several threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>

#include "src/base/runtime.h"
#include "src/trace/rank_decoder.h"
#include "src/trace/recording.h"
#include "tests/support/tool_process.h"
#include "tests/tracer/fake_mpi.h"

namespace verbena::test {
namespace {

using trace::Operation;

Result<trace::RankRecording> recording_in(const ScratchDirectory& scratch) {
  const std::string file = read_file(scratch.file(trace::rank_file_name(0)));
  return trace::decode_rank(std::as_bytes(std::span(file)), trace::rank_file_name(0));
}

// A thread waits for a send. Before the tracer has noted that, another one has the same handle for
// a receive; what the status says, which is nothing of a send, is no rank.
TEST(Tracer, TakesAHandleThatAnotherThreadGotAnew) {
  const ScratchDirectory scratch;
  ASSERT_EQ(setenv("VERBENA_TRACE_OUT", scratch.path().c_str(), 1), 0);
  ASSERT_EQ(MPI_Init(nullptr, nullptr), 0);
  char bytes[100] = {};
  uint32_t sent = 0;
  uint32_t received = 0;
  ASSERT_EQ(MPI_Isend(bytes, 8, kByte, 1, 5, kWorld, &sent), 0);
  set_wait([&](FakeStatus& status) {
    Thread other = start_thread(
        "other", [&] { EXPECT_EQ(MPI_Irecv(bytes, 100, kByte, 1, 6, kWorld, &received), 0); });
    other.join();
    status = {.count = {0x7fffffff, 0}, .source = 0x7fffffff, .tag = -1};
  });
  EXPECT_EQ(MPI_Wait(&sent, reinterpret_cast<void*>(1)), 0);
  set_wait([](FakeStatus& status) { status = {.count = {100, 0}, .source = 1, .tag = 6}; });
  EXPECT_EQ(MPI_Wait(&received, reinterpret_cast<void*>(1)), 0);
  ASSERT_EQ(MPI_Finalize(), 0);

  const Result<trace::RankRecording> recording = recording_in(scratch);
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  EXPECT_EQ(recording->threads, 2u);
  ASSERT_GE(recording->events.size(), 2u);
  EXPECT_EQ(recording->events[0].operation, Operation::kStartSend);
  EXPECT_EQ(recording->events[0].bytes, 8u);
  EXPECT_EQ(recording->events[1].operation, Operation::kStartReceive);
  EXPECT_TRUE(recording->events[1].has(trace::kUnmatched));
}

// A process records once, so this is one of its own.
template <typename Calls>
Result<trace::RankRecording> recording_of(Calls&& calls) {
  const ScratchDirectory scratch;
  const auto record = [&] {
    setenv("VERBENA_TRACE_OUT", scratch.path().c_str(), 1);
    MPI_Init(nullptr, nullptr);
    calls();
    MPI_Finalize();
    _exit(0);
  };
  EXPECT_EXIT(record(), testing::ExitedWithCode(0), "");
  return recording_in(scratch);
}

// Other ranks may use them for the first time in another order.
TEST(TracerDeathTest, NumbersCopiesOfACommunicatorByTheirCalls) {
  const Result<trace::RankRecording> recording = recording_of([] {
    uint32_t copies[2] = {};
    uint32_t request = 0;
    for (uint32_t i = 0; i < 2; ++i) {
      MPI_Comm_idup(kWorld, &copies[i], &request);
      set_wait([&, i](FakeStatus&) { copies[i] = 0x84000001 + i; });
      MPI_Wait(&request, reinterpret_cast<void*>(1));
    }
    char byte = 0;
    for (const uint32_t copy : {copies[1], copies[0]}) {
      MPI_Isend(&byte, 1, kByte, 1, 5, copy, &request);
    }
  });
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  EXPECT_EQ(recording->communicators.size(), 4u) << "with those of all, and of this rank alone";
  ASSERT_EQ(recording->events.size(), 2u);
  EXPECT_EQ(recording->events[0].communicator, 3u);
  EXPECT_EQ(recording->events[1].communicator, 2u);
}

// As in Open MPI.
TEST(TracerDeathTest, WaitsForASendThatHasTheHandleOfAReceiveFromNobody) {
  const Result<trace::RankRecording> recording = recording_of([] {
    char bytes[2] = {};
    uint32_t sent = 0;
    uint32_t received = 0;
    MPI_Isend(&bytes[0], 1, kByte, 1, 5, kWorld, &sent);
    MPI_Irecv(&bytes[1], 1, kByte, kNobody, 5, kWorld, &received);
    set_wait([](FakeStatus&) {});
    MPI_Wait(&sent, reinterpret_cast<void*>(1));
    MPI_Wait(&received, reinterpret_cast<void*>(1));
  });
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  ASSERT_EQ(recording->events.size(), 2u);
  EXPECT_EQ(recording->events[0].operation, Operation::kStartSend);
  EXPECT_EQ(recording->events[1].operation, Operation::kWait);
  EXPECT_TRUE(testing::Value(recording->list(recording->events[1]), testing::ElementsAre(1u)));
}

}  // namespace
}  // namespace verbena::test
