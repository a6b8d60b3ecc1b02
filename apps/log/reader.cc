#include "log/reader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "log/entry.h"
#include "verbena/clock.h"
#include "verbena/data_path.h"

namespace verbena {
namespace log_app {
namespace {

constexpr uint32_t kLeastChunkBytes = 4096;
constexpr uint32_t kMostChunkBytes = 64u << 20;

}  // namespace

Result<std::unique_ptr<LogReader>> Reader::open(const Device& device,
                                                const ProtectionDomain& domain,
                                                std::span<ControlConnection* const> controls,
                                                const LogReaderOptions& options) {
  if (options.chunk_bytes < kLeastChunkBytes || options.chunk_bytes > kMostChunkBytes) {
    return Status(
        StatusCode::kInvalidArgument,
        "chunk_bytes is " + std::to_string(options.chunk_bytes) + "; choose 4 KiB to 64 MiB");
  }
  if (options.hole_lease_ns == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "hole_lease_ns is 0; choose how long a writer may take between its reservation "
                  "and its commit");
  }
  std::unique_ptr<Reader> reader(new Reader(domain, options));
  VERBENA_RETURN_IF_ERROR(reader->prepare(device, controls));
  return std::unique_ptr<LogReader>(std::move(reader));
}

Status Reader::prepare(const Device& device, std::span<ControlConnection* const> controls) {
  auto opened = open_log(device, domain_, controls, Role::kReader,
                         {.pending = 1,
                          .copy_bytes = sizeof(Control),
                          .handshake_timeout_ns = options_.handshake_timeout_ns});
  VERBENA_RETURN_IF_ERROR(opened.status());
  replicas_ = std::move(*opened);
  layout_ = replicas_.front().layout();
  most_words_ = std::min<uint64_t>(options_.chunk_bytes / kPlaceBytes, layout_.places());
  VERBENA_RETURN_IF_ERROR(make_room(options_.chunk_bytes));
  return seek(options_.start, options_.position);
}

Status Reader::seek(LogStart start, LogPosition position) {
  uint64_t oldest = 0;
  uint64_t tail = 0;
  for (const Replica& replica : replicas_) {
    VERBENA_ASSIGN_OR_RETURN(const Control control, replica.read_control());
    oldest = std::max(oldest, control.trim);
    if (&replica == &replicas_.front()) tail = control.tail;
  }
  uint64_t place = oldest;
  uint32_t first_record = 0;
  if (start == LogStart::kNewest) {
    place = std::max(oldest, tail);
    VERBENA_RETURN_IF_ERROR(note_start(place));
  }
  if (start == LogStart::kPosition) {
    place = position >> kRecordBits;
    first_record = static_cast<uint32_t>(position & ((1u << kRecordBits) - 1));
    if (place > tail) {
      return Status(StatusCode::kInvalidArgument, "position " + std::to_string(position) +
                                                      " is beyond the log's end, which is " +
                                                      std::to_string(position_of(tail, 0)));
    }
    VERBENA_RETURN_IF_ERROR(check_not_trimmed(oldest, place, position));
  }
  place_ = place;
  first_record_ = first_record;
  tail_ = tail;
  waits_ = false;
  damaged_places_ = 0;
  return Status::ok_status();
}

// The tail is kept by the first replica. The others do not know of what was reserved before `place`
// and is not committed: without it they would form a log that goes on before this reader.
Status Reader::note_start(uint64_t place) const {
  for (const Replica& replica : std::span(replicas_).subspan(1)) {
    VERBENA_RETURN_IF_ERROR(raise(replica, kTailAt, place));
  }
  return Status::ok_status();
}

Status Reader::raise(const Replica& replica, uint64_t word_at, uint64_t to) {
  VERBENA_ASSIGN_OR_RETURN(uint64_t word, replica.region->read(RemotePointer<uint64_t>{word_at}));
  while (word < to) {
    VERBENA_ASSIGN_OR_RETURN(const uint64_t before,
                             replica.region->compare_and_swap({word_at}, word, to));
    if (before == word) break;
    word = before;
  }
  return Status::ok_status();
}

Status Reader::make_room(uint64_t bytes) {
  const uint64_t words_bytes = most_words_ * sizeof(uint64_t) * replicas_.size();
  if (memory_ && buffer_.size_bytes() - words_bytes >= bytes) return Status::ok_status();
  auto pages = Pages::allocate(words_bytes + bytes);
  VERBENA_RETURN_IF_ERROR(pages.status());
  if (memory_) copy_bytes(pages->data(), buffer_.data(), words_bytes);
  memory_.reset();
  buffer_ = std::move(*pages);
  chunk_at_ = words_bytes;
  auto memory =
      MemoryRegion::create(domain_, buffer_.data(), buffer_.size_bytes(), IBV_ACCESS_LOCAL_WRITE);
  VERBENA_RETURN_IF_ERROR(memory.status());
  memory_.emplace(std::move(*memory));
  return Status::ok_status();
}

Status Reader::check_not_trimmed(uint64_t trim, uint64_t place, LogPosition position) {
  if (trim <= place) return Status::ok_status();
  return Status(StatusCode::kLimitExceeded,
                "the log was trimmed up to position " + std::to_string(position_of(trim, 0)) +
                    ", and this reader is at " + std::to_string(position) +
                    ": it was too slow; let it seek LogStart::kOldest");
}

Status Reader::check_not_trimmed(const Control& control) const {
  return check_not_trimmed(control.trim, place_, position());
}

Status Reader::read_tail() {
  VERBENA_ASSIGN_OR_RETURN(const Control control, replicas_.front().read_control());
  tail_ = control.tail;
  return check_not_trimmed(control);
}

uint64_t& Reader::word(size_t replica, uint64_t place) const {
  auto* const words = reinterpret_cast<uint64_t*>(buffer_.data());
  return words[replica * most_words_ + (place - place_)];
}

Status Reader::read_words() {
  // One while it waits: the others are likely to be read in vain.
  const uint64_t count = std::min(tail_ - place_, waits_ ? 1 : most_words_);
  words_end_ = place_ + count;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    uint64_t to_bytes = i * most_words_ * sizeof(uint64_t);
    for (uint64_t place = place_; place < words_end_;) {
      const uint64_t part =
          std::min(words_end_ - place, layout_.places() - layout_.ring_place(place));
      const auto bytes = static_cast<uint32_t>(part * sizeof(uint64_t));
      VERBENA_RETURN_IF_ERROR(replicas_[i].region->read(layout_.word_at(place),
                                                        LocalSlice{&*memory_, to_bytes, bytes}));
      to_bytes += bytes;
      place += part;
    }
  }
  return Status::ok_status();
}

