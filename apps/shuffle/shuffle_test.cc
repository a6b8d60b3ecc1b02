// The shuffle on soft0: each record comes once, in its order, to whom it was sent; and what happens
// where there is no space.
#include "verbena/apps/shuffle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <ostream>
#include <string>
#include <vector>

#include "shuffle/shuffle_for_test.h"

namespace verbena {

static std::ostream& operator<<(std::ostream& out, ShuffleMethod method) {
  return out << shuffle_method_name(method);
}

namespace shuffle_app {
namespace {

using testing::HasSubstr;

constexpr ShuffleMethod kMethods[] = {ShuffleMethod::kBasic, ShuffleMethod::kSp,
                                      ShuffleMethod::kSgl, ShuffleMethod::kAutomatic};

// Memory in which records lie until they have gone, used in turn.
class SourceMemory {
 public:
  SourceMemory(const test::Node& node, size_t size_bytes)
      : size_bytes_(size_bytes), buffer_(node, size_bytes) {}

  // A copy of the record there.
  LocalSlice place(const std::string& record) {
    if (next_ + record.size() > size_bytes_) next_ = 0;
    std::memcpy(buffer_.pages.data() + next_, record.data(), record.size());
    const LocalSlice slice = {&buffer_.memory, next_, static_cast<uint32_t>(record.size())};
    next_ += record.size();
    return slice;
  }

