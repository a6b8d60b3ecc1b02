// The log on soft0: what is appended is read, whatever the surroundings.
#include "verbena/apps/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "log/log_for_test.h"
#include "log/pages.h"
#include "src/base/runtime.h"

namespace verbena::log_app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string random_record(Random& random, uint32_t most_bytes) {
  std::string record(random.below(most_bytes + 1), '\0');
  for (char& byte : record) byte = static_cast<char>(random.next());
  return record;
}

// Memory that is registered, for records that are written from where they lie.
struct Registered {
  Pages pages;
  MemoryRegion memory;

  Registered(const test::Node& node, uint64_t bytes)
      : pages(test::must(Pages::allocate(bytes))),
        memory(test::must(
            MemoryRegion::create(node.domain, pages.data(), bytes, IBV_ACCESS_LOCAL_WRITE))) {}
};

class LogTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Replicas, LogTest, testing::Values(1, 2, 3));

// Random records in random batches, by all ways, many times around a small ring, against a vector.
TEST_P(LogTest, WhatIsAppendedIsReadInOrder) {
  Random random(run_seed());
  LogForTest log(GetParam(), {.capacity_bytes = 64 << 10});
  constexpr uint32_t kMaxBatch = 12;
  constexpr uint32_t kMaxRecordBytes = 600;
  auto writer = log.writer({.pending = 4, .max_batch = kMaxBatch});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  auto reader = log.reader({.chunk_bytes = 4096, .hole_lease_ns = 1'000'000'000'000});
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  // A place for each record that can be on its way.
  const Registered source(log.node(), 5 * kMaxBatch * kMaxRecordBytes);
  std::deque<std::string> expected;
  std::map<uint64_t, uint32_t> posted;  // records of a batch by token
  uint64_t done = 0;
  LogPosition last_position = 0;
  uint64_t read = 0;
  const auto take = [&](const LogCompletion& completion) {
    ASSERT_EQ(completion.token, done++);
    ASSERT_EQ(completion.outcome, LogOutcome::kAppended);
    ASSERT_EQ(completion.records, posted.at(completion.token));
  };
  const auto read_some = [&] {
    const auto records = reader->next();
    ASSERT_TRUE(records.ok()) << records.status().message();
    for (const LogRecord& record : *records) {
      ASSERT_FALSE(expected.empty());
      ASSERT_EQ(record.bytes, expected.front());
      ASSERT_TRUE(read == 0 || record.position > last_position);
      last_position = record.position;
      expected.pop_front();
      ++read;
    }
  };
  constexpr uint64_t kBatches = 1000;
  for (uint64_t token = 0; token < kBatches && !HasFatalFailure();) {
    std::vector<std::string> records(1 + random.below(kMaxBatch));
    for (std::string& record : records) record = random_record(random, kMaxRecordBytes);
    std::vector<std::string_view> views(records.begin(), records.end());
    std::vector<LocalSlice> slices;
    uint64_t at = token % 5 * kMaxBatch * kMaxRecordBytes;
    for (const std::string& record : records) {
      std::memcpy(source.pages.data() + at, record.data(), record.size());
      slices.push_back({&source.memory, at, static_cast<uint32_t>(record.size())});
      at += record.size();
    }
    const bool copies = random.below(2) == 0;
    bool appended = false;
    while (!appended && !HasFatalFailure()) {
      if (writer->outstanding() == 0 && random.below(4) == 0) {
        const auto position = copies ? writer->append(views) : writer->append(slices);
        appended = position.ok();
        if (appended) {
          posted[token] = static_cast<uint32_t>(records.size());
          ++done;
        } else {
          ASSERT_EQ(position.status().code(), StatusCode::kLimitExceeded);
        }
      } else {
        const PostResult result =
            copies ? writer->post_append(views, token) : writer->post_append(slices, token);
        appended = result == PostResult::kPosted;
        if (appended) posted[token] = static_cast<uint32_t>(records.size());
        if (result == PostResult::kFailed) {
          ASSERT_EQ(writer->error().code(), StatusCode::kLimitExceeded)
              << writer->error().message();
        }
        writer->poll(take);
      }
      if (appended) break;
      read_some();
      const Status trimmed = reader->trim();
      ASSERT_TRUE(trimmed.ok()) << trimmed.message();
    }
    ++token;
    expected.insert(expected.end(), records.begin(), records.end());
    if (random.below(3) == 0) read_some();
  }
  Waiter waiter;
  while (done < kBatches && writer->status().ok() && !HasFatalFailure()) {
    writer->poll(take) > 0 ? waiter.progress() : waiter.idle();
  }
  while (!expected.empty() && !HasFatalFailure()) read_some();
  EXPECT_TRUE(writer->status().ok()) << writer->status().message();
  EXPECT_EQ(writer->statistics().appended_batches, kBatches);
  EXPECT_EQ(reader->statistics().batches, kBatches);
  EXPECT_EQ(reader->statistics().skipped_places, 0u);
}

