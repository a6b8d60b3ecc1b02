// What an application's other side says, and what it leaves in memory that both use: the memory is
// right but for some words, whose checksums are made right again, as a defect of a peer would.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hashtable/layout.h"
#include "hashtable/table_for_test.h"
#include "log/crc32c.h"
#include "log/entry.h"
#include "log/log_for_test.h"
#include "log/replicas.h"
#include "log/store_messages.h"
#include "shuffle/layout.h"
#include "shuffle/peer_messages.h"
#include "shuffle/shuffle_for_test.h"
#include "tests/fuzz/patches.h"
#include "tests/fuzz/targets.h"
#include "verbena/apps/hashtable.h"
#include "verbena/apps/log.h"
#include "verbena/apps/shuffle.h"

namespace verbena::fuzz {
namespace {

const Status kTooShort(StatusCode::kInvalidArgument, "the input is too short");

template <typename T>
Bytes bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}
// False: there are not as many bytes.
template <typename T>
bool read(std::span<const std::byte> input, T* value) {
  if (input.size() < sizeof(T)) return false;
  std::memcpy(value, input.data(), sizeof(T));
  return true;
}
// Touches every byte, so that a view of other memory is noticed.
uint64_t sum_of(std::string_view bytes) {
  uint64_t sum = 0;
  for (const char byte : bytes) sum += static_cast<unsigned char>(byte);
  return sum;
}
// Of what nobody needs to know: the compiler must not leave it out.
volatile uint64_t sink;

// --- hashtable ---

constexpr uint64_t kTableRegionBytes = uint64_t{1} << 24;

Status run_hashtable_header(std::span<const std::byte> input) {
  hashtable::Header header;
  if (!read(input, &header)) return kTooShort;
  header.checksum = hashtable::header_checksum(header);
  const auto layout = hashtable::Layout::of(header, kTableRegionBytes);
  require_readable(layout.status());
  if (!layout.ok()) return layout.status();
  for (const hashtable::NodeSpace* space : {&layout->nodes(), &layout->copies()}) {
    if (space->nodes == 0) continue;
    require(space->node_bytes > 0 && space->length_bytes > 0, "nodes have a size");
    require(space->first_offset_bytes <= kTableRegionBytes &&
                space->nodes <= (kTableRegionBytes - space->first_offset_bytes) / space->node_bytes,
            "nodes are in the region");
    require(space->size_bytes(hashtable::NodePointer(UINT64_MAX)) <= layout->largest_bytes(),
            "no node is longer than the longest");
  }
  return Status::ok_status();
}

constexpr HashtableFormat kSmallTable = {.entries = 16,
                                         .max_key_bytes = 8,
                                         .max_value_bytes = 8,
                                         .max_front_ends = 1,
                                         .hot_blocks = 2,
                                         .hot_block_entries = 2,
                                         .hot_lock_lease_ns = 10'000};

std::vector<Bytes> hashtable_header_seeds() {
  HashtableFormat cold = kSmallTable;
  cold.hot_blocks = 0;
  return {bytes_of(hashtable::Layout::of(cold)->header()),
          bytes_of(hashtable::Layout::of(kSmallTable)->header())};
}

// A table with some entries, of which a few are hot, and a region for front-ends one after the
// other.
class Table {
 public:
  Table() : table_(kSmallTable) {
    hashtable::TableForTest::FrontEnd front_end = table_.open();
    for (uint64_t i = 0; i < 8; ++i) {
      for (uint64_t times = 0; times < 1 + i; ++times) front_end->update(key(i), "value");
    }
    require(front_end->close().ok(), "a right table works");
    image_.assign(table_.memory().begin(), table_.memory().end());
    opened_ = std::make_unique<remote::RegionForTest::Opened>(
        table_.region().open(hashtable_region_options(kSmallTable)));
  }

  static std::string key(uint64_t number) { return "key " + std::to_string(number); }
  std::span<char> memory() { return table_.memory(); }
  RemoteRegion& region() { return **opened_; }
  void restore() { std::memcpy(memory().data(), image_.data(), image_.size()); }
  // Makes the checksum of the node right that has this word, if it can be one.
  void seal(uint64_t word) {
    const hashtable::Layout layout = *hashtable::Layout::of(kSmallTable);
    for (const hashtable::NodeSpace& space : {layout.nodes(), layout.copies()}) {
      const uint64_t at = word * sizeof(uint64_t);
      if (at < space.first_offset_bytes) continue;
      const uint64_t number = (at - space.first_offset_bytes) / space.node_bytes;
      if (number >= space.nodes) continue;
      char* const node = memory().data() + space.first_offset_bytes + number * space.node_bytes;
      hashtable::NodeHeader header;
      std::memcpy(&header, node, sizeof(header));
      if (sizeof(header) + header.payload.bytes() > space.node_bytes) continue;
      hashtable::seal(node, hashtable::NodePointer(header.self),
                      hashtable::NodePointer(header.next), header.payload);
    }
  }

 private:
  hashtable::TableForTest table_;
  std::vector<char> image_;
  std::unique_ptr<remote::RegionForTest::Opened> opened_;
};
Table& table() {
  static Table table;
  return table;
}

Status run_hashtable_memory(std::span<const std::byte> input) {
  table().restore();
  const std::span<char> memory = table().memory();
  for_each_patch(input, memory.size() / sizeof(uint64_t), [&](const Patch& patch) {
    apply_patch(patch, memory);
    table().seal(patch.word);
  });
  auto opened = Hashtable::open(table().region(), hashtable::kSoonHot);
  require_readable(opened.status());
  if (!opened.ok()) return opened.status();
  Hashtable& front_end = **opened;
  for (uint64_t i = 0; i < 10 && front_end.status().ok(); ++i) {
    const std::string key = Table::key(i);
    const HashtableReply reply = front_end.search(key);
    if (reply.outcome == HashtableOutcome::kDone) sink = sum_of(reply.value);
    if (!front_end.status().ok()) break;
    front_end.update(key, "another");
    if (front_end.status().ok()) front_end.insert(key, "third");
    if (front_end.status().ok() && i % 3 == 0) front_end.remove(key);
    require_readable(front_end.error());
  }
  require_readable(front_end.status());
  const Status status = front_end.status();
  return status.ok() ? front_end.close() : status;
}
std::vector<Bytes> hashtable_memory_seeds() {
  table().restore();
  const std::span<const char> memory = table().memory();
  const hashtable::Layout layout = *hashtable::Layout::of(kSmallTable);
  const auto words = [](uint64_t bytes) { return bytes / sizeof(uint64_t); };
  constexpr size_t kSomeNodes = 12;
  return {patches_of(memory, words(hashtable::kNextFresh.offset_bytes),
                     words(layout.nodes().first_offset_bytes - hashtable::kNextFresh.offset_bytes)),
          patches_of(memory, words(layout.nodes().first_offset_bytes),
                     kSomeNodes * words(layout.nodes().node_bytes)),
          patches_of(memory, words(layout.block(0).offset_bytes),
                     words(layout.copies().first_offset_bytes - layout.block(0).offset_bytes) +
                         kSomeNodes * words(layout.copies().node_bytes))};
}

// --- log ---

Status run_log_welcome(std::span<const std::byte> input) {
  log_app::Welcome welcome;
  if (!read(input, &welcome)) return kTooShort;
  const Status status = log_app::check_welcome("the store", welcome);
  require_readable(status);
  return status;
}
std::vector<Bytes> log_welcome_seeds() { return {bytes_of(log_app::Welcome())}; }

constexpr uint64_t kLogRegionBytes = uint64_t{1} << 24;

Status run_log_header(std::span<const std::byte> input) {
  log_app::Header header;
  if (!read(input, &header)) return kTooShort;
  // Else nearly none would be of a log.
  header.magic = log_app::kMagic;
  header.places = uint64_t{1} << (header.places % 64);
  const Status status = log_app::check_header("the store", header, kLogRegionBytes);
  require_readable(status);
  if (!status.ok()) return status;
  require(header.places <= kLogRegionBytes / log_app::kPlaceBytes, "places are in the region");
  return status;
}
std::vector<Bytes> log_header_seeds() {
  return {bytes_of(log_app::Header{.magic = log_app::kMagic,
                                   .version = log_app::kVersion,
                                   .place_bytes = log_app::kPlaceBytes,
                                   .places = 4096,
                                   .writers = 16})};
}

constexpr size_t kSomeLogPlaces = 24;

// A log of a few batches, and a reader that seeks its beginning each time.
class Log {
 public:
  static constexpr uint32_t kBatches = 6;
  static constexpr size_t kPatchedWords = 4096;

  Log() {
    auto writer = log_.writer();
    require_readable(writer.status());
    for (uint32_t i = 0; i < kBatches; ++i) {
      const std::vector<std::string> records(1 + i, std::string(20 * i, 'r'));
      const std::vector<std::string_view> views(records.begin(), records.end());
      test::must((*writer.result)->append(views));
    }
    raw_ = log_.raw();
    reader_ = log_.reader({.chunk_bytes = 4096, .hole_lease_ns = 1});
    image_.resize(kPatchedWords * sizeof(uint64_t));
    test::must(region().read(uint64_t{0}, std::span<char>(image_)));
  }

  RemoteRegion& region() { return *raw_.result->front().region; }
  LogReader& reader() { return *reader_.result->get(); }
  log_app::Opened<std::unique_ptr<LogWriter>> writer() { return log_.writer(); }
  const std::vector<char>& image() const { return image_; }
  log_app::Layout layout() { return raw_.result->front().layout(); }

 private:
  log_app::LogForTest log_{1, {.capacity_bytes = 64 << 10, .max_writers = 2}};
  log_app::Opened<std::vector<log_app::Replica>> raw_;
  log_app::Opened<std::unique_ptr<LogReader>> reader_;
  std::vector<char> image_;
};
Log& log() {
  static Log log;
  return log;
}

// The entry that begins at a place, if it can be one.
void seal_entry(std::span<char> memory, uint64_t at) {
  log_app::EntryHeader header;
  if (at + sizeof(header) > memory.size()) return;
  std::memcpy(&header, memory.data() + at, sizeof(header));
  const uint64_t described = uint64_t{header.records} * sizeof(log_app::RecordHeader);
  if (described > memory.size() - at - sizeof(header)) return;
  header.crc = log_app::crc32c(log_app::crc32c(0, &header, offsetof(log_app::EntryHeader, crc)),
                               memory.data() + at + sizeof(header), described);
  std::memcpy(memory.data() + at, &header, sizeof(header));
}

Status run_log_memory(std::span<const std::byte> input) {
  std::vector<char> memory = log().image();
  for_each_patch(input, Log::kPatchedWords,
                 [&](const Patch& patch) { apply_patch(patch, memory); });
  const log_app::Layout layout = log().layout();
  for (uint64_t place = 0; place < 64; ++place) seal_entry(memory, layout.place_at(place));
  test::must(log().region().write(uint64_t{0}, std::span<const char>(memory)));
  const Status status = [&] {
    LogReader& reader = log().reader();
    VERBENA_RETURN_IF_ERROR(reader.seek(LogStart::kOldest));
    for (int i = 0; i < 8; ++i) {
      const auto records = reader.next();
      VERBENA_RETURN_IF_ERROR(records.status());
      for (const LogRecord& record : *records) sink = sum_of(record.bytes);
    }
    return Status::ok_status();
  }();
  require_readable(status);
  return status;
}
std::vector<Bytes> log_memory_seeds() {
  const log_app::Layout layout = log().layout();
  const auto words = [](uint64_t bytes) { return bytes / sizeof(uint64_t); };
  return {patches_of(log().image(), words(log_app::kControlAt),
                     words(log_app::kFloorsAt - log_app::kControlAt)),
          patches_of(log().image(), words(layout.words_at()), kSomeLogPlaces),
          patches_of(log().image(), words(layout.places_at()),
                     kSomeLogPlaces * words(log_app::kPlaceBytes))};
}

// A writer that opens the log as it is then, and appends two batches.
Status run_log_writer(std::span<const std::byte> input) {
  RemoteRegion& region = log().region();
  std::vector<char> memory = log().image();
  for_each_patch(input, Log::kPatchedWords,
                 [&](const Patch& patch) { apply_patch(patch, memory); });
  test::must(region.write(uint64_t{0}, std::span<const char>(memory)));
  const log_app::Layout layout = log().layout();
  const Status status = [&] {
    auto writer = log().writer();
    VERBENA_RETURN_IF_ERROR(writer.status());
    uint64_t end = 0;
    for (uint32_t i = 0; i < 2; ++i) {
      const auto first = (*writer.result)->append(std::string(70, 'w'));
      VERBENA_RETURN_IF_ERROR(first.status());
      const uint64_t place = *first >> log_app::kRecordBits;
      require(place >= end && place < log_app::kMaxPlace, "positions rise");
      end = place + 2;
      const auto word = region.read(RemotePointer<uint64_t>{layout.word_at(place)});
      require(word.ok() && *word == log_app::committed_word(layout.lap(place), 2),
              "what is acknowledged is committed");
    }
    return Status::ok_status();
  }();
  require_readable(status);
  return status;
}
std::vector<Bytes> log_writer_seeds() {
  const log_app::Layout layout = log().layout();
  const auto words = [](uint64_t bytes) { return bytes / sizeof(uint64_t); };
  return {patches_of(log().image(), words(log_app::kControlAt),
                     words(log_app::kFloorsAt - log_app::kControlAt)),
          patches_of(log().image(), words(layout.words_at()), kSomeLogPlaces)};
}

// --- shuffle ---

Status run_shuffle_welcome(std::span<const std::byte> input) {
  shuffle_app::Welcome welcome;
  if (!read(input, &welcome)) return kTooShort;
  const Status status = shuffle_app::check_welcome("receiver 0", welcome);
  require_readable(status);
  if (!status.ok()) return status;
  const shuffle_app::LaneShape& shape = welcome.shape;
  constexpr uint32_t kLastSender = 4095;
  const shuffle_app::LaneLayout lane(shape, kLastSender);
  require(shape.buffer_bytes > 0 && shape.whole_bytes() > 0 && shape.max_entries > 0,
          "a buffer has room for something");
  require(
      shape.whole_bytes() <= shape.buffer_bytes &&
          (!shape.has_lengths() || shape.lengths_bytes() / sizeof(uint32_t) >= shape.max_entries),
      "entries and lengths fit");
  require(lane.records_at() > lane.released_at() &&
              lane.records_at() + shape.buffer_bytes > lane.records_at(),
          "places do not wrap around");
  return status;
}
std::vector<Bytes> shuffle_welcome_seeds() {
  shuffle_app::Welcome any;
  any.shape = {.max_entries = 1024, .buffer_bytes = 65536, .max_record_bytes = 1 << 20};
  shuffle_app::Welcome same;
  same.shape = {
      .record_bytes = 64, .max_entries = 1024, .buffer_bytes = 65536, .max_record_bytes = 64};
  return {bytes_of(any), bytes_of(same)};
}

constexpr ShuffleReceiverOptions kSmallShuffle = {
    .buffer_bytes = 4096, .max_records = 64, .max_record_bytes = 1 << 20};

// A receiver that has just taken its only sender in, and that sender's way to its memory.
struct Lane {
  shuffle_app::ShuffleForTest shuffle{1, 1, kSmallShuffle};
  std::unique_ptr<ControlConnection> control;
  std::unique_ptr<RemoteRegion> region;

  Lane() {
    const Status accepted = shuffle.while_accepting(0, [this] {
      control = std::make_unique<ControlConnection>(shuffle.connect(shuffle.listener(0)));
      test::must(control->send_value(shuffle_app::kHelloTag, shuffle_app::Hello{.receivers = 1}));
      test::must(control->receive_value<shuffle_app::Welcome>(shuffle_app::kWelcomeTag,
                                                              shuffle_app::kTestTimeoutNs));
      region = test::must(open_region(shuffle.node().device, shuffle.node().domain, *control, {}));
    });
    test::must(accepted);
  }
};
constexpr shuffle_app::LaneShape kSmallShape = {
    .max_entries = 64, .buffer_bytes = 4096, .max_record_bytes = 1 << 20};

// After each patch the receiver takes what there is.
Status run_shuffle_lane(std::span<const std::byte> input) {
  Lane lane;
  ShuffleReceiver& receiver = lane.shuffle.receiver();
  Status status;
  for_each_patch(input, lane.region->size_bytes() / sizeof(uint64_t), [&](const Patch& patch) {
    if (!status.ok()) return;
    test::must(lane.region->write(
        RemotePointer<uint64_t>{.offset_bytes = patch.word * sizeof(uint64_t)}, patch.value));
    const auto span = receiver.next();
    status = span.status();
    if (!span.ok() || span->empty()) return;
    uint64_t bytes = 0;
    span->for_each([&](std::string_view record, bool) {
      sink = sum_of(record);
      bytes += record.size();
    });
    require(bytes == span->bytes().size(), "records are what the span has");
    receiver.release(*span);
  });
  require_readable(status);
  return status;
}
std::vector<Bytes> shuffle_lane_seeds() {
  const shuffle_app::LaneLayout layout(kSmallShape, 0);
  const auto word = [](uint64_t bytes) { return static_cast<uint16_t>(bytes / sizeof(uint64_t)); };
  const auto lengths = [](uint32_t first, uint32_t second) {
    return uint64_t{second} << 32 | first;
  };
  Bytes records;
  add_patch(records, word(layout.lengths_at()), lengths(100, 30));
  add_patch(records, word(layout.announced_at()), 1);
  add_patch(records, word(layout.lengths_at()) + 1, lengths(7, 1000));
  add_patch(records, word(layout.records_at()) + 3, 0x1234);
  add_patch(records, word(layout.announced_at()), 4);
  Bytes parts;
  add_patch(parts, word(layout.lengths_at()), lengths(1024 | shuffle_app::kMore, 1024));
  add_patch(parts, word(layout.announced_at()), 2);
  add_patch(parts, word(layout.lengths_at()) + 1, lengths(1000, shuffle_app::kSkip));
  add_patch(parts, word(layout.lengths_at()) + 2, lengths(500, 0));
  add_patch(parts, word(layout.announced_at()), 6);
  Bytes end;
  add_patch(end, word(layout.announced_at()), 1);  // of no bytes
  add_patch(end, word(offsetof(shuffle_app::Sums, records)), 1);
  add_patch(end, word(offsetof(shuffle_app::Sums, ended)), 1);
  return {records, parts, end};
}

}  // namespace

std::vector<FuzzTarget> application_targets() {
  return {
      {"hashtable_header", run_hashtable_header, hashtable_header_seeds},
      {"hashtable_memory", run_hashtable_memory, hashtable_memory_seeds},
      {"log_welcome", run_log_welcome, log_welcome_seeds},
      {"log_header", run_log_header, log_header_seeds},
      {"log_memory", run_log_memory, log_memory_seeds},
      {"log_writer", run_log_writer, log_writer_seeds, 200},
      {"shuffle_welcome", run_shuffle_welcome, shuffle_welcome_seeds},
      {"shuffle_lane", run_shuffle_lane, shuffle_lane_seeds, 200},
  };
}

}  // namespace verbena::fuzz
