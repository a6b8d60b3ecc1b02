// Distributed joins of executors in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "join/executors_for_test.h"
#include "join/join_for_test.h"
#include "join/rows.h"
#include "src/base/runtime.h"
#include "src/device/verbs_for_test.h"

namespace verbena::join_app {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Each with its part of the tables, in a thread.
std::vector<ExecutorForTest> run_all(const std::vector<TestTable>& left,
                                     const std::vector<TestTable>& right,
                                     const std::vector<ExecutorOptions>& options, uint64_t seed) {
  const test::Node node;
  const JobSecret secret = JobSecret::random();
  std::vector<ExecutorForTest> executors(left.size());
  for (uint32_t i = 0; i < executors.size(); ++i) {
    executors[i].expose(node, secret, i, static_cast<uint32_t>(executors.size()), options[i]);
  }
  std::vector<Thread> threads;
  for (uint32_t i = 0; i < executors.size(); ++i) {
    threads.push_back(start_thread(
        "executor", [&, i] { executors[i].run(executors, left[i], right[i], seed + i); }));
  }
  for (Thread& thread : threads) thread.join();
  return executors;
}

TEST(ExchangeTest, AllExecutorsTogetherHaveTheJoin) {
  const Case keys[] = {{"int64", {{"l", "l"}}}, {"texts", {{"u", "U"}, {"i", "i"}}}};
  Random random(run_seed());
  for (const uint32_t executors : {1, 2, 4}) {
    for (const Case& key : keys) {
      for (const JoinKind kind :
           {JoinKind::kInner, JoinKind::kLeft, JoinKind::kSemi, JoinKind::kAnti}) {
        ExecutorOptions options;
        options.join.kind = kind;
        options.join.threads = 1 + static_cast<uint32_t>(random.below(2));
        for (size_t i = 0; i < key.formats.size(); ++i) {
          options.join.keys.push_back({"key" + std::to_string(i), "right_key" + std::to_string(i)});
        }
        // Buffers so small that executors wait for each other, and longer rows go in parts.
        options.receiver.buffer_bytes = 4096;
        options.receiver.max_record_bytes = 1 << 20;
        options.registered_rows = random.below(2) == 0;
        options.sender.method = random.below(2) == 0 ? ShuffleMethod::kSp : ShuffleMethod::kSgl;
        options.sender.batch = 1 + static_cast<uint32_t>(random.below(8));
        SCOPED_TRACE(testing::Message()
                     << executors << " executors, " << key << ", kind " << static_cast<int>(kind));
        TestTable left = draw_table(random, key, true, 400, 90);
        const TestTable right = draw_table(random, key, false, 300, 90);
        left.columns[key.formats.size() + 2].values[7] = std::string(10'000, 'l');
        const auto done =
            run_all(in_parts(left, executors, random), in_parts(right, executors, random),
                    std::vector<ExecutorOptions>(executors, options), random.next());
        uint64_t sent = 0;
        uint64_t came = 0;
        for (const ExecutorForTest& executor : done) {
          ASSERT_TRUE(executor.status().ok()) << executor.status().message();
          sent += executor.statistics().sent_rows;
          came += executor.statistics().left_rows + executor.statistics().right_rows;
        }
        EXPECT_EQ(sent, came);
        ASSERT_EQ(sorted_rows(done), expected_rows(left, right, options.join));
      }
    }
  }
}

// One executor has what join_tables() has.
void expect_joined(const TestTable& left, const TestTable& right, const JoinOptions& join) {
  Random random(1);
  ArrowArrayStream left_stream = to_stream(left, random);
  ArrowArrayStream right_stream = to_stream(right, random);
  ArrowArrayStream result = {};
  const auto here = join_tables(&left_stream, &right_stream, join, &result);
  ASSERT_TRUE(here.ok()) << here.status().message();
  ExecutorOptions options;
  options.join = join;
  const auto done = run_all({left}, {right}, {options}, 1);
  ASSERT_TRUE(done[0].status().ok()) << done[0].status().message();
  EXPECT_EQ(sorted_rows(done), sorted_rows(from_stream(&result)));
}

TEST(ExchangeTest, AColumnCanBeInTwoKeys) {
  const TestTable left = {{int_column("a", {1, 2, 3}), int_column("b", {1, 3, 3})}};
  const TestTable right = {{int_column("y", {7, 8}), int_column("x", {1, 3})}};
  for (const JoinKind kind :
       {JoinKind::kInner, JoinKind::kLeft, JoinKind::kSemi, JoinKind::kAnti}) {
    SCOPED_TRACE(static_cast<int>(kind));
    expect_joined(left, right, {.keys = {{"a", "x"}, {"b", "x"}}, .kind = kind});
  }
}

TEST(ExchangeTest, ANameMayHaveLinesInIt) {
  const TestTable left = {{int_column("k\ney", {1, 2}), int_column("\n", {1, 2})}};
  const TestTable right = {{int_column("k\ney", {2, 3}), int_column("v\n", {4, 5})}};
  expect_joined(left, right, {.keys = {{"k\ney", ""}}});
}

// More rows than fit the registered memory that they are put together in.
TEST(ExchangeTest, RowsAreSentFromRegisteredMemoryThatIsUsedAgain) {
  std::vector<std::optional<int64_t>> numbers;
  for (int64_t i = 0; i < 200'000; ++i) numbers.emplace_back(i);
  const TestTable left = {{int_column("k", numbers), int_column("a", numbers)}};
  const TestTable right = {{int_column("k", numbers), int_column("b", numbers)}};
  ExecutorOptions options;
  options.join.keys = {{"k", ""}};
  options.registered_rows = true;
  options.sender.method = ShuffleMethod::kSgl;
  const TestTable none = {{int_column("k", {}), int_column("a", {})}};
  const auto done = run_all({left, none}, {right, {{int_column("k", {}), int_column("b", {})}}},
                            {options, options}, 1);
  uint64_t rows = 0;
  for (const ExecutorForTest& executor : done) {
    ASSERT_TRUE(executor.status().ok()) << executor.status().message();
    for (size_t i = 0; i < executor.joined().rows(); ++i) {
      const auto row = executor.joined().row(i);
      ASSERT_EQ(row[0], row[1]);
      ASSERT_EQ(row[0], row[2]);
    }
    // The hash shares the keys fairly.
    EXPECT_NEAR(static_cast<double>(executor.joined().rows()), 100'000, 5'000);
    rows += executor.joined().rows();
  }
  EXPECT_EQ(rows, 200'000u);
}

TEST(ExchangeTest, ExecutorsWithDifferentTablesAreNamed) {
  const TestTable table = {{int_column("k", {1, 2}), int_column("v", {1, 2})}};
  const TestTable other = {
      {int_column("k", {1, 2}), {"v", "i", {std::string(4, 0), std::string(4, 1)}}}};
  ExecutorOptions options;
  options.join.keys = {{"k", ""}};
  const auto done = run_all({table, other}, {table, table}, {options, options}, 1);
  // Each finds it out itself, or learns that the other one has given up.
  const auto found = AllOf(HasSubstr("column 'v' (int32) in the left table"),
                           HasSubstr("column 'v' (int64) in the left table"),
                           HasSubstr("give all executors tables of one schema"));
  EXPECT_FALSE(done[0].status().ok());
  EXPECT_FALSE(done[1].status().ok());
  EXPECT_TRUE(testing::Matches(found)(done[0].status().message()) ||
              testing::Matches(found)(done[1].status().message()))
      << done[0].status().message() << "\n"
      << done[1].status().message();
}

TEST(ExchangeTest, AnExecutorAboveItsLimitEndsTheOthersToo) {
  std::vector<std::optional<int64_t>> numbers;
  for (int64_t i = 0; i < 100'000; ++i) numbers.emplace_back(i);
  const TestTable table = {{int_column("k", numbers), int_column("v", numbers)}};
  ExecutorOptions options;
  options.join.keys = {{"k", ""}};
  ExecutorOptions small = options;
  small.join.memory_limit_bytes = 4'000'000;
  const auto done = run_all({table, table}, {table, table}, {options, small}, 1);
  EXPECT_EQ(done[1].status().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(done[1].status().message(),
              AllOf(HasSubstr("what other executors send takes"), HasSubstr("4000000")));
  EXPECT_EQ(done[0].status().code(), StatusCode::kUnavailable) << done[0].status().message();
}

TEST(ExchangeTest, ARowLongerThanTheShuffleTakesIsRefused) {
  TestTable table = {{int_column("k", {1}), {"text", "u", {std::string(100'000, 'x')}}}};
  ExecutorOptions options;
  options.join.keys = {{"k", ""}};
  options.receiver.max_record_bytes = 50'000;
  const auto done = run_all({table}, {table}, {options}, 1);
  EXPECT_EQ(done[0].status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(done[0].status().message(),
              AllOf(HasSubstr("a row of 100014 bytes"), HasSubstr("50000")));
}

// What executors tell each other of their tables is longer than these rows.
TEST(ExchangeTest, RowsMayBeAsLongAsTheShuffleTakes) {
  const TestTable table = {{int_column("k", {1, 2, 3}), int_column("v", {4, 5, 6})}};
  TestTable other = table;
  other.columns[1] = {"v", "L", table.columns[1].values};
  ExecutorOptions options;
  options.join.keys = {{"k", ""}};
  options.receiver.max_record_bytes = 1 + 1 + 2 * sizeof(int64_t);
  for (const bool registered_rows : {false, true}) {
    options.registered_rows = registered_rows;
    const auto done = run_all({table, table}, {table, table}, {options, options}, 1);
    uint64_t rows = 0;
    for (const ExecutorForTest& executor : done) {
      EXPECT_TRUE(executor.status().ok()) << executor.status().message();
      rows += executor.joined().rows();
    }
    EXPECT_EQ(rows, 12u) << "each key is there twice on both sides";
    const auto refused = run_all({table, other}, {table, table}, {options, options}, 1);
    EXPECT_THAT(refused[0].status().message() + refused[1].status().message(),
                HasSubstr("column 'v' (uint64) in the left table"));
  }
}

TEST(ExchangeTest, ExecutorsThatNameColumnsDifferentlyAreNamed) {
  const TestTable table = {{int_column("k", {1, 2}), int_column("v", {1, 2})}};
  ExecutorOptions options;
  options.join.keys = {{"k", ""}};
  ExecutorOptions other = options;
  other.join.right_suffix = "_r";
  const auto done = run_all({table, table}, {table, table}, {options, other}, 1);
  EXPECT_FALSE(done[0].status().ok());
  EXPECT_FALSE(done[1].status().ok());
  EXPECT_THAT(done[0].status().message() + done[1].status().message(),
              HasSubstr("the right_suffix '_r'"));
}

// From who is greeted as an executor of the same join: it says what the other one says.
TEST(ExchangeTest, ARecordThatIsNoRowIsRefused) {
  const std::string row = std::string("\0", 1) + std::string(sizeof(int64_t), 'k');
  for (const std::string& record : {std::string(), "x" + row}) {
    SCOPED_TRACE(record.size());
    const test::Node node;
    const JobSecret secret = JobSecret::random();
    std::vector<ExecutorForTest> executors(2);
    ExecutorOptions options;
    options.join.keys = {{"k", ""}};
    for (uint32_t i = 0; i < 2; ++i) executors[i].expose(node, secret, i, 2, options);
    const TestTable table = {{int_column("k", {1, 2, 3})}};
    Thread joining =
        start_thread("executor", [&] { executors[0].run(executors, table, table, 1); });
    executors[1].misbehave(
        executors, [&](ShuffleSender& sender, ShuffleReceiver& receiver) -> Status {
          for (bool greeted = false; !greeted;) {
            VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver.wait_next());
            Status put;
            span.for_each([&](std::string_view hello, bool) {
              if (greeted || !put.ok()) return;
              put = sender.put(0, hello);
              greeted = hello[0] == 'h';
            });
            VERBENA_RETURN_IF_ERROR(put);
            receiver.release(span);
          }
          VERBENA_RETURN_IF_ERROR(sender.put(0, record));
          VERBENA_RETURN_IF_ERROR(sender.finish());
          while (!receiver.finished()) {
            VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver.wait_next());
            receiver.release(span);
          }
          return Status::ok_status();
        });
    joining.join();
    EXPECT_EQ(executors[0].status().code(), StatusCode::kProtocolViolation)
        << executors[0].status().message();
  }
}

// Bytes that are cut off or changed anywhere are refused, or make another row; never read out of
// bounds.
TEST(RowsTest, BytesThatAreNoRowAreRefused) {
  Random random(run_seed());
  const TestTable table = draw_table(random, {"text", {{"u", "u"}}}, true, 40, 90);
  ArrowArrayStream stream = to_stream(table, random);
  MemoryBudget budget(1 << 30);
  const Table read = *Table::read(&stream, "left", budget);
  stream.release(&stream);
  std::vector<uint32_t> columns;
  std::vector<Field> fields;
  for (uint32_t i = 0; i < table.columns.size(); ++i) {
    columns.push_back(i);
    fields.push_back({table.columns[i].name, table.columns[i].format});
  }
  const RowWriter writer(read, columns, 'l');
  std::vector<std::string> rows;
  for (size_t piece = 0; piece < read.piece_rows().size(); ++piece) {
    for (uint32_t i = 0; i < read.piece_rows()[piece]; ++i) {
      const auto number = static_cast<RowNumber>((uint64_t{piece} << read.piece_bits()) + i);
      std::string row(writer.size_bytes(number), '\0');
      writer.write(number, row.data());
      EXPECT_EQ(row[0], 'l');
      rows.push_back(row.substr(1));
    }
  }
  TableBuilder whole(fields);
  for (const std::string& row : rows) ASSERT_TRUE(whole.add(row, budget).ok());
  ArrowArrayStream copy;
  whole.finish(budget, &copy);
  EXPECT_EQ(sorted_rows(from_stream(&copy)), sorted_rows(table));

  const auto add = [](TableBuilder& builder, const std::string& row) {
    MemoryBudget own(1 << 30);  // what is refused gives nothing back
    return builder.add(row, own);
  };
  for (const std::string& row : rows) {
    for (size_t size = 0; size < row.size(); ++size) {
      TableBuilder cut(fields);
      EXPECT_EQ(add(cut, row.substr(0, size)).code(), StatusCode::kProtocolViolation);
    }
    TableBuilder longer(fields);
    EXPECT_EQ(add(longer, row + 'x').code(), StatusCode::kProtocolViolation);
    for (size_t i = 0; i < row.size(); ++i) {
      std::string changed = row;
      changed[i] = static_cast<char>(changed[i] ^ (1 << random.below(8)));
      TableBuilder one(fields);
      if (!add(one, changed).ok()) continue;
      one.finish(budget, &copy);
      EXPECT_EQ(from_stream(&copy).rows(), 1u);
    }
  }
}

// A null has no bytes in a row, and as many as any other value in a column of fixed width.
TEST(RowsTest, NullsOfLongValuesCountAgainstTheLimit) {
  constexpr uint64_t kLimitBytes = 8 << 20;
  TableBuilder builder({{"k", "l"}, {"w", "w:4096"}});
  MemoryBudget budget(kLimitBytes);
  const std::string row = "\2" + std::string(sizeof(int64_t), 'k');
  Status status;
  while (status.ok() && builder.rows() <= kLimitBytes / 4096) status = builder.add(row, budget);
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded) << status.message();
  EXPECT_GT(builder.rows(), 1500u);
}

}  // namespace
}  // namespace verbena::join_app