Reader::Decision Reader::decide(uint64_t place) const {
  const uint64_t lap = layout_.lap(place);
  size_t committed = 0;
  size_t skipped = 0;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const WordState state = word_state(read_word(&word(i, place)), lap);
    committed += state == WordState::kCommitted ? 1 : 0;
    skipped += state == WordState::kSkipped ? 1 : 0;
  }
  if (committed == replicas_.size()) return Decision::kCommitted;
  if (skipped == replicas_.size()) return Decision::kSkipped;
  return skipped > 0 ? Decision::kPartlySkipped : Decision::kOpen;
}

bool Reader::lease_is_over(uint64_t place) {
  if (place < watched_tail_) return now_ns() - watched_since_ns_ >= options_.hole_lease_ns;
  watched_tail_ = tail_;
  watched_since_ns_ = now_ns();
  return false;
}

Result<bool> Reader::seal(uint64_t place) {
  const uint64_t lap = layout_.lap(place);
  for (const Replica& replica : replicas_) {
    VERBENA_ASSIGN_OR_RETURN(const Control control, replica.read_control());
    VERBENA_RETURN_IF_ERROR(check_not_trimmed(control));
    // What lies there is of the last lap, and not trimmed: nobody can have written the place.
    if (place >= control.limit) return false;
  }
  // First what is free. If nothing is, all have committed it meanwhile.
  bool skips = false;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    uint64_t& word = this->word(i, place);
    while (word_state(word, lap) == WordState::kFree) {
      if (word_lap(word) > lap) return false;  // trimmed just now
      VERBENA_ASSIGN_OR_RETURN(
          const uint64_t before,
          replicas_[i].region->compare_and_swap(replicas_[i].word(place), word, skipped_word(lap)));
      statistics_.sealed_places += before == word ? 1 : 0;
      word = before == word ? skipped_word(lap) : before;
    }
    skips = skips || word_state(word, lap) == WordState::kSkipped;
  }
  if (!skips) return true;
  // Then what was committed in vain.
  for (size_t i = 0; i < replicas_.size(); ++i) {
    uint64_t& word = this->word(i, place);
    if (word_state(word, lap) != WordState::kCommitted) continue;
    VERBENA_ASSIGN_OR_RETURN(
        const uint64_t before,
        replicas_[i].region->compare_and_swap(replicas_[i].word(place), word, skipped_word(lap)));
    word = before == word ? skipped_word(lap) : before;
  }
  return true;
}

