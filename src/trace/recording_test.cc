// What is recorded comes back, and what is damaged, of another version or contradicts itself is
// refused with a line that says so.
#include "src/trace/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/trace/rank_decoder.h"
#include "src/trace/rank_encoder.h"
#include "src/trace/recordings_for_test.h"

namespace verbena::trace {
namespace {

using testing::HasSubstr;

void expect_equal(const Event& a, const Event& b) {
  EXPECT_EQ(a.operation, b.operation);
  EXPECT_EQ(a.flags, b.flags);
  EXPECT_EQ(a.compute_ns, b.compute_ns);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.address, b.address);
  EXPECT_EQ(a.peer, b.peer);
  EXPECT_EQ(a.tag, b.tag);
  EXPECT_EQ(a.communicator, b.communicator);
  EXPECT_EQ(a.request, b.request);
}

TEST(Recording, ComesBackAsItWasWritten) {
  for (const RankRecording& rank : two_ranks()) {
    const Result<RankRecording> read = decode_rank(encoded(rank), "rank");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->rank, rank.rank);
    EXPECT_EQ(read->size, 2u);
    EXPECT_EQ(read->communicators, rank.communicators);
    EXPECT_EQ(read->elapsed_ns, 12'345u);
    EXPECT_EQ(read->last_compute_ns, rank.last_compute_ns);
    ASSERT_EQ(read->calls.size(), 2u);
    EXPECT_EQ(read->calls[1].name, "MPI_Put");
    EXPECT_FALSE(read->calls[1].replayed);
    ASSERT_EQ(read->events.size(), rank.events.size());
    for (size_t i = 0; i < rank.events.size(); ++i) {
      SCOPED_TRACE(i);
      expect_equal(read->events[i], rank.events[i]);
      EXPECT_TRUE(testing::Value(read->list(read->events[i]),
                                 testing::ElementsAreArray(rank.list(rank.events[i]))));
    }
  }
}

TEST(Recording, WildcardsBecomeWhatCame) {
  RankEncoder encoder(1, 4);
  encoder.communicator(std::vector<uint32_t>{0, 1, 2, 3});
  for (int i = 0; i < 2; ++i) {
    encoder.event({.bytes = 4096,
                   .peer = RankEncoder::kAnySource,
                   .tag = RankEncoder::kAnyTag,
                   .operation = Operation::kStartReceive},
                  {});
  }
  encoder.wait(0, 2,
               std::vector<Completion>{
                   {.request = 1, .flags = kCompletedReceive, .peer = 3, .tag = 9, .bytes = 17},
                   {.request = 2, .flags = kCompletedReceive | kCompletedCancelled}});
  encoder.end(0, 0, 1, {});
  const Result<RankRecording> read = decode_rank(encoder.take(), "rank");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->events[0].peer, 3u);
  EXPECT_EQ(read->events[0].tag, 9);
  EXPECT_EQ(read->events[0].bytes, 17u);
  EXPECT_FALSE(read->events[0].has(kUnmatched));
  EXPECT_TRUE(read->events[1].has(kUnmatched));
  EXPECT_THAT(read->list(read->events[2]), testing::ElementsAre(1u));
}

TEST(Recording, OfWhichAnyByteIsWrongIsRefused) {
  const std::vector<std::byte> right = encoded(two_ranks()[0]);
  for (size_t i = 0; i < right.size(); ++i) {
    std::vector<std::byte> wrong = right;
    wrong[i] ^= std::byte{0x41};
    EXPECT_FALSE(decode_rank(wrong, "rank").ok()) << i;
    EXPECT_FALSE(decode_rank(std::span(right).first(i), "rank").ok()) << i;
  }
}

TEST(Recording, OfAnotherVersionIsRefused) {
  std::vector<std::byte> other = encoded(two_ranks()[0]);
  other[kRecordingMagic.size()] = std::byte{kRecordingVersion + 1};
  EXPECT_THAT(decode_rank(other, "file").status().message(),
              HasSubstr("file has version 2 of recordings, and this release reads 1"));
}

