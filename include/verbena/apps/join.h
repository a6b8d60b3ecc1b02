// Equi-joins of tables in Arrow's format ("memsem" IV-D), of one process by its cores or of many
// executors by the shuffle. Links verbena::join.
//
//   ArrowArrayStream orders, lineitems, joined;      // from pyarrow, Parquet, DuckDB, ...
//   Result<JoinStatistics> done = join_tables(
//       &orders, &lineitems, {.keys = {{"o_orderkey", "l_orderkey"}}}, &joined);
//
// How it works. Both relations are partitioned by the hash of their keys until a partition of the
// build side fits the cache. For each partition a hash table of its distinct keys is built, and
// probed with the other side. Partitions, and parts of large ones, are tasks of oneTBB. Columns are
// gathered once, for the rows of the result.
//
// Tables go in and out by the Arrow C data interface (verbena/apps/arrow.h), without copies of the
// input. Keys are one or several columns of
//   integers of 8 to 64 bits, bool, dates, times, timestamps, durations, intervals, decimals,
//   fixed-size binary, string, large_string, binary, large_binary
// of the same type on both sides; string and large_string, and binary and large_binary, match each
// other. A null matches nothing, not even another null. Further columns may also be floating-point
// numbers. Dictionaries, nested types and views are refused: the message names column, type, and
// what to cast to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "verbena/apps/arrow.h"
#include "verbena/status.h"

