// The distributed join: rows go to the executor that their key decides, by the shuffle, and are
// joined there.
//
// One thread sends and receives in turn: an executor that waits for room at another one takes what
// comes meanwhile, so a ring of executors that wait for each other does not form.
#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "join/keys.h"
#include "join/local_join.h"
#include "join/rows.h"
#include "join/table.h"
#include "verbena/apps/join.h"
#include "verbena/apps/shuffle.h"
#include "verbena/clock.h"
#include "verbena/data_path.h"

namespace verbena {
namespace join_app {
namespace {

// The first byte of a record.
// What the sender joins, in words, is the first that it sends to each executor: in as many records
// as it takes, since rows, for which the shuffle is made, may be shorter.
constexpr char kHelloPart = 'H';  // all of it but the last
constexpr char kHello = 'h';
constexpr char kLeft = 'l';  // a row
constexpr char kRight = 'r';

// Of another executor's line, in an error.
constexpr size_t kMostQuotedBytes = 400;

constexpr uint64_t kHalfBytes = uint64_t{1} << 20;

// Where rows are put together. With a domain, in registered memory, from which the shuffle's SGL
// takes them without a copy: one half is written while what was sent from the other one leaves.
class RowSpace {
 public:
  static Result<RowSpace> make(const ProtectionDomain* domain) {
    RowSpace space;
    if (domain == nullptr) return space;
    space.memory_ = Block(2 * kHalfBytes);
    VERBENA_ASSIGN_OR_RETURN(MemoryRegion region,
                             MemoryRegion::create(*domain, space.memory_.as<void>(), 2 * kHalfBytes,
                                                  IBV_ACCESS_LOCAL_WRITE));
    space.region_ = std::make_unique<MemoryRegion>(std::move(region));
    return space;
  }

  // Whether a row of that size has a place now. If not, sent rows have to complete first.
  bool has_room(uint64_t size_bytes, const ShuffleSender& sender) {
    if (!fits(size_bytes) || used_bytes_ + size_bytes <= kHalfBytes) return true;
    const uint32_t other = 1 - half_;
    if (sender.completed() < taken_[other]) return false;
    taken_[half_] = sender.taken();
    half_ = other;
    used_bytes_ = 0;
    return true;
  }
  char* place(uint64_t size_bytes) {
    if (fits(size_bytes)) return memory_.as<char>() + half_ * kHalfBytes + used_bytes_;
    spare_.resize(size_bytes);
    return spare_.data();
  }
  // A part of the row that was put to its place.
  PostResult send(ShuffleSender& sender, uint32_t partition, uint64_t row_bytes, uint64_t from,
                  uint64_t size_bytes, bool more) {
    if (!fits(row_bytes)) {
      return sender.send_part(partition, std::string_view(spare_.data() + from, size_bytes), more);
    }
    return sender.send_part(partition,
                            LocalSlice{.memory = region_.get(),
                                       .offset_bytes = half_ * kHalfBytes + used_bytes_ + from,
                                       .size_bytes = static_cast<uint32_t>(size_bytes)},
                            more);
  }
  void sent(uint64_t row_bytes) {
    if (fits(row_bytes)) used_bytes_ += row_bytes;
  }

 private:
  bool fits(uint64_t row_bytes) const { return region_ != nullptr && row_bytes <= kHalfBytes; }