// Of a call's name, in ten bytes where one would do: nothing behind the end is read.
TEST(Recording, WithAnOverlongLengthIsRefused) {
  RankEncoder encoder(0, 2);
  encoder.end(0, 0, 1, {});
  std::vector<std::byte> file = encoder.take();
  // Without the checksum and the number of calls, 0.
  file.resize(file.size() - kChecksumBytes - 1);
  file.push_back(std::byte{1});
  file.push_back(std::byte{0x80 | 10});
  for (int i = 0; i < 8; ++i) file.push_back(std::byte{0x80});
  file.push_back(std::byte{0});
  const uint64_t sum = checksum(file);
  const size_t end = file.size();
  for (size_t i = 0; i < kChecksumBytes; ++i) {
    file.push_back(static_cast<std::byte>(sum >> (8 * i)));
  }
  file.shrink_to_fit();
  EXPECT_THAT(decode_rank(file, "rank").status().message(),
              HasSubstr("a number in it cannot be (byte " + std::to_string(end) + " of "));
}

TEST(Recording, BeyondTheBoundOfAllRanksIsRefused) {
  const RankRecording rank = two_ranks()[0];
  const std::vector<std::byte> file = encoded(rank);
  const uint64_t left = rank.events.size();
  EXPECT_TRUE(decode_rank(file, "rank", {.events = kMostEvents - left - 1}).ok());
  EXPECT_THAT(decode_rank(file, "rank", {.events = kMostEvents - 2}).status().message(),
              HasSubstr("calls and more, with those of the ranks before it, and at most"));
  EXPECT_THAT(decode_rank(file, "rank", {.numbers = kMostNumbers - 2}).status().message(),
              HasSubstr("numbers in lists, with those of the ranks before it, and at most"));
}

// The checksum is right, and what it is of is not.
TEST(Recording, WithNumbersThatCannotBeIsRefused) {
  const auto refused = [](const auto& write) {
    RankEncoder encoder(0, 2);
    write(encoder);
    encoder.end(0, 0, 1, {});
    const Result<RankRecording> read = decode_rank(encoder.take(), "rank");
    return !read.ok() && read.status().code() == StatusCode::kProtocolViolation;
  };
  const std::vector<uint32_t> world = {0, 1};
  const auto event = [&](Event event) {
    return refused([&](RankEncoder& encoder) {
      encoder.communicator(world);
      encoder.event(event, {});
    });
  };
  EXPECT_FALSE(event({.peer = 1, .operation = Operation::kSend}));
  EXPECT_TRUE(event({.peer = 2, .operation = Operation::kSend}));
  EXPECT_TRUE(event({.peer = RankEncoder::kAnySource, .operation = Operation::kReceive}));
  EXPECT_TRUE(event({.peer = 1, .communicator = 1, .operation = Operation::kSend}));
  EXPECT_TRUE(event({.bytes = kMostMessageBytes + 1, .peer = 1, .operation = Operation::kSend}));
  EXPECT_FALSE(event({.compute_ns = kMostComputeNs, .peer = 1, .operation = Operation::kSend}));
  EXPECT_TRUE(event({.compute_ns = kMostComputeNs + 1, .peer = 1, .operation = Operation::kSend}));
  EXPECT_TRUE(event({.peer = 2, .operation = Operation::kBroadcast}));
  // A list of none, though there are two members.
  EXPECT_TRUE(event({.operation = Operation::kAllgather, .flags = kVaries}));
  EXPECT_TRUE(refused([](RankEncoder& encoder) {
    encoder.communicator(std::vector<uint32_t>{0, 0});
  }));
  EXPECT_TRUE(
      refused([](RankEncoder& encoder) { encoder.communicator(std::vector<uint32_t>{1}); }));
  EXPECT_TRUE(refused(
      [](RankEncoder& encoder) { encoder.wait(0, 1, std::vector<Completion>{{.request = 1}}); }));
}

