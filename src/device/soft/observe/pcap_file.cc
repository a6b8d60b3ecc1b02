#include "src/device/soft/observe/pcap_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/device/soft/observe/file_writing.h"
#include "src/device/soft/observe/roce_packet.h"

namespace verbena::soft::observe {
namespace {

// The file's header, in the order of bytes of this machine, by which readers know it.
struct PcapHeader {
  uint32_t magic = 0xa1b23c4d;  // times in nanoseconds
  uint16_t major = 2;
  uint16_t minor = 4;
  int32_t zone = 0;
  uint32_t accuracy = 0;
  uint32_t snap_bytes = 0;
  uint32_t link_type = 1;  // Ethernet
};
static_assert(sizeof(PcapHeader) == 24);

struct PcapPacket {
  uint32_t seconds;
  uint32_t nanoseconds;
  uint32_t captured_bytes;
  uint32_t wire_bytes;
};
static_assert(sizeof(PcapPacket) == 16);

template <typename Plain>
void append(std::string& text, const Plain& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

int64_t wall_clock_offset_ns() {
  using std::chrono::nanoseconds;
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<nanoseconds>(wall).count() -
         static_cast<int64_t>(machine_now_ns());
}

}  // namespace

PcapFile::PcapFile(PrivateFile file, uint32_t snap_bytes)
    : file_(std::move(file)),
      snap_bytes_(snap_bytes),
      wall_clock_offset_ns_(wall_clock_offset_ns()) {
  PcapHeader header;
  header.snap_bytes = snap_bytes;
  append(text_, header);
  flush();
}

void PcapFile::add(const PacketRecord& record, const std::byte* bytes) {
  if (failed_) return;
  const uint64_t time_ns = record.time_ns + static_cast<uint64_t>(wall_clock_offset_ns_);
  const uint32_t wire_bytes = record.wire_bytes + kInvariantCrcBytes;
  const uint32_t captured_bytes = record.captured_bytes == record.wire_bytes
                                      ? std::min(wire_bytes, snap_bytes_)
                                      : record.captured_bytes;
  const size_t at = kept_bytes_.size();
  append(kept_bytes_,
         PcapPacket{static_cast<uint32_t>(time_ns / 1'000'000'000),
                    static_cast<uint32_t>(time_ns % 1'000'000'000), captured_bytes, wire_bytes});
  kept_bytes_.append(reinterpret_cast<const char*>(bytes),
                     std::min(record.captured_bytes, captured_bytes));
  if (captured_bytes > record.captured_bytes) {
    const uint32_t crc = invariant_crc(bytes, record.captured_bytes);
    kept_bytes_.append(reinterpret_cast<const char*>(&crc), captured_bytes - record.captured_bytes);
  }
  kept_.push_back({record.time_ns, at, kept_bytes_.size() - at});
}

void PcapFile::flush() {
  if (failed_) return;
  std::stable_sort(kept_.begin(), kept_.end(),
                   [](const Kept& a, const Kept& b) { return a.time_ns < b.time_ns; });
  for (const Kept& packet : kept_) text_.append(kept_bytes_, packet.at, packet.size);
  kept_.clear();
  kept_bytes_.clear();
  if (text_.empty()) return;
  if (!write_at(file_, text_, end_bytes_)) {
    log_warning("soft0: cannot write the packets {}: {}; they end here", file_.path,
                strerror(errno));
    failed_ = true;
  }
  end_bytes_ += text_.size();
  text_.clear();
}

void PcapFile::finish(uint64_t dropped) {
  flush();
  if (dropped != 0) {
    log_warning("soft0: the file {} lacks {} packets, which came faster than they were written",
                file_.path, dropped);
  }
}

}  // namespace verbena::soft::observe
