// Makes a log of several stores: a new one, or what is left of one with stores that get its
// contents. Control path. Every store has ended the connections of all others and lets nobody else
// in meanwhile, so what is read here does not change.
//
// Nothing is lost if this is interrupted: stores that are part of the log stay what they were until
// all that get its contents have them; then each becomes part of the next epoch. Those that did, if
// not all, are believed the next time. Before, all note which epoch that is: no later formation, in
// which those that did may be missing, has the same.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "log/entry.h"
#include "log/layout.h"
#include "log/replicas.h"
#include "verbena/apps/log.h"
#include "verbena/data_path.h"

namespace verbena {
namespace {

using log_app::Control;
using log_app::Header;
using log_app::Layout;
using log_app::Replica;
using log_app::StoreState;
using log_app::WordState;

constexpr uint32_t kCopyBytes = 1u << 20;
constexpr uint64_t kPieceWords = kCopyBytes / sizeof(uint64_t);

class Former {
 public:
  explicit Former(std::vector<Replica> stores)
      : stores_(std::move(stores)), layout_(stores_.front().header.places, 0) {}

  Result<LogFormation> form() {
    VERBENA_RETURN_IF_ERROR(choose());
    if (kept_.empty()) {
      header_.log_id = std::stoull(JobSecret::random().text().substr(0, 16), nullptr, 16);
      limit_ = layout_.places();
      formation_.filled = static_cast<uint32_t>(stores_.size());
      for (const Replica& store : stores_) VERBENA_RETURN_IF_ERROR(free_words(store));
    } else {
      VERBENA_RETURN_IF_ERROR(read_controls());
      VERBENA_RETURN_IF_ERROR(find_tail());
      VERBENA_RETURN_IF_ERROR(settle());
      for (Replica& store : stores_) {
        if (!is_kept(store)) VERBENA_RETURN_IF_ERROR(fill(store));
      }
    }
    // All have it: from here on, any of them will do.
    header_.epoch = prepared_ + 1;
    for (const Replica& store : stores_) VERBENA_RETURN_IF_ERROR(prepare(store));
    for (uint32_t i = 0; i < stores_.size(); ++i) VERBENA_RETURN_IF_ERROR(finish(stores_[i], i));
    formation_.epoch = header_.epoch;
    return formation_;
  }

 private:
  // Whose contents the log has: the stores of the highest epoch.
  Status choose() {
    for (const Replica& store : stores_) {
      if (store.header.places != layout_.places()) {
        return Status(StatusCode::kInvalidArgument,
                      store.name + " has room for " + text(store.header.places) + ", " +
                          stores_.front().name + " for " + text(layout_.places()) +
                          "; give stores of one capacity_bytes");
      }
      if (store.header.state == StoreState::kBlank) continue;
      if (header_.epoch != 0 && store.header.log_id != header_.log_id) {
        return Status(StatusCode::kInvalidArgument,
                      store.name +
                          " is part of another log than the stores before it; give those "
                          "of one log, and blank ones");
      }
      header_.log_id = store.header.log_id;
      header_.epoch = std::max(header_.epoch, store.header.epoch);
      prepared_ = std::max({prepared_, store.header.epoch, store.header.prepared});
    }
    for (Replica& store : stores_) {
      if (store.header.state == StoreState::kActive && store.header.epoch == header_.epoch) {
        kept_.push_back(&store);
      }
    }
    formation_.kept = static_cast<uint32_t>(kept_.size());
    formation_.filled = static_cast<uint32_t>(stores_.size() - kept_.size());
    return Status::ok_status();
  }
  static std::string text(uint64_t places) {
    return std::to_string(places * log_app::kPlaceBytes) + " bytes";
  }
  bool is_kept(const Replica& store) const {
    return std::ranges::find(kept_, &store) != kept_.end();
  }

  // What may be written ends a ring behind the trim, at the latest.
  Status check_control(const Replica& store, const Control& control) const {
    if (control.trim <= log_app::kMaxPlace && control.limit <= control.trim + layout_.places()) {
      return Status::ok_status();
    }
    return Status(
        StatusCode::kProtocolViolation,
        store.name + " has a damaged log: its trim is at place " + std::to_string(control.trim) +
            ", its limit at " + std::to_string(control.limit) + ", and the ring has " +
            std::to_string(layout_.places()) + " places; give a blank store instead of it");
  }

  // Each writer may have reserved a ring beyond the limit, where several did at the same moment.
  bool is_plausible(const Replica& store, const Control& control) const {
    return control.tail <= control.limit + store.header.writers * layout_.places();
  }

  Status read_controls() {
    for (const Replica* const store : kept_) {
      VERBENA_ASSIGN_OR_RETURN(const Control control, store->read_control());
      VERBENA_RETURN_IF_ERROR(check_control(*store, control));
      // What one was told to drop, all drop. A place is free only where it is free on all.
      trim_ = std::max(trim_, control.trim);
      limit_ = std::min(limit_, control.limit);
      if (is_plausible(*store, control)) tail_ = std::max(tail_, control.tail);
    }
    return Status::ok_status();
  }