 private:
  size_t size_bytes_;
  Registered buffer_;
  size_t next_ = 0;
};

class ShuffleMethodTest : public testing::TestWithParam<ShuffleMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, ShuffleMethodTest, testing::ValuesIn(kMethods),
                         [](const auto& method) { return shuffle_method_name(method.param); });

// Random records of any size, in registered memory or not, whole or in parts, by random options,
// through small buffers.
TEST_P(ShuffleMethodTest, RecordsOfAnySizeComeOnceInTheirOrder) {
  for (uint64_t round = 0; round < 12; ++round) {
    const uint64_t seed = run_seed() * 1000 + round;
    SCOPED_TRACE(seed);
    Random random(seed);
    const auto senders = static_cast<uint32_t>(1 + random.below(3));
    const auto receivers = static_cast<uint32_t>(1 + random.below(3));
    const uint64_t buffer_bytes = 4096 + random.below(30'000);
    ShuffleForTest shuffle(
        senders, receivers,
        {.buffer_bytes = buffer_bytes,
         .max_records = random.below(2) == 0 ? 0 : static_cast<uint32_t>(16 + random.below(200)),
         .max_record_bytes = 100'000,
         .checksum = random.below(2) == 0});
    shuffle.open({.method = GetParam(),
                  .batch = static_cast<uint32_t>(1 + random.below(16)),
                  .batch_bytes = static_cast<uint32_t>(64 + random.below(8000)),
                  .pending = static_cast<uint32_t>(1 + random.below(12))});
    std::vector<SourceMemory> sources;
    for (uint32_t i = 0; i < senders; ++i) sources.emplace_back(shuffle.node(), 4 << 20);
    std::vector<Received> received(receivers, Received(senders));
    // By receiver and sender.
    std::vector<std::vector<std::vector<std::string>>> sent(
        receivers, std::vector<std::vector<std::string>>(senders));
    struct Part {
      std::string record;
      uint32_t to = 0;
      uint64_t done = 0;
    };
    std::vector<std::vector<Part>> open_parts(senders, std::vector<Part>(receivers));
    constexpr uint64_t kRecords = 400;
    for (uint64_t number = 0; number < kRecords;) {
      const auto from = static_cast<uint32_t>(random.below(senders));
      const auto to = static_cast<uint32_t>(random.below(receivers));
      ShuffleSender& sender = shuffle.sender(from);
      Part& part = open_parts[from][to];
      if (part.record.empty() || part.done == 0) {
        const uint64_t most = random.below(16) == 0 ? 20'000 : random.below(4) == 0 ? 900 : 60;
        part.record = record_of(seed, number, random.below(most));
        ++number;
      }
      // Until it is taken: in parts of random sizes, each by random memory.
      for (;;) {
        const uint64_t left = part.record.size() - part.done;
        const uint64_t most = sender.whole_record_bytes(to);
        const uint64_t bytes = left <= most ? left : 1 + random.below(most);
        const std::string bytes_of_part = part.record.substr(part.done, bytes);
        const bool more = bytes < left;
        const PostResult result =
            random.below(2) == 0 ? sender.send_part(to, bytes_of_part, more)
                                 : sender.send_part(to, sources[from].place(bytes_of_part), more);
        ASSERT_NE(result, PostResult::kFailed) << sender.error().message();
        if (result == PostResult::kPosted) {
          part.done += bytes;
          if (!more) break;
        }
        if (random.below(2) == 0) {
          const auto taken = received[to].take_all(shuffle.receiver(to));
          ASSERT_TRUE(taken.ok()) << taken.status().message();
        }
        if (random.below(8) == 0) sender.poll();
      }
      sent[to][from].push_back(part.record);
      part = {};
      if (random.below(16) == 0) {
        ASSERT_TRUE(sender.flush()) << sender.status().message();
      }
    }
    ShuffleCount all_sent;
    for (uint32_t i = 0; i < senders; ++i) {
      const Status finished = shuffle.sender(i).finish();
      ASSERT_TRUE(finished.ok()) << finished.message();
      EXPECT_EQ(shuffle.sender(i).completed(), shuffle.sender(i).taken());
      all_sent += shuffle.sender(i).sent();
    }
    ShuffleCount all_received;
    for (uint32_t i = 0; i < receivers; ++i) {
      const Status ended = received[i].take_until_end(shuffle.receiver(i));
      ASSERT_TRUE(ended.ok()) << ended.message();
      EXPECT_TRUE(shuffle.receiver(i).finished());
      EXPECT_FALSE(received[i].broken());
      all_received += shuffle.receiver(i).received();
      for (uint32_t j = 0; j < senders; ++j) {
        ASSERT_EQ(received[i].from(j), sent[i][j]);
        EXPECT_EQ(shuffle.receiver(i).received(j), shuffle.sender(j).sent(i));
      }
    }
    EXPECT_EQ(all_sent, all_received);
    EXPECT_EQ(all_sent.records, kRecords);
  }
}

// What lies in a record of one size: aligned, and in arrays.
struct Tuple {
  uint64_t key = 0;
  uint64_t payload = 0;
};

TEST_P(ShuffleMethodTest, RecordsOfOneSizeComeAsArrays) {
  ShuffleForTest shuffle(1, 2, {.record_bytes = sizeof(Tuple), .buffer_bytes = 10'000});
  shuffle.open({.method = GetParam(), .batch = 5});
  constexpr uint64_t kTuples = 20'000;
  const Registered memory(shuffle.node(), kTuples * sizeof(Tuple));
  auto* const tuples = reinterpret_cast<Tuple*>(memory.pages.data());
  std::vector<std::vector<uint64_t>> expected(2);
  std::vector<std::vector<uint64_t>> found(2);
  const auto take = [&](uint32_t number) {
    for (;;) {
      const auto span = must(shuffle.receiver(number).next());
      if (span.empty()) return;
      for (const Tuple& tuple : span.as<Tuple>()) {
        ASSERT_EQ(tuple.payload, ~tuple.key);
        found[number].push_back(tuple.key);
      }
      shuffle.receiver(number).release(span);
    }
  };
  for (uint64_t i = 0; i < kTuples; ++i) {
    tuples[i] = {i, ~i};
    const uint32_t to = partition_of(
        shuffle_hash({reinterpret_cast<const char*>(&tuples[i].key), sizeof(uint64_t)}), 2);
    expected[to].push_back(i);
    const LocalSlice slice = {&memory.memory, i * sizeof(Tuple), sizeof(Tuple)};
    while (shuffle.sender().send(to, slice) != PostResult::kPosted) {
      ASSERT_TRUE(shuffle.sender().status().ok()) << shuffle.sender().status().message();
      take(0);
      take(1);
    }
  }
  ASSERT_TRUE(shuffle.sender().finish().ok());
  take(0);
  take(1);
  EXPECT_TRUE(shuffle.receiver(0).finished() && shuffle.receiver(1).finished());
  EXPECT_EQ(found, expected);
}

// Sizes that are known when it is compiled and others, through buffers that are always full; longer
// than goes as a whole.
TEST_P(ShuffleMethodTest, ArraysAreTakenAtOnce) {
  constexpr uint64_t kArrays = 60;
  constexpr uint32_t kRecords = 50;
  for (const uint32_t bytes : {8u, 16u, 24u, 32u, 100u, 3000u}) {
    for (const bool any_size : {false, true}) {
      const uint64_t buffer_bytes = std::max(8 * bytes, 10'000u);
      ShuffleForTest shuffle(1, 2,
                             {.record_bytes = any_size ? 0 : bytes,
                              .buffer_bytes = buffer_bytes,
                              .checksum = any_size});
      shuffle.open({.method = GetParam(), .batch = 7});
      std::vector<std::vector<std::string>> expected(2);
      Thread sending = start_thread("send", [&] {
        Random random(bytes);
        std::array<uint32_t, kRecords> partitions;
        for (uint64_t i = 0; i < kArrays; ++i) {
          std::string array(kRecords * bytes, '\0');
          for (char& byte : array) byte = static_cast<char>(random.next());
          for (uint32_t r = 0; r < kRecords; ++r) {
            partitions[r] = static_cast<uint32_t>(random.next() >> 63);
            expected[partitions[r]].push_back(array.substr(r * bytes, bytes));
          }
          const Status taken = shuffle.sender().put_each(partitions, array);
          ASSERT_TRUE(taken.ok()) << taken.message();
        }
        ASSERT_TRUE(shuffle.sender().finish().ok());
      });
      std::vector<Received> found(2, Received(1));
      for (bool finished = false; !finished;) {
        finished = true;
        for (uint32_t i = 0; i < 2; ++i) {
          must(found[i].take_all(shuffle.receiver(i)));
          finished = finished && shuffle.receiver(i).finished();
        }
      }
      sending.join();
      for (uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(found[i].from(0) == expected[i]) << bytes;
    }
  }
}

TEST(ShuffleTest, ArraysThatAreNoneAreRefused) {
  ShuffleForTest shuffle(1, 1, {.record_bytes = 16});
  shuffle.open();
  const std::array<uint32_t, 2> partitions = {0, 0};
  const Status uneven = shuffle.sender().put_each(partitions, std::string(33, 'x'));
  EXPECT_EQ(uneven.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(uneven.message(), HasSubstr("33 bytes are no array of 2 records"));
  EXPECT_EQ(shuffle.sender().put_each({}, "x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(shuffle.sender().taken(), 0u);
  EXPECT_TRUE(shuffle.sender().put_each({}, "").ok());
  // Those before the one that cannot be taken were.
  const std::array<uint32_t, 3> beyond = {0, 1, 0};
  EXPECT_EQ(shuffle.sender().put_each(beyond, std::string(48, 'x')).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(shuffle.sender().taken(), 1u);
  EXPECT_EQ(shuffle.sender().put_each(partitions, std::string(34, 'x')).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(shuffle.sender().status().ok());
}

TEST(ShuffleTest, ManyExecutorsWithSkewedKeys) {
  constexpr uint32_t kSenders = 3;
  constexpr uint32_t kReceivers = 4;
  constexpr uint64_t kRecords = 20'000;
  ShuffleForTest shuffle(kSenders, kReceivers, {.buffer_bytes = 8192, .checksum = true});
  shuffle.open();
  std::vector<Received> received(kReceivers, Received(kSenders));
  std::vector<Status> statuses(kSenders + kReceivers);
  {
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < kReceivers; ++i) {
      threads.push_back(start_thread("receive", [&, i] {
        statuses[kSenders + i] = received[i].take_until_end(shuffle.receiver(i));
      }));
    }
    for (uint32_t i = 0; i < kSenders; ++i) {
      threads.push_back(start_thread("send", [&, i] {
        statuses[i] = [&]() -> Status {
          Random random(run_seed() * 100 + i);
          for (uint64_t number = 0; number < kRecords; ++number) {
            // Nine of ten have one key.
            const std::string key = std::to_string(random.below(10) != 0 ? 7 : random.below(1000));
            const std::string record = key + "/" + std::to_string(number);
            VERBENA_RETURN_IF_ERROR(
                shuffle.sender(i).put(partition_of(shuffle_hash(key), kReceivers), record));
          }
          return shuffle.sender(i).finish();
        }();
      }));
    }
  }
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.message();
  const uint32_t hot = partition_of(shuffle_hash("7"), kReceivers);
  for (uint32_t from = 0; from < kSenders; ++from) {
    std::vector<bool> seen(kRecords);
    for (uint32_t to = 0; to < kReceivers; ++to) {
      uint64_t next = 0;
      for (const std::string& record : received[to].from(from)) {
        const size_t slash = record.find('/');
        const std::string key = record.substr(0, slash);
        EXPECT_EQ(partition_of(shuffle_hash(key), kReceivers), to);
        const uint64_t number = std::stoull(record.substr(slash + 1));
        ASSERT_GE(number, next);
        next = number + 1;
        ASSERT_FALSE(seen[number]);
        seen[number] = true;
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), kRecords);
    EXPECT_GT(received[hot].from(from).size(), kRecords * 8 / 10);
  }
}

TEST(ShuffleTest, ASlowReceiverHoldsItsSendersBackAndNobodyElse) {
  ShuffleForTest shuffle(1, 2, {.record_bytes = 64, .buffer_bytes = 4096});
  shuffle.open({.batch = 4});
  ShuffleSender& sender = shuffle.sender();
  const std::string record(64, 'x');
  uint32_t taken = 0;
  while (sender.send(0, record) == PostResult::kPosted) ++taken;
  ASSERT_TRUE(sender.status().ok());
  EXPECT_EQ(taken, 64u);  // all that is in the buffer, which does not grow
  EXPECT_GT(sender.statistics().would_block, 0u);
  // Another one goes on.
  for (uint32_t i = 0; i < 1000; ++i) {
    while (sender.send(1, record) == PostResult::kWouldBlock) {
      const ShuffleSpan span = must(shuffle.receiver(1).next());
      if (!span.empty()) shuffle.receiver(1).release(span);
    }
  }
  EXPECT_EQ(sender.send(0, record), PostResult::kWouldBlock);
  // Holding a span is not to release it.
  const ShuffleSpan first = must(shuffle.receiver(0).next());
  const ShuffleSpan second = must(shuffle.receiver(0).next());
  EXPECT_EQ(first.count(), 16u);
  EXPECT_EQ(shuffle.receiver(0).held_bytes(0), 2048u);
  EXPECT_EQ(sender.send(0, record), PostResult::kWouldBlock);
  shuffle.receiver(0).release(first);
  uint32_t more = 0;
  while (sender.send(0, record) == PostResult::kPosted) ++more;
  EXPECT_EQ(more, first.count());
  shuffle.receiver(0).release(second);
  EXPECT_EQ(sender.send(0, record), PostResult::kPosted);
}

// A record is visible when its batch is full, when it is flushed, and when space ends.
TEST(ShuffleTest, AFlushSendsWhatIsNotFull) {
  ShuffleForTest shuffle(1, 1);
  shuffle.open({.batch = 16});
  ASSERT_EQ(shuffle.sender().send(0, "one"), PostResult::kPosted);
  EXPECT_TRUE(must(shuffle.receiver().next()).empty());
  ASSERT_TRUE(shuffle.sender().flush());
  const ShuffleSpan span = must(shuffle.receiver().next());
  EXPECT_EQ(span.count(), 1u);
  EXPECT_EQ(std::string(span.bytes().data(), span.bytes().size()), "one");
  EXPECT_EQ(shuffle.sender().statistics().writes, 1u);
  EXPECT_EQ(shuffle.sender().statistics().counters, 1u);
}

TEST(ShuffleTest, BatchesConsolidateWrites) {
  for (const ShuffleMethod method :
       {ShuffleMethod::kBasic, ShuffleMethod::kSp, ShuffleMethod::kSgl}) {
    ShuffleForTest shuffle(1, 1, {.record_bytes = 32, .buffer_bytes = 1 << 20});
    shuffle.open({.method = method, .batch = 16});
    const Registered memory(shuffle.node(), 4096);
    for (uint64_t i = 0; i < 1600; ++i) {
      // Places that are not neighbours.
      const LocalSlice slice = {&memory.memory, i * 7 % 60 * 64, 32};
      ASSERT_EQ(shuffle.sender().send(0, slice), PostResult::kPosted);
    }
    ASSERT_TRUE(shuffle.sender().flush());
    EXPECT_EQ(shuffle.sender().method(), method);
    EXPECT_EQ(shuffle.sender().statistics().writes, method == ShuffleMethod::kBasic ? 1600u : 100u)
        << shuffle_method_name(method);
    // Far fewer WRITEs tell of them.
    EXPECT_LE(shuffle.sender().statistics().counters,
              shuffle.sender().statistics().writes / 8 + 16);
  }
}

TEST(ShuffleTest, MemoryMayChangeOnceItsRecordIsComplete) {
  ShuffleForTest shuffle(1, 2);
  shuffle.open({.method = ShuffleMethod::kSgl, .batch = 4});
  const Registered memory(shuffle.node(), 4096);
  const LocalSlice slice = {&memory.memory, 0, 100};
  ShuffleSender& sender = shuffle.sender();
  for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(sender.send(0, slice), PostResult::kPosted);
  EXPECT_EQ(sender.completed(), 0u);  // not even posted
  for (uint32_t i = 0; i < 8; ++i) ASSERT_EQ(sender.send(1, slice), PostResult::kPosted);
  EXPECT_EQ(sender.completed(), 0u);
  EXPECT_EQ(sender.taken(), 11u);
  ASSERT_TRUE(sender.flush());
  Waiter waiter;
  const uint64_t begun_ns = now_ns();
  while (sender.completed() < sender.taken()) {
    sender.poll() > 0 ? waiter.progress() : waiter.idle();
    ASSERT_LT(now_ns() - begun_ns, static_cast<uint64_t>(kTestTimeoutNs));
  }
}

TEST(ShuffleTest, ALongRecordComesInPartsThatNothingInterrupts) {
  ShuffleForTest shuffle(1, 1, {.buffer_bytes = 4096, .max_record_bytes = 1 << 20});
  shuffle.open();
  ShuffleReceiver& receiver = shuffle.receiver();
  EXPECT_EQ(receiver.whole_record_bytes(), 1024u);
  const std::string whole = record_of(1, 1, 1024);
  const std::string two_parts = record_of(1, 2, 1025);
  const std::string many_parts = record_of(1, 3, 300'000);  // many times the buffer
  Status sent;
  std::vector<uint32_t> parts;
  Received received(1);
  {
    Thread sending = start_thread("send", [&] {
      sent = [&]() -> Status {
        for (const std::string* record : {&whole, &two_parts, &many_parts, &whole}) {
          VERBENA_RETURN_IF_ERROR(shuffle.sender().put(0, *record));
        }
        return shuffle.sender().finish();
      }();
    });
    uint32_t open_parts = 0;
    for (;;) {
      const ShuffleSpan span = must(receiver.wait_next());
      if (span.empty()) break;
      span.for_each([&](std::string_view, bool more) {
        ++open_parts;
        if (!more) parts.push_back(std::exchange(open_parts, 0));
      });
      received.take(span);
      receiver.release(span);
    }
  }
  EXPECT_TRUE(sent.ok()) << sent.message();
  EXPECT_THAT(parts, testing::ElementsAre(1, 2, 293, 1));
  EXPECT_THAT(received.from(0), testing::ElementsAre(whole, two_parts, many_parts, whole));
  EXPECT_EQ(receiver.received().records, 4u);
}

TEST(ShuffleTest, TheEndIsReachedWithoutRecordsToo) {
  ShuffleForTest shuffle(2, 2);
  shuffle.open();
  ASSERT_TRUE(shuffle.sender(0).finish().ok());
  EXPECT_TRUE(shuffle.sender(0).finish().ok());  // again is nothing
  EXPECT_TRUE(must(shuffle.receiver(0).next()).empty());
  EXPECT_FALSE(shuffle.receiver(0).finished());
  ASSERT_TRUE(shuffle.sender(1).put(1, "last").ok());
  ASSERT_TRUE(shuffle.sender(1).finish().ok());
  // Senders may be gone before receivers have taken anything.
  shuffle.close_sender(0);
  shuffle.close_sender(1);
  EXPECT_TRUE(must(shuffle.receiver(0).wait_next()).empty());
  EXPECT_TRUE(shuffle.receiver(0).finished());
  EXPECT_EQ(must(shuffle.receiver(1).wait_next()).count(), 1u);
  EXPECT_FALSE(shuffle.receiver(1).finished());
  EXPECT_TRUE(must(shuffle.receiver(1).wait_next()).empty());
  EXPECT_TRUE(shuffle.receiver(1).finished());
}

TEST(ShuffleTest, TheMethodIsExplained) {
  ShuffleForTest shuffle(1, 1, {.record_bytes = 128});
  shuffle.open();
  const auto estimates =
      estimate_shuffle_methods(shuffle.node().device.info(), shuffle.sender().options(), 128);
  ASSERT_EQ(estimates.size(), 3u);
  EXPECT_EQ(shuffle.sender().method(), estimates.front().method);
  EXPECT_EQ(shuffle.sender().why(), estimates.front().why);
  for (size_t i = 0; i < estimates.size(); ++i) {
    EXPECT_THAT(estimates[i].why, HasSubstr(shuffle_method_name(estimates[i].method)));
    EXPECT_THAT(estimates[i].why, HasSubstr("128 bytes"));
    EXPECT_TRUE(estimates[i].usable);
    EXPECT_GT(estimates[i].record_ns, 0);
    EXPECT_LE(estimates[i > 0 ? i - 1 : 0].record_ns, estimates[i].record_ns);
  }
  // More records than a gather list has entries.
  const auto large = estimate_shuffle_methods(shuffle.node().device.info(), {.batch = 100}, 128);
  EXPECT_EQ(large.back().method, ShuffleMethod::kSgl);
  EXPECT_FALSE(large.back().usable);
  EXPECT_THAT(large.back().why, HasSubstr("lower batch"));
}

}  // namespace
}  // namespace shuffle_app
}  // namespace verbena