// Where replicas do not agree, one has a damaged word: the right one is that with which the entry
// is intact.
Result<uint32_t> Reader::entry_places(uint64_t place) {
  const uint32_t first = word_places(word(0, place));
  bool agree = true;
  for (size_t i = 1; i < replicas_.size(); ++i) agree &= word(i, place) == word(0, place);
  if (agree) return first;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const uint32_t places = word_places(word(i, place));
    if (places == 0 || places > layout_.places() || place + places > tail_) continue;
    VERBENA_RETURN_IF_ERROR(make_room(uint64_t{places} * kPlaceBytes));
    for (const Replica& replica : replicas_) {
      VERBENA_RETURN_IF_ERROR(read_places(replica, place, places, chunk_at_));
      if (is_intact(buffer_.data() + chunk_at_, place, places)) return places;
    }
  }
  return first;
}

Status Reader::find_entries(uint64_t* end) {
  uint64_t place = place_;
  while (place < words_end_) {
    const Decision decision = decide(place);
    if (decision == Decision::kCommitted) {
      VERBENA_ASSIGN_OR_RETURN(const uint32_t places, entry_places(place));
      if (places == 0 || places > layout_.places() || place + places > tail_) {
        return Status(StatusCode::kProtocolViolation,
                      "the log is damaged at position " + std::to_string(position_of(place, 0)) +
                          ": an entry of " + std::to_string(places) +
                          " places reaches beyond the log's end; form it anew from a good replica");
      }
      const uint64_t bytes = (place + places - place_) * kPlaceBytes;
      if (bytes > options_.chunk_bytes) {
        if (!entries_.empty()) break;
        VERBENA_RETURN_IF_ERROR(make_room(bytes));
      }
      entries_.push_back({place, places});
      place += places;
      continue;
    }
    if (decision == Decision::kSkipped) {
      ++statistics_.skipped_places;
      ++place;
      continue;
    }
    if (!entries_.empty()) break;
    if (decision == Decision::kOpen && !lease_is_over(place)) break;
    VERBENA_ASSIGN_OR_RETURN(const bool sealed, seal(place));
    if (!sealed) break;
  }
  *end = place;
  return Status::ok_status();
}

char* Reader::places_in_chunk(uint64_t place) const {
  return buffer_.data() + chunk_at_ + (place - place_) * kPlaceBytes;
}

Status Reader::read_places(const Replica& replica, uint64_t place, uint64_t places,
                           uint64_t to_bytes) {
  for (const uint64_t end = place + places; place < end;) {
    const uint64_t part = std::min(end - place, layout_.places() - layout_.ring_place(place));
    const auto bytes = static_cast<uint32_t>(part * kPlaceBytes);
    VERBENA_RETURN_IF_ERROR(
        replica.region->read(layout_.place_at(place), LocalSlice{&*memory_, to_bytes, bytes}));
    to_bytes += bytes;
    place += part;
  }
  // Only now: what was not trimmed yet was not written over.
  VERBENA_ASSIGN_OR_RETURN(const Control control, replica.read_control());
  return check_not_trimmed(control);
}

