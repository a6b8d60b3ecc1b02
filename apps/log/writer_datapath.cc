#include <algorithm>
#include <type_traits>

#include "log/crc32c.h"
#include "log/writer.h"
#include "verbena/data_path.h"

namespace verbena::log_app {
namespace {

uint32_t size_of(const LocalSlice& record) { return record.size_bytes; }
size_t size_of(std::string_view record) { return record.size(); }

bool is_inside(const LocalSlice& slice) {
  return slice.memory != nullptr && slice.size_bytes <= slice.memory->length_bytes() &&
         slice.offset_bytes <= slice.memory->length_bytes() - slice.size_bytes;
}
const char* data_of(const LocalSlice& slice) {
  return static_cast<const char*>(slice.memory->address()) + slice.offset_bytes;
}

}  // namespace

// --- from the caller ---

PostResult Writer::check(uint64_t records, uint64_t bytes) {
  if (!status_.ok()) return PostResult::kFailed;
  if (records == 0 || records > options_.max_batch || bytes > options_.max_batch_bytes)
      [[unlikely]] {
    refuse_batch(records, bytes);
    return PostResult::kFailed;
  }
  if (outstanding() == options_.pending) {
    ++statistics_.would_block;
    return PostResult::kWouldBlock;
  }
  const uint32_t places = places_of(headers_bytes(records) + bytes);
  if (has_space(places)) [[likely]]
    return PostResult::kPosted;
  // Once it is known what was reserved, it is known how much is free.
  if (unreserved_ > 0) {
    ++statistics_.would_block;
    return PostResult::kWouldBlock;
  }
  if (!refresh()) return PostResult::kFailed;
  if (has_space(places)) return PostResult::kPosted;
  refuse_full(places);
  return PostResult::kFailed;
}

template <typename Record>
PostResult Writer::post(std::span<const Record> records, uint64_t token) {
  constexpr bool kCopies = std::is_same_v<Record, std::string_view>;
  uint64_t bytes = 0;
  for (const Record& record : records) {
    if constexpr (!kCopies) {
      if (!is_inside(record)) [[unlikely]] {
        refuse_slice(record);
        return PostResult::kFailed;
      }
    }
    bytes += size_of(record);
  }
  const PostResult checked = check(records.size(), bytes);
  if (checked != PostResult::kPosted) return checked;

  const uint64_t number = tail_;
  Batch& batch = this->batch(number);
  char* const entry = staging(number);
  LocalSlice* const pieces = this->pieces(number);
  const uint32_t headers = headers_bytes(records.size());
  batch = {.completion = {.token = token, .records = static_cast<uint32_t>(records.size())},
           .bytes = headers + static_cast<uint32_t>(bytes)};
  batch.places = places_of(batch.bytes);
  char* header = entry + sizeof(EntryHeader);
  char* copy = entry + headers;
  for (const Record& record : records) {
    const auto size = static_cast<uint32_t>(size_of(record));
    const char* data = nullptr;
    if constexpr (kCopies) {
      if (size > 0) copy_bytes(copy, record.data(), size);
      data = copy;
      copy += size;
    } else {
      data = data_of(record);
      pieces[++batch.pieces] = record;
    }
    const RecordHeader described{size, crc32c(0, data, size)};
    copy_bytes(header, &described, sizeof(described));
    header += sizeof(described);
  }
  pieces[0] = {.memory = &*staging_memory_,
               .offset_bytes = static_cast<uint64_t>(entry - staging_.data()),
               .size_bytes = kCopies ? batch.bytes : headers};
  ++batch.pieces;
  unreserved_ += batch.places;
  ++tail_;
  announce();
  reserve_next();
  for (Replica& replica : replicas_) replica.region->flush();
  return PostResult::kPosted;
}

PostResult Writer::post_append(std::span<const LocalSlice> records, uint64_t token) {
  return post(records, token);
}
PostResult Writer::post_append(std::span<const std::string_view> records, uint64_t token) {
  return post(records, token);
}

template <typename Record>
Result<LogPosition> Writer::append_and_wait(std::span<const Record> records) {
  if (!status_.ok()) return status_;
  if (outstanding() != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "append() while batches are outstanding; poll until there are none");
  }
  if (post(records, 0) != PostResult::kPosted) return error();
  while (done_ != tail_) {
    for (Replica& replica : replicas_) {
      // Behind what is on its way, so that is done when this is.
      if (replica.region->outstanding() == 0) continue;
      const auto limit = replica.region->read(RemotePointer<uint64_t>{kLimitAt});
      if (!limit.ok()) fail(limit.status());
    }
    advance();
    if (!status_.ok()) return status_;
  }
  const LogCompletion completion = take();
  rest();
  if (completion.outcome != LogOutcome::kAppended) return no_success(completion.outcome);
  return completion.first;
}

Result<LogPosition> Writer::append(std::span<const LocalSlice> records) {
  return append_and_wait(records);
}
Result<LogPosition> Writer::append(std::span<const std::string_view> records) {
  return append_and_wait(records);
}

// --- one step after the other ---