  Block memory_;
  std::unique_ptr<MemoryRegion> region_;
  std::vector<char> spare_;
  uint32_t half_ = 0;
  uint64_t used_bytes_ = 0;
  std::array<uint64_t, 2> taken_ = {};  // ShuffleSender::taken() when the half was left
};

// A table's columns that have to be sent, each once, with their names and types.
std::vector<uint32_t> needed_columns(const Table& table, const std::vector<uint32_t>& keys,
                                     bool keys_only) {
  if (keys_only) {
    std::vector<uint32_t> distinct;  // several keys may have one column
    for (const uint32_t number : keys) {
      if (std::ranges::find(distinct, number) == distinct.end()) distinct.push_back(number);
    }
    return distinct;
  }
  std::vector<uint32_t> all(table.columns().size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}
std::vector<Field> fields_of(const Table& table, const std::vector<uint32_t>& columns) {
  std::vector<Field> fields;
  for (const uint32_t number : columns) {
    fields.push_back({table.columns()[number].name, table.columns()[number].type.format});
  }
  return fields;
}

// What must be the same at all executors: a line each.
std::vector<std::string> describe(const Table& left, const Table& right,
                                  const JoinOptions& options) {
  std::vector<std::string> lines = {"join 2"};  // the version of records
  for (const Table* const table : {&left, &right}) {
    for (const Column& column : table->columns()) {
      lines.push_back("column '" + column.name + "' (" + type_name(column.type.format) +
                      ") in the " + table->name() + " table");
    }
  }
  for (const JoinKey& key : options.keys) {
    lines.push_back("the key '" + key.left + "' = '" + (key.right.empty() ? key.left : key.right) +
                    "'");
  }
  lines.push_back("the right_suffix '" + options.right_suffix + "'");
  lines.push_back("the kind of join " + std::to_string(static_cast<int>(options.kind)));
  return lines;
}

class Exchange {
 public:
  Exchange(const JoinExchange& executors, RowSpace space, std::vector<std::string> hello,
           TableBuilder left, TableBuilder right, MemoryBudget& budget)
      : sender_(executors.sender),
        receiver_(executors.receiver),
        space_(std::move(space)),
        hello_(std::move(hello)),
        left_(std::move(left)),
        right_(std::move(right)),
        budget_(budget),
        greeted_(receiver_.options().senders),
        hellos_(receiver_.options().senders),
        parts_(receiver_.options().senders) {
    for (const std::string& line : hello_) most_hello_bytes_ += line.size() + 1;
  }

  Status send_hello() {
    std::string text;
    for (const std::string& line : hello_) text += line + '\n';
    for (uint32_t i = 0; i < sender_.partitions(); ++i) {
      // Even of no column a row has 2 bytes.
      const uint64_t most = std::max<uint64_t>(sender_.max_record_bytes(i), 2) - 1;
      for (uint64_t from = 0; from < text.size(); from += most) {
        const std::string_view part = std::string_view(text).substr(from, most);
        const bool is_last = from + part.size() == text.size();
        VERBENA_RETURN_IF_ERROR(send(i, 1 + part.size(), [&](char* to) {
          *to = is_last ? kHello : kHelloPart;
          copy_bytes(to + 1, part.data(), part.size());
        }));
      }
    }
    return Status::ok_status();
  }
  // `keep_null_keys`: rows that match nothing are in the result, and so go to this executor.
  Status send_rows(const Table& table, const Keys& keys, const RowWriter& rows,
                   bool keep_null_keys) {
    auto words = std::make_unique<Keys::Words>();
    for (uint64_t piece = 0; piece < table.piece_rows().size(); ++piece) {
      for (uint32_t from = 0; from < table.piece_rows()[piece]; from += Keys::kBlockRows) {
        const auto first = static_cast<RowNumber>((piece << table.piece_bits()) + from);
        const uint32_t count = std::min(table.piece_rows()[piece] - from, Keys::kBlockRows);
        keys.read(first, count, words.get());
        for (uint32_t i = 0; i < count; ++i) {
          const bool null = keys.may_be_null() && words->nulls[i];
          if (null && !keep_null_keys) continue;
          const uint32_t partition =
              null ? receiver_.options().receiver : partition_of_key(words->keys[i]);
          VERBENA_RETURN_IF_ERROR(send(partition, rows.size_bytes(first + i),
                                       [&](char* to) { rows.write(first + i, to); }));
          ++sent_rows_;
        }
        VERBENA_RETURN_IF_ERROR(receive().status());
      }
    }
    return Status::ok_status();
  }
  // Ends what this executor sends, and takes what others do, to the end.
  Status finish() {
    VERBENA_RETURN_IF_ERROR(sender_.finish());
    while (!receiver_.finished()) {
      VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver_.wait_next());
      VERBENA_RETURN_IF_ERROR(take(span));
    }
    return Status::ok_status();
  }

  TableBuilder& left() { return left_; }
  TableBuilder& right() { return right_; }
  uint64_t sent_rows() const { return sent_rows_; }

 private:
  // Not by mix(), whose upper bits make the partitions of each executor.
  uint32_t partition_of_key(uint64_t key) const {
    const std::string_view bytes(reinterpret_cast<const char*>(&key), sizeof(key));
    return partition_of(shuffle_hash(bytes), sender_.partitions());
  }

  template <typename Write>
  Status send(uint32_t partition, uint64_t row_bytes, const Write& write) {
    if (row_bytes > sender_.max_record_bytes(partition)) return too_long(partition, row_bytes);
    while (!space_.has_room(row_bytes, sender_)) VERBENA_RETURN_IF_ERROR(wait());
    write(space_.place(row_bytes));
    const uint64_t most = sender_.whole_record_bytes(partition);
    for (uint64_t done = 0; done < row_bytes;) {
      const uint64_t part = std::min(row_bytes - done, most);
      const PostResult result =
          space_.send(sender_, partition, row_bytes, done, part, done + part < row_bytes);
      if (result == PostResult::kFailed) return sender_.error();
      if (result == PostResult::kWouldBlock) {
        VERBENA_RETURN_IF_ERROR(wait());
      } else {
        done += part;
      }
    }
    space_.sent(row_bytes);
    return Status::ok_status();
  }

  Status too_long(uint32_t partition, uint64_t row_bytes) const {
    return Status(StatusCode::kInvalidArgument,
                  "a row of " + std::to_string(row_bytes) + " bytes, and executor " +
                      std::to_string(partition) + " takes at most " +
                      std::to_string(sender_.max_record_bytes(partition)) +
                      "; raise max_record_bytes of the shuffle's receivers, or leave columns out");
  }

  // What waits here may be what others wait for, and what they send is what they wait to get rid
  // of.
  Status wait() {
    if (!sender_.flush()) return sender_.status();
    const uint32_t completed = sender_.poll();
    VERBENA_RETURN_IF_ERROR(sender_.status());
    VERBENA_ASSIGN_OR_RETURN(const bool received, receive());
    completed > 0 || received ? backoff_.progress() : backoff_.idle();
    return Status::ok_status();
  }

  // Takes what is there. Whether anything was.
  Result<bool> receive() {
    for (bool any = false;; any = true) {
      VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver_.next());
      if (span.empty()) return any;
      VERBENA_RETURN_IF_ERROR(take(span));
    }
  }
  Status take(const ShuffleSpan& span) {
    if (span.empty()) return Status::ok_status();
    Status status;
    span.for_each([&](std::string_view bytes, bool more) {
      if (!status.ok()) return;
      std::string& before = parts_[span.sender()];
      if (!more && before.empty()) {
        status = add(span.sender(), bytes);
        return;
      }
      status =
          budget_.take(bytes.size(), "a long row of executor " + std::to_string(span.sender()));
      if (!status.ok()) return;
      before.append(bytes);
      if (more) return;
      status = add(span.sender(), before);
      budget_.give_back(before.size());
      before = {};
    });
    receiver_.release(span);
    return status;
  }
  Status add(uint32_t sender, std::string_view record) {
    const char tag = record.empty() ? '\0' : record[0];
    const bool greets = tag == kHello || tag == kHelloPart;
    const bool is_row = tag == kLeft || tag == kRight;
    if (greeted_[sender] != 0 ? !is_row : !greets) {
      return Status(StatusCode::kProtocolViolation,
                    "executor " + std::to_string(sender) +
                        " sends no rows of a join; let all executors of the shuffle call "
                        "join_shuffled(), once");
    }
    if (greets) {
      // No more of it than is compared, or quoted.
      std::string& lines = hellos_[sender];
      lines.append(record.substr(1, most_hello_bytes_ - std::min(most_hello_bytes_, lines.size())));
      if (tag == kHelloPart) return Status::ok_status();
      return greet(sender, std::exchange(lines, {}));
    }
    return (tag == kLeft ? left_ : right_).add(record.substr(1), budget_);
  }
  Status greet(uint32_t sender, std::string_view lines) {
    greeted_[sender] = 1;
    for (const std::string& mine : hello_) {
      // A name may have the separator in it, so the line's end is not looked for.
      if (lines.starts_with(mine) && lines.substr(mine.size()).starts_with('\n')) {
        lines.remove_prefix(mine.size() + 1);
        continue;
      }
      const std::string_view theirs = lines.substr(0, lines.find('\n'));
      return Status(StatusCode::kInvalidArgument,
                    "executor " + std::to_string(sender) + " has " +
                        std::string(theirs.substr(0, kMostQuotedBytes)) + " where this one has " +
                        mine + "; give all executors tables of one schema, and the same options");
    }
    return Status::ok_status();
  }