// --- what belongs together ---

Status linked(const std::function<void(RankBuilder& rank, uint32_t number)>& write,
              uint32_t size = 2, RecordedJob* result = nullptr) {
  std::vector<RankRecording> ranks;
  for (uint32_t number = 0; number < size; ++number) {
    RankBuilder builder(number, size);
    write(builder, number);
    ranks.push_back(builder.take());
  }
  RecordedJob job = job_of(std::move(ranks));
  const Status status = link_job(job);
  if (result != nullptr) *result = std::move(job);
  return status;
}

TEST(Linking, FindsEachMessagesReceive) {
  RecordedJob job = job_of(two_ranks());
  const Status status = link_job(job);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(job.unmatched_sends, 0u);
  EXPECT_EQ(job.unmatched_receives, 0u);
  EXPECT_EQ(job.buffered_sends, 0u);
  EXPECT_EQ(job.channels, 2u);
  // The world, each rank alone, and the one that both made.
  EXPECT_EQ(job.communicators.size(), 4u);
  RecordedJob again = job_of(two_ranks());
  ASSERT_TRUE(link_job(again).ok());
  EXPECT_EQ(again.digest, job.digest);
  RecordedJob other = job_of(two_ranks(1001));
  ASSERT_TRUE(link_job(other).ok());
  EXPECT_NE(other.digest, job.digest);
}

TEST(Linking, RefusesOtherBytesThanWereSent) {
  const Status status = linked([](RankBuilder& rank, uint32_t number) {
    if (number == 0) rank.send(1, 5, 100, 0);
    if (number == 1) rank.receive(0, 5, 101, 0);
  });
  EXPECT_THAT(status.message(),
              HasSubstr("rank 0 sends 100 bytes to rank 1 with tag 5, which receives 101"));
}

TEST(Linking, LeavesOutWhatNobodyReceives) {
  RecordedJob job;
  const Status status = linked(
      [](RankBuilder& rank, uint32_t number) {
        if (number == 0) {
          const uint32_t request = rank.start_send(1, 5, 100, 0);
          rank.wait({&request, 1});
        }
      },
      2, &job);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(job.unmatched_sends, 1u);
  EXPECT_TRUE(job.ranks[0].events[0].has(kUnmatched));
}

TEST(Linking, RefusesCollectiveOperationsThatDiffer) {
  EXPECT_THAT(linked([](RankBuilder& rank, uint32_t number) {
                rank.collective(Operation::kAllreduce, 8 + number, 0);
              }).message(),
              HasSubstr("rank 0 calls allreduce, root 0, and rank 1 with 9 bytes, not 8"));
  EXPECT_THAT(linked([](RankBuilder& rank, uint32_t number) {
                rank.collective(number == 0 ? Operation::kBarrier : Operation::kScan, 0, 0);
              }).message(),
              HasSubstr("rank 1 calls scan"));
  EXPECT_THAT(linked([](RankBuilder& rank, uint32_t number) {
                if (number == 0) rank.collective(Operation::kBarrier, 0, 0);
              }).message(),
              HasSubstr("rank 0 calls 1 collective operations of a communicator, rank 1 0"));
  EXPECT_THAT(linked([](RankBuilder& rank, uint32_t number) {
                const std::vector<uint64_t> list = {8, 8, 8, 8u + number};
                rank.collective_v(Operation::kAlltoall, list, 0);
              }).message(),
              HasSubstr("sends 8 bytes to rank 1, which receives 9"));
}

// Both send before they receive: their MPI had copied the messages.
TEST(Linking, FindsSendsThatWereBuffered) {
  RecordedJob job;
  const Status status = linked(
      [](RankBuilder& rank, uint32_t number) {
        rank.send(1 - number, 0, 4000, 0);
        rank.receive(1 - number, 0, 4000, 0);
        if (number == 0) rank.send(1, 0, 4000, 0);
        if (number == 1) rank.receive(0, 0, 4000, 0);
      },
      2, &job);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(job.buffered_sends, 2u);
  EXPECT_TRUE(job.ranks[0].events[0].has(kBuffered));
  EXPECT_FALSE(job.ranks[0].events[2].has(kBuffered));
}