bool Reader::take_entry(const Entry& entry) {
  const uint32_t wanted_from = entry.place == place_ ? first_record_ : 0;
  return for_each_record(places_in_chunk(entry.place), entry.place, entry.places,
                         [&](uint32_t number, std::string_view bytes) {
                           if (number < wanted_from) return;
                           records_.push_back({position_of(entry.place, number), bytes});
                         });
}

Result<bool> Reader::take_entry_from_other_replica(const Entry& entry) {
  ++statistics_.damaged_copies;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (i == source_) continue;
    VERBENA_RETURN_IF_ERROR(read_places(replicas_[i], entry.place, entry.places,
                                        chunk_at_ + (entry.place - place_) * kPlaceBytes));
    if (take_entry(entry)) return true;
  }
  return false;
}

Result<std::span<const LogRecord>> Reader::next() {
  records_.clear();
  entries_.clear();
  damaged_places_ = 0;
  if (place_ >= tail_) VERBENA_RETURN_IF_ERROR(read_tail());
  if (place_ >= tail_) return std::span<const LogRecord>();
  // There is none after a batch for which no more could be registered.
  VERBENA_RETURN_IF_ERROR(make_room(options_.chunk_bytes));
  VERBENA_RETURN_IF_ERROR(read_words());
  uint64_t end = place_;
  VERBENA_RETURN_IF_ERROR(find_entries(&end));
  waits_ = end == place_;
  if (waits_) {
    // So that a reader which waits at a place that was trimmed learns it.
    VERBENA_RETURN_IF_ERROR(read_tail());
    return std::span<const LogRecord>();
  }
  if (!entries_.empty()) {
    const uint64_t first = entries_.front().place;
    VERBENA_RETURN_IF_ERROR(read_places(replicas_[source_], first, end - first,
                                        chunk_at_ + (first - place_) * kPlaceBytes));
  }
  for (const Entry& entry : entries_) {
    bool good = take_entry(entry);
    if (!good) {
      VERBENA_ASSIGN_OR_RETURN(good, take_entry_from_other_replica(entry));
    }
    if (!good) {
      if (!records_.empty()) {
        end = entry.place;
        break;
      }
      if (place_ != entry.place) first_record_ = 0;
      place_ = entry.place;
      damaged_places_ = entry.places;
      return Status(StatusCode::kProtocolViolation,
                    "the batch at position " + std::to_string(position_of(entry.place, 0)) +
                        " fails its CRC on each of " + std::to_string(replicas_.size()) +
                        " replicas; leave it out by skip_damaged()");
    }
    ++statistics_.batches;
  }
  place_ = end;
  first_record_ = 0;
  statistics_.records += records_.size();
  return std::span<const LogRecord>(records_);
}

Status Reader::skip_damaged() {
  if (damaged_places_ == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "skip_damaged() without a damaged batch: the last next() found none");
  }
  place_ += std::exchange(damaged_places_, 0);
  first_record_ = 0;
  return Status::ok_status();
}

Status Reader::trim() {
  for (const Replica& replica : replicas_) {
    VERBENA_RETURN_IF_ERROR(raise(replica, kTrimAt, place_));
  }
  return Status::ok_status();
}

}  // namespace log_app

Result<std::unique_ptr<LogReader>> open_log_reader(const Device& device,
                                                   const ProtectionDomain& domain,
                                                   std::span<ControlConnection* const> replicas,
                                                   const LogReaderOptions& options) {
  auto reader = log_app::Reader::open(device, domain, replicas, options);
  if (!reader.ok()) log_app::hang_up(replicas);
  return reader;
}

}  // namespace verbena
