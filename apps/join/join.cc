// The second phase: a hash table for each partition, which the other side probes.
#include "verbena/apps/join.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "join/arrays.h"
#include "join/key_table.h"
#include "join/keys.h"
#include "join/local_join.h"
#include "join/memory.h"
#include "join/parallel.h"
#include "join/partition.h"
#include "join/result.h"
#include "join/table.h"
#include "verbena/clock.h"
#include "verbena/data_path.h"

namespace verbena {
namespace join_app {
namespace {

constexpr uint64_t kBatchRows = 256 * 1024;  // of the result
constexpr uint64_t kProbeRows = 64 * 1024;   // of one task; larger partitions are shared

// What one thread has.
struct alignas(64) Worker {
  KeyTable table;
  std::vector<RowNumber> probe_rows;
  std::vector<RowNumber> build_rows;
  uint64_t pairs = 0;  // in these
  uint64_t rows = 0;   // of the result
  std::vector<Owned<ArrowArray>> batches;
};

class Probe {
 public:
  struct Side {
    const Keys& keys;
    const Partitions& partitions;
  };
  // `columns` null: rows are counted only.
  Probe(const Side& build, const Side& probe, uint32_t partition_bits, JoinKind kind,
        bool left_is_built, const ResultColumns* columns, MemoryBudget& budget,
        const Executor& executor)
      : build_(build),
        probe_(probe),
        partition_bits_(partition_bits),
        kind_(kind),
        left_is_built_(left_is_built),
        columns_(columns),
        budget_(budget),
        executor_(executor),
        workers_(executor.threads()) {
    if (columns == nullptr) return;
    for (Worker& worker : workers_) {
      worker.probe_rows.resize(kBatchRows);
      worker.build_rows.resize(kBatchRows);
    }
  }

  // Of so many threads: the tables that they may have at once, and the pairs.
  static uint64_t work_bytes(const Partitions& build, uint32_t threads) {
    std::vector<uint64_t> rows;
    for (uint64_t i = 0; i < build.count(); ++i) rows.push_back(build.tuples(i).size());
    const uint64_t most = std::min<uint64_t>(threads, rows.size());
    std::partial_sort(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(most), rows.end(),
                      std::greater<>());
    uint64_t bytes = threads * kBatchRows * 2 * sizeof(RowNumber);
    for (uint64_t i = 0; i < most; ++i) bytes += KeyTable::size_bytes(rows[i]);
    return bytes;
  }

  void run() {
    if (build_.keys.exact()) {
      run_all([](RowNumber, RowNumber) { return true; }, [](RowNumber, RowNumber) { return true; });
    } else {
      run_all([this](RowNumber a, RowNumber b) { return build_.keys.equal(a, build_.keys, b); },
              [this](RowNumber a, RowNumber b) { return build_.keys.equal(a, probe_.keys, b); });
    }
  }

  uint64_t rows() const {
    uint64_t rows = 0;
    for (const Worker& worker : workers_) rows += worker.rows;
    return rows;
  }
  bool within_budget() const { return poll_word(&above_budget_) == 0; }
  std::vector<Owned<ArrowArray>> take_batches() {
    std::vector<Owned<ArrowArray>> batches;
    for (Worker& worker : workers_) {
      for (auto& batch : worker.batches) batches.push_back(std::move(batch));
    }
    return batches;
  }

 private:
  Worker& worker() { return workers_[executor_.thread()]; }

  template <typename EqualBuilt, typename EqualProbed>
  void run_all(const EqualBuilt& equal_built, const EqualProbed& equal_probed) {
    executor_.for_each(build_.partitions.count(), [&](uint64_t partition) {
      const std::span<const Tuple> probed = probe_.partitions.tuples(partition);
      if (probed.empty()) return;
      // A simulation takes the time of what was counted whenever the time is asked, with a jitter
      // of its own: once for each partition, not once for all.
      static_cast<void>(now_ns());
      KeyTable& table = worker().table;
      table.build(build_.partitions.tuples(partition), partition_bits_, equal_built);
      if (probed.size() <= 2 * kProbeRows) {
        probe(table, probed, equal_probed);
        return;
      }
      executor_.for_each((probed.size() + kProbeRows - 1) / kProbeRows, [&](uint64_t part) {
        const uint64_t from = part * kProbeRows;
        probe(table, probed.subspan(from, std::min(kProbeRows, probed.size() - from)),
              equal_probed);
      });
    });
    // Rows without a key are kept for the kinds that want what has no match.
    for (const Tuple& tuple : probe_.partitions.without_key()) {
      add(workers_[0], static_cast<RowNumber>(tuple.row), {&kNoRow, 1});
    }
    executor_.for_each(workers_.size(), [&](uint64_t i) { flush(workers_[i]); });
  }

