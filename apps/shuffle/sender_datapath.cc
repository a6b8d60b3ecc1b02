#include <algorithm>
#include <type_traits>

#include "shuffle/sender.h"
#include "verbena/data_path.h"

namespace verbena::shuffle_app {
namespace {

// WRITEs of records for each that tells of them: fewer cost less, more let the receiver wait.
constexpr uint32_t kWritesPerCounter = 8;
// Of a buffer: what is told of, and how far apart credits are asked for, at the latest.
constexpr uint64_t kSharesOfBuffer = 8;
// What one batch may take in the region's queue: records, lengths in two pieces, counter, credit.
constexpr uint32_t kMostOperationsOfBatch = 5;
constexpr uint32_t kSums = 4;

uint64_t size_of(std::string_view record) { return record.size(); }
uint64_t size_of(const LocalSlice& record) { return record.size_bytes; }
std::string_view part_of(std::string_view record, uint64_t from, uint64_t bytes) {
  return record.substr(from, bytes);
}
LocalSlice part_of(const LocalSlice& record, uint64_t from, uint64_t bytes) {
  return {record.memory, record.offset_bytes + from, static_cast<uint32_t>(bytes)};
}

bool is_inside(std::string_view) { return true; }
bool is_inside(const LocalSlice& slice) {
  return slice.memory != nullptr && slice.size_bytes <= slice.memory->length_bytes() &&
         slice.offset_bytes <= slice.memory->length_bytes() - slice.size_bytes;
}

}  // namespace

// --- from the caller ---

Sender::Source Sender::source_of(std::string_view record) {
  return {.data = record.data(), .bytes = record.size()};
}
Sender::Source Sender::source_of(const LocalSlice& record) {
  return {.data = static_cast<const char*>(record.memory->address()) + record.offset_bytes,
          .bytes = record.size_bytes,
          .memory = record.memory,
          .offset_bytes = record.offset_bytes};
}

template <typename Record>
bool Sender::take_at_once(uint32_t partition, const Record& record) {
  if (partition >= open_lanes_ || !is_inside(record)) [[unlikely]]
    return false;
  Lane& lane = lanes_[partition];
  const Source source = source_of(record);
  if (source.bytes < lane.least_bytes || source.bytes > lane.most_bytes || lane.in_part ||
      !lane.batch.takes(source.bytes)) [[unlikely]] {
    return false;
  }
  append(lane, source, false);
  // If there is no room for it yet, the next one tries again.
  if (lane.batch.is_full()) [[unlikely]]
    post_batch(lane);
  return true;
}

template <typename Part>
PostResult Sender::take(uint32_t partition, const Part& part, bool more) {
  const uint64_t bytes = size_of(part);
  Lane* const lane = check(partition, bytes, more);
  if (lane == nullptr) return PostResult::kFailed;
  if (!is_inside(part)) {
    refuse_slice(partition, bytes);
    return PostResult::kFailed;
  }
  if (!lane->batch.takes(bytes) && !begin_batch(*lane, bytes)) {
    ++statistics_.would_block;
    if (check_.due(PeerCheck::kIdle)) check_receivers();
    return status_.ok() ? PostResult::kWouldBlock : PostResult::kFailed;
  }
  append(*lane, source_of(part), more);
  lane->part_bytes = more ? lane->part_bytes + bytes : 0;
  lane->in_part = more;
  if (lane->batch.is_full()) post_batch(*lane);
  return PostResult::kPosted;
}

PostResult Sender::send_part(uint32_t partition, std::string_view part, bool more) {
  if (!more && take_at_once(partition, part)) [[likely]]
    return PostResult::kPosted;
  return take(partition, part, more);
}
PostResult Sender::send_part(uint32_t partition, const LocalSlice& part, bool more) {
  if (!more && take_at_once(partition, part)) [[likely]]
    return PostResult::kPosted;
  return take(partition, part, more);
}

template <typename Record>
Status Sender::put_record(uint32_t partition, const Record& record) {
  const uint64_t bytes = size_of(record);
  if (check_whole(partition, bytes) == nullptr) return error();
  if (!is_inside(record)) {
    refuse_slice(partition, bytes);
    return error();
  }
  const uint64_t most = lanes_[partition].shape.whole_bytes();
  for (uint64_t done = 0;;) {
    const uint64_t part = std::min(bytes - done, most);
    const bool more = done + part < bytes;
    const PostResult result = take(partition, part_of(record, done, part), more);
    if (result == PostResult::kFailed) return error();
    if (result == PostResult::kWouldBlock) {
      // What waits here may be what others wait for.
      if (!flush()) return status_;
      backoff_.idle();
      continue;
    }
    done += part;
    if (!more) break;
  }
  backoff_.progress();
  return Status::ok_status();
}

Status Sender::put(uint32_t partition, std::string_view record) {
  if (take_at_once(partition, record)) [[likely]]
    return Status::ok_status();
  return put_record(partition, record);
}
Status Sender::put(uint32_t partition, const LocalSlice& record) {
  if (take_at_once(partition, record)) [[likely]]
    return Status::ok_status();
  return put_record(partition, record);
}

template <uint32_t kBytes>
size_t Sender::take_each(std::span<const uint32_t> partitions, const char* records,
                         uint32_t bytes) {
  if (kBytes != 0) bytes = kBytes;
  size_t taken = 0;
  for (; taken < partitions.size(); ++taken) {
    if (partitions[taken] >= open_lanes_) [[unlikely]]
      break;
    Lane& lane = lanes_[partitions[taken]];
    Batch& batch = lane.batch;
    if (bytes < lane.least_bytes || bytes > lane.most_bytes || lane.in_part || lane.has_checksum ||
        batch.pieces > 0 || !batch.takes(bytes)) [[unlikely]] {
      break;
    }
    copy_bytes(lane.records + batch.staged_at + batch.bytes, records + taken * bytes, bytes);
    if (batch.lengths != nullptr) batch.lengths[batch.records] = bytes;
    ++batch.records;
    batch.bytes += bytes;
    // If there is no room for it yet, the next one tries again.
    if (batch.is_full()) [[unlikely]]
      post_batch(lane);
  }
  taken_ += taken;
  return taken;
}

Status Sender::put_each(std::span<const uint32_t> partitions, std::string_view records) {
  if (partitions.empty() ? !records.empty() : records.size() % partitions.size() != 0) {
    return refuse_array(partitions.size(), records.size());
  }
  while (!partitions.empty()) {
    const size_t bytes = records.size() / partitions.size();
    const auto take = [&](auto size) {
      return take_each<size>(partitions, records.data(), static_cast<uint32_t>(bytes));
    };
    size_t taken = 0;
    switch (bytes) {
      case 8:
        taken = take(std::integral_constant<uint32_t, 8>());
        break;
      case 16:
        taken = take(std::integral_constant<uint32_t, 16>());
        break;
      case 32:
        taken = take(std::integral_constant<uint32_t, 32>());
        break;
      default:
        // Longer ones than any lane takes at once are left to put().
        if (bytes <= UINT32_MAX) taken = take(std::integral_constant<uint32_t, 0>());
        break;
    }
    if (taken < partitions.size()) {
      // It begins a batch, or has more to be looked at.
      VERBENA_RETURN_IF_ERROR(put(partitions[taken], records.substr(taken * bytes, bytes)));
      ++taken;
    }
    partitions = partitions.subspan(taken);
    records.remove_prefix(taken * bytes);
  }
  return Status::ok_status();
}

Sender::Lane* Sender::check(uint32_t partition, uint64_t bytes, bool more) {
  if (partition >= open_lanes_) [[unlikely]]
    return refuse_partition(partition);
  Lane& lane = lanes_[partition];
  const LaneShape& shape = lane.shape;
  const bool fits = bytes <= shape.whole_bytes() &&
                    lane.part_bytes + bytes <= shape.max_record_bytes &&
                    (!shape.has_lengths() ? bytes == shape.record_bytes : true);
  if (fits && (!more || shape.max_record_bytes > shape.whole_bytes())) [[likely]]
    return &lane;
  return refuse_size(partition, bytes, more);
}

// --- space ---

bool Sender::has_credit(const Lane& lane, uint64_t bytes) const {
  const bool fits = lane.reserved.fits(bytes, lane.shape.buffer_bytes);
  const uint64_t unused = fits ? 0 : lane.shape.buffer_bytes - lane.reserved.offset;
  const uint64_t entries = fits ? 1 : 2;
  return lane.reserved.position + unused + bytes - lane.released.position <=
             lane.shape.buffer_bytes &&
         lane.reserved.entries + entries - lane.released.entries <= lane.shape.max_entries;
}

bool Sender::begin_batch(Lane& lane, uint64_t bytes) {
  if (!post_batch(lane)) return false;
  // Of so many, one at least has asked for a completion.
  if (lane.in_flight_tail - lane.in_flight_head >= kSignalInterval) collect(lane);
  if (!has_credit(lane, bytes)) [[unlikely]] {
    // The receiver has to see what it is to release.
    if (!push(lane) || !ask_for_credit(lane)) return false;
    collect(lane);
    // Where the READ did not ask for a completion, that did.
    if (lane.asks_for_credit) collect(lane);
    if (!status_.ok() || !has_credit(lane, bytes)) return false;
  }
  const LaneShape& shape = lane.shape;
  StreamEnd& begin = lane.reserved;
  if (!begin.fits(bytes, shape.buffer_bytes)) {
    lane.lengths[begin.entries % shape.max_entries] = kSkip;
    begin.skip(shape.buffer_bytes);
  }
  const uint64_t entry = begin.entries % shape.max_entries;
  const uint64_t free_bytes = shape.buffer_bytes - (begin.position - lane.released.position);
  const uint64_t free_entries = shape.max_entries - (begin.entries - lane.released.entries);
  // The rings' beginnings are not behind their ends.
  const uint64_t most_records =
      std::min<uint64_t>({batch_records_, free_entries, shape.max_entries - entry});
  uint64_t most_bytes = std::min({std::max<uint64_t>(options_.batch_bytes, bytes), free_bytes,
                                  shape.buffer_bytes - begin.offset});
  Place place = {begin.offset, most_bytes};
  if (method_ == ShuffleMethod::kSp) {
    if (!shape.has_lengths()) most_bytes = std::min(most_bytes, most_records * shape.record_bytes);
    place = place_for(lane, most_bytes);
    if (place.bytes < bytes) {
      collect(lane);
      place = place_for(lane, most_bytes);
      if (!status_.ok() || place.bytes < bytes) return false;
    }
  }
  lane.batch = {.offset = begin.offset,
                .staged_at = place.offset,
                .most_bytes = place.bytes,
                .most_records = static_cast<uint32_t>(most_records),
                .lengths = shape.has_lengths() ? lane.lengths + entry : nullptr,
                .first = taken_};
  return true;
}

Sender::Place Sender::place_for(const Lane& lane, uint64_t most_bytes) const {
  const uint64_t buffer_bytes = lane.shape.buffer_bytes;
  if (lane.in_flight_head == lane.in_flight_tail) return {0, most_bytes};
  const uint64_t oldest = lane.in_flight[lane.in_flight_head % lane.in_flight.size()].staged_at;
  uint64_t free_end = oldest;
  if (lane.staged_end > oldest) {
    // Whoever begins again has no more than what lies before the oldest WRITE until that completes:
    // enough for all that may be on their way. Where several always are, the whole ring is used.
    const uint64_t flying = lane.in_flight_tail - lane.in_flight_head;
    if (flying < kSignalInterval && oldest >= options_.pending * most_bytes) return {0, most_bytes};
    const uint64_t behind = buffer_bytes - lane.staged_end;
    if (behind < most_bytes && behind < oldest) return {0, std::min(oldest, most_bytes)};
    free_end = buffer_bytes;
  }
  return {lane.staged_end, std::min(free_end - lane.staged_end, most_bytes)};
}

bool Sender::ask_for_credit(Lane& lane) {
  if (lane.asks_for_credit) return true;
  if (lane.region->outstanding() >= lane.region->options().pending) return false;
  if (!posted(lane, lane.region->post_read(lane.layout.released_at(), sizeof(Released), kCredit))) {
    return false;
  }
  ++statistics_.credit_reads;
  lane.asks_for_credit = true;
  lane.asked_at = lane.reserved.position;
  return lane.region->flush();
}

void Sender::take_credit(Lane& lane, const RemoteCompletion& completion) {
  const auto released = completion.value<Released>();
  lane.asks_for_credit = false;
  if (released.entries > lane.announced_entries || released.position > lane.reserved.position ||
      released.entries < lane.released.entries || released.position < lane.released.position)
      [[unlikely]] {
    refuse_credit(lane, released);
    return;
  }
  lane.released = released;
}

// --- batches ---

void Sender::append_piece(Lane& lane, const MemoryRegion* memory, uint64_t offset_bytes,
                          uint32_t size_bytes) {
  Batch& batch = lane.batch;
  LocalSlice& piece = lane.pieces[batch.pieces++];
  piece.memory = memory;
  piece.offset_bytes = offset_bytes;
  piece.size_bytes = size_bytes;
}

void Sender::append(Lane& lane, const Source& source, bool more) {
  const auto size = static_cast<uint32_t>(source.bytes);
  Batch& batch = lane.batch;
  const uint64_t at = batch.staged_at + batch.bytes;
  if (batch.lengths != nullptr) batch.lengths[batch.records] = size | (more ? kMore : 0);
  ++batch.records;
  batch.bytes += size;
  if (more) ++batch.parts;
  ++taken_;
  if (lane.has_checksum) lane.sent.checksum += shuffle_hash({source.data, size});
  if (size == 0) return;
  if (source.memory == nullptr || (method_ == ShuffleMethod::kSp && size <= options_.batch_bytes)) {
    // Records that were copied lie one behind the other.
    if (batch.pieces > 0) append_piece(lane, &*lane.memory, at, size);
    copy_bytes(lane.records + at, source.data, size);
  } else {
    if (batch.pieces == 0 && at > batch.staged_at) {
      append_piece(lane, &*lane.memory, batch.staged_at,
                   static_cast<uint32_t>(at - batch.staged_at));
    }
    append_piece(lane, source.memory, source.offset_bytes, size);
  }
}

bool Sender::posted(Lane& lane, PostResult result) {
  if (result == PostResult::kPosted) [[likely]]
    return true;
  lost(lane);
  return false;
}

bool Sender::can_post(const Lane& lane) const {
  return lane.in_flight_tail - lane.in_flight_head < lane.in_flight.size() &&
         lane.region->outstanding() + kMostOperationsOfBatch <= lane.region->options().pending;
}

bool Sender::post_records(Lane& lane) {
  const Batch& batch = lane.batch;
  if (batch.bytes == 0) return true;
  const uint64_t to = lane.layout.records_at() + batch.offset;
  const LocalSlice copied = {&*lane.memory, batch.staged_at, static_cast<uint32_t>(batch.bytes)};
  const PostResult result =
      batch.pieces <= 1
          ? lane.region->post_write(to, batch.pieces == 0 ? copied : lane.pieces.front(), kWrite)
          : lane.region->post_writev(to, std::span(lane.pieces).first(batch.pieces), kWrite,
                                     VectorMethod::kSgl);
  if (!posted(lane, result)) return false;
  lane.in_flight[lane.in_flight_tail++ % lane.in_flight.size()] = {batch.first, batch.staged_at};
  lane.staged_end = batch.staged_at + batch.bytes;
  ++statistics_.writes;
  return true;
}

bool Sender::post_batch(Lane& lane) {
  const Batch& batch = lane.batch;
  if (batch.records == 0) return true;
  if (!can_post(lane)) {
    collect(lane);
    if (!status_.ok() || !can_post(lane)) return false;
  }
  if (!post_records(lane)) return false;
  lane.reserved.add(batch.records, batch.bytes, lane.shape.buffer_bytes);
  lane.sent.records += batch.records - batch.parts;
  lane.sent.bytes += batch.bytes;
  lane.batch = {};
  lane.written_entries = lane.reserved.entries;
  const uint64_t share_bytes = lane.shape.buffer_bytes / kSharesOfBuffer;
  const uint64_t share_entries = lane.shape.max_entries / kSharesOfBuffer;
  if (++lane.silent_writes >= kWritesPerCounter ||
      lane.reserved.position - lane.announced_position >= share_bytes ||
      lane.written_entries - lane.announced_entries >= share_entries) {
    if (!announce(lane)) return false;
  }
  // Before it runs short: an answer takes a round trip.
  const bool is_half_used =
      lane.reserved.position - lane.released.position > lane.shape.buffer_bytes / 2 ||
      lane.reserved.entries - lane.released.entries > lane.shape.max_entries / 2;
  if (is_half_used && lane.reserved.position - lane.asked_at >= share_bytes) {
    if (!ask_for_credit(lane)) return false;
  }
  return lane.region->flush();
}

bool Sender::post_lengths(Lane& lane, uint64_t entries, uint64_t end) {
  while (entries < end) {
    const uint64_t place = entries % lane.shape.max_entries;
    const uint64_t count = std::min(end - entries, lane.shape.max_entries - place);
    const uint64_t at = place * sizeof(uint32_t);
    const LocalSlice lengths = {&*lane.memory, lane.lengths_at + at,
                                static_cast<uint32_t>(count * sizeof(uint32_t))};
    if (!posted(lane, lane.region->post_write(lane.layout.lengths_at() + at, lengths, kAnnounce))) {
      return false;
    }
    entries += count;
  }
  return true;
}

bool Sender::announce(Lane& lane) {
  if (lane.announced_entries == lane.written_entries) return true;
  if (lane.shape.has_lengths() &&
      !post_lengths(lane, lane.announced_entries, lane.written_entries)) {
    return false;
  }
  const RemotePointer<uint64_t> announced = {lane.layout.announced_at()};
  if (!posted(lane, lane.region->post_write(announced, lane.written_entries, kAnnounce))) {
    return false;
  }
  ++statistics_.counters;
  lane.announced_entries = lane.written_entries;
  lane.announced_position = lane.reserved.position;
  lane.silent_writes = 0;
  return true;
}

bool Sender::push(Lane& lane) {
  if (!post_batch(lane)) return false;
  if (lane.announced_entries == lane.written_entries) return true;
  if (!can_post(lane)) {
    collect(lane);
    if (!status_.ok() || !can_post(lane)) return false;
  }
  return announce(lane) && lane.region->flush();
}

bool Sender::push_and_wait(Lane& lane) {
  while (!push(lane)) {
    if (!status_.ok()) return false;
    collect(lane, /*waits=*/true);
  }
  return true;
}

bool Sender::flush() {
  if (!status_.ok()) return false;
  for (Lane& lane : lanes_) {
    if (!push_and_wait(lane)) return false;
  }
  return true;
}

// --- completions ---

uint32_t Sender::collect(Lane& lane, bool waits) {
  const uint32_t done = waits ? lane.region->wait() : lane.region->collect();
  for (uint32_t i = 0; i < done; ++i) {
    const RemoteCompletion completion = lane.region->take();
    if (completion.token == kWrite) ++lane.in_flight_head;
    if (completion.token == kCredit) take_credit(lane, completion);
  }
  if (!lane.region->status().ok()) [[unlikely]]
    lost(lane);
  return done;
}

uint32_t Sender::poll() {
  uint32_t done = 0;
  for (Lane& lane : lanes_) {
    if (!status_.ok()) return done;
    if (lane.region->outstanding() > 0 && !finished_) done += collect(lane);
  }
  if (check_.due(done > 0 ? PeerCheck::kBusy : PeerCheck::kIdle)) check_receivers();
  return done;
}

uint64_t Sender::completed() const {
  uint64_t least = taken_;
  if (finished_) return least;
  for (const Lane& lane : lanes_) {
    if (lane.in_flight_head < lane.in_flight_tail) {
      least = std::min(least, lane.in_flight[lane.in_flight_head % lane.in_flight.size()].first);
    } else if (lane.batch.records > 0) {
      least = std::min(least, lane.batch.first);
    }
  }
  return least;
}

// --- the end ---

bool Sender::end_lane(Lane& lane) {
  if (!push_and_wait(lane)) return false;
  while (lane.region->outstanding() + kSums > lane.region->options().pending) {
    collect(lane, /*waits=*/true);
    if (!status_.ok()) return false;
  }
  const auto add = [&](uint64_t offset_bytes, uint64_t addend, Order order) {
    return posted(lane, lane.region->post_fetch_and_add({offset_bytes}, addend, kSum, order));
  };
  lane.ended = true;
  return add(offsetof(Sums, records), lane.sent.records, Order::kPosted) &&
         add(offsetof(Sums, bytes), lane.sent.bytes, Order::kPosted) &&
         add(offsetof(Sums, checksum), lane.sent.checksum, Order::kPosted) &&
         // Whoever sees it sees the sums.
         add(offsetof(Sums, ended), 1, Order::kAfterReads) && lane.region->flush();
}

Status Sender::finish() {
  if (!status_.ok() || finished_) return status_;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].in_part) return refuse_end(i);
  }
  for (Lane& lane : lanes_) {
    if (!end_lane(lane)) return status_;
  }
  for (Lane& lane : lanes_) {
    while (lane.region->outstanding() > 0 && !lane.has_left) {
      collect(lane, /*waits=*/true);
      if (!status_.ok()) return status_;
    }
  }
  finished_ = true;
  open_lanes_ = 0;
  end_connections({.finished = 1});
  return Status::ok_status();
}

}  // namespace verbena::shuffle_app
