// What the tracer makes of what an MPI does that is seldom seen, such as calls of several threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "src/base/runtime.h"
#include "src/trace/rank_decoder.h"
#include "src/trace/recording.h"
#include "tests/support/tool_process.h"
#include "tests/tracer/fake_mpi.h"

namespace verbena::test {
namespace {

using trace::Operation;

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

  const std::string file = read_file(scratch.file(trace::rank_file_name(0)));
  const Result<trace::RankRecording> recording =
      trace::decode_rank(std::as_bytes(std::span(file)), trace::rank_file_name(0));
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  EXPECT_EQ(recording->threads, 2u);
  ASSERT_GE(recording->events.size(), 2u);
  EXPECT_EQ(recording->events[0].operation, Operation::kStartSend);
  EXPECT_EQ(recording->events[0].bytes, 8u);
  EXPECT_EQ(recording->events[1].operation, Operation::kStartReceive);
  EXPECT_TRUE(recording->events[1].has(trace::kUnmatched));
}

}  // namespace
}  // namespace verbena::test
