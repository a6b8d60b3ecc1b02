// Joins against the definition of a join, and what is refused.
#include "verbena/apps/join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "join/join_for_test.h"
#include "src/base/runtime.h"

namespace verbena::join_app {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Joined {
  Status status;
  JoinStatistics statistics;
  TestTable table;
};
Joined join(const TestTable& left, const TestTable& right, const JoinOptions& options,
            uint64_t seed = 1) {
  Random random(seed);
  ArrowArrayStream left_stream = to_stream(left, random);
  ArrowArrayStream right_stream = to_stream(right, random);
  ArrowArrayStream result = {};
  const auto done = join_tables(&left_stream, &right_stream, options, &result);
  EXPECT_EQ(left_stream.release, nullptr);
  EXPECT_EQ(right_stream.release, nullptr);
  Joined joined;
  joined.status = done.status();
  if (!done.ok()) {
    EXPECT_EQ(result.release, nullptr);
    return joined;
  }
  joined.statistics = *done;
  joined.table = from_stream(&result);
  return joined;
}

// --- results ---

class JoinKeysTest : public testing::TestWithParam<Case> {};

TEST_P(JoinKeysTest, EveryKindIsWhatItsDefinitionSays) {
  JoinOptions options;
  for (size_t i = 0; i < GetParam().formats.size(); ++i) {
    options.keys.push_back({"key" + std::to_string(i), "right_key" + std::to_string(i)});
  }
  Random random(run_seed());
  for (const auto [left_rows, right_rows, bound] : std::vector<std::array<size_t, 3>>{
           {300, 200, 90}, {40, 400, 90}, {500, 60, 20}, {0, 50, 10}, {50, 0, 10}, {1, 1, 1}}) {
    const TestTable left = draw_table(random, GetParam(), true, left_rows, bound);
    const TestTable right = draw_table(random, GetParam(), false, right_rows, bound);
    for (const JoinKind kind :
         {JoinKind::kInner, JoinKind::kLeft, JoinKind::kSemi, JoinKind::kAnti}) {
      for (const uint32_t threads : {1, 2}) {
        SCOPED_TRACE(testing::Message() << left_rows << " rows, " << right_rows << " rows, kind "
                                        << static_cast<int>(kind) << ", threads " << threads);
        options.kind = kind;
        options.threads = threads;
        const Joined joined = join(left, right, options, random.next());
        ASSERT_TRUE(joined.status.ok()) << joined.status.message();
        const auto expected = expected_rows(left, right, options);
        EXPECT_EQ(joined.statistics.result_rows, expected.size());
        ASSERT_EQ(sorted_rows(joined.table), expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, JoinKeysTest,
    testing::Values(
        Case{"int8", {{"c", "c"}}}, Case{"uint16", {{"S", "S"}}}, Case{"int32", {{"i", "i"}}},
        Case{"int64", {{"l", "l"}}}, Case{"uint64", {{"L", "L"}}}, Case{"date32", {{"tdD", "tdD"}}},
        Case{"timestamp", {{"tsu:UTC", "tsu:UTC"}}}, Case{"bool", {{"b", "b"}}},
        Case{"decimal", {{"d:20,2", "d:20,2"}}}, Case{"decimal256", {{"d:60,2,256", "d:60,2,256"}}},
        Case{"fixed_binary", {{"w:11", "w:11"}}}, Case{"string", {{"u", "u"}}},
        Case{"large_string", {{"U", "U"}}}, Case{"string_and_large_string", {{"u", "U"}}},
        Case{"large_binary_and_binary", {{"Z", "z"}}}, Case{"two_words", {{"l", "l"}, {"l", "l"}}},
        Case{"packed", {{"s", "s"}, {"c", "c"}, {"b", "b"}, {"i", "i"}}},
        Case{"mixed", {{"i", "i"}, {"u", "U"}, {"b", "b"}, {"tdm", "tdm"}}}),
    [](const auto& info) { return info.param.name; });

// So many rows that there are many partitions, tasks and batches, and keys so frequent that a
// partition is shared by threads.
TEST(JoinTest, LargeSkewedTablesAreSharedByThreads) {
  constexpr int64_t kLeft = 300'000;
  constexpr int64_t kRight = 100'000;
  Random random(run_seed());
  std::vector<std::optional<int64_t>> left_keys;
  std::vector<std::optional<int64_t>> right_keys;
  std::vector<std::optional<int64_t>> left_numbers;
  std::vector<std::optional<int64_t>> right_numbers;
  std::map<int64_t, std::pair<uint64_t, uint64_t>> right_of;  // number of rows, and their sum
  for (int64_t i = 0; i < kRight; ++i) {
    const auto key = static_cast<int64_t>(random.below(kRight / 2));
    right_keys.emplace_back(key);
    right_numbers.emplace_back(i);
    right_of[key].first += 1;
    right_of[key].second += static_cast<uint64_t>(i);
  }
  uint64_t rows = 0;
  uint64_t sum = 0;
  for (int64_t i = 0; i < kLeft; ++i) {
    const auto key = random.below(2) == 0 ? 7 : static_cast<int64_t>(random.below(kRight));
    left_keys.emplace_back(key);
    left_numbers.emplace_back(i);
    rows += right_of[key].first;
    sum += right_of[key].first * static_cast<uint64_t>(i) + right_of[key].second;
  }
  const TestTable left = {{int_column("key", left_keys), int_column("a", left_numbers)}};
  const TestTable right = {{int_column("b", right_numbers), int_column("key", right_keys)}};
  for (const bool swapped : {false, true}) {
    for (const uint32_t threads : {1, 4}) {
      const Joined joined = join(swapped ? right : left, swapped ? left : right,
                                 {.keys = {{"key", ""}}, .threads = threads});
      ASSERT_TRUE(joined.status.ok()) << joined.status.message();
      EXPECT_GT(joined.statistics.partitions, 1u);
      EXPECT_EQ(joined.statistics.result_rows, rows);
      ASSERT_EQ(joined.table.rows(), rows);
      uint64_t found = 0;
      for (const char* const name : {"a", "b"}) {
        const auto column = std::ranges::find(joined.table.columns, name, &TestColumn::name);
        for (const Value& value : column->values) found += load<uint64_t>(value->data());
      }
      EXPECT_EQ(found, sum);
    }
  }
}

TEST(JoinTest, ColumnsAreLeftThenRightWithoutKeysAndNamesAreMadeDifferent) {
  const TestTable left = {{int_column("id", {1}), int_column("v", {2})}};
  const TestTable right = {{int_column("v", {3}), int_column("id", {1}), int_column("w", {4})}};
  const Joined joined = join(left, right, {.keys = {{"id", ""}}});
  ASSERT_TRUE(joined.status.ok());
  std::vector<std::string> names;
  for (const TestColumn& column : joined.table.columns) names.push_back(column.name);
  EXPECT_THAT(names, testing::ElementsAre("id", "v", "v_right", "w"));
  EXPECT_THAT(join(left, right, {.keys = {{"id", ""}}, .right_suffix = ""}).status.message(),
              HasSubstr("two columns 'v'"));
}

TEST(JoinTest, RowsAreCountedWithoutAResult) {
  Random random(1);
  ArrowArrayStream left = to_stream({{int_column("k", {1, 2, 2, std::nullopt})}}, random);
  ArrowArrayStream right = to_stream({{int_column("k", {2, 2, 3, std::nullopt})}}, random);
  const auto done = join_tables(&left, &right, {.keys = {{"k", ""}}}, nullptr);
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->result_rows, 4u);
  EXPECT_EQ(done->left_rows, 4u);
}

TEST(JoinTest, ATableOfOneArrayIsAStream) {
  std::vector<Owned<ArrowArray>> columns;
  columns.push_back(to_array(int_column("k", {5, 6}), 0, 2, 0));
  Owned<ArrowArray> batch = make_batch(2, std::move(columns));
  Random random(1);
  ArrowArrayStream source = to_stream({{int_column("k", {})}}, random);
  Owned<ArrowSchema> schema;
  ASSERT_EQ(source.get_schema(&source, schema.get()), 0);
  source.release(&source);
  ArrowArrayStream stream;
  stream_of_table(schema.get(), batch.get(), &stream);
  EXPECT_EQ(schema->release, nullptr);
  EXPECT_EQ(batch->release, nullptr);
  ArrowArrayStream right = to_stream({{int_column("k", {6, 7})}}, random);
  const auto done = join_tables(&stream, &right, {.keys = {{"k", ""}}}, nullptr);
  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_EQ(done->result_rows, 1u);
}

TEST(JoinTest, PlainColumnsAreJoinedWhereTheyLie) {
  const int64_t left_keys[] = {1, 2, 3};
  const int64_t right_keys[] = {3, 2};
  const double prices[] = {30.5, 20.5};
  const PlainColumn left_columns[] = {{"k", "l", left_keys}};
  const PlainColumn right_columns[] = {{"k", "l", right_keys}, {"price", "g", prices}};
  ArrowArrayStream left;
  ArrowArrayStream right;
  ArrowArrayStream result;
  stream_of_columns(3, left_columns, &left);
  stream_of_columns(2, right_columns, &right);
  ASSERT_TRUE(join_tables(&left, &right, {.keys = {{"k", ""}}}, &result).ok());
  const std::vector<std::vector<Value>> expected = {
      {bytes_of_value(int64_t{2}), bytes_of_value(20.5)},
      {bytes_of_value(int64_t{3}), bytes_of_value(30.5)}};
  EXPECT_EQ(sorted_rows(from_stream(&result)), expected);
}

// Batches of a stream of the test's own, of which the last one fails.
struct FailingStream {
  int batches = 0;
  bool released = false;
};

TEST(JoinTest, BatchesAreTakenUntilTheStreamEndsOrFails) {
  const int64_t keys[] = {1, 2, 3};
  const PlainColumn columns[] = {{"k", "l", keys}};
  ArrowArrayStream stream;
  stream_of_columns(3, columns, &stream);
  std::vector<int64_t> seen;
  const Status whole = for_each_batch(&stream, [&](const ArrowArray& batch) {
    for (const int64_t key : plain_values<int64_t>(batch, 0)) seen.push_back(key);
  });
  EXPECT_TRUE(whole.ok()) << whole.message();
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(stream.release, nullptr);

  FailingStream state;
  ArrowArrayStream failing = {};
  failing.private_data = &state;
  failing.get_next = [](ArrowArrayStream* self, ArrowArray* batch) {
    if (++static_cast<FailingStream*>(self->private_data)->batches == 3) return EIO;
    *batch = {};
    batch->release = [](ArrowArray* one) { one->release = nullptr; };
    return 0;
  };
  failing.get_last_error = [](ArrowArrayStream*) { return "the disk is gone"; };
  failing.release = [](ArrowArrayStream* self) {
    static_cast<FailingStream*>(self->private_data)->released = true;
  };
  int taken = 0;
  const Status failed = for_each_batch(&failing, [&](const ArrowArray&) { ++taken; });
  EXPECT_EQ(failed.code(), StatusCode::kUnavailable);
  EXPECT_EQ(failed.message(), "the disk is gone");
  EXPECT_EQ(taken, 2);
  EXPECT_TRUE(state.released);
}

TEST(JoinTest, PlainValuesBeginAtTheOffsetsOfBatchAndColumn) {
  const int64_t stored[] = {1, 2, 3, 4, 5};
  const void* buffers[] = {nullptr, stored};
  ArrowArray column = {};
  column.offset = 1;
  column.buffers = buffers;
  ArrowArray* columns[] = {&column};
  ArrowArray batch = {};
  batch.length = 2;
  batch.offset = 2;
  batch.children = columns;
  const std::span<const int64_t> values = plain_values<int64_t>(batch, 0);
  EXPECT_EQ(std::vector<int64_t>(values.begin(), values.end()), (std::vector<int64_t>{4, 5}));
}

TEST(JoinTest, AColumnOutlivesTheRestOfTheResult) {
  Random random(1);
  ArrowArrayStream left = to_stream({{int_column("k", {5})}}, random);
  ArrowArrayStream right = to_stream({{int_column("k", {5}), int_column("v", {9})}}, random);
  ArrowArrayStream result = {};
  ASSERT_TRUE(join_tables(&left, &right, {.keys = {{"k", ""}}}, &result).ok());
  Owned<ArrowArray> column;
  {
    Owned<ArrowArray> batch;
    ASSERT_EQ(result.get_next(&result, batch.get()), 0);
    std::swap(*column.get(), *batch->children[1]);
  }
  result.release(&result);
  EXPECT_EQ(load<int64_t>(column->buffers[1]), 9);
}

// --- what is refused ---

TEST(JoinTest, ASchemaThatDoesNotMatchIsNamed) {
  const TestTable left = {
      {int_column("id", {1}), {"name", "u", {"x"}}, {"price", "g", {std::string(8, 0)}}}};
  TestTable right = {{int_column("id", {1}),
                      {"code", "i", {std::string(4, 0)}},
                      {"cost", "g", {std::string(8, 0)}}}};
  const auto message = [&](std::vector<JoinKey> keys) {
    const Joined joined = join(left, right, {.keys = std::move(keys)});
    EXPECT_EQ(joined.status.code(), StatusCode::kInvalidArgument);
    return joined.status.message();
  };
  EXPECT_THAT(message({}), HasSubstr("name at least one column"));
  EXPECT_THAT(message({{"nothing", "id"}}),
              HasSubstr("the left table has no column 'nothing'; it has id, name, price"));
  EXPECT_THAT(message({{"id", "nothing"}}),
              HasSubstr("the right table has no column 'nothing'; it has id, code, cost"));
  EXPECT_THAT(message({{"id", "code"}}), AllOf(HasSubstr("'id' of the left table is int64"),
                                               HasSubstr("'code' of the right one int32; cast")));
  EXPECT_THAT(message({{"name", "id"}}), HasSubstr("is string, its partner 'id'"));
  EXPECT_THAT(message({{"price", "cost"}}), HasSubstr("is float64, and floating-point"));
  right.columns.push_back(int_column("id", {2}));
  EXPECT_THAT(message({{"id", ""}}), HasSubstr("several columns 'id'"));
}

// A schema as a producer might send it, and what is said of it.
TEST(JoinTest, ATypeThatIsNotSupportedIsNamedWithTheRemedy) {
  const auto message = [](const char* format, const char* dictionary = nullptr) {
    ArrowSchema values = {};
    values.format = dictionary;
    ArrowSchema schema = {};
    schema.name = "c";
    schema.format = format;
    if (dictionary != nullptr) schema.dictionary = &values;
    const auto type = column_type(schema, "left");
    return type.ok() ? "ok" : type.status().message();
  };
  EXPECT_EQ(message("+l"),
            "column 'c' of the left table is of type list, which the join cannot "
            "carry; leave it out, or flatten it into columns of its own");
  EXPECT_THAT(message("+s"), HasSubstr("of type struct"));
  EXPECT_THAT(message("+ud:0,1"), HasSubstr("of type union"));
  EXPECT_THAT(message("+r"), HasSubstr("of type run_end_encoded, which the join cannot carry; "
                                       "decode it first"));
  EXPECT_THAT(message("vu"),
              HasSubstr("of type string_view, which the join cannot carry; cast it to string"));
  EXPECT_THAT(message("n"), HasSubstr("of type null"));
  EXPECT_THAT(message("i", "u"),
              HasSubstr("is a dictionary of string, which the join cannot carry; decode it first"));
  EXPECT_THAT(message(nullptr), HasSubstr("has no format"));
  for (const char* const wrong : {"", "w:", "w:0", "w:-1", "w:99999999999", "d:", "d:1", "d:1,2,3",
                                  "ts", "tsx:", "tsu", "tdx", "lll"}) {
    EXPECT_THAT(message(wrong), HasSubstr("which the join cannot carry")) << wrong;
  }
  for (const char* const right : {"w:1", "d:3,1", "d:3,1,32", "tss:", "tsn:Europe/Berlin", "tin"}) {
    EXPECT_EQ(message(right), "ok") << right;
  }
}

// A decimal has 128 bits unless its format says otherwise, which it may say of these, too.
TEST(JoinTest, DecimalsThatSayTheirBitsMatchThoseThatDoNot) {
  const TestTable left = {{{"k", "d:5,2", {std::string(16, 1), std::string(16, 2)}}}};
  const TestTable right = {{{"k", "d:5,2,128", {std::string(16, 2), std::string(16, 3)}}}};
  const Joined joined = join(left, right, {.keys = {{"k", ""}}});
  ASSERT_TRUE(joined.status.ok()) << joined.status.message();
  EXPECT_EQ(joined.table.rows(), 1u);
  const TestTable wide = {{{"k", "d:5,2,256", {std::string(32, 2)}}}};
  EXPECT_FALSE(join(left, wide, {.keys = {{"k", ""}}}).status.ok());
}

// One batch with one column of four values, which `spoil` changes.
template <typename Spoil>
Status join_spoiled(const TestColumn& column, const Spoil& spoil) {
  std::vector<Owned<ArrowArray>> columns;
  columns.push_back(to_array(column, 0, column.values.size(), 1));
  std::vector<Owned<ArrowArray>> batches;
  batches.push_back(make_batch(column.values.size(), std::move(columns)));
  ArrowArray& batch = *batches.back().get();
  spoil(batch, *batch.children[0]);
  ArrowArrayStream left;
  make_stream({{column.name, column.format}}, std::move(batches), &left);
  Random random(1);
  ArrowArrayStream right = to_stream({{column}}, random);
  return join_tables(&left, &right, {.keys = {{column.name, ""}}}, nullptr).status();
}

TEST(JoinTest, AnArrayThatIsNotWhatItsTypeSaysIsRefused) {
  const TestColumn numbers = int_column("n", {1, 2, std::nullopt, 4});
  const TestColumn texts = {"t", "u", {"one", "two", "three", "four"}};
  ASSERT_TRUE(join_spoiled(numbers, [](ArrowArray&, ArrowArray&) {}).ok());
  ASSERT_TRUE(join_spoiled(texts, [](ArrowArray&, ArrowArray&) {}).ok());
  const auto refused = [](const TestColumn& column, auto spoil) {
    const Status status = join_spoiled(column, spoil);
    EXPECT_EQ(status.code(), StatusCode::kProtocolViolation) << status.message();
    return status.message();
  };
  using Array = ArrowArray&;
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.length = -1; }),
              HasSubstr("length -1"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.offset = -1; }),
              HasSubstr("offset -1"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.offset = INT64_MAX; }),
              HasSubstr("cannot be"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.length = 3; }),
              HasSubstr("has 3 values, and 4"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.null_count = 5; }),
              HasSubstr("null count 5"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.n_buffers = 3; }),
              HasSubstr("3 buffers"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.buffers = nullptr; }),
              HasSubstr("buffers"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.buffers[0] = nullptr; }),
              HasSubstr("no validity bitmap"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.buffers[1] = nullptr; }),
              HasSubstr("no buffer of them"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.n_children = 1; }),
              HasSubstr("has children"));
  EXPECT_THAT(refused(numbers, [](Array, Array array) { array.dictionary = &array; }),
              HasSubstr("dictionary"));
  EXPECT_THAT(refused(numbers, [](Array batch, Array) { batch.n_children = 2; }),
              HasSubstr("2 columns"));
  EXPECT_THAT(refused(numbers, [](Array batch, Array) { batch.children = nullptr; }),
              HasSubstr("columns"));
  EXPECT_THAT(refused(numbers, [](Array batch, Array) { batch.length = int64_t{1} << 60; }),
              HasSubstr("cannot be"));
  EXPECT_THAT(refused(numbers, [](Array batch, Array) { batch.length = 5; }),
              HasSubstr("and 5 are needed"));
  EXPECT_THAT(refused(texts, [](Array, Array array) { array.buffers[2] = nullptr; }),
              HasSubstr("no buffer of them"));
  EXPECT_THAT(refused(texts,
                      [](Array, Array array) {
                        store(static_cast<int32_t*>(const_cast<void*>(array.buffers[1])) + 2,
                              int32_t{-5});
                      }),
              HasSubstr("offsets that fall"));
  // A null buffer of bytes is right where all values are empty.
  EXPECT_TRUE(join_spoiled({"t", "u", {"", ""}}, [](Array, Array array) {
                store(static_cast<int32_t*>(const_cast<void*>(array.buffers[1])), int32_t{1});
                array.buffers[2] = nullptr;
              }).ok());
}