namespace verbena {

class ProtectionDomain;
class ShuffleReceiver;
class ShuffleSender;

enum class JoinKind : uint8_t {
  kInner,  // a row for each pair of a left and a right row with equal keys
  kLeft,   // the same, and a row with nulls on the right for each left row without a match
  kSemi,   // the left rows that have a match, once
  kAnti,   // the left rows that have none
};

struct JoinKey {
  std::string left;   // a column's name
  std::string right;  // empty: the same name
};

struct JoinOptions {
  std::vector<JoinKey> keys;  // all must be equal; at least one
  JoinKind kind = JoinKind::kInner;
  // Appended to the name of a right column that the left table has, too.
  std::string right_suffix = "_right";
  // The most bytes that input, working memory and result may take together. 0: what the machine has
  // available (also by the limits of its control group), less a fifth.
  uint64_t memory_limit_bytes = 0;
  // 0: one for each CPU of the process; there are never more. 1: all is done in the calling thread,
  // without oneTBB, as in a simulation it must be.
  uint32_t threads = 0;
};

struct JoinStatistics {
  uint64_t left_rows = 0;
  uint64_t right_rows = 0;
  uint64_t result_rows = 0;
  uint32_t partitions = 0;
  uint64_t largest_partition_rows = 0;  // of the side that was built
  uint64_t memory_bytes = 0;            // input, working memory and result at their peak
  uint64_t read_ns = 0;                 // reading both streams, and checking what came
  uint64_t partition_ns = 0;
  uint64_t probe_ns = 0;  // with building and the result
  // Of join_shuffled(), where rows, partitions and times above are those of what came to this
  // executor:
  uint64_t sent_rows = 0;
  uint64_t shuffle_ns = 0;
};

// Joins two tables. The result has the columns of the left table, and then those of the right one
// without its keys (kSemi, kAnti: the left ones alone); the order of its rows is not defined.
// Metadata of columns is not kept.
//
// Reads both streams to their end and releases them, whether it succeeds or not. On success
// `*result` is a stream that its owner releases, and outlives everything else; it is untouched on
// failure. `result` null: the rows are counted, and nothing is made of them.
//
// Blocks; calls run independently of each other in any number of threads. Memory: 16 bytes for each
// row of both inputs and the result, besides some MiB for each thread. Afterwards up to 2 GiB of it
// stay with the process for its next join; the system takes their pages when it needs some.
//   kInvalidArgument    no such column, or two of the name; a type that cannot be joined, or
//                       two that differ; an input with more than 2^30 rows
//   kLimitExceeded      more memory than the limit: with the numbers, before it is allocated
//   kProtocolViolation  a struct of the input is not what the C data interface says
//   kUnavailable        a stream failed, with its own message
Result<JoinStatistics> join_tables(ArrowArrayStream* left, ArrowArrayStream* right,
                                   const JoinOptions& options, ArrowArrayStream* result);

// Makes a stream of one table: of a schema and a struct array, which are moved into it.
void stream_of_table(ArrowSchema* schema, ArrowArray* table, ArrowArrayStream* stream);

// A column of fixed-width values without nulls in memory of the caller, who keeps it until the join
// has returned.
struct PlainColumn {
  std::string name;
  std::string format;  // as the C data interface writes types: "l" int64, "L" uint64, "g" float64
  const void* values = nullptr;
};
// Makes a stream of one table of so many rows, without a copy: for programs without a library for
// Arrow.
void stream_of_columns(uint64_t rows, std::span<const PlainColumn> columns,
                       ArrowArrayStream* stream);

// Calls on_batch(const ArrowArray&) for each batch of a stream, and releases the stream.
//   kUnavailable  the stream failed, with its own message
template <typename OnBatch>
Status for_each_batch(ArrowArrayStream* stream, OnBatch&& on_batch) {
  Status status;
  for (;;) {
    ArrowArray batch;
    if (stream->get_next(stream, &batch) != 0) {
      const char* const why = stream->get_last_error(stream);
      status = {StatusCode::kUnavailable, why != nullptr ? why : "the stream does not say why"};
      break;
    }
    if (batch.release == nullptr) break;
    on_batch(std::as_const(batch));
    batch.release(&batch);
  }
  stream->release(stream);
  return status;
}
// The values of a batch's column, counted from 0, that has values of the fixed width of T and no
// nulls. Valid as long as the batch.
template <typename T>
std::span<const T> plain_values(const ArrowArray& batch, size_t column) {
  const ArrowArray& values = *batch.children[column];
  return {static_cast<const T*>(values.buffers[1]) + values.offset + batch.offset,
          static_cast<size_t>(batch.length)};
}

// --- distributed ---

// One executor's connections to all executors, itself among them, by the shuffle
// (verbena/apps/shuffle.h).
struct JoinExchange {
  ShuffleSender& sender;      // to every executor
  ShuffleReceiver& receiver;  // from every executor; its number is that in `sender`
  // Rows are put together in 2 MiB that are registered there, from which the shuffle's kSgl and
  // kBasic take them without another copy. Null: they are copied once more.
  const ProtectionDomain* domain = nullptr;
};

// Joins tables of which every executor has a part: each row goes to the executor that its key
// decides, by the shuffle ("memsem" IV-D), and is joined there, as by join_tables(). All executors
// call it, with tables of the same columns and the same options. Together their results are the
// join; `*result` is this executor's part. Rows with a null in the key go nowhere, or stay here if
// they belong to the result.
//
// The shuffle has records of any size (record_bytes 0), and max_record_bytes is at least the
// longest row: 1 byte, a bit for each column, fixed-width values as they are, and texts with 4 or 8
// bytes for their length. It is over afterwards, and cannot be used again.
//
// Memory: as join_tables(), of what comes here, and this executor's part of the input until it has
// been sent. A frequent key has all its rows at one executor.
//
// As join_tables(), and where one fails its caller destroys sender and receiver, so that others are
// told:
//   kInvalidArgument    another executor has other columns or options: names it and the first that
//                       differs; or a row is longer than max_record_bytes
//   kUnavailable        an executor died or gave up: names it
//   kProtocolViolation  an executor sends something else than rows of this join
Result<JoinStatistics> join_shuffled(ArrowArrayStream* left, ArrowArrayStream* right,
                                     const JoinOptions& options, const JoinExchange& executors,
                                     ArrowArrayStream* result);

}  // namespace verbena
