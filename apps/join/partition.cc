// Radix partitioning in two passes over the keys: the first counts, so that the second knows where
// every tuple goes and each task writes to places of its own. Tuples pass through a cache line for
// each partition, which is written to memory as a whole and around the cache.
#include "join/partition.h"

#include <algorithm>
#include <bit>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "verbena/data_path.h"

namespace verbena::join_app {
namespace {

constexpr uint64_t kTargetRows = 8192;
constexpr uint32_t kMaxBits = 11;
constexpr uint64_t kLeastTaskRows = 64 * 1024;
constexpr uint32_t kLineTuples = 4;

struct alignas(64) Line {
  Tuple tuples[kLineTuples];
};

void write_line(Tuple* to, const Line& line) {
#if defined(__SSE2__)
  const auto* const from = reinterpret_cast<const __m128i*>(line.tuples);
  auto* const target = reinterpret_cast<__m128i*>(to);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_load_si128(from + i));
#else
  *reinterpret_cast<Line*>(to) = line;
#endif
}

// Consecutive rows of one piece.
struct Rows {
  RowNumber first;
  uint32_t count;
};

// The table's rows in lists for tasks, of about the same length.
std::vector<std::vector<Rows>> share(const Table& table, uint64_t tasks) {
  const uint64_t most = table.rows() / tasks + 1;
  std::vector<std::vector<Rows>> lists(1);
  uint64_t in_list = 0;
  for (uint64_t piece = 0; piece < table.piece_rows().size(); ++piece) {
    for (uint64_t from = 0; from < table.piece_rows()[piece];) {
      const uint64_t count = std::min(table.piece_rows()[piece] - from, most - in_list);
      lists.back().push_back({static_cast<RowNumber>((piece << table.piece_bits()) + from),
                              static_cast<uint32_t>(count)});
      from += count;
      in_list += count;
      if (in_list == most) {
        lists.emplace_back();
        in_list = 0;
      }
    }
  }
  return lists;
}

class Partitioner {
 public:
  Partitioner(const Keys& keys, uint32_t bits, NullKeys nulls)
      : keys_(keys), shift_(64 - bits), partitions_(uint64_t{1} << bits), nulls_(nulls) {}

  // Calls use(partition, tuple) for each row.
  template <typename Use>
  void for_each(const std::vector<Rows>& list, const Use& use) const {
    Keys::Words words;
    for (const Rows& rows : list) {
      for (uint32_t from = 0; from < rows.count; from += Keys::kBlockRows) {
        const RowNumber first = rows.first + from;
        const uint32_t count = std::min(rows.count - from, Keys::kBlockRows);
        keys_.read(first, count, &words);
        for (uint32_t i = 0; i < count; ++i) {
          uint64_t partition = 0;
          if (keys_.may_be_null() && words.nulls[i]) {
            if (nulls_ == NullKeys::kDrop) continue;
            partition = partitions_;
          } else if (shift_ < 64) {
            partition = mix(words.keys[i]) >> shift_;
          }
          use(partition, Tuple{words.keys[i], first + i});
        }
      }
    }
  }

  void count(const std::vector<Rows>& list, uint64_t* counts) const {
    for_each(list, [&](uint64_t partition, const Tuple&) { ++counts[partition]; });
  }
  // `first`: where the task's tuples of each partition begin.
  void scatter(const std::vector<Rows>& list, const uint64_t* first, Tuple* tuples) const {
    std::vector<Line> lines(partitions_ + 1);
    std::vector<uint64_t> next(first, first + partitions_ + 1);
    for_each(list, [&](uint64_t partition, const Tuple& tuple) {
      const uint64_t at = next[partition]++;
      Line& line = lines[partition];
      line.tuples[at % kLineTuples] = tuple;
      if (at % kLineTuples != kLineTuples - 1) return;
      const uint64_t begin = at - (kLineTuples - 1);
      if (begin >= first[partition]) {
        write_line(tuples + begin, line);
      } else {
        flush(line, first[partition], at + 1, tuples);
      }
    });
    for (uint64_t i = 0; i <= partitions_; ++i) {
      flush(lines[i], std::max(first[i], next[i] / kLineTuples * kLineTuples), next[i], tuples);
    }
#if defined(__SSE2__)
    _mm_sfence();  // lines that went around the cache are there before other threads read them
#endif
  }

 private:
  static void flush(const Line& line, uint64_t from, uint64_t end, Tuple* tuples) {
    for (uint64_t i = from; i < end; ++i) tuples[i] = line.tuples[i % kLineTuples];
  }

  const Keys& keys_;
  uint32_t shift_;
  uint64_t partitions_;
  NullKeys nulls_;
};

}  // namespace

uint32_t Partitions::bits_for(uint64_t build_rows) {
  const uint64_t partitions = std::max<uint64_t>(build_rows / kTargetRows, 1);
  return std::min(static_cast<uint32_t>(std::bit_width(partitions) - 1), kMaxBits);
}

Partitions Partitions::make(const Table& table, const Keys& keys, uint32_t partition_bits,
                            NullKeys nulls, const Executor& executor) {
  const Partitioner partitioner(keys, partition_bits, nulls);
  const uint64_t ends = (uint64_t{1} << partition_bits) + 1;  // with the rows without a key
  const uint64_t tasks =
      std::clamp<uint64_t>(table.rows() / kLeastTaskRows, 1, uint64_t{executor.threads()} * 2);
  const std::vector<std::vector<Rows>> lists = share(table, tasks);
  std::vector<std::vector<uint64_t>> places(lists.size(), std::vector<uint64_t>(ends));
  executor.for_each(lists.size(),
                    [&](uint64_t i) { partitioner.count(lists[i], places[i].data()); });

  Partitions made;
  made.first_.resize(ends + 1);
  uint64_t at = 0;
  for (uint64_t partition = 0; partition < ends; ++partition) {
    made.first_[partition] = at;
    for (auto& place : places) {
      const uint64_t count = place[partition];
      place[partition] = at;
      at += count;
    }
  }
  made.first_[ends] = at;
  made.tuples_ = Block(at * sizeof(Tuple));
  executor.for_each(lists.size(), [&](uint64_t i) {
    partitioner.scatter(lists[i], places[i].data(), made.tuples_.as<Tuple>());
  });
  // Both passes read the keys.
  count_copied_bytes(made.tuples_.size_bytes() + 2 * table.rows() * sizeof(uint64_t));
  return made;
}

uint64_t Partitions::largest() const {
  uint64_t largest = 0;
  for (uint64_t i = 0; i < count(); ++i) largest = std::max<uint64_t>(largest, tuples(i).size());
  return largest;
}

}  // namespace verbena::join_app