  ShuffleSender& sender_;
  ShuffleReceiver& receiver_;
  RowSpace space_;
  std::vector<std::string> hello_;
  TableBuilder left_;
  TableBuilder right_;
  MemoryBudget& budget_;
  std::vector<uint8_t> greeted_;     // senders whose hello has come
  std::vector<std::string> hellos_;  // of each sender, what has come of it
  size_t most_hello_bytes_ = kMostQuotedBytes;
  std::vector<std::string> parts_;  // of each sender, the beginning of a long record
  PollingBackoff backoff_;
  uint64_t sent_rows_ = 0;
};

Result<JoinStatistics> join_exchanged(ArrowArrayStream* left_stream, ArrowArrayStream* right_stream,
                                      const JoinOptions& options, const JoinExchange& executors,
                                      ArrowArrayStream* result) {
  MemoryBudget budget(options.memory_limit_bytes);
  const uint64_t begun_ns = now_ns();
  std::unique_ptr<Exchange> exchange;
  {
    VERBENA_ASSIGN_OR_RETURN(const Table left, Table::read(left_stream, "left", budget));
    VERBENA_ASSIGN_OR_RETURN(const Table right, Table::read(right_stream, "right", budget));
    VERBENA_ASSIGN_OR_RETURN(const KeyColumns keys, find_keys(options.keys, left, right));
    const bool keeps_unmatched = options.kind == JoinKind::kLeft || options.kind == JoinKind::kAnti;
    const bool left_only = options.kind == JoinKind::kSemi || options.kind == JoinKind::kAnti;
    const std::vector<uint32_t> left_columns = needed_columns(left, keys.left, false);
    const std::vector<uint32_t> right_columns = needed_columns(right, keys.right, left_only);
    VERBENA_ASSIGN_OR_RETURN(RowSpace space, RowSpace::make(executors.domain));
    exchange =
        std::make_unique<Exchange>(executors, std::move(space), describe(left, right, options),
                                   TableBuilder(fields_of(left, left_columns)),
                                   TableBuilder(fields_of(right, right_columns)), budget);
    VERBENA_RETURN_IF_ERROR(exchange->send_hello());
    VERBENA_RETURN_IF_ERROR(exchange->send_rows(
        left, Keys(left, keys.left), RowWriter(left, left_columns, kLeft), keeps_unmatched));
    VERBENA_RETURN_IF_ERROR(exchange->send_rows(right, Keys(right, keys.right),
                                                RowWriter(right, right_columns, kRight), false));
    budget.give_back(left.size_bytes() + right.size_bytes());
  }
  VERBENA_RETURN_IF_ERROR(exchange->finish());
  const uint64_t sent_rows = exchange->sent_rows();
  ArrowArrayStream left;
  ArrowArrayStream right;
  exchange->left().finish(budget, &left);
  const Stream left_owner(&left);
  exchange->right().finish(budget, &right);
  const Stream right_owner(&right);
  exchange.reset();
  const uint64_t shuffle_ns = now_ns() - begun_ns;
  VERBENA_ASSIGN_OR_RETURN(JoinStatistics statistics,
                           join_here(&left, &right, options, budget, result));
  statistics.sent_rows = sent_rows;
  statistics.shuffle_ns = shuffle_ns;
  return statistics;
}

}  // namespace
}  // namespace join_app

Result<JoinStatistics> join_shuffled(ArrowArrayStream* left, ArrowArrayStream* right,
                                     const JoinOptions& options, const JoinExchange& executors,
                                     ArrowArrayStream* result) {
  const join_app::Stream left_owner(left);
  const join_app::Stream right_owner(right);
  if (left->release == nullptr || right->release == nullptr) return join_app::used_twice();
  if (executors.receiver.options().record_bytes != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "the shuffle is for records of " +
                      std::to_string(executors.receiver.options().record_bytes) +
                      " bytes, and rows differ; expose the receiver with record_bytes 0");
  }
  try {
    return join_app::join_exchanged(left, right, options, executors, result);
  } catch (const std::bad_alloc&) {
    return join_app::refused_by_system();
  }
}

}  // namespace verbena
