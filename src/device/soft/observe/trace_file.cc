#include "src/device/soft/observe/trace_file.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "src/base/log.h"
#include "src/device/soft/observe/file_writing.h"
#include "src/device/soft/opcode_text.h"

namespace verbena::soft::observe {
namespace {

constexpr const char* kEnd = "\n]\n";

const char* status_name(uint8_t status) {
  constexpr const char* kNames[] = {
      "SUCCESS",          "LOC_LEN_ERR",       "LOC_QP_OP_ERR",     "LOC_EEC_OP_ERR",
      "LOC_PROT_ERR",     "WR_FLUSH_ERR",      "MW_BIND_ERR",       "BAD_RESP_ERR",
      "LOC_ACCESS_ERR",   "REM_INV_REQ_ERR",   "REM_ACCESS_ERR",    "REM_OP_ERR",
      "RETRY_EXC_ERR",    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",  "REM_INV_RD_REQ_ERR",
      "REM_ABORT_ERR",    "INV_EECN_ERR",      "INV_EEC_STATE_ERR", "FATAL_ERR",
      "RESP_TIMEOUT_ERR", "GENERAL_ERR"};
  if (status == TraceRecord::kUnpolled) return "not polled";
  return status < std::size(kNames) ? kNames[status] : "?";
}

const char* name_of(const TraceRecord& record) {
  if (!record.receive) return opcode_text(static_cast<ibv_wr_opcode>(record.opcode));
  return record.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? "RECV_RDMA_WITH_IMM" : "RECV";
}

}  // namespace

TraceFile::TraceFile(PrivateFile file) : file_(std::move(file)) {
  text_ = fmt::format(
      R"([
{{"ph":"M","pid":{},"tid":0,"name":"process_name","args":{{"name":"soft0"}}}})",
      getpid());
  flush();
}

// In one track slices must lie one behind the other, or within each other: what overlaps takes
// another track.
uint32_t TraceFile::track_of(const TraceRecord& record) {
  std::vector<Lane>& lanes = lanes_[uint64_t{record.qp_number} << 1 | (record.receive ? 1 : 0)];
  const auto free = std::find_if(lanes.begin(), lanes.end(), [&record](const Lane& lane) {
    return lane.end_ns <= record.start_ns;
  });
  if (free != lanes.end()) {
    free->end_ns = record.end_ns;
    return free->track;
  }
  const uint32_t track = ++tracks_;
  const std::string number = lanes.empty() ? "" : fmt::format(" ({})", lanes.size() + 1);
  text_ += fmt::format(
      ",\n"
      R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":)"
      R"("QP {:#08x} {}{}"}}}})",
      getpid(), track, record.qp_number, record.receive ? "receive" : "send", number);
  lanes.push_back({track, record.end_ns});
  return track;
}

void TraceFile::add(const TraceRecord& record) {
  if (failed_) return;
  const uint32_t track = track_of(record);
  const uint64_t duration_ns = record.end_ns - std::min(record.start_ns, record.end_ns);
  text_ += fmt::format(
      ",\n"
      R"({{"ph":"X","pid":{},"tid":{},"ts":{}.{:03},"dur":{}.{:03},"cat":"{}",)"
      R"("name":"{}","args":{{"bytes":{},"wr_id":{},"status":"{}"}}}})",
      getpid(), track, record.start_ns / 1000, record.start_ns % 1000, duration_ns / 1000,
      duration_ns % 1000, record.receive ? "receive" : "send", name_of(record), record.bytes,
      record.wr_id, status_name(record.status));
}

void TraceFile::flush() {
  if (failed_ || text_.empty()) return;
  const size_t added = text_.size();
  text_ += kEnd;
  if (!write_at(file_, text_, end_bytes_)) {
    log_warning("soft0: cannot write the trace {}: {}; it ends here", file_.path, strerror(errno));
    failed_ = true;
  }
  end_bytes_ += added;
  text_.clear();
}

void TraceFile::finish(uint64_t dropped) {
  text_ += fmt::format(
      ",\n"
      R"({{"ph":"M","pid":{},"tid":0,"name":"dropped_events",)"
      R"("args":{{"dropped":{}}}}})",
      getpid(), dropped);
  flush();
  if (dropped != 0) {
    log_warning("soft0: the trace {} lacks {} requests, which came faster than they were written",
                file_.path, dropped);
  }
}

}  // namespace verbena::soft::observe