TEST(Linking, RefusesRanksThatWaitForEachOther) {
  EXPECT_THAT(linked([](RankBuilder& rank, uint32_t number) {
                rank.receive(1 - number, 0, 8, 0);
                rank.send(1 - number, 0, 8, 0);
              }).message(),
              HasSubstr("rank 0 would wait for ever in its call 1 of 2, a receive"));
  EXPECT_THAT(linked([](RankBuilder& rank, uint32_t number) {
                if (number == 0) rank.collective(Operation::kBarrier, 0, 0);
                if (number == 1) rank.receive(0, 0, 8, 0);
                if (number == 0) rank.send(1, 0, 8, 0);
                if (number == 1) rank.collective(Operation::kBarrier, 0, 0);
              }).message(),
              HasSubstr("a barrier"));
}

// Two receive, and the one that had to be first has ended last; the barriers are in any order, too.
std::vector<RankRecording> ranks_of_threads() {
  std::vector<RankRecording> ranks;
  for (uint32_t number = 0; number < 2; ++number) {
    RankBuilder builder(number, 2);
    const uint32_t both = builder.communicator({0, 1});
    if (number == 0) {
      builder.send(1, 5, 100, 0);
      builder.send(1, 5, 200, 0);
      builder.collective(Operation::kBarrier, 0, 0);
      builder.collective(Operation::kAllreduce, 8, 0, 0, both);
    } else {
      builder.receive(0, 5, 200, 0);
      builder.receive(0, 5, 100, 0);
      builder.collective(Operation::kAllreduce, 16, 0, 0, both);
    }
    ranks.push_back(builder.take());
  }
  return ranks;
}

TEST(Linking, AsksForNoOrderOfWhatSeveralThreadsDid) {
  RecordedJob job = job_of(ranks_of_threads());
  EXPECT_EQ(link_job(job).code(), StatusCode::kProtocolViolation);
  job = job_of(ranks_of_threads());
  job.ranks[1].threads = 2;
  const Status status = link_job(job);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(job.communicators.size(), 4u);
  EXPECT_EQ(job.ranks[0].events[3].communicator, job.ranks[1].events[2].communicator);
  EXPECT_EQ(job.unmatched_sends, 0u);
}

// --- folders ---

class RecordingFolder : public testing::Test {
 protected:
  RecordingFolder() : folder_(std::filesystem::path(testing::TempDir()) / "verbena-recording") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~RecordingFolder() override { std::filesystem::remove_all(folder_); }

  std::string error() const { return read_recording(folder_).status().message(); }

  std::string folder_;
};

TEST_F(RecordingFolder, HasAllRanks) {
  const std::vector<RankRecording> ranks = two_ranks();
  EXPECT_THAT(error(), HasSubstr("has no recording, there is no rank-00000.trace"));
  write_rank_file(folder_, 0, encoded(ranks[0]));
  EXPECT_THAT(error(), HasSubstr("has 1 of 2 ranks: there is no rank-00001.trace"));
  write_rank_file(folder_, 1, encoded(ranks[0]));
  EXPECT_THAT(error(), HasSubstr("is of rank 0 of 2, and 1 of 2 was expected"));
  write_rank_file(folder_, 1, encoded(ranks[1]));
  const Result<RecordedJob> job = read_recording(folder_);
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->size(), 2u);
  std::vector<std::byte> cut = encoded(ranks[1]);
  cut.resize(cut.size() - 1);
  write_rank_file(folder_, 1, cut);
  EXPECT_THAT(error(), HasSubstr("rank-00001.trace is no whole recording: its checksum is wrong"));
  EXPECT_THAT(read_recording("/nonexistent").status().message(), HasSubstr("is no folder"));
}

}  // namespace
}  // namespace verbena::trace
