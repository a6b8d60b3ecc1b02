#include "src/bench/join/join_tuples.h"

#include <array>
#include <string_view>

#include "verbena/apps/shuffle.h"

namespace verbena::bench {

namespace {

// Different for different numbers, since the factor is odd.
uint64_t key_of_inner(uint64_t number) { return number * 0x9e3779b97f4a7c15u; }
uint64_t payload_of_inner(uint64_t key) { return ~key; }

void store_word_at(std::vector<char>& payload, uint64_t at, uint64_t word) {
  std::memcpy(payload.data() + at, &word, sizeof(word));
}
uint64_t word_of(const ArrowArray& column, int64_t row, uint32_t width_bytes) {
  uint64_t word = 0;
  std::memcpy(&word,
              static_cast<const char*>(column.buffers[1]) +
                  static_cast<uint64_t>(column.offset + row) * width_bytes,
              sizeof(word));
  return word;
}

}  // namespace

JoinTuples::JoinTuples(uint64_t tuples, uint32_t tuple_bytes, uint32_t executor, uint32_t executors)
    : tuples_(tuples),
      payload_bytes_(tuple_bytes - sizeof(uint64_t)),
      executor_(executor),
      executors_(executors) {
  const uint64_t count = tuples > executor ? (tuples - executor - 1) / executors + 1 : 0;
  inner_keys_.reserve(count);
  outer_keys_.reserve(count);
  inner_.resize(count * payload_bytes_);
  outer_.resize(count * payload_bytes_);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t number = i * executors + executor;
    inner_keys_.push_back(key_of_inner(number));
    outer_keys_.push_back(key_of_outer(number));
    store_word_at(inner_, i * payload_bytes_, payload_of_inner(inner_keys_.back()));
    store_word_at(outer_, i * payload_bytes_, number);
  }
}

uint64_t JoinTuples::key_of_outer(uint64_t number) const {
  return key_of_inner((number + tuples_ / 2) % tuples_);
}

void JoinTuples::open(const std::vector<uint64_t>& keys, const std::vector<char>& payload,
                      const char* name, ArrowArrayStream* stream) const {
  const std::array columns = {
      PlainColumn{.name = "key", .format = "L", .values = keys.data()},
      PlainColumn{
          .name = name, .format = "w:" + std::to_string(payload_bytes_), .values = payload.data()}};
  stream_of_columns(keys.size(), columns, stream);
}

uint64_t JoinTuples::mismatches(ArrowArrayStream* result) const {
  uint64_t wrong = 0;
  uint64_t rows = 0;
  uint64_t sum = 0;
  ArrowArray batch = {};
  bool whole = false;
  while (result->get_next(result, &batch) == 0) {
    whole = batch.release == nullptr;
    if (whole) break;
    for (int64_t row = 0; row < batch.length; ++row) {
      const uint64_t key = word_of(*batch.children[0], row, sizeof(key));
      const uint64_t inner = word_of(*batch.children[1], row, payload_bytes_);
      const uint64_t outer = word_of(*batch.children[2], row, payload_bytes_);
      if (inner != payload_of_inner(key) || outer >= tuples_ || key_of_outer(outer) != key) ++wrong;
      sum += outer;
    }
    rows += static_cast<uint64_t>(batch.length);
    batch.release(&batch);
  }
  result->release(result);
  // A key's rows come to the executor that the shuffle's hash of it decides.
  uint64_t due = 0;
  for (uint64_t number = 0; number < tuples_; ++number) {
    const uint64_t key = key_of_outer(number);
    const std::string_view bytes(reinterpret_cast<const char*>(&key), sizeof(key));
    if (executors_ > 1 && partition_of(shuffle_hash(bytes), executors_) != executor_) continue;
    ++due;
    sum -= number;
  }
  return wrong + (whole && rows == due && sum == 0 ? 0 : 1);
}

}  // namespace verbena::bench