bool Writer::posted(PostResult result, const RemoteRegion& region) {
  if (result == PostResult::kPosted) [[likely]]
    return true;
  fail(result == PostResult::kFailed
           ? region.error()
           : Status(StatusCode::kInternal, "a log writer has more operations than it reckoned"));
  return false;
}

void Writer::publish_floor(uint64_t floor_word) {
  floor_word_ = floor_word;
  for (Replica& replica : replicas_) {
    const RemotePointer<uint64_t> floor{layout_.floor_at(replica.writer)};
    posted(replica.region->post_write(floor, floor_word, token(0, Step::kFloor)), *replica.region);
  }
}

// Nothing is on its way: whatever is reserved next comes behind the tail as it is known.
void Writer::announce() {
  if (floor_word_ != kNoFloor) return;
  floor_word_ = known_tail_ + 1;
  own_end_ = known_tail_;
  RemoteRegion& first = *replicas_.front().region;
  posted(first.post_write(RemotePointer<uint64_t>{layout_.floor_at(replicas_.front().writer)},
                          floor_word_, token(0, Step::kFloor)),
         first);
  // The reservation goes to the first replica, behind this WRITE. The others must have the floor
  // before: the completion of an atomic, unlike that of a WRITE, tells that.
  for (size_t i = 1; i < replicas_.size(); ++i) {
    RemoteRegion& region = *replicas_[i].region;
    posted(region.post_compare_and_swap({layout_.floor_at(replicas_[i].writer)}, kNoFloor,
                                        floor_word_, token(0, Step::kAnnounce)),
           region);
    ++announcing_;
  }
}

void Writer::reserve_next() {
  if (announcing_ > 0) return;
  for (; reserving_ < tail_; ++reserving_) {
    posted(sequencer_->post_next(token(reserving_, Step::kReserve), batch(reserving_).places),
           *replicas_.front().region);
  }
}

// It only rises, and all that was reserved here is before it.
bool Writer::check_tail(uint64_t tail) {
  if (tail >= own_end_ && tail <= kMaxPlace) [[likely]]
    return true;
  fail_damaged("tail", tail);
  return false;
}

bool Writer::refresh() {
  uint64_t limit = UINT64_MAX;
  for (const Replica& replica : replicas_) {
    const Result<Control> control = replica.read_control();
    if (!control.ok()) {
      fail(control.status());
      return false;
    }
    if (control->limit > kMaxPlace) {
      fail_damaged("limit", control->limit);
      return false;
    }
    if (&replica == &replicas_.front()) {
      if (!check_tail(control->tail)) return false;
      known_tail_ = std::max(known_tail_, control->tail);
    }
    limit = std::min(limit, control->limit);
  }
  limit_ = limit;
  return true;
}

void Writer::reserved(uint64_t number, uint64_t place) {
  if (!check_tail(place)) return;
  Batch& batch = this->batch(number);
  const uint64_t end = place + batch.places;
  batch.place = place;
  batch.reserved = true;
  unreserved_ -= batch.places;
  own_end_ = end;
  known_tail_ = std::max(known_tail_, end);
  if (end > limit_ && !refresh()) return;
  if (end > limit_) {
    ++statistics_.full;
    finish(batch, LogOutcome::kFull);
    return;
  }
  write(number);
}

void Writer::write(uint64_t number) {
  Batch& batch = this->batch(number);
  EntryHeader header{
      .place = batch.place, .records = batch.completion.records, .bytes = batch.bytes};
  char* const entry = staging(number);
  header.crc = crc32c(crc32c(0, &header, offsetof(EntryHeader, crc)), entry + sizeof(header),
                      header.records * sizeof(RecordHeader));
  copy_bytes(entry, &header, sizeof(header));
  const uint64_t lap = layout_.lap(batch.place);
  for (size_t i = 0; i < replicas_.size(); ++i) {
    RemoteRegion& region = *replicas_[i].region;
    expected(number, i) = free_word(lap);
    if (!write_entry(region, number) ||
        !posted(region.post_compare_and_swap({layout_.word_at(batch.place)}, free_word(lap),
                                             committed_word(lap, batch.places),
                                             token(number, Step::kCommit)),
                region)) {
      return;
    }
    ++batch.commits_left;
  }
}

bool Writer::write_pieces(RemoteRegion& region, uint64_t offset_bytes,
                          std::span<const LocalSlice> pieces, uint64_t token) {
  return posted(pieces.size() == 1
                    ? region.post_write(offset_bytes, pieces.front(), token)
                    : region.post_writev(offset_bytes, pieces, token, options_.method),
                region);
}