  template <typename Equal>
  void probe(const KeyTable& table, std::span<const Tuple> tuples, const Equal& equal) {
    Worker& mine = worker();
    const bool pairs = kind_ == JoinKind::kInner || kind_ == JoinKind::kLeft;
    count_copied_bytes(tuples.size() * sizeof(Tuple) + KeyTable::probed_bytes(tuples.size()));
    // Where keys are unique there are no more pairs than tuples; else a few rows may make any
    // number of them, so they are counted before the first one is made.
    if (pairs && columns_ != nullptr && table.has_duplicates() && within_budget()) {
      uint64_t rows = 0;
      for (const Tuple& tuple : tuples) {
        const auto row = static_cast<RowNumber>(tuple.row);
        rows += table.find(tuple.key, [&](RowNumber built) { return equal(built, row); }).size();
      }
      if (!budget_.has(columns_->bytes_of_rows(rows))) publish_word(&above_budget_, uint64_t{1});
    }
    for (const Tuple& tuple : tuples) {
      const auto row = static_cast<RowNumber>(tuple.row);
      const std::span<const RowNumber> found =
          table.find(tuple.key, [&](RowNumber built) { return equal(built, row); });
      if (found.empty()) {
        if (kind_ == JoinKind::kLeft || kind_ == JoinKind::kAnti) add(mine, row, {&kNoRow, 1});
      } else if (pairs) {
        add(mine, row, found);
      } else if (kind_ == JoinKind::kSemi) {
        add(mine, row, {&kNoRow, 1});
      }
    }
  }
  void add(Worker& mine, RowNumber row, std::span<const RowNumber> found) {
    mine.rows += found.size();
    if (columns_ == nullptr) return;
    if (mine.pairs == kBatchRows || found.size() > kBatchRows - mine.pairs) {
      add_in_parts(mine, row, found);
      return;
    }
    for (const RowNumber built : found) {
      mine.probe_rows[mine.pairs] = row;
      mine.build_rows[mine.pairs++] = built;
    }
  }
  void add_in_parts(Worker& mine, RowNumber row, std::span<const RowNumber> found) {
    // Once the result is known to be too large, its rows are only counted.
    while (!found.empty() && within_budget()) {
      if (mine.pairs == kBatchRows) flush(mine);
      const uint64_t part = std::min<uint64_t>(found.size(), kBatchRows - mine.pairs);
      for (const RowNumber built : found.first(part)) {
        mine.probe_rows[mine.pairs] = row;
        mine.build_rows[mine.pairs++] = built;
      }
      found = found.subspan(part);
    }
  }
  void flush(Worker& mine) {
    const std::span<const RowNumber> probed(mine.probe_rows.data(), mine.pairs);
    const std::span<const RowNumber> built(mine.build_rows.data(), mine.pairs);
    mine.pairs = 0;
    if (columns_ == nullptr || !within_budget()) return;
    if (!columns_->gather(left_is_built_ ? built : probed, left_is_built_ ? probed : built, budget_,
                          &mine.batches)) {
      publish_word(&above_budget_, uint64_t{1});
    }
  }