  // Sees to it that the word of `place` is in `words_`, with those behind it: a piece, or fewer at
  // the ring's end. All of a large log would not fit into the memory of who forms it.
  Status read_words(uint64_t place) {
    if (place >= words_begin_ && place < words_end_) return Status::ok_status();
    const uint64_t count = std::min(layout_.places() - layout_.ring_place(place), kPieceWords);
    words_.resize(kept_.size());
    for (size_t i = 0; i < kept_.size(); ++i) {
      words_[i].resize(count);
      VERBENA_RETURN_IF_ERROR(kept_[i]->region->read(
          kept_[i]->layout().word_at(place),
          {reinterpret_cast<char*>(words_[i].data()), count * sizeof(uint64_t)}));
    }
    words_begin_ = place;
    words_end_ = place + count;
    return Status::ok_status();
  }
  uint64_t word(size_t kept, uint64_t place) const { return words_[kept][place - words_begin_]; }
  WordState state(size_t kept, uint64_t place) const {
    return log_app::word_state(word(kept, place), layout_.lap(place));
  }

  // Where an entry is committed, but replicas do not agree how long it is, one has a damaged word:
  // the right one is that with which the entry is intact.
  Status mend_words(uint64_t place) {
    bool agree = true;
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (state(i, place) != WordState::kCommitted) return Status::ok_status();
      agree = agree && word(i, place) == word(0, place);
    }
    for (size_t i = 0; i < kept_.size() && !agree; ++i) {
      const uint64_t right = word(i, place);
      const uint32_t places = log_app::word_places(right);
      if (places == 0 || places > limit_ - place) continue;
      places_.resize(uint64_t{places} * log_app::kPlaceBytes);
      for (size_t j = 0; j < kept_.size() && !agree; ++j) {
        VERBENA_RETURN_IF_ERROR(read_places(*kept_[j], place, place, place + places));
        agree = log_app::is_intact(places_.data(), place, places);
      }
      for (size_t j = 0; j < kept_.size() && agree; ++j) {
        if (word(j, place) == right) continue;
        VERBENA_RETURN_IF_ERROR(kept_[j]->region->write(kept_[j]->word(place), right));
        words_[j][place - words_begin_] = right;
      }
    }
    return Status::ok_status();
  }

  // Behind the last place of which anything was decided, and all that is known to be reserved: a
  // reader may have begun there.
  Status find_tail() {
    tail_ = std::max(tail_, trim_);
    for (uint64_t place = trim_; place < limit_; ++place) {
      VERBENA_RETURN_IF_ERROR(read_words(place));
      VERBENA_RETURN_IF_ERROR(mend_words(place));
      for (size_t i = 0; i < kept_.size(); ++i) {
        if (state(i, place) == WordState::kFree) continue;
        tail_ = std::max(tail_, place + log_app::word_places(word(i, place)));
      }
    }
    return Status::ok_status();
  }
  // What is behind it, if anything, lies where older entries do, and is a hole once they are gone.
  uint64_t written_end() const { return std::min(tail_, limit_); }

  // Decides what is undecided: what is not committed on all that are left was not acknowledged, and
  // no reader has passed it.
  Status settle() {
    for (uint64_t place = trim_; place < written_end();) {
      VERBENA_RETURN_IF_ERROR(read_words(place));
      bool committed = true;
      for (size_t i = 0; i < kept_.size(); ++i) {
        committed = committed && state(i, place) == WordState::kCommitted;
      }
      if (committed) {
        ++formation_.entries;
        place += std::max(log_app::word_places(word(0, place)), 1u);
        continue;
      }
      ++formation_.skipped;
      const uint64_t skipped = log_app::skipped_word(layout_.lap(place));
      for (size_t i = 0; i < kept_.size(); ++i) {
        if (word(i, place) == skipped) continue;
        VERBENA_RETURN_IF_ERROR(kept_[i]->region->write(kept_[i]->word(place), skipped));
      }
      ++place;
    }
    return Status::ok_status();
  }

  // A blank store may have words that an interrupted formation wrote into it.
  Status free_words(const Replica& store) const {
    const std::vector<char> zeros(kCopyBytes);
    for (uint64_t place = 0; place < layout_.places(); place += kPieceWords) {
      VERBENA_RETURN_IF_ERROR(store.region->write(store.layout().word_at(place),
                                                  std::span(zeros).first(piece_bytes(place))));
    }
    return Status::ok_status();
  }
  // Of the words from a place of the first lap on.
  uint64_t piece_bytes(uint64_t place) const {
    return std::min(layout_.places() - place, kPieceWords) * sizeof(uint64_t);
  }