int failing_next(ArrowArrayStream*, ArrowArray*) { return EIO; }
const char* disk_gone(ArrowArrayStream*) { return "the disk is gone"; }

TEST(JoinTest, AStreamThatFailsIsQuoted) {
  Random random(1);
  const TestTable table = {{int_column("k", {1})}};
  ArrowArrayStream left = to_stream(table, random);
  ArrowArrayStream right = to_stream(table, random);
  right.get_next = failing_next;
  right.get_last_error = disk_gone;
  ArrowArrayStream result = {};
  const auto done = join_tables(&left, &right, {.keys = {{"k", ""}}}, &result);
  EXPECT_EQ(done.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(done.status().message(), "the stream of the right table failed: the disk is gone");
  EXPECT_EQ(right.release, nullptr);
  const auto again = join_tables(&left, &right, {.keys = {{"k", ""}}}, &result);
  EXPECT_THAT(again.status().message(), HasSubstr("a stream can be joined once"));
}

TEST(JoinTest, LargerThanTheLimitIsRefusedWithTheNumbers) {
  const TestTable same = {{int_column("k", std::vector<std::optional<int64_t>>(100'000, 1)),
                           {"text", "u", std::vector<Value>(100'000, "ten bytes.")}}};
  const auto message = [&](uint64_t limit, uint32_t threads) {
    const Joined joined =
        join(same, same, {.keys = {{"k", ""}}, .memory_limit_bytes = limit, .threads = threads});
    EXPECT_EQ(joined.status.code(), StatusCode::kLimitExceeded);
    EXPECT_THAT(joined.status.message(),
                AllOf(HasSubstr("the limit is " + std::to_string(limit) + " (memory_limit_bytes)"),
                      HasSubstr("raise the limit")));
    return joined.status.message();
  };
  for (const uint32_t threads : {1, 2}) {
    EXPECT_THAT(message(1000, threads), HasSubstr("batch 0 of the left table takes"));
    EXPECT_THAT(message(6'000'000, threads),
                HasSubstr("partitioning 100000 and 100000 rows takes 3200000 bytes more than"));
    EXPECT_THAT(message(8'000'000, threads), HasSubstr("the hash tables of the partitions takes"));
    // Of these, none is made: that would take minutes.
    EXPECT_THAT(message(100'000'000, threads),
                HasSubstr("the result of 10000000000 rows takes 360"));
  }
  // Without a result it fits.
  Random random(1);
  ArrowArrayStream left = to_stream(same, random);
  ArrowArrayStream right = to_stream(same, random);
  const auto counted =
      join_tables(&left, &right, {.keys = {{"k", ""}}, .memory_limit_bytes = 100'000'000}, nullptr);
  ASSERT_TRUE(counted.ok());
  EXPECT_EQ(counted->result_rows, 10'000'000'000u);
}

// Rows of the result that each are few, but of all partitions too many.
TEST(JoinTest, AResultThatOutgrowsTheLimitIsCountedToItsEnd) {
  std::vector<std::optional<int64_t>> keys;
  for (int64_t i = 0; i < 40'000; ++i) keys.emplace_back(i % 2'000);
  const TestTable table = {{int_column("k", keys), int_column("v", keys)}};
  const Joined joined =
      join(table, table, {.keys = {{"k", ""}}, .memory_limit_bytes = 9'000'000, .threads = 1});
  EXPECT_EQ(joined.status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(joined.status.message(), HasSubstr("the result of 800000 rows takes 19200000 bytes"));
}

}  // namespace
}  // namespace verbena::join_app