  Side build_;
  Side probe_;
  uint32_t partition_bits_;
  JoinKind kind_;
  bool left_is_built_;
  const ResultColumns* columns_;
  MemoryBudget& budget_;
  const Executor& executor_;
  std::vector<Worker> workers_;
  uint64_t above_budget_ = 0;
};

}  // namespace

Result<JoinStatistics> join_here(ArrowArrayStream* left_stream, ArrowArrayStream* right_stream,
                                 const JoinOptions& options, MemoryBudget& budget,
                                 ArrowArrayStream* result) {
  const Executor executor(options.threads);
  uint64_t begun_ns = now_ns();
  const auto lap_ns = [&begun_ns] {
    const uint64_t before_ns = begun_ns;
    begun_ns = now_ns();
    return begun_ns - before_ns;
  };
  VERBENA_ASSIGN_OR_RETURN(const Table left, Table::read(left_stream, "left", budget));
  VERBENA_ASSIGN_OR_RETURN(const Table right, Table::read(right_stream, "right", budget));
  VERBENA_ASSIGN_OR_RETURN(const KeyColumns columns, find_keys(options.keys, left, right));
  VERBENA_ASSIGN_OR_RETURN(const ResultColumns result_columns,
                           ResultColumns::plan(left, right, columns, options));
  JoinStatistics statistics;
  statistics.left_rows = left.rows();
  statistics.right_rows = right.rows();
  statistics.read_ns = lap_ns();

  VERBENA_RETURN_IF_ERROR(
      budget.take(Partitions::tuple_bytes(left) + Partitions::tuple_bytes(right),
                  "partitioning " + std::to_string(left.rows()) + " and " +
                      std::to_string(right.rows()) + " rows"));
  const Keys left_keys(left, columns.left);
  const Keys right_keys(right, columns.right);
  // What has no match is found by probing; else the smaller table is built.
  const bool left_is_built = options.kind == JoinKind::kInner && left.rows() < right.rows();
  const uint32_t bits = Partitions::bits_for(left_is_built ? left.rows() : right.rows());
  const NullKeys left_nulls = options.kind == JoinKind::kLeft || options.kind == JoinKind::kAnti
                                  ? NullKeys::kKeep
                                  : NullKeys::kDrop;
  const Partitions left_partitions = Partitions::make(left, left_keys, bits, left_nulls, executor);
  const Partitions right_partitions =
      Partitions::make(right, right_keys, bits, NullKeys::kDrop, executor);
  const Partitions& built = left_is_built ? left_partitions : right_partitions;
  statistics.partitions = built.count();
  statistics.largest_partition_rows = built.largest();
  statistics.partition_ns = lap_ns();

  VERBENA_RETURN_IF_ERROR(budget.take(Probe::work_bytes(built, executor.threads()),
                                      "the hash tables of the partitions"));
  const Probe::Side left_side = {left_keys, left_partitions};
  const Probe::Side right_side = {right_keys, right_partitions};
  Probe probe(left_is_built ? left_side : right_side, left_is_built ? right_side : left_side, bits,
              options.kind, left_is_built, result == nullptr ? nullptr : &result_columns, budget,
              executor);
  const uint64_t before_result_bytes = budget.used_bytes();
  probe.run();
  statistics.probe_ns = lap_ns();
  statistics.result_rows = probe.rows();
  statistics.memory_bytes = budget.peak_bytes();
  if (!probe.within_budget()) {
    budget.give_back(budget.used_bytes() - before_result_bytes);
    return budget.refusal(result_columns.bytes_of_rows(probe.rows()),
                          "the result of " + std::to_string(probe.rows()) + " rows");
  }
  if (result != nullptr) make_stream(result_columns.fields(), probe.take_batches(), result);
  return statistics;
}

Status refused_by_system() {
  return Status(StatusCode::kLimitExceeded,
                "the system refused memory for the join; set memory_limit_bytes below what it has, "
                "or join fewer rows at once");
}
Status used_twice() {
  return Status(StatusCode::kInvalidArgument,
                "a stream to join was released or moved away; a stream can be joined once");
}

}  // namespace join_app

Result<JoinStatistics> join_tables(ArrowArrayStream* left, ArrowArrayStream* right,
                                   const JoinOptions& options, ArrowArrayStream* result) {
  const join_app::Stream left_owner(left);
  const join_app::Stream right_owner(right);
  if (left->release == nullptr || right->release == nullptr) return join_app::used_twice();
  try {
    join_app::MemoryBudget budget(options.memory_limit_bytes);
    return join_app::join_here(left, right, options, budget, result);
  } catch (const std::bad_alloc&) {
    return join_app::refused_by_system();
  }
}

}  // namespace verbena