bool Writer::write_entry(RemoteRegion& region, uint64_t number) {
  const Batch& batch = this->batch(number);
  const std::span<const LocalSlice> pieces(this->pieces(number), batch.pieces);
  const uint64_t token = Writer::token(number, Step::kWrite);
  uint64_t left =
      (layout_.places() - layout_.ring_place(batch.place)) * kPlaceBytes;  // to the ring's end
  if (batch.bytes <= left) [[likely]]
    return write_pieces(region, layout_.place_at(batch.place), pieces, token);
  size_t count = 0;
  size_t next = 0;
  for (; pieces[next].size_bytes <= left; ++next) {
    cut_[count++] = pieces[next];
    left -= pieces[next].size_bytes;
  }
  LocalSlice rest = pieces[next++];
  if (left > 0) {
    const auto head_bytes = static_cast<uint32_t>(left);
    cut_[count++] = {rest.memory, rest.offset_bytes, head_bytes};
    rest.offset_bytes += head_bytes;
    rest.size_bytes -= head_bytes;
  }
  if (!write_pieces(region, layout_.place_at(batch.place), {cut_.data(), count}, token)) {
    return false;
  }
  count = 0;
  cut_[count++] = rest;
  for (; next < pieces.size(); ++next) cut_[count++] = pieces[next];
  return write_pieces(region, layout_.places_at(), {cut_.data(), count}, token);
}

void Writer::committed(size_t replica, uint64_t number, uint64_t before) {
  Batch& batch = this->batch(number);
  const uint64_t lap = layout_.lap(batch.place);
  uint64_t& expected = this->expected(number, replica);
  if (before != expected) [[unlikely]] {
    if (word_lap(before) < lap) {
      // What somebody late left in the last lap.
      expected = before;
      RemoteRegion& region = *replicas_[replica].region;
      posted(region.post_compare_and_swap({layout_.word_at(batch.place)}, before,
                                          committed_word(lap, batch.places),
                                          token(number, Step::kCommit)),
             region);
      return;
    }
    batch.completion.outcome = LogOutcome::kSkipped;
    expected = before;
  } else {
    expected = committed_word(lap, batch.places);
  }
  if (--batch.commits_left > 0) return;
  if (batch.completion.outcome == LogOutcome::kSkipped) return take_back(number);
  finish(batch, LogOutcome::kAppended);
}

void Writer::take_back(uint64_t number) {
  Batch& batch = this->batch(number);
  const uint64_t lap = layout_.lap(batch.place);
  const uint64_t committed = committed_word(lap, batch.places);
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (expected(number, i) != committed) continue;
    RemoteRegion& region = *replicas_[i].region;
    if (!posted(region.post_compare_and_swap({layout_.word_at(batch.place)}, committed,
                                             skipped_word(lap), token(number, Step::kTakeBack)),
                region)) {
      return;
    }
    ++batch.commits_left;
  }
  if (batch.commits_left == 0) finish(batch, LogOutcome::kSkipped);
}

void Writer::taken_back(Batch& batch) {
  if (--batch.commits_left == 0) finish(batch, LogOutcome::kSkipped);
}

void Writer::finish(Batch& batch, LogOutcome outcome) {
  batch.completion.outcome = outcome;
  batch.completion.first = position_of(batch.place, 0);
  batch.done = true;
  if (outcome == LogOutcome::kAppended) {
    ++statistics_.appended_batches;
    statistics_.appended_records += batch.completion.records;
  } else if (outcome == LogOutcome::kSkipped) {
    ++statistics_.skipped_batches;
  }
}

void Writer::completed(size_t replica, const RemoteCompletion& completion) {
  const uint64_t number = completion.token >> kStepBits;
  switch (static_cast<Step>(completion.token & ((1u << kStepBits) - 1))) {
    case Step::kReserve:
      return reserved(number, completion.value<uint64_t>());
    case Step::kCommit:
      return committed(replica, number, completion.value<uint64_t>());
    case Step::kTakeBack:
      return taken_back(batch(number));
    case Step::kAnnounce:
      if (--announcing_ == 0) reserve_next();
      return;
    case Step::kWrite:
    case Step::kFloor:
      return;
  }
}

void Writer::advance() {
  for (size_t i = 0; i < replicas_.size(); ++i) {
    RemoteRegion& region = *replicas_[i].region;
    const uint32_t found = region.collect();
    for (uint32_t j = 0; j < found && status_.ok(); ++j) completed(i, region.take());
    if (!region.status().ok()) [[unlikely]]
      fail(region.status());
  }
  while (done_ < tail_ && batch(done_).done) ++done_;
  raise_floor();
  for (Replica& replica : replicas_) replica.region->flush();
}

// Now and then, so that trimmed space is not held for a writer that is never idle.
void Writer::raise_floor() {
  if (floor_word_ == kNoFloor || done_ == tail_) return;
  // Of the oldest batch that is not done; if it is not known, it is behind the last known one.
  const Batch& oldest = batch(done_);
  const uint64_t floor = oldest.reserved ? oldest.place : own_end_;
  if (floor + 1 - floor_word_ >= layout_.places() / 16) publish_floor(floor + 1);
}

uint32_t Writer::collect() {
  if (status_.ok()) advance();
  return static_cast<uint32_t>(done_ - head_);
}

LogCompletion Writer::take() { return batch(head_++).completion; }

void Writer::rest() {
  if (outstanding() > 0 || floor_word_ == kNoFloor || !status_.ok()) return;
  publish_floor(kNoFloor);
  for (Replica& replica : replicas_) replica.region->flush();
}

}  // namespace verbena::log_app
