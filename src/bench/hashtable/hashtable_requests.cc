#include "src/bench/hashtable/hashtable_requests.h"

#include <fmt/format.h>

#include <string_view>

#include "src/bench/run/thread_connection.h"

namespace verbena::bench {

namespace {

// A version says which front-end wrote it: no two write the same one. 0 are the first entries.
constexpr uint32_t kFrontEndShift = 40;
// The token of a search: its slot, and of a scan's which of its keys it is for.
constexpr uint32_t kScanShift = 32;

std::string_view text_of(std::span<const char> bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

HashtableRequests::HashtableRequests(NodeJob& job, uint32_t number)
    : job_(job),
      number_(number),
      point_(job.setup.point),
      settings_(hashtable_settings(point_)),
      reads_percent_(reads_percent(settings_.mix, settings_.reads_percent)),
      changing_kind_(changing_kind(settings_.mix)),
      keys_(settings_.distribution, settings_.keys, front_ends(point_), number,
            job.setup.seed + number),
      text_(settings_.key_bytes),
      random_(job.setup.seed ^ scrambled(number)),
      value_(settings_.value_bytes),
      version_((uint64_t{number} + 1) << kFrontEndShift),
      reading_kind_(reading_kind(settings_.mix)),
      slots_(point_.pending),
      parts_(tables(point_)),
      buffers_(settings_.acknowledgement == kBuffered) {
  stalled_.reserve(point_.pending);
}

Status HashtableRequests::connect() {
  RemoteRegionOptions options = region_options_of(point_);
  options.threads = point_.threads;
  options.handshake_timeout_ns = kSetupTimeoutNs;
  const SocketUse use = socket_use(settings_);
  VERBENA_RETURN_IF_ERROR(run_on_own_socket(point_, use, number_));
  VERBENA_RETURN_IF_ERROR(share_sockets(job_, use, number_));
  for (const uint32_t responding : job_.wiring().requesting[number_].peers) {
    for (uint32_t socket = 0; socket < use.sockets; ++socket) {
      Part& part = parts_[responding * use.sockets + socket];
      VERBENA_ASSIGN_OR_RETURN(part.reached,
                               reach_part(job_, use, number_, responding, socket, options));
      HashtableOptions of_table = options_of(settings_);
      of_table.offset_bytes = part.reached.offset_bytes;
      VERBENA_ASSIGN_OR_RETURN(part.table, Hashtable::open(*part.reached.region, of_table));
    }
  }
  return Status::ok_status();
}

void HashtableRequests::begin(const Phase& phase, bool verify) {
  phase_ = phase;
  verify_ = verify;
  done_ = mismatches_ = 0;
  before_ = counts();
}

Status HashtableRequests::end(Report& report) {
  complete();
  const Counts now = counts();
  report.counters[kDoneOperations] = done_;
  report.counters[kRereads] = now.rereads - before_.rereads;
  report.counters[kLostRaces] = now.lost_races - before_.lost_races;
  report.counters[kWorkRequests] = now.work_requests - before_.work_requests;
  report.counters[kHotHits] = now.hot_hits - before_.hot_hits;
  report.counters[kHotModifications] = now.hot_modifications - before_.hot_modifications;
  report.counters[kHotFlushes] = now.hot_flushes - before_.hot_flushes;
  report.counters[kHotKept] = now.hot_kept - before_.hot_kept;
  if (verify_ && phase_.kind == PhaseKind::kTimed) search_all();
  report.mismatches += mismatches_;
  return status_;
}

// --- operations ---

void HashtableRequests::draw(uint32_t slot) {
  const bool reads = reads_percent_ > random_.below(100);
  slots_[slot].kind = reads ? reading_kind_ : changing_kind_;
  slots_[slot].updates = slots_[slot].kind == HashtableKind::kUpdate;
  if (slots_[slot].kind != HashtableKind::kInsert) slots_[slot].key = keys_.next();
}

PostResult HashtableRequests::try_post(uint32_t slot, uint32_t /*bytes*/) {
  Slot& one = slots_[slot];
  if (!status_.ok()) [[unlikely]]
    return PostResult::kFailed;
  if (one.updates) return post_update(slot);
  one.least_version = verify_ ? own_floor(one.key) : 0;
  if (one.kind == HashtableKind::kScan) return begin_scan(slot);
  PostResult result = PostResult::kPosted;
  if (one.kind == HashtableKind::kInsert) {
    if (keys_.posted_count() == new_keys_each(point_)) [[unlikely]] {
      fail({StatusCode::kLimitExceeded,
            fmt::format("the table has no room for more than {} new keys; raise --new-keys, or "
                        "measure for a shorter --duration",
                        settings_.new_keys)});
      return PostResult::kFailed;
    }
    one.key = keys_.next_new();
    const std::string_view value = text_of(next_value(one.key));
    result = table_of(one.key).post_insert(text_.of(one.key), value, slot);
    if (result == PostResult::kPosted) keys_.posted();
  } else {
    result = table_of(one.key).post_search(text_.of(one.key), slot);
  }
  if (result == PostResult::kFailed) fail(table_of(one.key).error());
  return result;
}

// --- scans: consecutively numbered keys of those with which the table began, at once ---

PostResult HashtableRequests::begin_scan(uint32_t slot) {
  Slot& one = slots_[slot];
  one.scanned = 1 + static_cast<uint32_t>(random_.below(kMostScanned));
  one.posted = 0;
  one.unanswered = one.scanned;
  if (!post_scan(slot)) stalled_.push_back(slot);
  return status_.ok() ? PostResult::kPosted : PostResult::kFailed;
}

bool HashtableRequests::post_scan(uint32_t slot) {
  Slot& one = slots_[slot];
  for (; one.posted < one.scanned; ++one.posted) {
    const uint64_t key = (one.key + one.posted) % settings_.keys;
    const uint64_t token = uint64_t{one.posted} << kScanShift | slot;
    const PostResult result = table_of(key).post_search(text_.of(key), token);
    if (result == PostResult::kWouldBlock) return false;
    if (result == PostResult::kFailed) {
      fail(table_of(key).error());
      return true;
    }
  }
  return true;
}

void HashtableRequests::go_on_with_scans() {
  size_t left = 0;
  for (const uint32_t slot : stalled_) {
    if (!post_scan(slot)) stalled_[left++] = slot;
  }
  stalled_.resize(left);
}

bool HashtableRequests::scan_answered(Slot& slot, const HashtableReply& reply) {
  check(slot, (slot.key + (reply.token >> kScanShift)) % settings_.keys, reply);
  if (--slot.unanswered > 0) return false;
  ++done_;
  return true;
}

PostResult HashtableRequests::post_update(uint32_t slot) {
  const uint64_t key = slots_[slot].key;
  Hashtable& table = table_of(key);
  const PostResult result = table.post_update(text_.of(key), text_of(next_value(key)), slot);
  if (result == PostResult::kFailed) fail(table.error());
  slots_[slot].version = result == PostResult::kPosted ? version_ : 0;
  if (verify_) slots_[slot].floor = pending_floor();
  return result;
}

// --- what a front-end may find of its own updates ---

// Updates of this front-end before this version are answered.
uint64_t HashtableRequests::pending_floor() const {
  uint64_t floor = version_;
  for (const Slot& slot : slots_) {
    if (slot.version != 0) floor = std::min(floor, slot.version);
  }
  return floor;
}

uint64_t HashtableRequests::own_floor(uint64_t key) const {
  const OwnFloor& floor = own_floors_[key % own_floors_.size()];
  return floor.key == key ? floor.version : 0;
}

std::span<const char> HashtableRequests::next_value(uint64_t key) {
  DescribedValue::fill(value_, key, ++version_);
  return value_;
}

bool HashtableRequests::answered(uint32_t slot, const HashtableReply& reply) {
  Slot& one = slots_[slot];
  if (one.kind == HashtableKind::kScan) return scan_answered(one, reply);
  check(one, one.key, reply);
  if (one.kind == HashtableKind::kInsert) keys_.inserted(one.key);
  if (one.kind == HashtableKind::kReadModifyWrite && !one.updates) {
    // The search has just given its place back, so there is room.
    one.updates = true;
    if (post_update(slot) == PostResult::kWouldBlock) [[unlikely]] {
      fail({StatusCode::kInternal, "the hashtable has no room for an update after a search"});
    }
    return false;
  }
  // What is called from now on comes behind this update, and behind all that were answered when it
  // was posted.
  if (verify_ && one.updates) own_floors_[one.key % own_floors_.size()] = {one.key, one.floor};
  one.version = 0;
  ++done_;
  return true;
}

void HashtableRequests::check(const Slot& slot, uint64_t key, const HashtableReply& reply) {
  if (reply.outcome != HashtableOutcome::kDone) [[unlikely]] {
    if (reply.outcome == HashtableOutcome::kFull) return fail(table_of(key).error());
    ++mismatches_;  // a key is gone, or was there before it was inserted
    return;
  }
  const bool was_read = slot.kind == HashtableKind::kSearch || slot.kind == HashtableKind::kScan ||
                        (slot.kind == HashtableKind::kReadModifyWrite && !slot.updates);
  if (!verify_ || !was_read) return;
  if (reply.value.size() != settings_.value_bytes || !DescribedValue::matches(reply.value, key)) {
    ++mismatches_;
    return;
  }
  const uint64_t version = DescribedValue::version(reply.value);
  const bool is_own = version >> kFrontEndShift == uint64_t{number_} + 1;
  if (slot.kind != HashtableKind::kScan && is_own && version < slot.least_version) ++mismatches_;
}

// --- the end of a phase ---

HashtableRequests::Counts HashtableRequests::counts() const {
  Counts sum;
  for (const Part& part : parts_) {
    const HashtableStatistics& table = part.table->statistics();
    const RemoteStatistics& region = part.reached.region->statistics();
    sum.rereads += table.rereads;
    sum.lost_races += table.lost_races;
    sum.work_requests += region.reads + region.writes + region.atomics;
    sum.hot_hits += table.hot_hits;
    sum.hot_modifications += table.hot_modifications;
    sum.hot_flushes += table.hot_flushes;
    sum.hot_kept += table.hot_kept;
  }
  return sum;
}

uint32_t HashtableRequests::pending() const {
  uint32_t sum = 0;
  for (const Part& part : parts_) sum += part.table->pending();
  return sum;
}

void HashtableRequests::drain() {
  Waiter waiter;
  while (pending() > 0 && status_.ok()) {
    poll([](uint32_t, std::span<const char>) {}) > 0 ? waiter.progress() : waiter.idle(due_ns());
  }
}

bool HashtableRequests::complete() {
  drain();
  bool had = false;
  for (const Part& part : parts_) {
    if (part.table->unpublished_since_ns() == UINT64_MAX) continue;
    had = true;
    const Status flushed = part.table->flush();
    if (!flushed.ok()) fail(flushed);
  }
  return had;
}

void HashtableRequests::search_all() {
  const uint32_t front_end_count = front_ends(point_);
  const auto search = [&](uint64_t key) {
    // One by one: slot 0 is free, as all are.
    slots_[0] = Slot();
    slots_[0].key = key;
    if (try_post(0, 0) == PostResult::kPosted) drain();
  };
  for (uint64_t key = number_; key < settings_.keys && status_.ok(); key += front_end_count) {
    search(key);
  }
  for (uint64_t i = 0; i < keys_.inserted_count() && status_.ok(); ++i) search(keys_.new_key(i));
}

}  // namespace verbena::bench