  // The words, and the entries from the trim on.
  Status fill(const Replica& store) {
    const Replica& source = *kept_.front();
    std::vector<char> words(kCopyBytes);
    for (uint64_t place = 0; place < layout_.places(); place += kPieceWords) {
      const std::span<char> piece = std::span(words).first(piece_bytes(place));
      VERBENA_RETURN_IF_ERROR(source.region->read(source.layout().word_at(place), piece));
      VERBENA_RETURN_IF_ERROR(store.region->write(store.layout().word_at(place), piece));
    }
    words_end_ = words_begin_;  // settle() may have changed them
    for (uint64_t place = trim_; place < written_end();) {
      uint64_t end = place;
      VERBENA_RETURN_IF_ERROR(read_entries(place, &end));
      for (uint64_t at = place; at < end;) {
        const std::span<char> part = part_of_places(place, at, end);
        VERBENA_RETURN_IF_ERROR(store.region->write(store.layout().place_at(at), part));
        at += part.size() / log_app::kPlaceBytes;
      }
      place = end;
    }
    return Status::ok_status();
  }

  // Reads entries from `place` on into places_, as many as fit a copy, and one at least; `*end` is
  // behind them. Each comes from a replica that has it intact, so that damage does not spread.
  Status read_entries(uint64_t place, uint64_t* end) {
    VERBENA_RETURN_IF_ERROR(read_words(place));
    std::vector<std::pair<uint64_t, uint32_t>> entries;  // the first place, and how many
    for (*end = place; *end < std::min(words_end_, written_end());) {
      const bool committed = state(0, *end) == WordState::kCommitted;
      const auto places = static_cast<uint32_t>(std::clamp<uint64_t>(
          committed ? log_app::word_places(word(0, *end)) : 1, 1, written_end() - *end));
      if (*end > place && *end + places - place > kCopyBytes / log_app::kPlaceBytes) break;
      if (committed) entries.emplace_back(*end, places);
      *end += places;
    }
    places_.resize((*end - place) * log_app::kPlaceBytes);
    VERBENA_RETURN_IF_ERROR(read_places(*kept_.front(), place, place, *end));
    for (const auto& [first, places] : entries) {
      const char* const entry = places_.data() + (first - place) * log_app::kPlaceBytes;
      for (size_t i = 1; i < kept_.size() && !log_app::is_intact(entry, first, places); ++i) {
        VERBENA_RETURN_IF_ERROR(read_places(*kept_[i], place, first, first + places));
      }
    }
    return Status::ok_status();
  }
  // Into places_, which begins with `first`.
  Status read_places(const Replica& from, uint64_t first, uint64_t place, uint64_t end) {
    while (place < end) {
      const std::span<char> part = part_of_places(first, place, end);
      VERBENA_RETURN_IF_ERROR(from.region->read(from.layout().place_at(place), part));
      place += part.size() / log_app::kPlaceBytes;
    }
    return Status::ok_status();
  }
  // The same from `place` on, as far as the ring's end.
  std::span<char> part_of_places(uint64_t first, uint64_t place, uint64_t end) {
    const uint64_t count = std::min(end - place, layout_.places() - layout_.ring_place(place));
    return std::span(places_).subspan((place - first) * log_app::kPlaceBytes,
                                      count * log_app::kPlaceBytes);
  }

  // The answer of an atomic tells that the WRITEs before it are there.
  Status prepare(const Replica& store) const {
    const RemotePointer<uint64_t> prepared{.offset_bytes = offsetof(Header, prepared)};
    VERBENA_RETURN_IF_ERROR(store.region->write(prepared, header_.epoch));
    return store.region->compare_and_swap({log_app::kFormingAt}, 1, 1).status();
  }
  Status finish(const Replica& store, uint32_t number) const {
    const RemotePointer<Control> control{.offset_bytes = log_app::kControlAt};
    VERBENA_RETURN_IF_ERROR(store.region->write(
        control, {.tail = tail_, .trim = trim_, .limit = limit_, .forming = 1}));
    Header header = store.header;
    header.state = StoreState::kActive;
    header.log_id = header_.log_id;
    header.epoch = header.prepared = header_.epoch;
    header.replica = number;
    header.replicas = static_cast<uint32_t>(stores_.size());
    VERBENA_RETURN_IF_ERROR(store.region->write(RemotePointer<Header>{.offset_bytes = 0}, header));
    return store.region->compare_and_swap({log_app::kFormingAt}, 1, 0).status();
  }

  std::vector<Replica> stores_;
  Layout layout_;
  std::vector<Replica*> kept_;
  std::vector<std::vector<uint64_t>> words_;  // of those, from words_begin_ to words_end_
  uint64_t words_begin_ = 0;
  uint64_t words_end_ = 0;
  std::vector<char> places_;  // that are copied
  Header header_;             // log_id and epoch
  uint64_t prepared_ = 0;
  uint64_t tail_ = 0;
  uint64_t trim_ = 0;
  uint64_t limit_ = UINT64_MAX;
  LogFormation formation_;
};

}  // namespace

Result<LogFormation> form_log(const Device& device, const ProtectionDomain& domain,
                              std::span<ControlConnection* const> replicas,
                              int64_t handshake_timeout_ns) {
  auto stores = log_app::open_stores(
      device, domain, replicas, log_app::Role::kFormer,
      {.pending = 1, .copy_bytes = kCopyBytes, .handshake_timeout_ns = handshake_timeout_ns});
  VERBENA_RETURN_IF_ERROR(stores.status());
  return Former(std::move(*stores)).form();
}

}  // namespace verbena