TEST_P(LogTest, AFullLogIsRefusedAndGoesOnAfterATrim) {
  LogForTest log(GetParam(), {.capacity_bytes = 64 << 10});
  auto writer = log.writer();
  auto reader = log.reader();
  ASSERT_TRUE(writer.ok() && reader.ok());
  const std::string record(4000, 'a');
  uint64_t appended = 0;
  Status refused;
  while (refused.ok()) {
    refused = writer->append(record).status();
    appended += refused.ok() ? 1 : 0;
  }
  EXPECT_EQ(refused.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(refused.message(), HasSubstr("the log is full: the batch takes 4032 bytes, "));
  EXPECT_THAT(refused.message(), HasSubstr(" of 65536 are free; trim it"));
  EXPECT_EQ(appended, 65536u / 4032);
  // It stays as it is, and a smaller record has room.
  EXPECT_FALSE(writer->append(record).ok());
  EXPECT_TRUE(writer->append("small").ok());
  std::vector<std::string> records;
  ASSERT_TRUE(read_records(*reader.result.value(), appended + 1, &records).ok());
  EXPECT_EQ(records.back(), "small");
  ASSERT_TRUE(reader->trim().ok());
  Waiter waiter;
  while (!writer->append(record).ok()) {
    ASSERT_TRUE(writer->status().ok());
    waiter.idle();  // until the stores have freed it
  }
  ASSERT_TRUE(read_records(*reader.result.value(), appended + 2, &records).ok());
  EXPECT_EQ(records.back(), record);
}

TEST_P(LogTest, ABatchIsAsLongAsItMayBe) {
  constexpr uint32_t kBytes = 2 << 20;
  LogForTest log(GetParam(), {.capacity_bytes = 8 * kBytes});
  const Registered source(log.node(), kBytes);
  for (const VectorMethod method :
       {VectorMethod::kAutomatic, VectorMethod::kSgl, VectorMethod::kDoorbell}) {
    auto writer =
        log.writer({.pending = 1, .max_batch = 2, .max_batch_bytes = kBytes, .method = method});
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    auto reader = log.reader({.start = LogStart::kNewest});
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    const LocalSlice halves[] = {{&source.memory, 0, kBytes / 2},
                                 {&source.memory, kBytes / 2, kBytes / 2}};
    const auto appended = writer->append(halves);
    ASSERT_TRUE(appended.ok()) << appended.status().message();
    ASSERT_TRUE(writer->append(std::string(kBytes, 'x')).ok());
    std::vector<std::string> records;
    ASSERT_TRUE(read_records(*reader.result.value(), 3, &records).ok());
    EXPECT_EQ(records[0].size() + records[1].size(), kBytes);
    EXPECT_TRUE(records[2] == std::string(kBytes, 'x'));
  }
  const uint32_t most = (1 << 20) - headers_bytes(2);
  const auto writer_by_sp = [&log](uint32_t bytes) {
    return log
        .writer(
            {.pending = 1, .max_batch = 2, .max_batch_bytes = bytes, .method = VectorMethod::kSp})
        .status();
  };
  EXPECT_TRUE(writer_by_sp(most).ok());
  const Status refused = writer_by_sp(most + 1);
  EXPECT_EQ(refused.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(refused.message(), HasSubstr("choose at most " + std::to_string(most)));
}

TEST_P(LogTest, AReaderStartsWhereItIsTold) {
  LogForTest log(GetParam());
  auto writer = log.writer();
  ASSERT_TRUE(writer.ok());
  const std::string_view batch[] = {"one", "two", "three"};
  const auto first = writer->append(batch);
  ASSERT_TRUE(first.ok());
  auto newest = log.reader({.start = LogStart::kNewest});
  auto second = log.reader({.start = LogStart::kPosition, .position = *first + 1});
  auto oldest = log.reader();
  ASSERT_TRUE(writer->append("four").ok());
  std::vector<std::string> records;
  ASSERT_TRUE(read_records(*newest.result.value(), 1, &records).ok());
  EXPECT_THAT(records, ElementsAre("four"));
  records.clear();
  ASSERT_TRUE(read_records(*second.result.value(), 3, &records).ok());
  EXPECT_THAT(records, ElementsAre("two", "three", "four"));
  records.clear();
  ASSERT_TRUE(read_records(*oldest.result.value(), 4, &records).ok());
  EXPECT_THAT(records, ElementsAre("one", "two", "three", "four"));
  auto behind = log.reader({.start = LogStart::kPosition, .position = oldest->position()});
  ASSERT_TRUE(behind.ok());
  EXPECT_TRUE(behind->next()->empty());
  EXPECT_THAT(
      log.reader({.start = LogStart::kPosition, .position = *first + 1'000'000}).status().message(),
      HasSubstr("is beyond the log's end"));
  // A reader may go on elsewhere, as if it had been opened there.
  ASSERT_TRUE(behind->seek(LogStart::kPosition, *first + 2).ok());
  EXPECT_EQ(behind->position(), *first + 2);
  EXPECT_THAT(behind->seek(LogStart::kPosition, *first + 1'000'000).message(),
              HasSubstr("is beyond the log's end"));
  records.clear();
  ASSERT_TRUE(read_records(*behind.result.value(), 2, &records).ok());
  EXPECT_THAT(records, ElementsAre("three", "four"));
  ASSERT_TRUE(behind->seek(LogStart::kOldest).ok());
  records.clear();
  ASSERT_TRUE(read_records(*behind.result.value(), 4, &records).ok());
  EXPECT_EQ(records.front(), "one");
  ASSERT_TRUE(oldest->trim().ok());
  EXPECT_THAT(log.reader({.start = LogStart::kPosition, .position = *first}).status().message(),
              HasSubstr("the log was trimmed up to position"));
  const LogPosition before = behind->position();
  EXPECT_EQ(behind->seek(LogStart::kPosition, *first).code(), StatusCode::kLimitExceeded);
  EXPECT_EQ(behind->position(), before);
  ASSERT_TRUE(behind->seek(LogStart::kNewest).ok());
  EXPECT_TRUE(behind->next()->empty());
}

TEST_P(LogTest, ASlowReaderLearnsThatItWasOvertaken) {
  LogForTest log(GetParam());
  auto writer = log.writer();
  auto fast = log.reader();
  auto slow = log.reader();
  ASSERT_TRUE(writer->append("dropped").ok());
  std::vector<std::string> records;
  ASSERT_TRUE(read_records(*fast.result.value(), 1, &records).ok());
  ASSERT_TRUE(fast->trim().ok());
  const auto read = slow->next();
  ASSERT_EQ(read.status().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(read.status().message(), HasSubstr("it was too slow; let it seek LogStart::kOldest"));
  EXPECT_TRUE(fast->next().ok());
}

// Reserved and never written, as by a writer that died.
TEST_P(LogTest, AHoleIsSkippedByAllReaders) {
  LogForTest log(GetParam());
  auto writer = log.writer();
  auto raw = log.raw();
  ASSERT_TRUE(raw.ok()) << raw.status().message();
  ASSERT_TRUE(writer->append("before").ok());
  ASSERT_TRUE(raw.result->front().region->fetch_and_add({kTailAt}, 5).ok());
  auto first = log.reader({.hole_lease_ns = 2'000'000});
  // Has no time to wait: it relies on the other one.
  auto second = log.reader({.hole_lease_ns = 1'000'000'000'000'000});
  ASSERT_TRUE(writer->append("after").ok());
  std::vector<std::string> records;
  ASSERT_TRUE(read_records(*second.result.value(), 1, &records).ok());
  EXPECT_TRUE(second->next()->empty());
  records.clear();
  ASSERT_TRUE(read_records(*first.result.value(), 2, &records).ok());
  EXPECT_THAT(records, ElementsAre("before", "after"));
  EXPECT_EQ(first->statistics().sealed_places, 5u * GetParam());
  records.clear();
  ASSERT_TRUE(read_records(*second.result.value(), 1, &records).ok());
  EXPECT_THAT(records, ElementsAre("after"));
  EXPECT_EQ(second->statistics().sealed_places, 0u);
  EXPECT_EQ(second->statistics().skipped_places, 5u);
}

TEST_P(LogTest, AWriterThatIsLateIsToldThatItsBatchWasSkipped) {
  LogForTest log(GetParam());
  auto writer = log.writer();
  auto other = log.writer();
  auto reader = log.reader({.hole_lease_ns = 1'000'000});
  const std::string_view late = "late";
  ASSERT_EQ(writer->post_append({&late, 1}, 7), PostResult::kPosted);
  if (GetParam() > 1) {
    // Its floor has to be everywhere before it reserves.
    auto raw = log.raw();
    Waiter waiter;
    while (raw.result->front().read_control()->tail == 0) {
      ASSERT_EQ(writer->poll([](const LogCompletion&) {}), 0u);
      waiter.idle();
    }
  }
  ASSERT_TRUE(other->append("in time").ok());
  std::vector<std::string> records;
  ASSERT_TRUE(read_records(*reader.result.value(), 1, &records).ok());
  LogCompletion completion;
  Waiter waiter;
  while (writer->poll([&](const LogCompletion& done) { completion = done; }) == 0) waiter.idle();
  EXPECT_EQ(completion.token, 7u);
  if (completion.outcome == LogOutcome::kSkipped) {
    EXPECT_THAT(records, ElementsAre("in time"));
    EXPECT_EQ(writer->statistics().skipped_batches, 1u);
  } else {
    // With replicas, the poll that saw the floors published may have gone on to commit.
    ASSERT_GT(GetParam(), 1u);
    EXPECT_EQ(records.front(), "late");
  }
  ASSERT_TRUE(writer->append("again").ok());
}

// It may still write what it has reserved: nobody else gets the space.
TEST_P(LogTest, AWriterInTheMiddleOfAnAppendHoldsItsSpace) {
  LogForTest log(GetParam(), {.capacity_bytes = 64 << 10});
  auto stopped = log.writer();
  auto writer = log.writer();
  auto reader = log.reader({.hole_lease_ns = 1'000'000});
  const std::string record(4000, 'x');
  const std::string_view late = record;
  ASSERT_EQ(stopped->post_append({&late, 1}, 0), PostResult::kPosted);
  uint64_t appended = 0;
  while (writer->append(record).ok()) ++appended;
  std::vector<std::string> records;
  ASSERT_TRUE(read_records(*reader.result.value(), appended, &records).ok());
  ASSERT_TRUE(reader->trim().ok());
  // The stores free what was trimmed whenever they take somebody in.
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(log.raw().ok());
    EXPECT_EQ(writer->append(record).status().code(), StatusCode::kLimitExceeded);
  }
  Waiter waiter;
  bool done = false;
  while (!done) {
    if (stopped->poll([](const LogCompletion&) {}) > 0) done = true;
    waiter.idle();
  }
  while (!writer->append(record).ok()) {
    ASSERT_TRUE(writer->status().ok());
    waiter.idle();
  }
  // And a writer that is gone holds nothing.
  ASSERT_EQ(stopped->post_append({&late, 1}, 0), PostResult::kPosted);
  stopped.result->reset();
  for (uint64_t more = 0; more < 40;) {
    ASSERT_TRUE(reader->next().ok());
    ASSERT_TRUE(reader->trim().ok());
    more += writer->append(record).ok() ? 1 : 0;
  }
}

void spoil(Replica& replica, uint64_t offset_bytes) {
  const RemotePointer<char> byte{offset_bytes};
  const Result<char> before = replica.region->read(byte);
  ASSERT_TRUE(before.ok());
  ASSERT_TRUE(replica.region->write(byte, static_cast<char>(*before ^ 0x10)).ok());
}

TEST_P(LogTest, ADamagedRecordIsFound) {
  LogForTest log(GetParam());
  auto writer = log.writer();
  ASSERT_TRUE(writer->append("good").ok());
  const std::string_view batch[] = {"some", "records"};
  const auto position = writer->append(batch);
  ASSERT_TRUE(writer->append("good, too").ok());
  auto raw = log.raw();
  const uint64_t place = *position >> kRecordBits;
  const uint32_t bytes = headers_bytes(2) + 11;
  // Every byte of it matters: header, sizes, CRCs, and the records.
  for (uint32_t at = 0; at < bytes; ++at) {
    Replica& first = raw.result->front();
    spoil(first, first.layout().place_at(place) + at);
    auto reader = log.reader({.start = LogStart::kOldest});
    std::vector<std::string> records;
    if (GetParam() > 1) {
      ASSERT_TRUE(read_records(*reader.result.value(), 4, &records).ok()) << at;
      EXPECT_THAT(records, ElementsAre("good", "some", "records", "good, too"));
      EXPECT_EQ(reader->statistics().damaged_copies, 1u);
    } else {
      EXPECT_EQ(reader->skip_damaged().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(reader->next()->size(), 1u) << at;
      const auto damaged = reader->next();
      EXPECT_EQ(damaged.status().code(), StatusCode::kProtocolViolation) << at;
      EXPECT_THAT(damaged.status().message(), HasSubstr("fails its CRC"));
      EXPECT_FALSE(reader->next().ok());
      EXPECT_TRUE(reader->skip_damaged().ok());
      ASSERT_TRUE(read_records(*reader.result.value(), 1, &records).ok());
      EXPECT_THAT(records, ElementsAre("good, too"));
    }
    spoil(first, first.layout().place_at(place) + at);
  }
}

// Several writers and tailers at once: each acknowledged record once, in one order for all, each
// writer's own in the order of its appends.
TEST_P(LogTest, ManyWritersAndTailersAgree) {
  constexpr uint32_t kWriters = 3;
  constexpr uint32_t kReaders = 2;
  constexpr uint64_t kRecordsOfEach = 3000;
  LogForTest log(GetParam(), {.capacity_bytes = 2 << 20});
  std::vector<Opened<std::unique_ptr<LogWriter>>> writers;
  std::vector<Opened<std::unique_ptr<LogReader>>> readers;
  for (uint32_t i = 0; i < kWriters; ++i) writers.push_back(log.writer({.max_batch = 5}));
  for (uint32_t i = 0; i < kReaders; ++i) {
    readers.push_back(log.reader({.hole_lease_ns = 1'000'000'000'000}));
  }
  std::vector<Status> ends(kWriters + kReaders);
  std::vector<std::vector<std::string>> read(kReaders);
  std::vector<Thread> threads;
  for (uint32_t i = 0; i < kWriters; ++i) {
    threads.push_back(start_thread("writer", [&, i] {
      LogWriter& writer = *writers[i].result.value();
      Random random(run_seed() * 100 + i);
      Waiter waiter;
      uint64_t next = 0;
      while ((next < kRecordsOfEach || writer.outstanding() > 0) && ends[i].ok()) {
        const uint64_t count = std::min(1 + random.below(5), kRecordsOfEach - next);
        std::vector<std::string> records;
        for (uint64_t j = 0; j < count; ++j) {
          records.push_back(std::to_string(i) + "/" + std::to_string(next + j));
        }
        const std::vector<std::string_view> views(records.begin(), records.end());
        if (count > 0 && writer.post_append(views, next) == PostResult::kPosted) {
          next += count;
          waiter.progress();
          continue;
        }
        writer.poll([&](const LogCompletion& done) {
          if (done.outcome != LogOutcome::kAppended) {
            ends[i] = Status(StatusCode::kInternal, "a batch was not appended");
          }
        });
        if (!writer.status().ok()) ends[i] = writer.status();
        waiter.idle();
      }
    }));
  }
  for (uint32_t i = 0; i < kReaders; ++i) {
    threads.push_back(start_thread("reader", [&, i] {
      ends[kWriters + i] =
          read_records(*readers[i].result.value(), kWriters * kRecordsOfEach, &read[i]);
    }));
  }
  for (Thread& thread : threads) thread.join();
  for (const Status& end : ends) ASSERT_TRUE(end.ok()) << end.message();
  EXPECT_EQ(read[0], read[1]);
  std::vector<uint64_t> next(kWriters, 0);
  for (const std::string& record : read[0]) {
    const auto writer = static_cast<uint32_t>(record[0] - '0');
    ASSERT_EQ(record, std::to_string(writer) + "/" + std::to_string(next.at(writer)++));
  }
  EXPECT_EQ(read[0].size(), kWriters * kRecordsOfEach);
}

// --- replicas ---

TEST(LogReplicasTest, NothingIsLostWithAStore) {
  LogForTest log(3);
  std::vector<std::string> expected;
  for (uint32_t round = 0; round < 4; ++round) {
    auto writer = log.writer();
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    auto trimmer = log.reader();
    for (int i = 0; i < 100; ++i) {
      expected.push_back(std::to_string(round) + "/" + std::to_string(i));
      ASSERT_TRUE(writer->append(expected.back()).ok());
    }
    // Not acknowledged: in the log or not, but for all alike.
    const std::string_view open = "open";
    ASSERT_EQ(writer->post_append({&open, 1}, 0), PostResult::kPosted);
    // The first one has the tail; it goes, too.
    log.lose_store(0);
    if (round % 2 == 1) log.lose_store(0);
    log.add_store();
    if (round % 2 == 1) log.add_store();
    auto refused = log.reader();
    EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(refused.status().message(), HasSubstr("is blank: it is new, or was restarted"));
    const auto formed = log.form();
    ASSERT_TRUE(formed.ok()) << formed.status().message();
    EXPECT_EQ(formed->epoch, round + 2);
    EXPECT_EQ(formed->kept, round % 2 == 1 ? 1u : 2u);
    EXPECT_EQ(formed->filled, 3 - formed->kept);
    // Who had the log open must open it anew.
    Waiter waiter;
    while (writer->status().ok()) {
      writer->poll([](const LogCompletion&) {});
      waiter.idle();
    }
    EXPECT_EQ(writer->status().code(), StatusCode::kUnavailable);
    auto reader = log.reader({.hole_lease_ns = 1'000'000});
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    std::vector<std::string> records;
    const Status read = read_records(*reader.result.value(), expected.size(), &records);
    ASSERT_TRUE(read.ok()) << read.message();
    EXPECT_EQ(records, expected) << round;
  }
}

// Committed on one replica and free on the other: as by a writer that died in between.
TEST(LogReplicasTest, WhatIsCommittedOnPartOfTheReplicasIsSkipped) {
  for (const bool loses : {false, true}) {
    LogForTest log(2);
    auto writer = log.writer();
    ASSERT_TRUE(writer->append("before").ok());
    auto raw = log.raw();
    const uint64_t place = *raw.result->front().region->fetch_and_add({kTailAt}, 2);
    ASSERT_TRUE(
        raw.result->back()
            .region
            ->compare_and_swap(raw.result->back().word(place), free_word(0), committed_word(0, 2))
            .ok());
    ASSERT_TRUE(writer->append("after").ok());
    if (loses) {
      const auto formed = log.form();
      ASSERT_TRUE(formed.ok());
      EXPECT_EQ(formed->entries, 2u);
      EXPECT_EQ(formed->skipped, 2u);
    }
    auto reader = log.reader({.hole_lease_ns = 1'000'000});
    std::vector<std::string> records;
    ASSERT_TRUE(read_records(*reader.result.value(), 2, &records).ok());
    EXPECT_THAT(records, ElementsAre("before", "after"));
    auto seen = log.raw();
    for (const Replica& replica : *seen.result) {
      EXPECT_EQ(*replica.region->read(replica.word(place)), skipped_word(0));
    }
  }
}

// A writer that is told that its batch was skipped appends it again: it must not come back where
// the replica on which a reader sealed its place is lost, and the reader, too.
TEST(LogReplicasTest, WhatAWriterIsToldToBeSkippedStaysSo) {
  for (const size_t lost : {0, 1}) {
    SCOPED_TRACE(lost);
    LogForTest log(2);
    {
      auto raw = log.raw();
      const Replica& sealed = (*raw.result)[lost];
      ASSERT_EQ(
          must(sealed.region->compare_and_swap(sealed.word(0), free_word(0), skipped_word(0))),
          free_word(0));
      auto writer = log.writer();
      EXPECT_EQ(writer->append("record").status().code(), StatusCode::kTimeout);
      ASSERT_TRUE(writer->append("record").ok());
      EXPECT_EQ(writer->statistics().skipped_batches, 1u);
    }
    log.lose_store(lost);
    log.add_store();
    EXPECT_EQ(must(log.form()).entries, 1u);
    auto reader = log.reader();
    std::vector<std::string> records;
    ASSERT_TRUE(read_records(*reader.result.value(), 1, &records).ok());
    EXPECT_THAT(records, ElementsAre("record"));
  }
}

// A reader that waits for what is new stands behind all that is reserved. A formation gives up what
// of that was not committed, but what comes later is behind that reader all the same.
TEST(LogReplicasTest, AFormationGoesOnBehindItsReaders) {
  for (const size_t lost : {0, 1}) {
    SCOPED_TRACE(lost);
    LogForTest log(2);
    ASSERT_TRUE(log.writer()->append("before").ok());
    ASSERT_TRUE(log.raw().result->front().region->fetch_and_add({kTailAt}, 5).ok());
    const LogPosition position = log.reader({.start = LogStart::kNewest})->position();
    log.lose_store(lost);
    log.add_store();
    const auto formed = log.form();
    ASSERT_TRUE(formed.ok()) << formed.status().message();
    EXPECT_EQ(formed->entries, 1u);
    EXPECT_EQ(formed->skipped, 5u);
    auto writer = log.writer();
    const std::string record(1000, 'x');
    EXPECT_GE(test::must(writer->append(record)), position);
    auto reader = log.reader({.start = LogStart::kPosition, .position = position});
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    std::vector<std::string> records;
    if (!HasFailure()) {
      ASSERT_TRUE(read_records(*reader.result.value(), 1, &records).ok());
      EXPECT_EQ(records.front(), record);
    }
  }
}

// ... but not behind a tail that cannot be.
TEST(LogRefusalTest, ADamagedTailIsFormedAnew) {
  LogForTest log(2);
  ASSERT_TRUE(log.writer()->append("before").ok());
  {
    auto raw = log.raw();
    for (Replica& store : *raw.result) {
      must(store.region->write(RemotePointer<uint64_t>{kTailAt}, kMaxPlace - 1));
    }
  }
  EXPECT_EQ(must(log.form()).entries, 1u);
  const auto appended = log.writer()->append("after");
  ASSERT_TRUE(appended.ok()) << appended.status().message();
  EXPECT_EQ(*appended, position_of(1, 0));
}

// A formation believes the highest epoch: a store that was left out gets the contents again.
TEST(LogReplicasTest, AStoreThatWasLeftOutIsFilledAnew) {
  LogForTest log(2);
  ASSERT_TRUE(log.writer()->append("old").ok());
  // Without the second store.
  const auto first_only = [&log](std::span<ControlConnection* const> controls) {
    return form_log(log.node().device, log.node().domain, controls.first(1));
  };
  ASSERT_TRUE(log.open<LogFormation>(first_only).ok());
  auto mixed = log.writer();
  EXPECT_EQ(mixed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(mixed.status().message(), HasSubstr("give all of one log, or call form_log()"));
  const auto formed = log.form();
  ASSERT_TRUE(formed.ok());
  EXPECT_EQ(formed->kept, 1u);
  EXPECT_EQ(formed->filled, 1u);
  EXPECT_EQ(formed->entries, 1u);
  ASSERT_TRUE(log.writer()->append("new").ok());
}

// A formation of both stores was interrupted when the first one was part of the next epoch. The
// second one then went on alone, and has what the first one has missed.
TEST(LogReplicasTest, WhoIsAheadByAnInterruptedFormationIsNotBelieved) {
  LogForTest log(2);
  ASSERT_TRUE(log.writer()->append("old").ok());
  {
    auto raw = log.raw(Role::kFormer);
    ASSERT_TRUE(raw.ok()) << raw.status().message();
    for (const Replica& store : *raw.result) {
      Header header = store.header;
      const bool is_finished = &store == &raw.result->front();
      header.prepared = header.epoch + 1;
      if (is_finished) header.epoch = header.prepared;
      ASSERT_TRUE(store.region->write(RemotePointer<Header>{.offset_bytes = 0}, header).ok());
    }
  }
  const auto second_only = [](auto open) {
    return [open](std::span<ControlConnection* const> controls) {
      controls[0]->hang_up();
      return open(controls.subspan(1));
    };
  };
  const test::Node& node = log.node();
  ASSERT_TRUE(log.open<LogFormation>(second_only([&](std::span<ControlConnection* const> only) {
                   return form_log(node.device, node.domain, only);
                 }))
                  .ok());
  {
    auto writer = log.open<std::unique_ptr<LogWriter>>(
        second_only([&](std::span<ControlConnection* const> only) {
          return open_log_writer(node.device, node.domain, only);
        }));
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    ASSERT_TRUE(writer->append("new").ok());
  }
  const auto formed = log.form();
  ASSERT_TRUE(formed.ok()) << formed.status().message();
  EXPECT_EQ(formed->kept, 1u);
  ASSERT_EQ(formed->entries, 2u);
  auto reader = log.reader();
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  std::vector<std::string> records;
  ASSERT_TRUE(read_records(*reader.result.value(), 2, &records).ok());
  EXPECT_THAT(records, ElementsAre("old", "new"));
}

// --- bad input ---

// Nothing that a front-end leaves in the words keeps a store from those that come.
TEST(LogRefusalTest, AStoreServesAlsoWhereItsWordsAreWild) {
  for (const uint64_t trim : {uint64_t{1} << 60, UINT64_MAX}) {
    LogForTest log(1, {.capacity_bytes = 64 << 10});
    {
      auto raw = log.raw();
      ASSERT_TRUE(raw.ok()) << raw.status().message();
      test::must(raw.result->front().region->write(RemotePointer<uint64_t>{kTrimAt}, trim));
    }
    auto raw = log.raw();
    ASSERT_TRUE(raw.ok()) << raw.status().message();
  }
}

// Else it would overwrite what is in the log, and call that appended.
TEST(LogRefusalTest, AWriterDoesNotBelieveADamagedTailOrLimit) {
  const auto damaged = [](uint64_t at, uint64_t value, bool before_it_opens) {
    LogForTest log;
    auto raw = log.raw();
    const auto damage = [&] {
      must(raw.result->front().region->write(RemotePointer<uint64_t>{at}, value));
    };
    if (before_it_opens) damage();
    auto writer = log.writer();
    if (!writer.ok()) return writer.status();
    if (!before_it_opens) {
      must(writer->append(std::string(100, 'a')));
      damage();
    }
    return writer->append(std::string(100, 'b')).status();
  };
  for (const uint64_t wild : {~uint64_t{0}, ~uint64_t{0} - 2, kMaxPlace + 1}) {
    for (const bool before_it_opens : {true, false}) {
      SCOPED_TRACE(testing::Message() << wild << ", " << before_it_opens);
      const Status tail = damaged(kTailAt, wild, before_it_opens);
      EXPECT_EQ(tail.code(), StatusCode::kProtocolViolation);
      EXPECT_THAT(tail.message(), HasSubstr("its tail is at place " + std::to_string(wild)));
    }
    const Status limit = damaged(kLimitAt, wild, true);
    EXPECT_EQ(limit.code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(limit.message(), HasSubstr("its limit is at place " + std::to_string(wild)));
  }
  // Back where the writer's own batch lies.
  const Status back = damaged(kTailAt, 1, false);
  EXPECT_EQ(back.code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(back.message(), HasSubstr("its tail is at place 1, this writer's last batch ended"));
}

// So many words that a formation reads them in several pieces, and a log that goes around the ring.
TEST(LogReplicasTest, ALargeLogIsFormed) {
  LogForTest log(2, {.capacity_bytes = 16 << 20});
  std::vector<std::string> expected;
  {
    auto writer = log.writer();
    auto reader = log.reader();
    ASSERT_TRUE(writer.ok() && reader.ok());
    Waiter waiter;
    const auto append = [&](int count) {
      for (int i = 0; i < count && !HasFailure();) {
        std::string record = std::to_string(expected.size());
        record.resize(4000, '.');
        const Status status = writer->append(record).status();
        if (status.code() == StatusCode::kLimitExceeded) {
          waiter.idle();  // until the store has freed what was trimmed
          continue;
        }
        ASSERT_TRUE(status.ok()) << status.message();
        expected.push_back(std::move(record));
        ++i;
      }
    };
    append(4000);
    std::vector<std::string> records;
    ASSERT_TRUE(read_records(*reader.result.value(), expected.size(), &records).ok());
    ASSERT_EQ(records, expected);
    ASSERT_TRUE(reader->trim().ok());
    expected.clear();
    append(3500);
    const std::string_view open = "open";
    ASSERT_EQ(writer->post_append({&open, 1}, 0), PostResult::kPosted);
  }
  log.lose_store(0);
  log.add_store();
  const LogFormation formed = must(log.form());
  EXPECT_EQ(formed.kept, 1u);
  EXPECT_EQ(formed.filled, 1u);
  // The new one has all of it, too.
  log.lose_store(0);
  log.add_store();
  const LogFormation again = must(log.form());
  EXPECT_EQ(again.entries, formed.entries);
  EXPECT_EQ(again.skipped, formed.skipped);
  auto reader = log.reader();
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  std::vector<std::string> records;
  const Status read = read_records(*reader.result.value(), expected.size(), &records);
  ASSERT_TRUE(read.ok()) << read.message();
  EXPECT_EQ(records, expected);
}

// What one replica has damaged, a new one gets from another that has it intact.
TEST(LogReplicasTest, ANewReplicaGetsNoDamage) {
  constexpr uint64_t kCapacityBytes = 16 << 20;
  LogForTest log(2, {.capacity_bytes = kCapacityBytes});
  std::vector<std::string> expected;
  std::vector<uint64_t> places;
  {
    auto writer = log.writer({.max_batch_bytes = kCapacityBytes / 8});
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    // One is longer than what is copied at once.
    for (const uint32_t bytes : {10u, 1u << 20, 100u, 2u << 20, 30u}) {
      expected.emplace_back(bytes, static_cast<char>('a' + expected.size()));
      const auto position = writer->append(expected.back());
      ASSERT_TRUE(position.ok()) << position.status().message();
      places.push_back(*position >> kRecordBits);
    }
  }
  {
    auto raw = log.raw();
    ASSERT_TRUE(raw.ok()) << raw.status().message();
    for (size_t i = 0; i < places.size(); ++i) {
      Replica& replica = (*raw.result)[i == 1 ? 1 : 0];
      spoil(replica, replica.layout().place_at(places[i]) + headers_bytes(1) + 5);
    }
  }
  log.add_store();
  EXPECT_EQ(must(log.form()).filled, 1u);
  log.lose_store(0);
  log.lose_store(0);
  EXPECT_EQ(must(log.form()).kept, 1u);
  auto reader = log.reader();
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  std::vector<std::string> records;
  const Status read = read_records(*reader.result.value(), expected.size(), &records);
  ASSERT_TRUE(read.ok()) << read.message();
  EXPECT_TRUE(records == expected);
}

// Of the words that say how long an entry is, one is damaged: the other one counts.
TEST(LogReplicasTest, ADamagedWordLeavesNothingOut) {
  constexpr uint32_t kWordBit = 2;  // its lowest one that counts places
  const std::vector<std::string> expected = {"one", std::string(200, 'x'), "two", "three"};
  for (const size_t spoiled : {0, 1}) {
    for (const uint32_t bit : {kWordBit, kWordBit + 1, kWordBit + 20}) {
      SCOPED_TRACE(testing::Message() << "replica " << spoiled << ", bit " << bit);
      LogForTest log(2);
      std::vector<uint64_t> places;
      {
        auto writer = log.writer();
        ASSERT_TRUE(writer.ok()) << writer.status().message();
        for (const std::string& record : expected) {
          places.push_back(must(writer->append(record)) >> kRecordBits);
        }
        auto raw = log.raw();
        ASSERT_TRUE(raw.ok()) << raw.status().message();
        const Replica& replica = (*raw.result)[spoiled];
        for (const size_t entry : {1, 3}) {
          const auto word = replica.word(places[entry]);
          const uint64_t before = must(replica.region->read(word));
          ASSERT_TRUE(replica.region->write(word, before ^ uint64_t{1} << bit).ok());
        }
      }
      std::vector<std::string> records;
      {
        auto reader = log.reader();
        const Status read = read_records(*reader.result.value(), expected.size(), &records);
        ASSERT_TRUE(read.ok()) << read.message();
        EXPECT_EQ(records, expected);
      }
      // Nor does a formation leave anything out, or give it to others.
      log.add_store();
      EXPECT_EQ(must(log.form()).entries, expected.size());
      log.lose_store(1 - spoiled);
      log.lose_store(spoiled == 0 ? 1 : 0);
      must(log.form());
      ASSERT_TRUE(log.writer()->append("four").ok());
      auto reader = log.reader({.hole_lease_ns = 1'000'000});
      records.clear();
      const Status read = read_records(*reader.result.value(), expected.size() + 1, &records);
      ASSERT_TRUE(read.ok()) << read.message();
      EXPECT_EQ(records.back(), "four");
      records.pop_back();
      EXPECT_EQ(records, expected);
    }
  }
}

// A formation that was interrupted leaves the words of its log in a store that is still blank.
TEST(LogReplicasTest, ANewLogHasNothingOfAnInterruptedFormation) {
  LogForTest log(2);
  {
    auto writer = log.writer();
    ASSERT_TRUE(writer.ok());
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(writer->append("old").ok());
  }
  log.lose_store(1);
  log.add_store();
  {
    auto raw = log.raw(Role::kFormer);
    ASSERT_TRUE(raw.ok()) << raw.status().message();
    const Replica& from = (*raw.result)[0];
    const Replica& to = (*raw.result)[1];
    std::vector<char> words(from.header.places * sizeof(uint64_t));
    ASSERT_TRUE(from.region->read(from.layout().words_at(), words).ok());
    ASSERT_TRUE(to.region->write(to.layout().words_at(), words).ok());
  }
  log.lose_store(0);
  log.add_store();
  EXPECT_EQ(must(log.form()).kept, 0u);
  auto writer = log.writer();
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  const auto appended = writer->append("new");
  ASSERT_TRUE(appended.ok()) << appended.status().message();
  auto reader = log.reader();
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  std::vector<std::string> records;
  ASSERT_TRUE(read_records(*reader.result.value(), 1, &records).ok());
  EXPECT_THAT(records, ElementsAre("new"));
}

// What was posted to the others may lie in memory that its user has back now.
TEST(LogReplicasTest, AWriterThatHasLostAReplicaEndsItsConnections) {
  LogForTest log(3);
  auto writer = log.writer();
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->append("before").ok());
  log.lose_store(1);
  const Registered source(log.node(), 4096);
  const LocalSlice record = {&source.memory, 0, 4000};
  Status status = Status::ok_status();
  while (status.ok()) status = writer->append({&record, 1}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(writer->status().message(), status.message());
  EXPECT_EQ(writer->append({&record, 1}).status().message(), status.message()) << "once more";
  for (const auto& control : writer.controls) EXPECT_FALSE(control->send({}).ok());
}

TEST(LogRefusalTest, ADamagedTrimOrLimitIsNotFormed) {
  for (const uint64_t at : {kTrimAt, kLimitAt}) {
    for (const uint64_t wild : {~uint64_t{0}, kMaxPlace + 1}) {
      LogForTest log(2);
      {
        auto raw = log.raw();
        for (Replica& store : *raw.result) {
          must(store.region->write(RemotePointer<uint64_t>{at}, wild));
        }
      }
      const auto formed = log.form();
      EXPECT_EQ(formed.status().code(), StatusCode::kProtocolViolation);
      EXPECT_THAT(formed.status().message(), HasSubstr("has a damaged log: its trim is at place"));
    }
  }
}

// Words tell the lap of any place that a writer believes, in the smallest log, too.
TEST(LogLayoutTest, WordsHaveRoomForAllLaps) {
  const Layout layout((64 << 10) / kPlaceBytes, 1);
  for (const uint64_t place : {uint64_t{0}, kMaxPlace, kMaxPlace + layout.places()}) {
    const uint64_t lap = layout.lap(place);
    EXPECT_EQ(word_lap(free_word(lap)), lap);
    EXPECT_EQ(word_state(committed_word(lap, 1), lap), WordState::kCommitted);
    EXPECT_EQ(word_state(skipped_word(lap), lap), WordState::kSkipped);
    EXPECT_EQ(position_of(place, 0) >> kRecordBits, place);
  }
}

TEST(LogRefusalTest, OptionsOutOfRange) {
  LogForTest log(1, {.capacity_bytes = 64 << 10, .max_writers = 1});
  const auto expose = [&log](const LogStoreOptions& options) {
    return LogStore::expose(log.node().device, log.node().domain, options).status();
  };
  EXPECT_THAT(expose({.capacity_bytes = 100'000}).message(), HasSubstr("choose a power of two"));
  EXPECT_EQ(expose({.capacity_bytes = 1 << 15}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(expose({.max_writers = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(log.writer({.pending = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(log.writer({.max_batch = 1001}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(log.writer({.max_batch = 64, .method = VectorMethod::kSgl}).status().code(),
            StatusCode::kLimitExceeded);
  const Status too_many = log.writer({.pending = 256, .max_batch = 1000}).status();
  EXPECT_EQ(too_many.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(too_many.message(), HasSubstr("256 pending batches of up to 1000 records need"));
  EXPECT_EQ(log.reader({.chunk_bytes = 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(log.reader({.hole_lease_ns = 0}).status().code(), StatusCode::kInvalidArgument);
  const auto too_long = log.open<std::unique_ptr<LogWriter>>([&](auto controls) {
    return open_log_writer(log.node().device, log.node().domain, controls, {});
  });
  EXPECT_THAT(too_long.status().message(), HasSubstr("max_batch_bytes is 16384; choose 1 to 8192"));
}

TEST(LogRefusalTest, WhoeverIsRefusedHangsUp) {
  LogForTest log;
  const auto refused = [](auto opened) {
    EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
    return opened.controls[0]->receive(0).status().code();
  };
  EXPECT_EQ(refused(log.writer({.pending = 0})), StatusCode::kUnavailable);
  EXPECT_EQ(refused(log.reader({.chunk_bytes = 1})), StatusCode::kUnavailable);
  EXPECT_EQ(refused(log.reader({.start = LogStart::kPosition, .position = 1 << 20})),
            StatusCode::kUnavailable);
}

TEST(LogRefusalTest, BatchesThatCannotBe) {
  LogForTest log;
  auto writer = log.writer({.max_batch = 2, .max_batch_bytes = 100});
  ASSERT_TRUE(writer.ok());
  const std::string_view three[] = {"a", "b", "c"};
  EXPECT_THAT(writer->append(three).status().message(),
              HasSubstr("a batch of 3 records and 3 bytes; give 1 to 2 records of at most 100"));
  EXPECT_EQ(writer->append(std::string(101, 'a')).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->append(std::span<const std::string_view>()).status().code(),
            StatusCode::kInvalidArgument);
  const LocalSlice nowhere;
  EXPECT_THAT(writer->append({&nowhere, 1}).status().message(), HasSubstr("no registered memory"));
  const Registered source(log.node(), 4096);
  const LocalSlice outside = {&source.memory, 4090, 7};
  EXPECT_THAT(writer->append({&outside, 1}).status().message(),
              HasSubstr("is not inside of its registered memory of 4096 bytes"));
  const std::string_view record = "x";
  ASSERT_EQ(writer->post_append({&record, 1}, 0), PostResult::kPosted);
  EXPECT_THAT(writer->append("y").status().message(), HasSubstr("while batches are outstanding"));
  EXPECT_TRUE(writer->status().ok());
}

TEST(LogRefusalTest, MoreWritersThanTheLogWasMadeFor) {
  LogForTest log(1, {.capacity_bytes = 1 << 20, .max_writers = 1});
  auto writer = log.writer();
  ASSERT_TRUE(writer.ok());
  const auto second = log.writer();
  EXPECT_EQ(second.status().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(second.status().message(), HasSubstr("the log has 1 writers, the most"));
  writer.result->reset();
  Waiter waiter;
  while (!log.writer().ok()) waiter.idle();  // until its store knows that it is gone
}

TEST(LogRefusalTest, ALogOfAnotherVersionAndARegionThatIsNone) {
  LogForTest log;
  auto raw = log.raw();
  Replica& store = raw.result->front();
  Header header = store.header;
  header.version = 9;
  ASSERT_TRUE(store.region->write(RemotePointer<Header>{0}, header).ok());
  const auto other_version = log.writer();
  EXPECT_EQ(other_version.status().code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(other_version.status().message(),
              HasSubstr("has a log of version 9, this release has 1"));
  header.magic = 0;
  ASSERT_TRUE(store.region->write(RemotePointer<Header>{0}, header).ok());
  EXPECT_THAT(log.reader().status().message(), HasSubstr("has no log in its region"));
  header = store.header;
  header.places *= 2;
  ASSERT_TRUE(store.region->write(RemotePointer<Header>{0}, header).ok());
  EXPECT_THAT(log.reader().status().message(), HasSubstr("has a damaged log"));
}

TEST(LogRefusalTest, StoresThatDoNotFit) {
  LogForTest log;
  log.add_store({.capacity_bytes = 64 << 10, .replicated = true});
  EXPECT_THAT(log.form().status().message(), HasSubstr("give stores of one capacity_bytes"));
  log.lose_store(1);
  log.add_store();
  EXPECT_THAT(log.form().status().message(), HasSubstr("is part of another log"));
  log.lose_store(1);
  EXPECT_TRUE(log.writer().ok()) << "the first one is as it was";
  EXPECT_EQ(form_log(log.node().device, log.node().domain, {}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace verbena::log_app
