// A front-end's random operations on a few keys, and their history, for tests with several of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "tests/support/map_history.h"
#include "verbena/apps/hashtable.h"

namespace verbena::hashtable {

// A value that is a number, repeated to a length that depends on it: a torn one is no such value.
inline std::string long_value(uint64_t number) {
  const std::string digits = std::to_string(number) + ";";
  std::string text;
  for (uint64_t i = 0; i <= number % 5; ++i) text += digits;
  return text;
}
// 0: it is none.
inline uint64_t number_of(std::string_view value) {
  const uint64_t number = std::strtoull(std::string(value).c_str(), nullptr, 10);
  return value == long_value(number) ? number : 0;
}

class Recorder {
 public:
  // Keys are below `keys`; values are different for all `number`s of recorders. `calls` is the
  // history, also of a recorder that does not come to its end. Of `kinds` operations one is of each
  // kind, and the others are updates.
  Recorder(Hashtable& table, uint64_t number, uint64_t keys, uint64_t seed,
           std::vector<test::MapCall>& calls, uint64_t kinds = 4)
      : table_(&table),
        number_(number),
        random_(seed),
        keys_(keys),
        kinds_(kinds),
        next_value_(1 + number * 1'000'000),
        calls_(calls) {}

  // As many at once as may be. Less than `operations` where the table fails.
  void run(uint64_t operations) {
    Waiter waiter;
    const size_t end = calls_.size() + operations;
    while ((calls_.size() < end || table_->pending() > 0) && table_->status().ok()) {
      while (calls_.size() < end && post()) {
      }
      const uint32_t replies = table_->poll([this](const HashtableReply& reply) { take(reply); });
      settle();
      replies > 0 ? waiter.progress() : waiter.idle(table_->due_ns());
      if (!kept_.empty() && table_->pending() == 0 && random_.below(64) == 0) flush();
    }
    flush();
  }

  uint64_t refused() const { return refused_; }  // the table was full
  uint64_t torn() const { return torn_; }

 private:
  using Kind = test::MapOperation::Kind;

  bool post() {
    test::MapCall call;
    const uint64_t kind = random_.below(kinds_);
    call.operation.kind = kind < 4 ? static_cast<Kind>(kind) : Kind::kUpdate;
    call.operation.key = random_.below(keys_);
    call.operation.value = next_value_;
    const std::string key = "key " + std::to_string(call.operation.key);
    const std::string value = long_value(next_value_);
    const uint64_t token = calls_.size();
    call.session = number_;
    call.begin_ns = now_ns();
    const uint64_t kept = table_->statistics().hot_kept;
    PostResult posted = PostResult::kFailed;
    switch (call.operation.kind) {
      case Kind::kSearch:
        posted = table_->post_search(key, token);
        break;
      case Kind::kInsert:
        posted = table_->post_insert(key, value, token);
        break;
      case Kind::kUpdate:
        posted = table_->post_update(key, value, token);
        break;
      case Kind::kRemove:
        posted = table_->post_remove(key, token);
    }
    if (posted != PostResult::kPosted) return false;
    ++next_value_;
    calls_.push_back(call);
    if (table_->statistics().hot_kept > kept) kept_.push_back(token);
    return true;
  }

  void flush() {
    if (table_->flush().ok()) settle();
  }
  // Updates that were answered before they were published end when they are.
  void settle() {
    const uint64_t since_ns = table_->unpublished_since_ns();
    std::erase_if(kept_, [&](uint64_t token) {
      const bool is_safe = calls_[token].reply_ns < since_ns;
      if (is_safe) calls_[token].end_ns = now_ns();
      return is_safe;
    });
  }

  void take(const HashtableReply& reply) {
    test::MapCall& call = calls_[reply.token];
    call.reply_ns = now_ns();
    const bool is_kept = std::find(kept_.begin(), kept_.end(), reply.token) != kept_.end();
    if (!is_kept) call.end_ns = call.reply_ns;
    call.operation.succeeded = reply.outcome == HashtableOutcome::kDone;
    if (reply.outcome == HashtableOutcome::kFull) {
      ++refused_;
      // It has not happened: an answer that says nothing.
      call.operation.kind = Kind::kSearch;
      call.end_ns = test::kUnanswered;
    } else if (call.operation.kind == Kind::kSearch && call.operation.succeeded) {
      call.operation.value = number_of(reply.value);
      if (call.operation.value == 0) ++torn_;
    }
  }

  Hashtable* table_;
  const uint64_t number_;
  Random random_;
  const uint64_t keys_;
  const uint64_t kinds_;
  uint64_t next_value_;
  std::vector<test::MapCall>& calls_;
  std::vector<uint64_t> kept_;  // tokens of updates that are not published, as far as is known
  uint64_t refused_ = 0;
  uint64_t torn_ = 0;
};

}  // namespace verbena::hashtable
